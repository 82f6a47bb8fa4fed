//! Topologies as NCCL describes a machine: the XML that it writes where `NCCL_TOPO_DUMP_FILE` names
//! a file, and that it reads where `NCCL_TOPO_FILE` does.
//!
//! A `system` has processors (`cpu`), on which PCI functions hang (`pci`), some of them behind
//! others; a function is a bridge, a GPU (`gpu`) or an adapter (`nic` with its `net`s). Its links
//! have a speed and a width. A GPU has its architecture (`sm`), its `nvlink`s to other GPUs or to
//! switches, by the address or the class of the other end, and its `c2c` to the processor.
//!
//! What the file does not say comes from the presets, and is noted: what instructions cost, what
//! NVLink carries, and what joins processors.

use super::draft::Draft;
use super::preset::{a100, b200, h100, hdr, upi};
use super::{DeviceKind, LinkKind, Role, Topology, TopologyError};
use roxmltree::{Document, Node};
use std::collections::BTreeMap;

/// Classes of PCI functions, as they begin.
const SWITCH: &str = "0x0680";
const DISPLAY: &str = "0x03";
const INFINIBAND: &str = "0x0207";
const ETHERNET: &str = "0x0200";

/// A packet of 4,096 bytes over Ethernet has headers, checksums and gaps of 98.
const ROCE_EFFICIENCY: f64 = 4096.0 / 4194.0;
/// A frame of TCP.
const TCP_EFFICIENCY: f64 = 1448.0 / 1538.0;

/// A GPU's figures, by its architecture.
struct Figures {
    kind: DeviceKind,
    /// NVLink's generation, and what one link carries in one direction.
    generation: u32,
    link_gbps: f64,
}

impl Figures {
    /// None for architectures whose figures are not known here. Links: NVIDIA's data sheets (on
    /// RTX A6000 and A10-like GPUs 112.5 GB/s over four links both ways).
    fn of(sm: u32) -> Option<Figures> {
        let (kind, generation, link_gbps) = match sm {
            80 => (a100(2039.0), 3, 25.0),
            86 => (a100(768.0), 3, 14.0625),
            90 => (h100(3350.0), 4, 25.0),
            100 | 103 => (b200(), 5, 50.0),
            _ => return None,
        };
        Some(Figures { kind, generation, link_gbps })
    }
}

impl Topology {
    /// Reads what NCCL has written of a machine, as one node; also what there is to know of that.
    /// `source_name` is named in errors: the file's path.
    ///
    /// # Errors
    /// Text that is no such XML, GPUs whose figures are not known, links that lead nowhere: with
    /// the line.
    pub fn parse_nccl(
        text: &str,
        source_name: &str,
    ) -> Result<(Topology, Vec<String>), TopologyError> {
        let wrong =
            |detail: String| TopologyError::Text { source_name: source_name.to_string(), detail };
        let document = crate::xml::document(text)
            .map_err(|(line, fault)| wrong(format!("line {line}: {fault}")))?;
        let mut reader = Reader::new(&document, source_name);
        reader.system(document.root_element()).map_err(wrong)?;
        let Draft { topology, notes } = reader.draft;
        topology.check().map_err(|error| error.of(source_name))?;
        Ok((topology, notes))
    }
}

struct Gpu<'a> {
    node: Node<'a, 'a>,
    address: String,
    /// What it hangs on, and by which link.
    upstream: (String, String),
    numa: String,
    sm: u32,
    place: usize,
}

struct Adapter {
    name: String,
    upstream: (String, String),
    gbps: f64,
    efficiency: f64,
    latency_ns: f64,
    /// Whether a thread of the host drives it, by a socket.
    has_socket: bool,
}

struct Reader<'a> {
    document: &'a Document<'a>,
    draft: Draft,
    gpus: Vec<Gpu<'a>>,
    adapters: Vec<Adapter>,
}

type Read<T> = Result<T, String>;

