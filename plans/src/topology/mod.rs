//! Topologies: which devices there are, and what lies between them, as data.
//!
//! A [`Topology`] is a number of equal nodes. A node has parts (devices, switches, processors with
//! their memory, network adapters) and connections between them, each of a kind whose bandwidth and
//! latency are stated once. It comes from a [`preset`], from a file's text ([`Topology::parse`], of
//! NCCL [`Topology::parse_nccl`]), or from whoever has looked at a machine; nothing here reads one.
//! A [`Network`] is a topology with ranks on its devices: it knows the links between any two of
//! them. A [`Placement`] is all that algorithms know of this: which ranks share a node.

mod draft;
mod error;
mod file;
mod graph;
mod matrix;
mod nccl;
mod network;
mod placement;
mod preset;
#[cfg(test)]
mod tests;

pub use draft::Draft;
pub use error::TopologyError;
pub use matrix::{Matrix, Relation};
pub use network::{LinkId, LinkView, Network, Reduction, Route, Turn};
pub use placement::Placement;
use preset::reduce_efficiency;
pub use preset::{PRESETS, preset};

use crate::schedule::MAX_CHANNELS;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Equal nodes, joined by a fabric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// What it is called.
    pub name: String,
    /// How many nodes there are.
    #[serde(default = "one")]
    pub nodes: usize,
    /// The kinds of device, by name.
    pub devices: BTreeMap<String, DeviceKind>,
    /// The kinds of link, by name.
    pub links: BTreeMap<String, LinkKind>,
    /// What joins the nodes; needed where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
    /// The parts of a node. The order of its devices is the order of its ranks.
    pub parts: Vec<Part>,
    /// The connections of a node.
    #[serde(default)]
    pub connections: Vec<Connection>,
}

/// What runs a rank's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Processor {
    /// A channel is a thread block; a release waits until earlier writes have been acknowledged.
    Gpu,
    /// A channel is a thread; stores are seen in order, so that a release costs nothing.
    Cpu,
}

/// A kind of device: what the machine's instructions cost on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceKind {
    /// What it is.
    pub processor: Processor,
    /// From the call to the first instruction, and from the last to the caller.
    pub launch_ns: f64,
    /// A wait or a signal; on a GPU, all that follow one another, since threads of a block take
    /// them at once.
    pub instruction_ns: f64,
    /// A reduce-copy, besides moving data.
    #[serde(default)]
    pub move_ns: f64,
    /// Each operand of a reduce-copy besides: to find where it lies, and the header of a message.
    #[serde(default)]
    pub operand_ns: f64,
    /// What one channel reads and writes, together.
    pub channel_gbps: f64,
    /// What one channel folds: bytes of sources behind the first.
    pub reduce_gbps: f64,
    /// What all channels read and write in the device's memory, together.
    pub memory_gbps: f64,
    /// What instructions cost in kernels of one schedule ([`crate::hot`]), where the device has
    /// those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot: Option<HotCosts>,
    /// What NCCL's kernels take on it ([`crate::simulate::nccl()`]), where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nccl: Option<NcclCosts>,
}

/// As the fields of these names in [`DeviceKind`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HotCosts {
    /// From the call to the first instruction, and from the last to the caller.
    pub launch_ns: f64,
    /// A wait or a signal.
    pub instruction_ns: f64,
    /// A reduce-copy, besides moving data.
    pub move_ns: f64,
    /// Each operand of a reduce-copy besides.
    pub operand_ns: f64,
}

/// What NCCL's kernels take, by protocol.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NcclCosts {
    /// Channels of a long call.
    pub channels: usize,
    /// Messages of 4 bytes of data and 4 of flag.
    pub ll: ProtocolCosts,
    /// Messages of 120 bytes of data and 8 of flag.
    pub ll128: ProtocolCosts,
    /// Messages that are announced by a counter.
    pub simple: ProtocolCosts,
    /// A switch that reduces and multicasts.
    pub nvls: ProtocolCosts,
    /// Sends and receives that are announced by a counter.
    pub p2p: ProtocolCosts,
    /// What a rank sends to one rank of another node, if that is less than its adapter carries:
    /// NCCL gives it two of its channels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_gbps: Option<f64>,
    /// A step of a ring of LL or LL128 over several nodes: at each one the proxies of every channel
    /// have a message to post and one to see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring_step_ns: Option<f64>,
}

