//! Where this machine's network adapters are.

use std::fs;
use std::net::IpAddr;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::interface;

/// Keeps the calling thread on the cores near the adapter that has this address, where the machine says which they are, and
/// this process may use some of them.
pub(super) fn settle_near(address: IpAddr) {
    let Some(cores) = interface::name_of(address).and_then(|name| cores_near(&name)) else {
        return;
    };
    let this = Pid::from_raw(0);
    let Ok(allowed) = sched_getaffinity(this) else { return };
    let mut near = CpuSet::new();
    let mut any = false;
    for core in cores {
        any |= allowed.is_set(core).unwrap_or(false) && near.set(core).is_ok();
    }
    if any && let Err(error) = sched_setaffinity(this, &near) {
        tracing::debug!(%error, "the proxy stays where it is");
    }
}

fn cores_near(interface: &str) -> Option<Vec<usize>> {
    let node = fs::read_to_string(format!("/sys/class/net/{interface}/device/numa_node")).ok()?;
    // Minus one: the machine does not say.
    let node: u32 = node.trim().parse().ok()?;
    let list = fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist")).ok()?;
    parse_cores(list.trim())
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
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read() {
        assert_eq!(parse_cores("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_cores(""), Some(vec![]));
        assert_eq!(parse_cores("all"), None);
    }
}
