//! The parts of a node as a graph: its links, and the ways between parts.

use super::network::{LinkView, Path};
use super::{Part, Role, Topology, TopologyError};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// The parts of a node and what joins them.
pub(super) struct Graph<'a> {
    topology: &'a Topology,
    /// For each part: its neighbours and the links to them, as (neighbour, link, connection).
    neighbours: Vec<Vec<(usize, u32, usize)>>,
}

impl<'a> Graph<'a> {
    pub(super) fn new(topology: &'a Topology) -> Graph<'a> {
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

    pub(super) fn part(&self, at: usize) -> &Part {
        &self.topology.parts[at]
    }

    pub(super) fn of(&self, role: Role) -> Vec<usize> {
        (0..self.topology.parts.len()).filter(|&at| self.part(at).role == role).collect()
    }

    /// All links of a node.
    pub(super) fn links(&self) -> Vec<LinkView> {
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

    /// The way from a part to every other that is reached: a link from device to device, or else
    /// most bandwidth, then least latency, then fewest links. Devices and adapters lead nothing
    /// through.
    pub(super) fn paths(&self, from: usize) -> Vec<Option<Path>> {
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
                let is_direct = [from, next].map(|end| self.part(end).role) == [Role::Device; 2];
                let reached = cost.and(kind.latency_ns, gbps, at != from || !is_direct);
                if done.get(&next).is_some_and(|known| *known <= reached) {
                    continue;
                }
                let mut path = best[at].clone().unwrap_or_default();
                path.links.push(link);
                path.latency_ns += kind.latency_ns;
                if self.part(next).reduces {
                    path.switch = Some((path.links.len(), next));
                    path.switch_efficiency = self.part(next).reduce_efficiency;
                }
                best[next] = Some(path);
                done.insert(next, reached);
                heap.push(Reverse((reached, next)));
            }
        }
        best
    }

    /// Each device's nearest adapter, the least used of equally near ones, and the ways to and from
    /// the fabric through it.
    pub(super) fn ways_out(&self, devices: &[usize]) -> Result<Vec<WayOut>, TopologyError> {
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
                switch_efficiency: 1.0,
            };
            out.switch = None;
            out.latency_ns += latency_ns;
            out.links.push(first);
            back.links.insert(0, first + 1);
            ways.push(WayOut { nic: nearest, out, back });
        }
        Ok(ways)
    }

    pub(super) fn no_route(&self, from: usize, to: usize) -> TopologyError {
        TopologyError::NoRoute {
            name: self.topology.name.clone(),
            from: self.part(from).name.clone(),
            to: self.part(to).name.clone(),
        }
    }
}

/// A device's way to the fabric and back.
#[derive(Clone, Debug, Default)]
pub(super) struct WayOut {
    /// Its adapter.
    pub(super) nic: usize,
    pub(super) out: Path,
    pub(super) back: Path,
}

/// How far a way is, to be compared: whether it leads through other parts, the inverse of its
/// bandwidth, latency, number of links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    through_others: bool,
    ps_per_gigabyte: u64,
    latency_ps: u64,
    links: u32,
}

impl Cost {
    fn and(self, latency_ns: f64, gbps: f64, through_others: bool) -> Cost {
        Cost {
            through_others: self.through_others || through_others,
            ps_per_gigabyte: self.ps_per_gigabyte.max((1e12 / gbps) as u64),
            latency_ps: self.latency_ps + picoseconds(latency_ns),
            links: self.links + 1,
        }
    }
}

fn picoseconds(ns: f64) -> u64 {
    (ns * 1e3).round() as u64
}