/// What NCCL's kernels take in one protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProtocolCosts {
    /// From the call to its end, besides steps.
    pub launch_ns: f64,
    /// A step, besides links and data.
    pub step_ns: f64,
    /// A message to another node besides: in place of the fabric's `message_ns`.
    pub message_ns: f64,
    /// What moves while others wait, until the pipeline is full: of long calls.
    pub fill_bytes: f64,
    /// What a channel reads and writes where ranks are on several nodes, if that is less than the
    /// device's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub across_gbps: Option<f64>,
    /// A step where ranks are on several nodes, if that is not `step_ns`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub across_step_ns: Option<f64>,
}

impl DeviceKind {
    /// The same, where NCCL's kernels run; releases wait for acknowledgements or not.
    pub(crate) fn with_protocol(&self, costs: &ProtocolCosts, acknowledged: bool) -> DeviceKind {
        let launch_ns = costs.launch_ns;
        let move_ns = costs.across_step_ns.unwrap_or(costs.step_ns);
        let channel_gbps = costs.across_gbps.unwrap_or(self.channel_gbps);
        let processor = if acknowledged { self.processor } else { Processor::Cpu };
        DeviceKind {
            processor,
            channel_gbps,
            launch_ns,
            instruction_ns: 0.0,
            move_ns,
            operand_ns: 0.0,
            hot: None,
            ..self.clone()
        }
    }

    /// The same, where kernels of one schedule run.
    pub(crate) fn with_hot_costs(&self) -> DeviceKind {
        let Some(HotCosts { launch_ns, instruction_ns, move_ns, operand_ns }) = self.hot else {
            return self.clone();
        };
        DeviceKind { launch_ns, instruction_ns, move_ns, operand_ns, ..self.clone() }
    }
}

/// A kind of link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkKind {
    /// Bandwidth in one direction, as published, in 10^9 bytes a second.
    pub gbps: f64,
    /// The part of it that is left for data, besides headers and acknowledgements.
    #[serde(default = "whole")]
    pub efficiency: f64,
    /// One way.
    pub latency_ns: f64,
}

/// What joins nodes: it adds latency and otherwise carries whatever the adapters send, unless it
/// has a spine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// The kind of link between an adapter and the fabric.
    pub link: String,
    /// What a message costs besides: the proxy that sees and posts it, the adapter's processing.
    pub message_ns: f64,
    /// Whether its switches can reduce and multicast.
    #[serde(default)]
    pub reduces: bool,
    /// What joins its leaf switches; without it they block nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spine: Option<Spine>,
}

/// The upper level of a fabric: what crosses between leaf switches shares their links to it.
/// Messages are taken to be spread over these evenly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spine {
    /// The kind of link between a leaf switch and the spine.
    pub link: String,
    /// So many consecutive nodes share leaf switches.
    pub nodes_per_leaf: usize,
    /// Links of a leaf switch to the spine. There are fewer than its adapters where the spine is
    /// oversubscribed.
    pub uplinks: usize,
    /// Whether each adapter of a node has a leaf switch of its own, with those at its place in the
    /// other nodes: then what stays on a rail stays off the spine.
    #[serde(default)]
    pub rails: bool,
}

/// A part of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its name in the node.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// The kind of a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Whether a switch can reduce and multicast.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reduces: bool,
    /// The part of its links' data rate that is left for what it reduces and multicasts.
    #[serde(default = "whole", skip_serializing_if = "is_whole")]
    pub reduce_efficiency: f64,
}

/// What a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It runs a rank.
    Device,
    /// An NVSwitch or another switch between devices.
    Switch,
    /// A PCIe switch or host bridge.
    Bridge,
    /// A processor with its memory.
    Numa,
    /// A network adapter.
    Nic,
}

/// A connection between two parts of a node: one link in each direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connection {
    /// Its ends.
    pub between: [String; 2],
    /// The kind of its links.
    pub link: String,
    /// How many of them lie side by side.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: usize,
}

impl Topology {
    /// Devices of a node.
    pub fn devices_per_node(&self) -> usize {
        self.parts.iter().filter(|part| part.role == Role::Device).count()
    }

