//! Where this machine's network adapters are: near which cores, and on which NUMA node.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::interface;

/// Where the kernel describes the machine.
pub const SYSFS: &str = "/sys";

/// A network adapter, by the name under which the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adapter {
    /// A network interface.
    Net(String),
    /// An RDMA device.
    Rdma(String),
}

impl Adapter {
    /// The interface that has this address.
    pub fn of_address(address: IpAddr) -> Option<Adapter> {
        interface::name_of(address).map(Adapter::Net)
    }

    /// The NUMA node that it is attached to, where the machine says so. `sysfs` is [`SYSFS`], but
    /// for tests.
    pub fn numa_node(&self, sysfs: &Path) -> Option<u32> {
        // Minus one: the machine does not say.
        text(&self.device(sysfs).join("numa_node"))?.parse().ok()
    }

    /// The cores near it, where the machine says which they are. `sysfs` as for
    /// [`numa_node`](Adapter::numa_node).
    pub fn cores_near(&self, sysfs: &Path) -> Option<Vec<usize>> {
        let own = text(&self.device(sysfs).join("local_cpulist"));
        let own = own.and_then(|list| parse_cores(&list)).filter(|cores| !cores.is_empty());
        own.or_else(|| {
            let node = self.numa_node(sysfs)?;
            let list = sysfs.join(format!("devices/system/node/node{node}/cpulist"));
            parse_cores(&text(&list)?)
        })
    }

    /// Keeps the calling thread on the cores near it, where the machine says which they are, and
    /// this process may use some of them.
    pub(crate) fn settle_near(&self) {
        let Some(cores) = self.cores_near(Path::new(SYSFS)) else { return };
        let this = Pid::from_raw(0);
        let Ok(allowed) = sched_getaffinity(this) else { return };
        let mut near = CpuSet::new();
        let mut any = false;
        for core in cores {
            any |= allowed.is_set(core).unwrap_or(false) && near.set(core).is_ok();
        }
        if any && let Err(error) = sched_setaffinity(this, &near) {
            tracing::debug!(%error, adapter = ?self, "the thread stays where it is");
        }
    }

    /// What it hangs on: a function of PCI. Software adapters have none.
    fn device(&self, sysfs: &Path) -> PathBuf {
        sysfs.join("class").join(match self {
            Adapter::Net(name) => format!("net/{name}/device"),
            Adapter::Rdma(name) => format!("infiniband/{name}/device"),
        })
    }
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// A list such as `0-3,8`.
fn parse_cores(list: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cores.extend(first.parse().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(cores)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A tree like the kernel's, removed in the end.
    pub(crate) struct FakeSysfs(PathBuf);

    impl FakeSysfs {
        pub(crate) fn new(test: &str, files: &[(&str, &str)]) -> FakeSysfs {
            let name = format!("oxccl-sysfs-{test}-{}", std::process::id());
            let root = std::env::temp_dir().join(name);
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            FakeSysfs(root)
        }

        pub(crate) fn root(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for FakeSysfs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn lists_of_cores_are_read() {
        assert_eq!(parse_cores("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_cores(""), Some(vec![]));
        assert_eq!(parse_cores("all"), None);
    }

    #[test]
    fn the_cores_are_the_devices_own_or_those_of_its_numa_node() {
        let sysfs = FakeSysfs::new(
            "cores",
            &[
                ("class/infiniband/mlx5_0/device/numa_node", "1\n"),
                ("class/infiniband/mlx5_0/device/local_cpulist", "4-5\n"),
                ("class/infiniband/mlx5_1/device/numa_node", "1\n"),
                ("class/net/eth0/device/numa_node", "0\n"),
                ("class/net/eth0/device/local_cpulist", "\n"),
                ("class/net/eth1/device/numa_node", "-1\n"),
                ("devices/system/node/node0/cpulist", "0-3\n"),
                ("devices/system/node/node1/cpulist", "4-7\n"),
            ],
        );
        let near =
            |adapter: Adapter| (adapter.numa_node(sysfs.root()), adapter.cores_near(sysfs.root()));
        let rdma = |name: &str| near(Adapter::Rdma(name.into()));
        let net = |name: &str| near(Adapter::Net(name.into()));
        assert_eq!(rdma("mlx5_0"), (Some(1), Some(vec![4, 5])));
        assert_eq!(rdma("mlx5_1"), (Some(1), Some(vec![4, 5, 6, 7])));
        assert_eq!(net("eth0"), (Some(0), Some(vec![0, 1, 2, 3])));
        assert_eq!(net("eth1"), (None, None));
        assert_eq!(rdma("rxe0"), (None, None), "software on a net device");
    }

    #[test]
    fn the_loopback_interface_is_known_by_its_address() {
        let loopback = Adapter::of_address("127.0.0.1".parse().unwrap());
        assert_eq!(loopback, Some(Adapter::Net("lo".into())));
        assert_eq!(Adapter::of_address("192.0.2.1".parse().unwrap()), None);
    }
}
