//! How much memory this process can still have.
//!
//! Shared memory without a size limit of its own (a memfd) is filled page by page until the
//! machine, or the control group, kills a process. So a reservation asks first.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Of what a look has shown, this part may be taken before the next: small, since the other ranks
/// of a node do likewise.
const UNSEEN_PART: u64 = 1024;
/// A look is worth nothing after so long.
const FRESH: Duration = Duration::from_secs(1);

/// What may be taken by the last look: one takes a dozen files, as long as hundreds of small
/// allocations.
static LAST: Mutex<Option<Look>> = Mutex::new(None);

struct Look {
    at: Instant,
    /// Bytes.
    left: u64,
}

/// The bytes that can still be had: the least of what the machine and every enclosing control
/// group leave. `None` where nothing of this can be read.
pub(crate) fn available_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| in_meminfo(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().filter_map(memory_group).flat_map(left_in_group);
    let least = machine.into_iter().chain(limits).min();
    let look = least.map(|least| Look { at: Instant::now(), left: least / UNSEEN_PART });
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = look;
    least
}

/// Whether so many bytes can be taken without a look: few of those that the last one has shown.
pub(crate) fn take_unseen(len_bytes: u64) -> bool {
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let fresh = last.as_mut().filter(|look| look.at.elapsed() < FRESH);
    let Some(look) = fresh.filter(|look| len_bytes <= look.left) else { return false };
    look.left -= len_bytes;
    true
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
    fn this_machine_has_memory_of_which_little_is_taken_unseen() {
        let available = available_bytes().expect("/proc is mounted");
        assert!(available > 1 << 20 && available < 1 << 50, "{available}");
        assert!(!take_unseen(available / 500));
        let step = available / (10 * UNSEEN_PART);
        let steps = (0..30).take_while(|_| take_unseen(step)).count();
        assert!(steps <= 11, "{steps}");
    }
}