    /// The same nodes, so many of them.
    pub fn with_nodes(self, nodes: usize) -> Topology {
        Topology { nodes, ..self }
    }

    /// Checks that all names lead somewhere and that all figures can be.
    ///
    /// # Errors
    /// The first name or figure that cannot be, and the remedy.
    pub fn check(&self) -> Result<(), TopologyError> {
        self.check_counts()?;
        self.check_kinds()?;
        self.check_parts()?;
        for (at, connection) in self.connections.iter().enumerate() {
            self.check_connection(at, connection)?;
        }
        match &self.fabric {
            Some(fabric) => {
                self.known_link(&fabric.link, || "fabric.link".to_string())?;
                positive_or_zero("fabric.message_ns", fabric.message_ns)?;
                fabric.spine.as_ref().map_or(Ok(()), |spine| self.check_spine(spine))
            }
            None if self.nodes > 1 => Err(TopologyError::wrong(
                "fabric",
                format!("is missing, but there are {} nodes", self.nodes),
                "add a [fabric] with `link` and `message_ns`, or have one node",
            )),
            None => Ok(()),
        }
    }

    fn check_counts(&self) -> Result<(), TopologyError> {
        if self.nodes == 0 {
            return Err(TopologyError::wrong("nodes", "is 0", "have at least 1"));
        }
        if self.devices_per_node() == 0 {
            let remedy = "add a part with role = \"device\"";
            return Err(TopologyError::wrong("parts", "have no device", remedy));
        }
        Ok(())
    }

    fn check_kinds(&self) -> Result<(), TopologyError> {
        for (name, kind) in &self.devices {
            let key = |field: &str| format!("devices.{name}.{field}");
            positive_or_zero(&key("launch_ns"), kind.launch_ns)?;
            positive_or_zero(&key("instruction_ns"), kind.instruction_ns)?;
            positive_or_zero(&key("move_ns"), kind.move_ns)?;
            positive_or_zero(&key("operand_ns"), kind.operand_ns)?;
            if let Some(hot) = &kind.hot {
                positive_or_zero(&key("hot.launch_ns"), hot.launch_ns)?;
                positive_or_zero(&key("hot.instruction_ns"), hot.instruction_ns)?;
                positive_or_zero(&key("hot.move_ns"), hot.move_ns)?;
                positive_or_zero(&key("hot.operand_ns"), hot.operand_ns)?;
            }
            if let Some(costs) = &kind.nccl {
                let NcclCosts { channels, ll, ll128, simple, nvls, p2p, .. } = costs;
                if let Some(gbps) = costs.peer_gbps {
                    positive(&key("nccl.peer_gbps"), gbps)?;
                }
                if let Some(step) = costs.ring_step_ns {
                    positive_or_zero(&key("nccl.ring_step_ns"), step)?;
                }
                if !(1..=MAX_CHANNELS).contains(channels) {
                    let remedy = format!("choose 1 to {MAX_CHANNELS}");
                    let problem = format!("is {channels}");
                    return Err(TopologyError::wrong(key("nccl.channels"), problem, remedy));
                }
                let protocols = [
                    ("ll", ll),
                    ("ll128", ll128),
                    ("simple", simple),
                    ("nvls", nvls),
                    ("p2p", p2p),
                ];
                for (protocol, costs) in protocols {
                    let key = |field: &str| key(&format!("nccl.{protocol}.{field}"));
                    positive_or_zero(&key("launch_ns"), costs.launch_ns)?;
                    positive_or_zero(&key("step_ns"), costs.step_ns)?;
                    positive_or_zero(&key("message_ns"), costs.message_ns)?;
                    positive_or_zero(&key("fill_bytes"), costs.fill_bytes)?;
                    costs.across_gbps.map_or(Ok(()), |gbps| positive(&key("across_gbps"), gbps))?;
                    if let Some(step) = costs.across_step_ns {
                        positive_or_zero(&key("across_step_ns"), step)?;
                    }
                }
            }
            positive(&key("channel_gbps"), kind.channel_gbps)?;
            positive(&key("reduce_gbps"), kind.reduce_gbps)?;
            positive(&key("memory_gbps"), kind.memory_gbps)?;
        }
        for (name, kind) in &self.links {
            positive(&format!("links.{name}.gbps"), kind.gbps)?;
            positive_or_zero(&format!("links.{name}.latency_ns"), kind.latency_ns)?;
            let key = format!("links.{name}.efficiency");
            positive(&key, kind.efficiency)?;
            if kind.efficiency > 1.0 {
                let problem = format!("is {}", kind.efficiency);
                return Err(TopologyError::wrong(key, problem, "choose a number up to 1"));
            }
        }
        Ok(())
    }

