//! A topology with ranks on its devices: the directed links between any two ranks.
//!
//! Nodes that share leaf switches are a **pod**; where the fabric blocks nobody, each node is one.
//! Links are numbered pod by pod, and within a pod node by node: both directions of each
//! connection, then both directions between each adapter and the fabric, then each device's memory;
//! behind the pod's nodes both directions between each of its leaf switches and the spine. All pods
//! are alike, so a link's number modulo [`Network::links_per_pod`] says which it is, and a rotation
//! of the pods is a rotation of the numbers.

mod turn;

use super::graph::{Graph, WayOut};
use super::{DeviceKind, Fabric, NcclCosts, ProtocolCosts, Role, Topology, TopologyError};
use crate::random::Random;
use std::collections::BTreeMap;
pub use turn::Turn;

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
    /// Whether somebody else moves the message once it has been signalled: a proxy and an adapter.
    /// Otherwise the executor's own loads and stores cross the links.
    pub posted: bool,
    /// Behind how many of the links there is a switch that reduces and multicasts, and which.
    pub switch: Option<(usize, usize)>,
    /// The part of its links' data rate that is left for what that switch reduces and multicasts.
    pub switch_efficiency: f64,
}

/// How the fabric's switches reduce what some ranks give them, and give it back to all of these, as
/// one of them sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reduction {
    /// The rank's links to its leaf switch.
    pub up: Vec<LinkId>,
    /// Those from there.
    pub down: Vec<LinkId>,
    /// All ranks' links between leaf switches and the spine, each crossed once.
    pub between: Vec<LinkId>,
    /// From the rank that is farthest to the rank that is farthest, as of a message.
    pub latency_ns: f64,
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
    outside: Vec<WayOut>,
    message_ns: f64,
    fabric_reduces: bool,
    pod: Pod,
}

/// Nodes that share leaf switches, and what joins these to the spine.
#[derive(Clone, Debug)]
struct Pod {
    nodes: usize,
    /// Both directions for each leaf switch; none where the fabric blocks nobody.
    uplinks: Vec<LinkView>,
    /// Links of each leaf switch's that are told apart: one where what leaves it is spread evenly.
    width: usize,
    /// Seed of the choice among them.
    seed: u64,
    /// Whether each adapter of a node has a leaf switch of its own.
    rails: bool,
    /// From leaf to leaf, over the spine.
    latency_ns: f64,
}

/// A way inside of a node, or between a device and the fabric.
#[derive(Clone, Debug, Default)]
pub(super) struct Path {
    pub(super) links: Vec<u32>,
    pub(super) latency_ns: f64,
    pub(super) switch: Option<(usize, usize)>,
    pub(super) switch_efficiency: f64,
}

/// Number of the spine, among switches that reduce; below it those of the leaf switches.
const SPINE: usize = usize::MAX;

impl Network {
    /// Puts ranks on devices, `per_node` on each node (all devices, unless fewer are asked for), in
    /// order.
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
            vec![WayOut::default(); per_node]
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
            pod: Pod::new(topology, fabric),
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

    /// Whether all ranks are joined by links that carry lines of LL128 whole: no other link does
    /// than NVLink.
    pub fn carries_lines(&self) -> bool {
        let farthest = self.route(0, self.ranks() - 1);
        let mut crossed = farthest.links.iter().map(|link| &self.link(*link).name);
        self.nodes() == 1 && crossed.all(|name| name.ends_with(" nvlink"))
    }

    /// How many consecutive ranks, those of a node, a switch joins that reduces and multicasts for
    /// them; none where there is no such switch.
    pub fn switched(&self) -> Option<usize> {
        let reduces = self.per_node > 1 && self.route(0, self.per_node - 1).switch.is_some();
        reduces.then_some(self.per_node)
    }

    /// Whether each rank of a node has a link of its own to each other.
    pub fn is_meshed(&self) -> bool {
        self.per_node > 1 && (1..self.per_node).all(|peer| self.inside[peer].links.len() == 1)
    }

    /// Whether the switches between nodes reduce and multicast.
    pub fn fabric_reduces(&self) -> bool {
        self.fabric_reduces && self.nodes() > 1
    }

    /// How they reduce for these ranks, seen from one; none where they do not.
    pub fn reduction(
        &self,
        rank: usize,
        ranks: impl IntoIterator<Item = usize>,
    ) -> Option<Reduction> {
        if !self.fabric_reduces() {
            return None;
        }
        let way = |rank: usize| (rank / self.per_node, &self.outside[rank % self.per_node]);
        let (node, own) = way(rank);
        let (up, down) = (self.shifted(&own.out, node), self.shifted(&own.back, node));
        let (mut out_ns, mut back_ns, mut leaves) = (0.0_f64, 0.0_f64, BTreeMap::new());
        for (node, way) in ranks.into_iter().map(way) {
            out_ns = out_ns.max(way.out.latency_ns);
            back_ns = back_ns.max(way.back.latency_ns);
            let adapter = self.first_link(node) + way.nic as u32;
            leaves.entry(self.leaf(node, way.nic)).or_insert(adapter);
        }
        let next = leaves.iter().cycle().skip(1);
        let between: Vec<LinkId> = { leaves.iter().zip(next) }
            .filter_map(|(from, to)| self.over_spine((*from.0, *to.0), (*from.1, *to.1)))
            .flat_map(|(up, down)| [up, down])
            .collect();
        let spine_ns = if between.is_empty() { 0.0 } else { self.pod.latency_ns };
        let latency_ns = out_ns + back_ns + self.message_ns + spine_ns;
        Some(Reduction { up, down, between, latency_ns })
    }

