//! How much memory this process can still have.
//!
//! Shared memory without a size limit of its own (a memfd) is filled page by page until the
//! machine, or the control group, kills a process. So a reservation asks first.

use std::fs;
use std::path::{Path, PathBuf};

/// The bytes that can still be had: the least of what the machine and every enclosing control
/// group leave. `None` where nothing of this can be read.
pub(crate) fn available_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| in_meminfo(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().filter_map(memory_group).flat_map(left_in_group);
    machine.into_iter().chain(limits).min()
}

fn in_meminfo(text: &str) -> Option<u64> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    Some((field("MemAvailable")? + field("SwapFree").unwrap_or(0)) << 10)
}

/// Where a control group's memory controller is mounted, and the names of its files.
struct Group {
    mount: &'static str,
    path: PathBuf,
    limit: &'static str,
    usage: &'static str,
}

/// The memory group of a line of /proc/self/cgroup: `0::/path` (version 2) or `n:memory:/path`.
fn memory_group(line: &str) -> Option<Group> {
    let mut parts = line.splitn(3, ':');
    let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let path = PathBuf::from(path.trim_start_matches('/'));
    if id == "0" && controllers.is_empty() {
        let (limit, usage) = ("memory.max", "memory.current");
        Some(Group { mount: "/sys/fs/cgroup", path, limit, usage })
    } else if controllers.split(',').any(|controller| controller == "memory") {
        let (limit, usage) = ("memory.limit_in_bytes", "memory.usage_in_bytes");
        Some(Group { mount: "/sys/fs/cgroup/memory", path, limit, usage })
    } else {
        None
    }
}

/// What the group and each of its ancestors leave, where they have a limit.
fn left_in_group(group: Group) -> Vec<u64> {
    let left_in = |folder: &Path| {
        let number = |file| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
        let (limit, usage) = (number(group.limit)?, number(group.usage)?);
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        Some(limit.saturating_sub(usage.saturating_sub(file_cache(&stat))))
    };
    let mount = Path::new(group.mount);
    group.path.ancestors().filter_map(|path| left_in(&mount.join(path))).collect()
}

/// Cached file pages: counted as used, but given back on demand.
fn file_cache(stat: &str) -> u64 {
    let field = |name| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)
    };
    field("inactive_file") + field("active_file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_counts_what_is_available_and_swap() {
        let text = "MemTotal: 100 kB\nMemAvailable:    40 kB\nSwapFree:   2 kB\n";
        assert_eq!(in_meminfo(text), Some(42 << 10));
        assert_eq!(in_meminfo("MemTotal: 100 kB\n"), None);
    }

    #[test]
    fn memory_groups_of_both_versions_are_found() {
        let path = |line| memory_group(line).map(|group| Path::new(group.mount).join(group.path));
        assert_eq!(path("0::/user/a"), Some("/sys/fs/cgroup/user/a".into()));
        assert_eq!(path("4:memory:/job"), Some("/sys/fs/cgroup/memory/job".into()));
        assert_eq!(path("7:blkio:/"), None);
    }

    #[test]
    fn file_cache_is_not_taken_for_used() {
        assert_eq!(file_cache("anon 5\ninactive_file 3\nactive_file 4\n"), 7);
    }

    #[test]
    fn this_machine_has_memory() {
        let available = available_bytes().expect("/proc is mounted");
        assert!(available > 1 << 20 && available < 1 << 50, "{available}");
    }
}