impl<'a> Reader<'a> {
    fn new(document: &'a Document<'a>, source_name: &str) -> Reader<'a> {
        let draft = Draft::new(source_name);
        Reader { document, draft, gpus: Vec::new(), adapters: Vec::new() }
    }

    fn at(&self, node: Node<'_, '_>, what: impl std::fmt::Display) -> String {
        let line = self.document.text_pos_at(node.range().start).row;
        format!("line {line}: <{}> {what}", node.tag_name().name())
    }

    fn needed<'n>(&self, node: Node<'n, '_>, name: &str) -> Read<&'n str> {
        node.attribute(name).ok_or_else(|| self.at(node, format!("has no {name}")))
    }

    fn number<T: std::str::FromStr>(&self, node: Node<'_, '_>, name: &str) -> Read<T> {
        let text = self.needed(node, name)?;
        text.parse().map_err(|_| self.at(node, format!("has {name}={text:?}, which is no number")))
    }

    fn system(&mut self, system: Node<'a, 'a>) -> Read<()> {
        if system.tag_name().name() != "system" {
            return Err(self.at(system, "is not what NCCL writes, which begins with <system>"));
        }
        let cpus: Vec<Node> = elements(system, "cpu").collect();
        if cpus.is_empty() {
            return Err(self.at(system, "has no <cpu>, on which GPUs and adapters hang"));
        }
        let hosts: Vec<&str> = cpus.iter().map(|cpu| host(*cpu)).collect();
        let several = hosts.iter().any(|host| *host != hosts[0]);
        let mut names = Vec::new();
        for (at, cpu) in cpus.iter().enumerate() {
            let id = cpu.attribute("numaid").unwrap_or("0");
            let numa = match several {
                true => {
                    let host = hosts.iter().position(|host| *host == hosts[at]).unwrap_or(0);
                    format!("numa{host}-{id}")
                }
                false => format!("numa{id}"),
            };
            if names.contains(&numa) {
                return Err(self.at(*cpu, format!("has numaid={id:?}, as another has")));
            }
            self.draft.part(&numa, Role::Numa);
            names.push(numa);
        }
        if several {
            self.draft.note("GPUs of several hosts are taken for one node: NVLink joins them");
        }
        self.processors(&cpus, &names);
        for (cpu, numa) in cpus.iter().zip(&names) {
            self.functions(*cpu, numa, numa)?;
        }
        self.devices()?;
        self.fabric();
        Ok(())
    }

    /// Of one host, each processor with each.
    fn processors(&mut self, cpus: &[Node<'a, 'a>], names: &[String]) {
        for (at, first) in cpus.iter().enumerate() {
            for (second, name) in cpus.iter().zip(names).skip(at + 1) {
                if host(*first) == host(*second) {
                    self.draft.link_kind("socket", upi());
                    self.draft.connect(&names[at], name, "socket", 1);
                    self.draft.note(
                        "processors are taken to be joined as in the preset dgx-h100: the file does not say",
                    );
                }
            }
        }
    }

    /// What hangs on a processor or on a bridge.
    fn functions(&mut self, parent: Node<'a, 'a>, on: &str, numa: &str) -> Read<()> {
        for nic in elements(parent, "nic") {
            let link = self.pci_link(None)?;
            self.adapter(nic, (on.to_owned(), link), None)?;
        }
        for function in elements(parent, "pci") {
            let address = self.needed(function, "busid")?.to_lowercase();
            let class = function.attribute("class").unwrap_or("");
            let link = self.pci_link(Some(function))?;
            let upstream = (on.to_owned(), link);
            if let Some(node) = elements(function, "gpu").next() {
                let sm = self.number(node, "sm")?;
                let place = match node.attribute("rank") {
                    Some(_) => self.number(node, "rank")?,
                    None => self.number(node, "dev")?,
                };
                self.gpus.push(Gpu { node, address, upstream, numa: numa.to_owned(), sm, place });
            } else if let Some(nic) = elements(function, "nic").next() {
                self.adapter(nic, upstream, Some(class))?;
            } else if elements(function, "pci").next().is_some() {
                let bridge = format!("pci-{address}");
                self.draft.part(&bridge, Role::Bridge);
                self.draft.connect(&bridge, on, &upstream.1, 1);
                self.functions(function, &bridge, numa)?;
            } else if class.starts_with(DISPLAY) {
                return Err(self.at(
                    function,
                    "has no <gpu> with its sm: a file that a run of NCCL has written (NCCL_TOPO_DUMP_FILE) has one",
                ));
            }
        }
        Ok(())
    }

    /// The kind of a PCI link; of what says nothing, as NCCL takes it.
    fn pci_link(&mut self, function: Option<Node<'_, '_>>) -> Read<String> {
        let attribute = |name: &str| {
            let text = function.and_then(|function| function.attribute(name));
            text.and_then(|text| text.split(' ').next()?.parse::<f64>().ok())
        };
        let speed = attribute("link_speed").filter(|speed| *speed > 0.0);
        let width = attribute("link_width").filter(|width| *width > 0.0);
        if speed.is_none() || width.is_none() {
            self.draft.note(
                "PCI links without a speed or a width are taken to have 16 lanes of 8 GT/s, as NCCL takes them",
            );
        }
        let (speed, width) = (speed.unwrap_or(8.0), width.unwrap_or(16.0));
        Ok(self.draft.pci_kind(speed, width))
    }

    fn adapter(
        &mut self,
        nic: Node<'a, 'a>,
        upstream: (String, String),
        class: Option<&str>,
    ) -> Read<()> {
        for net in elements(nic, "net") {
            let name = self.needed(net, "name")?.to_owned();
            // Ports of an adapter have one name.
            let name = match self.adapters.iter().any(|other| other.name == name) {
                true => format!("{name}-{}", self.needed(net, "dev")?),
                false => name,
            };
            // In 10^6 bits a second.
            let gbps = self.number::<f64>(net, "speed")? / 8000.0;
            if gbps <= 0.0 || !gbps.is_finite() {
                self.draft.note(format!("{name} is left out: it has no speed"));
                continue;
            }
            let microseconds: f64 = match net.attribute("latency") {
                Some(_) => self.number(net, "latency")?,
                None => 0.0,
            };
            let class = class.unwrap_or("");
            let has_socket = !class.starts_with(INFINIBAND) && !class.starts_with(ETHERNET);
            let efficiency = match has_socket {
                true => TCP_EFFICIENCY,
                false if class.starts_with(INFINIBAND) => hdr().efficiency,
                false => ROCE_EFFICIENCY,
            };
            let least = if has_socket { 5000.0 } else { hdr().latency_ns };
            let latency_ns = (microseconds * 1e3).max(least);
            let upstream = upstream.clone();
            let adapter = Adapter { name, upstream, gbps, efficiency, latency_ns, has_socket };
            self.adapters.push(adapter);
        }
        Ok(())
    }

    /// GPUs in the order of their ranks, and what joins them.
    fn devices(&mut self) -> Read<()> {
        let mut gpus = std::mem::take(&mut self.gpus);
        gpus.sort_by_key(|gpu| gpu.place);
        if gpus.is_empty() {
            return Err(self.at(self.document.root_element(), "has no <gpu>"));
        }
        for (at, gpu) in gpus.iter().enumerate() {
            let Some(figures) = Figures::of(gpu.sm) else {
                let text =
                    format!("has sm={:?}: figures of 80, 86, 90, 100, 103 are known", gpu.sm);
                return Err(self.at(gpu.node, text));
            };
            let kind = format!("sm{}", gpu.sm);
            self.draft.device_kind(&kind, figures.kind);
            let name = format!("gpu{at}");
            self.draft.device(&name, &kind);
            self.draft.connect(&name, &gpu.upstream.0, &gpu.upstream.1, 1);
            for link in elements(gpu.node, "c2c") {
                // In 10^6 bytes a second.
                let (gbps, count) =
                    (self.number::<f64>(link, "bw")? / 1e3, self.number(link, "count")?);
                self.draft.link_kind("c2c", LinkKind { gbps, efficiency: 1.0, latency_ns: 250.0 });
                self.draft.connect(&name, &gpu.numa, "c2c", count);
            }
        }
        self.nvlinks(&gpus)
    }

    fn nvlinks(&mut self, gpus: &[Gpu<'a>]) -> Read<()> {
        // Both ends of a link between GPUs tell of it.
        let mut counts: BTreeMap<(usize, Option<usize>), [usize; 2]> = BTreeMap::new();
        for (at, gpu) in gpus.iter().enumerate() {
            for link in elements(gpu.node, "nvlink") {
                let target = self.needed(link, "target")?.to_lowercase();
                let count: usize = self.number(link, "count")?;
                let peer = gpus.iter().position(|other| other.address == target);
                let class = link.attribute("tclass").unwrap_or("");
                match peer {
                    // Files are written by hand, too.
                    Some(peer) if peer == at => {
                        self.draft
                            .note(format!("NVLinks that lead from gpu{at} to itself are left out"));
                    }
                    Some(peer) => {
                        let side = usize::from(peer < at);
                        counts.entry((at.min(peer), Some(at.max(peer)))).or_default()[side] +=
                            count;
                    }
                    None if class.starts_with(SWITCH) => {
                        counts.entry((at, None)).or_default()[0] += count;
                    }
                    // GPUs that the job did not use.
                    None if class.starts_with(DISPLAY) => {
                        self.draft.note("NVLinks to GPUs that are not in the file are left out");
                    }
                    _ => {
                        let text = format!("has target={target:?}, which is no GPU and no switch");
                        return Err(self.at(link, text));
                    }
                }
            }
        }
        for ((gpu, peer), told) in counts {
            let Some(figures) = Figures::of(gpus[gpu].sm) else { continue };
            let count = told[0].max(told[1]);
            let generation = figures.generation;
            let name = self.draft.nvlink_kind(generation, figures.link_gbps);
            let end = match peer {
                Some(peer) => format!("gpu{peer}"),
                None => self.draft.nvswitch(generation).to_owned(),
            };
            self.draft.connect(&format!("gpu{gpu}"), &end, &name, count);
        }
        Ok(())
    }

    /// The fastest adapters, and what joins them to those of other nodes.
    fn fabric(&mut self) {
        let adapters = std::mem::take(&mut self.adapters);
        let Some(gbps) = adapters.iter().map(|adapter| adapter.gbps).max_by(f64::total_cmp) else {
            return;
        };
        for adapter in &adapters {
            if adapter.gbps < gbps {
                let rate = adapter.gbps * 8.0;
                self.draft.note(format!(
                    "{} is left out: it carries {rate} Gb/s, the fastest adapter {} Gb/s",
                    adapter.name,
                    gbps * 8.0
                ));
                continue;
            }
            let kind = match adapter.has_socket {
                true => "socket-net",
                false => "net",
            };
            let (efficiency, latency_ns) = (adapter.efficiency, adapter.latency_ns);
            self.draft.link_kind(kind, LinkKind { gbps, efficiency, latency_ns });
            self.draft.part(&adapter.name, Role::Nic);
            self.draft.connect(&adapter.name, &adapter.upstream.0, &adapter.upstream.1, 1);
            let message_ns = if adapter.has_socket { 10_000.0 } else { 1000.0 };
            self.draft.fabric(kind, message_ns);
        }
    }
}

