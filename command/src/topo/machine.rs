//! This machine, as the kernel describes it in sysfs: NUMA nodes and their cores, GPUs, network
//! adapters, and how they hang on PCI.
//!
//! NVLink is not in sysfs; NVML tells of it. What nobody tells is said to be missing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use oxccl::plans::topology::{DeviceKind, Draft, LinkKind, Role, Topology, preset};
use oxccl_transports::cuda::{NvLink, NvLinkEnd, NvmlError};

use crate::machine;

/// Vendor and classes of PCI functions.
const NVIDIA: &str = "0x10de";
const DISPLAY: &str = "0x03";

/// Reads the tree under this root, which is /sys but for tests, and what `nvlinks` says where there
/// are GPUs.
pub(super) fn read(root: &Path, nvlinks: impl FnOnce() -> Result<Vec<NvLink>, NvmlError>) -> Draft {
    let mut reader = Reader::new(root);
    reader.numa_nodes();
    let gpus = reader.gpus();
    if gpus.is_empty() {
        reader.cores();
    }
    reader.adapters();
    if !gpus.is_empty() {
        reader.nvlinks(&gpus, nvlinks());
    }
    reader.draft.note(
        "bandwidths of cores and between NUMA nodes are those of the preset host: measure with --measure",
    );
    reader.draft
}

/// The addresses of this machine's GPUs on PCI, in the order of the numbers in their names.
pub(super) fn gpu_addresses(root: &Path) -> Vec<String> {
    Reader::new(root).gpu_paths().iter().map(|path| file_name(path).to_owned()).collect()
}

struct Reader<'a> {
    root: &'a Path,
    draft: Draft,
    /// Cores of each NUMA node.
    nodes: BTreeMap<usize, Vec<usize>>,
}

