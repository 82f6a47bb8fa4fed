//! The RDMA devices of this machine as the kernel describes them, usable or not: for people who
//! look for what is missing.

use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use super::address::{Gid, LinkKind};
use crate::Adapter;

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    /// Its name.
    pub name: String,
    /// The NUMA node that it is attached to, where the machine says so.
    pub numa_node: Option<u32>,
    /// The cores near it, where the machine says so.
    pub cores: Option<Vec<usize>>,
    /// Its ports.
    pub ports: Vec<FoundPort>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPort {
    /// Its number, from 1 on.
    pub number: u8,
    /// Its state, such as `active`.
    pub state: String,
    /// What carries its packets: Ethernet ports speak RoCE.
    pub kind: LinkKind,
    /// The speed of its link, in the kernel's words.
    pub rate: String,
    /// The addresses that it has.
    pub gids: Vec<FoundGid>,
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundGid {
    /// Its place in the port's table.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// Its type, in the kernel's words: `RoCE v2`, `IB/RoCE v1`.
    pub kind: String,
    /// The net device whose address it is; InfiniBand has none.
    pub net_device: Option<String>,
}

/// All devices, in the order of their names. `sysfs` is [`SYSFS`](crate::SYSFS), but for tests. It
/// needs no libibverbs.
pub fn survey(sysfs: &Path) -> Vec<FoundDevice> {
    let folders = entries(&sysfs.join("class/infiniband")).into_iter();
    let device = |(name, folder): (String, PathBuf)| {
        let adapter = Adapter::Rdma(name.clone());
        let ports = entries(&folder.join("ports")).into_iter();
        let ports = ports.filter_map(|(number, folder)| port(number.parse().ok()?, &folder));
        FoundDevice {
            numa_node: adapter.numa_node(sysfs),
            cores: adapter.cores_near(sysfs),
            ports: ports.collect(),
            name,
        }
    };
    folders.map(device).collect()
}

/// A port by its folder; `None` if the kernel describes none there.
fn port(number: u8, folder: &Path) -> Option<FoundPort> {
    let state = text(&folder.join("state"))?;
    let (_, state) = state.split_once(": ").unwrap_or(("", &state));
    let kind = match text(&folder.join("link_layer")).as_deref() {
        Some("Ethernet") => LinkKind::RoceV2,
        _ => LinkKind::InfiniBand,
    };
    let mut gids: Vec<FoundGid> = entries(&folder.join("gids"))
        .into_iter()
        .filter_map(|(index, file)| gid(index.parse().ok()?, &file, folder))
        .collect();
    gids.sort_by_key(|found| found.index);
    let rate = text(&folder.join("rate")).unwrap_or_default();
    Some(FoundPort { number, state: state.to_lowercase(), kind, rate, gids })
}

/// An entry of the table, unless it is empty.
fn gid(index: u8, file: &Path, port: &Path) -> Option<FoundGid> {
    let address: Ipv6Addr = text(file)?.parse().ok()?;
    if address.is_unspecified() {
        return None;
    }
    let attribute = |of: &str| text(&port.join(format!("gid_attrs/{of}/{index}")));
    let kind = attribute("types").unwrap_or_default();
    let net_device = attribute("ndevs").filter(|name| !name.is_empty());
    Some(FoundGid { index, gid: Gid(address.octets()), kind, net_device })
}

/// What a folder holds, by name; nothing if there is no such folder.
fn entries(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.map(|e| (e.file_name().to_string_lossy().into_owned(), e.path()));
    let mut all: Vec<_> = named.collect();
    all.sort();
    all
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::tests::FakeSysfs;

    #[test]
    fn devices_are_described_as_far_as_the_kernel_tells() {
        let port = "class/infiniband/mlx5_0/ports/1";
        let file = |name: &str| format!("{port}/{name}");
        let none = "0000:0000:0000:0000:0000:0000:0000:0000\n";
        let files = [
            (file("state"), "4: ACTIVE\n"),
            (file("link_layer"), "Ethernet\n"),
            (file("rate"), "400 Gb/sec (4X NDR)\n"),
            (file("gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
            (file("gids/3"), "0000:0000:0000:0000:0000:ffff:0a00:0102\n"),
            (file("gids/10"), none),
            (file("gid_attrs/types/0"), "IB/RoCE v1\n"),
            (file("gid_attrs/types/3"), "RoCE v2\n"),
            (file("gid_attrs/ndevs/3"), "eth4\n"),
            ("class/infiniband/mlx5_0/device/numa_node".into(), "1\n"),
            ("class/infiniband/mlx5_0/device/local_cpulist".into(), "8-9\n"),
            ("class/infiniband/mlx5_1/ports/1/state".into(), "1: DOWN\n"),
            ("class/infiniband/mlx5_1/ports/1/link_layer".into(), "InfiniBand\n"),
            ("class/infiniband/mlx5_2/node_type".into(), "1: CA\n"),
        ];
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (&**path, *text)).collect();
        let sysfs = FakeSysfs::new("survey", &files);
        let found = survey(sysfs.root());
        let names: Vec<&str> = found.iter().map(|device| &*device.name).collect();
        assert_eq!(names, ["mlx5_0", "mlx5_1", "mlx5_2"]);
        assert_eq!((found[0].numa_node, found[0].cores.as_deref()), (Some(1), Some(&[8, 9][..])));
        let active = &found[0].ports[0];
        assert_eq!((active.number, &*active.state), (1, "active"));
        assert_eq!((active.kind, &*active.rate), (LinkKind::RoceV2, "400 Gb/sec (4X NDR)"));
        let gids: Vec<_> = active.gids.iter().map(|gid| (gid.index, gid.gid.to_string())).collect();
        assert_eq!(gids, [(0, "fe80::1".into()), (3, "10.0.1.2".into())]);
        assert_eq!(active.gids[1].kind, "RoCE v2");
        let net_devices = [0, 1].map(|gid| active.gids[gid].net_device.as_deref());
        assert_eq!(net_devices, [None, Some("eth4")]);
        let down = &found[1].ports[0];
        assert_eq!((&*down.state, down.kind), ("down", LinkKind::InfiniBand));
        assert!(down.gids.is_empty() && found[2].ports.is_empty());
    }

    #[test]
    fn a_machine_without_devices_has_none() {
        let sysfs = FakeSysfs::new("no-devices", &[("class/net/lo/mtu", "65536\n")]);
        assert_eq!(survey(sysfs.root()), []);
    }
}
