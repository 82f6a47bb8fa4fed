//! A topology with ranks on its devices: the directed links between any two ranks.
//!
//! Links are numbered node by node, and within a node: both directions of each connection, then both directions between each adapter
//! and the fabric, then each device's memory. All nodes are alike, so a link's number modulo [`Network::links_per_node`] says which it is,
//! and a rotation of the nodes is a rotation of the numbers.

use super::{DeviceKind, Part, Role, Topology, TopologyError};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// A directed link's number.
pub type LinkId = u32;

/// What a link can carry.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkView {
    /// From which part to which, and of which kind.
    pub name: String,
    /// Data in 10^9 bytes a second, without headers.
    pub gbps: f64,
}

/// The way from one rank to another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Route {
    /// The links, in order.
    pub links: Vec<LinkId>,
    /// One way, in nanoseconds, with all that a message costs besides bandwidth.
    pub latency_ns: f64,
    /// Whether somebody else moves the message once it has been signalled: a proxy and an adapter. Otherwise the executor's own loads
    /// and stores cross the links.
    pub posted: bool,
    /// Behind how many of the links there is a switch that reduces and multicasts, and which.
    pub switch: Option<(usize, usize)>,
}

/// Ranks on a topology's devices.
#[derive(Clone, Debug)]
pub struct Network {
    ranks: usize,
    per_node: usize,
    /// Links of one node.
    links: Vec<LinkView>,
    /// Where the memories' numbers begin.
    first_memory: u32,
    devices: Vec<DeviceKind>,
    names: Vec<String>,
    /// From device to device of a node: `from * devices + to`.
    inside: Vec<Path>,
    /// From each device to the fabric, and from it to each device.
    outside: Vec<(Path, Path)>,
    message_ns: f64,
    fabric_reduces: bool,
}

#[derive(Clone, Debug, Default)]
struct Path {
    links: Vec<u32>,
    latency_ns: f64,
    switch: Option<(usize, usize)>,
}

/// Number of the fabric, among switches that reduce.
const FABRIC: usize = usize::MAX;

impl Network {
    /// Puts ranks on devices, `per_node` on each node (all devices, unless fewer are asked for), in order.
    ///
    /// # Errors
    /// A topology that is wrong, too small, or in which two of its devices cannot reach each other.
    pub fn new(
        topology: &Topology,
        ranks: usize,
        per_node: Option<usize>,
    ) -> Result<Network, TopologyError> {
        topology.check()?;
        let devices = topology.devices_per_node();
        let per_node = per_node.unwrap_or(devices).min(ranks.max(1));
        if ranks == 0 || per_node == 0 || per_node > devices || ranks > topology.nodes * per_node {
            return Err(TopologyError::TooManyRanks {
                name: topology.name.clone(),
                ranks,
                nodes: topology.nodes,
                per_node: per_node.min(devices),
            });
        }
        let graph = Graph::new(topology);
        let used: Vec<usize> = graph.of(Role::Device).into_iter().take(per_node).collect();
        let mut inside = Vec::new();
        for &from in &used {
            let reached = graph.paths(from);
            for &to in &used {
                let path = reached[to].clone().ok_or_else(|| graph.no_route(from, to))?;
                inside.push(path);
            }
        }
        let outside = if ranks > per_node {
            graph.ways_out(&used)?
        } else {
            vec![Default::default(); per_node]
        };
        let fabric = topology.fabric.as_ref();
        let kind = |&part: &usize| {
            let kind = topology.parts[part].kind.as_deref().unwrap_or_default();
            topology.devices[kind].clone()
        };
        let all_devices = graph.of(Role::Device).len();
        let links = graph.links();
        Ok(Network {
            ranks,
            per_node,
            first_memory: (links.len() - all_devices) as u32,
            links,
            devices: used.iter().map(kind).collect(),
            names: used.iter().map(|&part| topology.parts[part].name.clone()).collect(),
            inside,
            outside,
            message_ns: fabric.map_or(0.0, |fabric| fabric.message_ns),
            fabric_reduces: fabric.is_some_and(|fabric| fabric.reduces),
        })
    }

    /// How many ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Ranks of a node (the last may have fewer).
    pub fn per_node(&self) -> usize {
        self.per_node
    }