impl<'a> Reader<'a> {
    fn new(root: &'a Path) -> Reader<'a> {
        Reader { root, draft: Draft::new("this"), nodes: BTreeMap::new() }
    }

    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_to_string(self.root.join(path)).ok()?.trim().to_owned())
    }

    fn entries(&self, path: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    }

    fn numa_nodes(&mut self) {
        for path in self.entries("devices/system/node") {
            let number = file_name(&path).strip_prefix("node").and_then(|n| n.parse().ok());
            let Some(number) = number else { continue };
            let cores = self.text(path.join("cpulist")).map(|list| numbers(&list));
            self.nodes.insert(number, cores.unwrap_or_default());
        }
        if self.nodes.is_empty() {
            self.draft.note("sysfs names no NUMA node: all is taken to be one");
            self.nodes.insert(0, machine::usable_cores());
        }
        let numbers: Vec<usize> = self.nodes.keys().copied().collect();
        for number in &numbers {
            self.draft.part(&format!("numa{number}"), Role::Numa);
        }
        if numbers.len() > 1 {
            let socket = LinkKind { gbps: 40.0, efficiency: 1.0, latency_ns: 200.0 };
            self.draft.link_kind("socket", socket);
        }
        for (at, first) in numbers.iter().enumerate() {
            for second in &numbers[at + 1..] {
                self.draft.connect(&format!("numa{first}"), &format!("numa{second}"), "socket", 1);
            }
        }
    }

    /// Every core that this process may use is a device.
    fn cores(&mut self) {
        let Ok(Topology { devices, links, .. }) = preset("host") else { return };
        self.draft.topology.devices.extend(devices);
        self.draft.topology.links.extend(links);
        let usable = machine::usable_cores();
        for (node, cores) in self.nodes.clone() {
            for core in cores.iter().filter(|core| usable.contains(core)) {
                let name = format!("core{core}");
                self.draft.device(&name, "core");
                self.draft.connect(&name, &format!("numa{node}"), "mesh", 1);
            }
        }
    }

    /// NVIDIA's GPUs on PCI, in the order of their numbers.
    fn gpu_paths(&self) -> Vec<PathBuf> {
        let is = |path: &Path, name: &str, what: &str| {
            self.text(path.join(name)).is_some_and(|text| text.starts_with(what))
        };
        let all = self.entries("bus/pci/devices");
        all.into_iter()
            .filter(|path| is(path, "vendor", NVIDIA) && is(path, "class", DISPLAY))
            .collect()
    }

    /// Their addresses.
    fn gpus(&mut self) -> Vec<String> {
        let gpus = self.gpu_paths();
        for (at, path) in gpus.iter().enumerate() {
            let name = format!("gpu{at}");
            let kind = self.gpu_kind();
            self.draft.device(&name, &kind);
            let link = self.pci_link(path);
            let upstream = self.upstream(path);
            self.draft.connect(&name, &upstream, &link, 1);
        }
        gpus.iter().map(|path| file_name(path).to_owned()).collect()
    }

    /// Connections between GPUs, and between them and the one switch that all switches are taken to
    /// be.
    fn nvlinks(&mut self, gpus: &[String], found: Result<Vec<NvLink>, NvmlError>) {
        const OVER_PCIE: &str = "connections between GPUs are those over PCIe";
        let links = match found {
            Ok(links) if links.is_empty() => {
                return self.draft.note(format!("NVML knows no NVLink that is up: {OVER_PCIE}"));
            }
            Ok(links) => links,
            Err(error) => {
                return self
                    .draft
                    .note(format!("NVML does not tell of NVLink: {OVER_PCIE} ({error})"));
            }
        };
        let mut counts = BTreeMap::new();
        for link in &links {
            match self.nvlink(gpus, link) {
                Ok(Some(ends)) => *counts.entry(ends).or_insert(0) += 1,
                Ok(None) => {}
                Err(why) => {
                    self.draft.note(format!("an NVLink of {} is left out: {why}", link.gpu))
                }
            }
        }
        for ((gpu, end, kind), count) in counts {
            self.draft.connect(&gpu, &end, &kind, count);
        }
    }

    /// A link's ends and its kind, by name; none where the other end tells of it.
    fn nvlink(
        &mut self,
        gpus: &[String],
        link: &NvLink,
    ) -> Result<Option<(String, String, String)>, String> {
        let number = |address: &str| {
            let at = gpus.iter().position(|gpu| gpu == address);
            at.ok_or_else(|| format!("sysfs has no GPU {address}"))
        };
        let gpu = number(&link.gpu)?;
        let (generation, gbps) = link
            .generation()
            .ok_or_else(|| format!("its version number, {}, is not known", link.version))?;
        let end = match &link.end {
            NvLinkEnd::Switch => self.draft.nvswitch(generation).to_owned(),
            NvLinkEnd::Gpu(peer) => match number(peer)? {
                peer if peer < gpu => return Ok(None),
                peer => format!("gpu{peer}"),
            },
            NvLinkEnd::Other => return Err("it leads to no GPU and to no switch".to_owned()),
        };
        let kind = self.draft.nvlink_kind(generation, gbps);
        Ok(Some((format!("gpu{gpu}"), end, kind)))
    }

    fn gpu_kind(&mut self) -> String {
        let gpu: Option<DeviceKind> =
            preset("pcie-box").ok().and_then(|topology| topology.devices.get("gpu").cloned());
        if let Some(gpu) = gpu {
            self.draft.device_kind("gpu", gpu);
        }
        "gpu".into()
    }

    /// Ethernet and InfiniBand adapters that are hardware.
    fn adapters(&mut self) {
        let mut seen = Vec::new();
        for class in ["class/infiniband", "class/net"] {
            for path in self.entries(class) {
                let Ok(device) = path.join("device").canonicalize() else { continue };
                if seen.contains(&device) {
                    continue;
                }
                let name = file_name(&path).to_owned();
                let on_pci = device.join("vendor").exists() && device.join("class").exists();
                let (upstream, link) = match on_pci {
                    true => (self.upstream(&device), self.pci_link(&device)),
                    false => (self.numa_of(&device), self.unknown_link()),
                };
                self.draft.part(&name, Role::Nic);
                self.draft.connect(&name, &upstream, &link, 1);
                seen.push(device);
            }
        }
    }

    fn unknown_link(&mut self) -> String {
        let unknown = LinkKind { gbps: 1.0, efficiency: 1.0, latency_ns: 1000.0 };
        self.draft.link_kind("unknown", unknown);
        "unknown".into()
    }

    /// The part that a PCI function hangs on: the bridge above it if others hang there too,
    /// otherwise its NUMA node.
    fn upstream(&mut self, path: &Path) -> String {
        let numa = self.numa_of(path);
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let functions: Vec<&str> = real
            .components()
            .filter_map(|component| component.as_os_str().to_str())
            .filter(|name| is_pci_address(name))
            .collect();
        // Root port, upstream port, downstream port, function: a switch, whose downstream ports
        // share what is above them.
        let [.., switch, _, _] = functions[..] else { return numa };
        let bridge = format!("plx-{switch}");
        if !self.draft.has(&bridge) {
            self.draft.part(&bridge, Role::Bridge);
            let link = self.pci_link(path);
            self.draft.connect(&bridge, &numa, &link, 1);
        }
        bridge
    }

    fn numa_of(&self, path: &Path) -> String {
        let number = self.text(path.join("numa_node")).and_then(|text| text.parse::<usize>().ok());
        let known = number.filter(|number| self.nodes.contains_key(number));
        let first = self.nodes.keys().next().copied().unwrap_or(0);
        format!("numa{}", known.unwrap_or(first))
    }

    /// The kind of a function's link, by its speed and width as they are now.
    fn pci_link(&mut self, path: &Path) -> String {
        let speed = self.text(path.join("current_link_speed"));
        let transfers = speed.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
        let width = self.text(path.join("current_link_width")).and_then(|text| text.parse().ok());
        let (Some(transfers), Some(width)) = (transfers, width.filter(|width: &f64| *width > 0.0))
        else {
            return self.unknown_link();
        };
        self.draft.pci_kind(transfers, width)
    }
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// As 0000:3b:00.0.
fn is_pci_address(name: &str) -> bool {
    name.len() == 12 && name.as_bytes()[4] == b':' && name.as_bytes()[10] == b'.'
}