    /// Nodes that share leaf switches.
    pub fn nodes_per_pod(&self) -> usize {
        self.pod.nodes
    }

    /// Links of a pod: those of its nodes, and those to the spine.
    pub fn links_per_pod(&self) -> u32 {
        (self.pod.nodes * self.links.len() + self.pod.uplinks.len()) as u32
    }

    /// The link of this number, in whichever node or pod.
    pub fn link(&self, id: LinkId) -> &LinkView {
        let at = (id % self.links_per_pod()) as usize;
        match at.checked_sub(self.pod.nodes * self.links.len()) {
            Some(uplink) => &self.pod.uplinks[uplink],
            None => &self.links[at % self.links.len()],
        }
    }

    /// A link's name, with its node's or its pod's where there are several.
    pub fn link_name(&self, id: LinkId) -> String {
        let name = &self.link(id).name;
        let (pod, at) = (id / self.links_per_pod(), (id % self.links_per_pod()) as usize);
        let node = at / self.links.len();
        if self.nodes() == 1 {
            name.clone()
        } else if node < self.pod.nodes {
            format!("node{}/{name}", pod as usize * self.pod.nodes + node)
        } else {
            format!("pod{pod}/{name}")
        }
    }

    /// The same where what two adapters exchange stays on one of a leaf switch's links to the
    /// spine, and on one from it, as the hash of an equal-cost multi-path (ECMP) falls, instead of
    /// being spread over all. `uplinks` is how many each has.
    pub fn with_collisions(&self, uplinks: usize, seed: u64) -> Network {
        let mut network = self.clone();
        let each = |link: &LinkView| {
            let (name, kind) = link.name.rsplit_once(' ').unwrap_or((&link.name, ""));
            let (name, gbps) = (name.to_owned(), link.gbps / uplinks as f64);
            let kind = kind.to_owned();
            (0..uplinks).map(move |at| LinkView { name: format!("{name}.{at} {kind}"), gbps })
        };
        let pairs = self.pod.uplinks.chunks(2);
        // Both directions of each.
        network.pod.uplinks = pairs
            .flat_map(|pair| each(&pair[0]).zip(each(&pair[1])))
            .flat_map(|(up, down)| [up, down])
            .collect();
        (network.pod.width, network.pod.seed) = (uplinks, seed);
        network
    }

    /// The same where others take this part of what the fabric's links carry.
    pub fn with_load(&self, part: f64) -> Network {
        let mut network = self.clone();
        // "nic0>fabric ib", as the graph names them.
        let fabric = |link: &&mut LinkView| {
            link.name.starts_with("fabric>") || link.name.contains(">fabric ")
        };
        let adapters = network.links.iter_mut().filter(fabric);
        adapters.chain(&mut network.pod.uplinks).for_each(|link| link.gbps *= 1.0 - part);
        network
    }

    /// The same where kernels of one schedule run.
    pub(crate) fn with_hot_costs(&self) -> Network {
        let devices = self.devices.iter().map(DeviceKind::with_hot_costs).collect();
        Network { devices, ..self.clone() }
    }

    /// The same where NCCL's kernels run, with messages of which so much is data. Where that is
    /// less than all of them the rest are flags, and no release waits for acknowledgements.
    pub(crate) fn with_protocol(
        &self,
        costs: impl Fn(&NcclCosts) -> ProtocolCosts,
        data: f64,
    ) -> Option<Network> {
        let costs_of = |device: &DeviceKind| {
            let costs = costs(device.nccl.as_ref()?);
            let across_gbps = costs.across_gbps.filter(|_| self.nodes() > 1);
            let across_step_ns = costs.across_step_ns.filter(|_| self.nodes() > 1);
            Some(ProtocolCosts { across_gbps, across_step_ns, ..costs })
        };
        let message_ns = costs_of(self.devices.first()?)?.message_ns;
        let devices: Option<Vec<DeviceKind>> = self
            .devices
            .iter()
            .map(|device| Some(device.with_protocol(&costs_of(device)?, data == 1.0)))
            .collect();
        let mut network = Network { devices: devices?, message_ns, ..self.clone() };
        let links = network.links[..self.first_memory as usize].iter_mut();
        links.chain(&mut network.pod.uplinks).for_each(|link| link.gbps *= data);
        Some(network)
    }

