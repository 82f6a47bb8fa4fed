//! A topology while it is put together, part by part: by presets, and by what reads machines.

use super::preset::{nvlink, pcie};
use super::{Connection, DeviceKind, Fabric, LinkKind, Part, Role, Topology, reduce_efficiency};
use std::collections::BTreeMap;

/// The first generation of NVLink whose switches reduce.
const REDUCING_GENERATION: u32 = 4;
/// The one switch that all NVSwitches of a node are taken to be.
const NVSWITCH: &str = "nvswitch";

/// A topology of one node that grows. Kinds may be named before they are there;
/// [`Topology::check`] looks at the whole.
#[derive(Clone, Debug)]
pub struct Draft {
    /// What there is so far.
    pub topology: Topology,
    /// What is not known of it, or was assumed; each once.
    pub notes: Vec<String>,
}

impl Draft {
    /// Nothing yet.
    pub fn new(name: &str) -> Draft {
        let topology = Topology {
            name: name.to_owned(),
            nodes: 1,
            devices: BTreeMap::new(),
            links: BTreeMap::new(),
            fabric: None,
            parts: Vec::new(),
            connections: Vec::new(),
        };
        Draft { topology, notes: Vec::new() }
    }

    /// A kind of devices.
    pub fn device_kind(&mut self, name: &str, kind: DeviceKind) -> &mut Draft {
        self.topology.devices.insert(name.to_owned(), kind);
        self
    }

    /// A kind of links.
    pub fn link_kind(&mut self, name: &str, kind: LinkKind) -> &mut Draft {
        self.topology.links.insert(name.to_owned(), kind);
        self
    }

    /// The kind of a PCI link with so many lanes of so many GT/s; its name.
    pub fn pci_kind(&mut self, transfers: f64, lanes: f64) -> String {
        // Before 8 GT/s ten bits carry eight.
        let coding = if transfers < 8.0 { 8.0 / 10.0 } else { 128.0 / 130.0 };
        let name = format!("pcie-{transfers}x{lanes}");
        self.link_kind(&name, pcie(transfers * lanes * coding / 8.0));
        name
    }

    /// The kind of an NVLink of this generation with so much in one direction; its name.
    pub fn nvlink_kind(&mut self, generation: u32, gbps: f64) -> String {
        let name = format!("nvlink{generation}");
        self.link_kind(&name, nvlink(gbps));
        name
    }

    /// A part that is no device.
    pub fn part(&mut self, name: &str, role: Role) -> &mut Draft {
        self.add(name, role);
        self
    }

    /// A device of a kind.
    pub fn device(&mut self, name: &str, kind: &str) -> &mut Draft {
        self.add(name, Role::Device).kind = Some(kind.to_owned());
        self
    }

    /// The switch between GPUs, added once; its name. From the fourth generation on it reduces.
    pub fn nvswitch(&mut self, generation: u32) -> &'static str {
        if !self.has(NVSWITCH) {
            let part = self.add(NVSWITCH, Role::Switch);
            part.reduces = generation >= REDUCING_GENERATION;
            part.reduce_efficiency = reduce_efficiency(generation);
        }
        NVSWITCH
    }

    /// Whether there is a part of this name.
    pub fn has(&self, name: &str) -> bool {
        self.topology.parts.iter().any(|part| part.name == name)
    }

    /// So many links of a kind between two parts.
    pub fn connect(&mut self, from: &str, to: &str, link: &str, count: usize) -> &mut Draft {
        let (between, link) = ([from.to_owned(), to.to_owned()], link.to_owned());
        self.topology.connections.push(Connection { between, link, count });
        self
    }

    /// What joins adapters of nodes, and what a message over it costs.
    pub fn fabric(&mut self, link: &str, message_ns: f64) -> &mut Draft {
        let link = link.to_owned();
        self.topology.fabric = Some(Fabric { link, message_ns, reduces: false, spine: None });
        self
    }

    /// Notes something, once.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    fn add(&mut self, name: &str, role: Role) -> &mut Part {
        let (name, reduce_efficiency) = (name.to_owned(), 1.0);
        let part = Part { name, role, kind: None, reduces: false, reduce_efficiency };
        self.topology.parts.push(part);
        let last = self.topology.parts.len() - 1;
        &mut self.topology.parts[last]
    }
}