    /// Nodes that have ranks.
    pub fn nodes(&self) -> usize {
        self.ranks.div_ceil(self.per_node)
    }

    /// Links of a node.
    pub fn links_per_node(&self) -> u32 {
        self.links.len() as u32
    }

    /// The link of this number, in whichever node.
    pub fn link(&self, id: LinkId) -> &LinkView {
        &self.links[(id % self.links_per_node()) as usize]
    }

    /// The device under a rank.
    pub fn device(&self, rank: usize) -> &DeviceKind {
        &self.devices[rank % self.per_node]
    }

    /// The name of the device under a rank.
    pub fn device_name(&self, rank: usize) -> String {
        let (node, name) = (rank / self.per_node, &self.names[rank % self.per_node]);
        if self.nodes() == 1 { name.clone() } else { format!("node{node}/{name}") }
    }

    /// A rank's memory.
    pub fn memory(&self, rank: usize) -> LinkId {
        let (node, device) = (rank / self.per_node, rank % self.per_node);
        node as u32 * self.links_per_node() + self.first_memory + device as u32
    }

    /// The way from one rank to another. The memories at its ends are no part of it.
    pub fn route(&self, from: usize, to: usize) -> Route {
        let (from_node, to_node) = (from / self.per_node, to / self.per_node);
        let (from, to) = (from % self.per_node, to % self.per_node);
        let first = |node: usize| node as u32 * self.links_per_node();
        let shifted = |path: &Path, node: usize| -> Vec<LinkId> {
            path.links.iter().map(|link| link + first(node)).collect()
        };
        if from_node == to_node {
            let path = &self.inside[from * self.per_node + to];
            return Route {
                links: shifted(path, from_node),
                latency_ns: path.latency_ns,
                posted: false,
                switch: path.switch,
            };
        }
        let (out, back) = (&self.outside[from].0, &self.outside[to].1);
        let mut links = shifted(out, from_node);
        let split = links.len();
        links.extend(shifted(back, to_node));
        Route {
            links,
            latency_ns: out.latency_ns + back.latency_ns + self.message_ns,
            posted: true,
            switch: self.fabric_reduces.then_some((split, FABRIC)),
        }
    }
}

/// The parts of a node and what joins them.
struct Graph<'a> {
    topology: &'a Topology,
    /// For each part: its neighbours and the links to them, as (neighbour, link, connection).
    neighbours: Vec<Vec<(usize, u32, usize)>>,
}