fn elements<'a>(parent: Node<'a, 'a>, name: &'static str) -> impl Iterator<Item = Node<'a, 'a>> {
    parent.children().filter(move |child| child.has_tag_name(name))
}

/// What tells a processor's host from others.
fn host<'a>(cpu: Node<'a, 'a>) -> &'a str {
    cpu.attribute("host_hash").unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Network;

    /// Two processors, with a PCI switch each, behind which are two GPUs and an adapter.
    fn machine(gpus: [&str; 4]) -> String {
        let half = |numa: usize| {
            let function = |at: usize| {
                let number = 2 * numa + at;
                format!(
                    "<pci busid=\"0000:{numa}{at}:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" \
                     link_width=\"16\"><gpu dev=\"{number}\" sm=\"90\" rank=\"{}\" gdr=\"1\">{}</gpu></pci>",
                    3 - number,
                    gpus[number]
                )
            };
            format!(
                "<cpu host_hash=\"0x1\" numaid=\"{numa}\" arch=\"x86_64\">\n\
                 <pci busid=\"0000:{numa}9:00.0\" class=\"0x060400\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">\n\
                 {}{}<pci busid=\"0000:{numa}5:00.0\" class=\"0x020700\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">\n\
                 <nic><net name=\"mlx5_{numa}\" dev=\"{numa}\" speed=\"400000\" latency=\"0.000000\"/></nic></pci>\n\
                 </pci>\n</cpu>\n",
                function(0),
                function(1)
            )
        };
        format!("<system version=\"1\">\n{}{}</system>\n", half(0), half(1))
    }

    const SWITCHED: &str = "<nvlink target=\"0000:d0:00.0\" count=\"10\" tclass=\"0x068000\"/>\
                            <nvlink target=\"0000:d1:00.0\" count=\"8\" tclass=\"0x068000\"/>";

    fn read(text: &str) -> (Topology, Vec<String>) {
        Topology::parse_nccl(text, "machine.xml").unwrap()
    }

    fn gbps(topology: &Topology, from: usize, to: usize) -> f64 {
        let ranks = topology.nodes * topology.devices_per_node();
        let network = Network::new(topology, ranks, None).unwrap();
        let links = network.route(from, to).links;
        links.iter().map(|link| network.link(*link).gbps).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn a_machine_with_a_switch_has_its_links_and_adapters() {
        let (topology, notes) = read(&machine([SWITCHED; 4]));
        let matrix = topology.matrix();
        assert_eq!(matrix.names, ["gpu0", "gpu1", "gpu2", "gpu3", "mlx5_0", "mlx5_1"]);
        // Ranks go down where addresses go up.
        let row = |at: usize| matrix.relations[at].iter().map(ToString::to_string);
        assert_eq!(row(0).collect::<Vec<_>>()[4..], ["SYS", "PIX"]);
        assert_eq!(row(3).collect::<Vec<_>>()[4..], ["PIX", "SYS"]);
        // 18 links of 25 GB/s, 128 of 160 bytes for data.
        assert_eq!(gbps(&topology, 0, 3), 360.0);
        let switch = topology.parts.iter().find(|part| part.name == "nvswitch").unwrap();
        assert!(switch.reduces && switch.reduce_efficiency < 1.0);
        assert_eq!(notes.len(), 1, "{notes:?}");
        let two = topology.with_nodes(2);
        two.check().unwrap();
        assert!((gbps(&two, 0, 4) - 50.0 * hdr().efficiency).abs() < 1e-9);
        assert_eq!(Topology::parse(&two.to_text().unwrap(), "again").unwrap(), two);
    }

    #[test]
    fn links_between_gpus_count_once() {
        let to = |peer: &str, count: usize| {
            format!("<nvlink target=\"0000:{peer}:00.0\" count=\"{count}\" tclass=\"0x030200\"/>")
        };
        // The third tells of itself; the fourth of a GPU that the job did not use.
        let gpus = [to("01", 4), to("00", 4) + &to("10", 2), to("10", 3), to("77", 6)];
        let (topology, notes) = read(&machine([&gpus[0], &gpus[1], &gpus[2], &gpus[3]]));
        let nvlinks = topology.connections.iter().filter(|one| one.link == "nvlink4");
        let counts: Vec<_> = nvlinks
            .map(|one| format!("{} {} {}", one.between[0], one.between[1], one.count))
            .collect();
        assert_eq!(counts, ["gpu1 gpu2 2", "gpu2 gpu3 4"]);
        assert!(notes.iter().any(|note| note.contains("not in the file")), "{notes:?}");
        assert!(notes.iter().any(|note| note.contains("from gpu1 to itself")), "{notes:?}");
    }

    #[test]
    fn what_a_guest_cannot_see_is_taken_as_nccl_takes_it() {
        let text = "<system version=\"1\"><cpu numaid=\"0\">\
            <pci busid=\"0001:00:00.0\" class=\"0x030200\" link_speed=\"\" link_width=\"0\">\
            <gpu dev=\"0\" sm=\"80\" rank=\"0\" gdr=\"1\"/></pci>\
            <nic><net name=\"eth0\" dev=\"0\" speed=\"100000\" latency=\"0.000000\"/>\
            <net name=\"eth1\" dev=\"1\" speed=\"10000\"/></nic></cpu></system>";
        let (topology, notes) = read(text);
        assert!((topology.links["pcie-8x16"].gbps - 15.75).abs() < 0.01);
        assert_eq!(topology.fabric.as_ref().unwrap().link, "socket-net");
        assert_eq!(topology.parts.iter().filter(|part| part.role == Role::Nic).count(), 1);
        assert!(notes.iter().any(|note| note.contains("16 lanes of 8 GT/s")), "{notes:?}");
        let slow = "eth1 is left out: it carries 10 Gb/s, the fastest adapter 100 Gb/s";
        assert!(notes.contains(&slow.to_owned()), "{notes:?}");
    }

    #[test]
    fn processors_with_nvlink_of_their_own_have_it() {
        let text = machine(["<c2c count=\"10\" bw=\"45000\"/>"; 4]);
        let (topology, _) = read(&text);
        let c2c = topology.connections.iter().filter(|one| one.link == "c2c");
        assert_eq!(c2c.map(|one| one.count).collect::<Vec<_>>(), [10; 4]);
        assert_eq!(topology.links["c2c"].gbps, 45.0);
    }

    #[test]
    fn wrong_files_are_refused_with_the_line() {
        let machine = machine([SWITCHED; 4]);
        for (text, why) in [
            ("<system".to_owned(), "machine.xml: "),
            ("<graphs version=\"1\"/>".to_owned(), "line 1: <graphs> is not what NCCL writes"),
            ("<system/>".to_owned(), "line 1: <system> has no <cpu>"),
            ("<system><cpu/></system>".to_owned(), "line 1: <system> has no <gpu>"),
            (machine.replace("sm=\"90\"", "sm=\"75\""), "line 10: <gpu> has sm=75"),
            (machine.replace("sm=\"90\"", "sm=\"x\""), "line 4: <gpu> has sm=\"x\", which is no"),
            (machine.replace("sm=\"90\"", ""), "line 4: <gpu> has no sm"),
            (machine.replace("speed=\"400000\"", "speed=\"\""), "line 5: <net> has speed=\"\""),
            (machine.replace("0x068000", "0x123"), "which is no GPU and no switch"),
            (machine.replace("numaid=\"1\"", "numaid=\"0\""), "has numaid=\"0\", as another has"),
            (machine.replace("count=\"10\"", "count=\"-1\""), "count=\"-1\", which is no number"),
            (machine.replace("<gpu ", "<other ").replace("</gpu>", "</other>"), "has no <gpu>"),
        ] {
            let error = Topology::parse_nccl(&text, "machine.xml").unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("machine.xml"), "{why}: {error}");
        }
    }
}