/// The numbers of a list as 0-3,8.
fn numbers(list: &str) -> Vec<usize> {
    let ranges = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl::plans::topology::Network;
    use oxccl_transports::cuda::{NVML, nvlinks};
    use std::os::unix::fs::symlink;

    /// A tree of files, removed when it goes.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Tree {
            let path = std::env::temp_dir().join(format!("oxccl-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Tree(path)
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// A PCI function and its link in the list of all.
        fn function(&self, path: &str, class: &str, vendor: &str, numa: &str) {
            for (name, text) in [
                ("class", class),
                ("vendor", vendor),
                ("numa_node", numa),
                ("current_link_speed", "16.0 GT/s PCIe"),
                ("current_link_width", "16"),
            ] {
                self.file(&format!("devices/{path}/{name}"), text);
            }
            let address = path.rsplit('/').next().unwrap();
            fs::create_dir_all(self.0.join("bus/pci/devices")).unwrap();
            let from = self.0.join("bus/pci/devices").join(address);
            symlink(self.0.join("devices").join(path), from).unwrap();
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn this_machine_is_a_topology() {
        let found = read(Path::new("/sys"), || nvlinks(Path::new(NVML)));
        found.topology.check().unwrap();
        let devices = found.topology.devices_per_node();
        Network::new(&found.topology, devices, None).unwrap();
    }

    #[test]
    fn gpus_behind_one_switch_are_pix_and_across_sockets_sys() {
        let tree = Tree::new("gpus");
        tree.file("devices/system/node/node0/cpulist", "0-1");
        tree.file("devices/system/node/node1/cpulist", "2-3");
        let switch = "pci0000:00/0000:00:01.0/0000:01:00.0";
        tree.function(&format!("{switch}/0000:02:00.0/0000:03:00.0"), "0x030200", "0x10de", "0");
        tree.function(&format!("{switch}/0000:02:01.0/0000:04:00.0"), "0x030200", "0x10de", "0");
        tree.function("pci0000:80/0000:80:01.0/0000:81:00.0", "0x030200", "0x10de", "1");
        tree.function(&format!("{switch}/0000:02:02.0/0000:05:00.0"), "0x020700", "0x15b3", "0");
        fs::create_dir_all(tree.0.join("class/infiniband/mlx5_0")).unwrap();
        let nic = tree.0.join("bus/pci/devices/0000:05:00.0");
        symlink(nic, tree.0.join("class/infiniband/mlx5_0/device")).unwrap();
        let found = read(&tree.0, || nvlinks(Path::new("/missing/libnvidia-ml.so.1")));
        found.topology.check().unwrap();
        let matrix = found.topology.matrix();
        assert_eq!(matrix.names, ["gpu0", "gpu1", "gpu2", "mlx5_0"]);
        let row: Vec<String> = matrix.relations[0].iter().map(ToString::to_string).collect();
        assert_eq!(row, ["X", "PIX", "SYS", "PIX"]);
        assert!((found.topology.links["pcie-16x16"].gbps - 31.5).abs() < 0.01);
        let missing =
            "NVML does not tell of NVLink: connections between GPUs are those over PCIe (/missing/";
        assert!(found.notes[0].contains(missing), "{:?}", found.notes);
    }

    /// Two GPUs at a switch with 18 links of the fourth generation each, and two more with 4 of the
    /// third between them, of which one is down.
    #[test]
    fn nvlinks_are_those_that_nvml_tells_of() {
        let tree = Tree::new("nvlinks");
        tree.file("devices/system/node/node0/cpulist", "0-1");
        for bus in ["0a", "0b", "1c", "1d"] {
            let path = format!("pci0000:00/0000:{bus}:00.0");
            tree.function(&path, "0x030200", "0x10de", "0");
        }
        let Some(library) = stand_in(&tree) else { return };
        let found = read(&tree.0, || nvlinks(&library));
        let topology = &found.topology;
        topology.check().unwrap();
        let counts: Vec<_> = topology
            .connections
            .iter()
            .filter(|connection| connection.link.starts_with("nvlink"))
            .map(|one| format!("{} {} {} {}", one.between[0], one.between[1], one.link, one.count))
            .collect();
        assert_eq!(
            counts,
            ["gpu0 nvswitch nvlink4 18", "gpu1 nvswitch nvlink4 18", "gpu2 gpu3 nvlink3 3"]
        );
        assert!(topology.parts.iter().any(|part| part.name == "nvswitch" && part.reduces));
        let network = Network::new(topology, 4, None).unwrap();
        let gbps = |from, to| {
            let links = network.route(from, to).links;
            links.iter().map(|link| network.link(*link).gbps).fold(f64::INFINITY, f64::min)
        };
        assert_eq!((gbps(0, 1), gbps(2, 3)), (360.0, 60.0));
        assert!(gbps(0, 2) < 31.5, "over PCIe: {}", gbps(0, 2));
    }

    /// A library that answers for those four GPUs, unless there is no C compiler.
    fn stand_in(tree: &Tree) -> Option<PathBuf> {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nvml_stand_in.c");
        let library = tree.0.join("libnvidia-ml.so.1");
        let compiled = std::process::Command::new("cc")
            .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
            .args([library.as_os_str(), source.as_ref()])
            .status();
        match compiled {
            Ok(status) => {
                assert!(status.success(), "{source} does not compile");
                Some(library)
            }
            Err(error) => {
                use std::io::Write;
                let text = format!("skipped: nvlinks_are_those_that_nvml_tells_of: no cc: {error}");
                let _ = writeln!(std::io::stderr(), "{text}");
                None
            }
        }
    }

    #[test]
    fn lists_of_cores_are_read() {
        assert_eq!(numbers("0-3,8,10-11"), [0, 1, 2, 3, 8, 10, 11]);
        assert!(numbers("").is_empty());
    }
}