impl<'a> Graph<'a> {
    fn new(topology: &'a Topology) -> Graph<'a> {
        let index: BTreeMap<&str, usize> =
            topology.parts.iter().enumerate().map(|(at, part)| (part.name.as_str(), at)).collect();
        let mut neighbours = vec![Vec::new(); topology.parts.len()];
        for (at, connection) in topology.connections.iter().enumerate() {
            let [a, b] = [0, 1].map(|end| index[connection.between[end].as_str()]);
            neighbours[a].push((b, 2 * at as u32, at));
            neighbours[b].push((a, 2 * at as u32 + 1, at));
        }
        Graph { topology, neighbours }
    }

    fn part(&self, at: usize) -> &Part {
        &self.topology.parts[at]
    }

    fn of(&self, role: Role) -> Vec<usize> {
        (0..self.topology.parts.len()).filter(|&at| self.part(at).role == role).collect()
    }

    /// All links of a node.
    fn links(&self) -> Vec<LinkView> {
        let topology = self.topology;
        let mut links = Vec::new();
        let mut push = |from: &str, to: &str, kind: &str, gbps: f64| {
            links.push(LinkView { name: format!("{from}>{to} {kind}").trim().to_string(), gbps });
        };
        for connection in &topology.connections {
            let [a, b] = &connection.between;
            let gbps = topology.links[&connection.link].data_gbps() * connection.count as f64;
            push(a, b, &connection.link, gbps);
            push(b, a, &connection.link, gbps);
        }
        for nic in self.of(Role::Nic) {
            let Some(fabric) = &topology.fabric else { break };
            let gbps = topology.links[&fabric.link].data_gbps();
            push(&self.part(nic).name, "fabric", &fabric.link, gbps);
            push("fabric", &self.part(nic).name, &fabric.link, gbps);
        }
        for device in self.of(Role::Device) {
            let part = self.part(device);
            let kind = &topology.devices[part.kind.as_deref().unwrap_or_default()];
            push(&part.name, "memory", "", kind.memory_gbps);
        }
        links
    }

    /// The way from a part to every other that is reached: most bandwidth, then least latency, then fewest links. Devices and adapters
    /// lead nothing through.
    fn paths(&self, from: usize) -> Vec<Option<Path>> {
        let mut best: Vec<Option<Path>> = vec![None; self.topology.parts.len()];
        let mut heap = BinaryHeap::from([Reverse((Cost::default(), from))]);
        let mut done: BTreeMap<usize, Cost> = BTreeMap::from([(from, Cost::default())]);
        best[from] = Some(Path::default());
        while let Some(Reverse((cost, at))) = heap.pop() {
            let leaf = matches!(self.part(at).role, Role::Device | Role::Nic);
            if done[&at] < cost || (leaf && at != from) {
                continue;
            }
            for &(next, link, connection) in &self.neighbours[at] {
                let connection = &self.topology.connections[connection];
                let kind = &self.topology.links[&connection.link];
                let gbps = kind.data_gbps() * connection.count as f64;
                let reached = cost.and(kind.latency_ns, gbps);
                if done.get(&next).is_some_and(|known| *known <= reached) {
                    continue;
                }
                let mut path = best[at].clone().unwrap_or_default();
                path.links.push(link);
                path.latency_ns += kind.latency_ns;
                if self.part(next).reduces {
                    path.switch = Some((path.links.len(), next));
                }
                best[next] = Some(path);
                done.insert(next, reached);
                heap.push(Reverse((reached, next)));
            }
        }
        best
    }

    /// Each device's nearest adapter, the least used of equally near ones, and the ways to and from the fabric through it.
    fn ways_out(&self, devices: &[usize]) -> Result<Vec<(Path, Path)>, TopologyError> {
        let nics = self.of(Role::Nic);
        let kind = self.topology.fabric.as_ref().map(|fabric| &self.topology.links[&fabric.link]);
        let latency_ns = kind.map_or(0.0, |kind| kind.latency_ns);
        let mut users = vec![0; nics.len()];
        let mut ways = Vec::new();
        for &device in devices {
            let reached = self.paths(device);
            let distance = |nic: usize| Some(picoseconds(reached[nics[nic]].as_ref()?.latency_ns));
            let nearest = (0..nics.len())
                .filter_map(|nic| Some((distance(nic)?, users[nic], nic)))
                .min()
                .map(|(_, _, nic)| nic)
                .ok_or_else(|| TopologyError::NoRoute {
                    name: self.topology.name.clone(),
                    from: self.part(device).name.clone(),
                    to: "a network adapter".into(),
                })?;
            users[nearest] += 1;
            let first = 2 * (self.topology.connections.len() + nearest) as u32;
            let mut out = reached[nics[nearest]].clone().unwrap_or_default();
            // A connection's two directions have neighbouring numbers.
            let mut back = Path {
                links: out.links.iter().rev().map(|link| link ^ 1).collect(),
                latency_ns: out.latency_ns + latency_ns,
                switch: None,
            };
            out.switch = None;
            out.latency_ns += latency_ns;
            out.links.push(first);
            back.links.insert(0, first + 1);
            ways.push((out, back));
        }
        Ok(ways)
    }

    fn no_route(&self, from: usize, to: usize) -> TopologyError {
        TopologyError::NoRoute {
            name: self.topology.name.clone(),
            from: self.part(from).name.clone(),
            to: self.part(to).name.clone(),
        }
    }
}

/// How far a way is, to be compared: the inverse of its bandwidth, latency, number of links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    ps_per_gigabyte: u64,
    latency_ps: u64,
    links: u32,
}

impl Cost {
    fn and(self, latency_ns: f64, gbps: f64) -> Cost {
        Cost {
            ps_per_gigabyte: self.ps_per_gigabyte.max((1e12 / gbps) as u64),
            latency_ps: self.latency_ps + picoseconds(latency_ns),
            links: self.links + 1,
        }
    }
}

fn picoseconds(ns: f64) -> u64 {
    (ns * 1e3).round() as u64
}