    fn check_parts(&self) -> Result<(), TopologyError> {
        for (at, part) in self.parts.iter().enumerate() {
            let key = |field: &str| format!("parts[{at}].{field}");
            if self.parts[..at].iter().any(|other| other.name == part.name) {
                let problem = format!("{:?} is there twice", part.name);
                return Err(TopologyError::wrong(key("name"), problem, "give it another name"));
            }
            positive(&key("reduce_efficiency"), part.reduce_efficiency)?;
            if part.reduce_efficiency > 1.0 {
                let problem = format!("is {}", part.reduce_efficiency);
                let key = key("reduce_efficiency");
                return Err(TopologyError::wrong(key, problem, "choose a number up to 1"));
            }
            match (&part.kind, part.role) {
                (Some(kind), Role::Device) if self.devices.contains_key(kind) => {}
                (Some(kind), Role::Device) => {
                    let known = names(self.devices.keys());
                    return Err(TopologyError::unknown(key("kind"), "device", kind, known));
                }
                (None, Role::Device) => {
                    let remedy = "name one of [devices]";
                    return Err(TopologyError::wrong(key("kind"), "is missing", remedy));
                }
                (Some(_), _) => {
                    let problem = "is given, but only devices have one";
                    return Err(TopologyError::wrong(key("kind"), problem, "leave it away"));
                }
                (None, _) => {}
            }
        }
        Ok(())
    }

    fn check_connection(&self, at: usize, connection: &Connection) -> Result<(), TopologyError> {
        let key = |field: &str| format!("connections[{at}].{field}");
        for end in &connection.between {
            if !self.parts.iter().any(|part| part.name == *end) {
                let known = names(self.parts.iter().map(|part| &part.name));
                return Err(TopologyError::unknown(key("between"), "part", end, known));
            }
        }
        if connection.between[0] == connection.between[1] {
            let problem = format!("joins {:?} to itself", connection.between[0]);
            return Err(TopologyError::wrong(key("between"), problem, "name two parts"));
        }
        if connection.count == 0 {
            return Err(TopologyError::wrong(key("count"), "is 0", "have at least 1"));
        }
        self.known_link(&connection.link, || key("link"))
    }

    fn check_spine(&self, spine: &Spine) -> Result<(), TopologyError> {
        self.known_link(&spine.link, || "fabric.spine.link".to_string())?;
        let counts = [("nodes_per_leaf", spine.nodes_per_leaf), ("uplinks", spine.uplinks)];
        match counts.into_iter().find(|(_, count)| *count == 0) {
            Some((field, _)) => {
                let key = format!("fabric.spine.{field}");
                Err(TopologyError::wrong(key, "is 0", "have at least 1"))
            }
            None => Ok(()),
        }
    }

    fn known_link(&self, kind: &str, key: impl Fn() -> String) -> Result<(), TopologyError> {
        if self.links.contains_key(kind) {
            return Ok(());
        }
        Err(TopologyError::unknown(key(), "link", kind, names(self.links.keys())))
    }
}

impl LinkKind {
    /// Bytes of data per nanosecond.
    pub fn data_gbps(&self) -> f64 {
        self.gbps * self.efficiency
    }
}

fn names<'a>(all: impl Iterator<Item = &'a String>) -> String {
    all.map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn positive(key: &str, value: f64) -> Result<(), TopologyError> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(TopologyError::wrong(key, format!("is {value}"), "choose a number above 0"))
}

fn positive_or_zero(key: &str, value: f64) -> Result<(), TopologyError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(TopologyError::wrong(key, format!("is {value}"), "choose 0 or more"))
}

fn one() -> usize {
    1
}

fn is_one(count: &usize) -> bool {
    *count == 1
}

fn whole() -> f64 {
    1.0
}

fn is_whole(efficiency: &f64) -> bool {
    *efficiency == 1.0
}