    /// What is known of NCCL on the first rank's device.
    pub fn nccl_costs(&self) -> Option<&NcclCosts> {
        self.devices.first()?.nccl.as_ref()
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
        self.first_link(node) + self.first_memory + device as u32
    }

    /// The way from one rank to another. The memories at its ends are no part of it.
    pub fn route(&self, from: usize, to: usize) -> Route {
        let (from_node, to_node) = (from / self.per_node, to / self.per_node);
        let (from, to) = (from % self.per_node, to % self.per_node);
        if from_node == to_node {
            let path = &self.inside[from * self.per_node + to];
            return Route {
                links: self.shifted(path, from_node),
                latency_ns: path.latency_ns,
                posted: false,
                switch: path.switch,
                switch_efficiency: path.switch_efficiency,
            };
        }
        let (from, to) = (&self.outside[from], &self.outside[to]);
        let leaves = (self.leaf(from_node, from.nic), self.leaf(to_node, to.nic));
        let mut links = self.shifted(&from.out, from_node);
        let mut latency_ns = from.out.latency_ns + to.back.latency_ns + self.message_ns;
        let mut switch = (links.len(), SPINE - 1 - leaves.0);
        let flow = (
            self.first_link(from_node) + from.nic as u32,
            self.first_link(to_node) + to.nic as u32,
        );
        if let Some((up, down)) = self.over_spine(leaves, flow) {
            links.push(up);
            switch = (links.len(), SPINE);
            links.push(down);
            latency_ns += self.pod.latency_ns;
        }
        links.extend(self.shifted(&to.back, to_node));
        let switch = self.fabric_reduces.then_some(switch);
        Route { links, latency_ns, posted: true, switch, switch_efficiency: 1.0 }
    }

    /// The links of a path, of a node.
    fn shifted(&self, path: &Path, node: usize) -> Vec<LinkId> {
        path.links.iter().map(|link| link + self.first_link(node)).collect()
    }

    fn first_link(&self, node: usize) -> LinkId {
        let (pod, node) = (node / self.pod.nodes, node % self.pod.nodes);
        pod as u32 * self.links_per_pod() + (node * self.links.len()) as u32
    }

    /// The leaf switch of a node's adapter; all that is in between where the fabric blocks nobody.
    fn leaf(&self, node: usize, nic: usize) -> usize {
        let leaves = self.pod.leaves();
        if leaves == 0 { 0 } else { node / self.pod.nodes * leaves + self.pod.leaf(nic) }
    }

    /// The links from a leaf switch to the spine and from there to another.
    fn over_spine(
        &self,
        (from, to): (usize, usize),
        flow: (LinkId, LinkId),
    ) -> Option<(LinkId, LinkId)> {
        let (leaves, width) = (self.pod.leaves(), self.pod.width);
        let first = |leaf: usize, way: u64| {
            let pod = (leaf / leaves) as u32;
            let nodes = (self.pod.nodes * self.links.len()) as u32;
            let choice = leaf % leaves * width + self.pod.choice(flow, way);
            pod * self.links_per_pod() + nodes + 2 * choice as u32
        };
        (from != to).then(|| (first(from, 0), first(to, 1) + 1))
    }
}

impl Pod {
    fn new(topology: &Topology, fabric: Option<&Fabric>) -> Pod {
        let Some(spine) = fabric.and_then(|fabric| fabric.spine.as_ref()) else {
            let (uplinks, latency_ns) = (Vec::new(), 0.0);
            return Pod { nodes: 1, uplinks, width: 1, seed: 0, rails: false, latency_ns };
        };
        let adapters = topology.parts.iter().filter(|part| part.role == Role::Nic).count();
        let kind = &topology.links[&spine.link];
        let gbps = kind.data_gbps() * spine.uplinks as f64;
        let uplink = |from: String, to: String| LinkView {
            name: format!("{from}>{to} {}", spine.link),
            gbps,
        };
        let leaves = if spine.rails { adapters } else { 1 };
        let both = |leaf: usize| {
            let (leaf, spine) = (format!("leaf{leaf}"), "spine".to_owned());
            [uplink(leaf.clone(), spine.clone()), uplink(spine, leaf)]
        };
        Pod {
            nodes: spine.nodes_per_leaf,
            uplinks: (0..leaves).flat_map(both).collect(),
            width: 1,
            seed: 0,
            rails: spine.rails,
            latency_ns: 2.0 * kind.latency_ns,
        }
    }

    /// Leaf switches.
    fn leaves(&self) -> usize {
        self.uplinks.len() / 2 / self.width
    }

    /// Which of a leaf switch's links what two adapters exchange takes: up, and down.
    fn choice(&self, (from, to): (LinkId, LinkId), way: u64) -> usize {
        if self.width == 1 {
            return 0;
        }
        let flow = u64::from(from) << 32 | u64::from(to);
        Random::new(self.seed ^ flow.wrapping_mul(2).wrapping_add(way)).below(self.width)
    }

    /// The leaf switch of an adapter, within the pod.
    fn leaf(&self, nic: usize) -> usize {
        if self.rails { nic } else { 0 }
    }
}
