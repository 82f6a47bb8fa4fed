//! What this rank's processor has.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a machine that does not tell is taken to have.
const TYPICAL_CACHE_BYTES: usize = 32 << 20;

/// The cores that this thread may run on.
pub(crate) fn usable_cores() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count() as u32).filter(|core| set.is_set(*core as usize) == Ok(true)).collect()
}

/// Lets sleeping threads of other processes have a fence on this process's cores
/// (kernels/machine/host/target.h). Where the kernel refuses, their naps end by themselves.
pub(crate) fn allow_fences() {
    const REGISTER: libc::c_int = libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
    // SAFETY: it takes no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, REGISTER, 0, 0) };
}

/// Whether each of these threads can have a core of its own at the same time, of those that it may
/// run on.
pub(crate) fn have_own_cores(threads: &[HashSet<u32>]) -> bool {
    let mut holders = HashMap::new();
    (0..threads.len()).all(|thread| settle(thread, threads, &mut holders, &mut HashSet::new()))
}

/// Finds a core for a thread, for which others may have to move to another one of theirs.
fn settle(
    thread: usize,
    threads: &[HashSet<u32>],
    holders: &mut HashMap<u32, usize>,
    seen: &mut HashSet<u32>,
) -> bool {
    // One that is free spares the others a move.
    let cores = &threads[thread];
    let free = cores.iter().find(|core| !holders.contains_key(core));
    if let Some(core) = free {
        holders.insert(*core, thread);
        return true;
    }
    for core in cores {
        if !seen.insert(*core) {
            continue;
        }
        if settle(holders[core], threads, holders, seen) {
            holders.insert(*core, thread);
            return true;
        }
    }
    false
}

/// The size of the last-level cache that the first core uses.
pub(crate) fn last_level_cache_bytes() -> usize {
    let size = |index: usize| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        parse_size(fs::read_to_string(path).ok()?.trim())
    };
    // 0: it has not been looked at.
    static BYTES: AtomicUsize = AtomicUsize::new(0);
    let known = BYTES.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let bytes = (0..8).filter_map(size).max().unwrap_or(TYPICAL_CACHE_BYTES);
    BYTES.store(bytes, Ordering::Relaxed);
    bytes
}

/// A size as sysfs writes it, such as 1024K.
fn parse_size(text: &str) -> Option<usize> {
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => (text.strip_suffix('M')?, 1 << 20),
    };
    Some(number.parse::<usize>().ok()? * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("32768K"), Some(32 << 20));
        assert_eq!(parse_size("8M"), Some(8 << 20));
        assert_eq!(parse_size("many"), None);
    }

    #[test]
    fn own_cores_are_found_by_moving_others() {
        let own = |sets: &[&[u32]]| {
            let sets: Vec<HashSet<u32>> =
                sets.iter().map(|cores| cores.iter().copied().collect()).collect();
            have_own_cores(&sets)
        };
        assert!(own(&[]) && own(&[&[0, 1], &[0, 1]]) && own(&[&[0], &[1]]));
        assert!(own(&[&[0, 1, 2], &[0, 1], &[0]]), "the last one moves both others");
        assert!(!own(&[&[0], &[0]]) && !own(&[&[]]));
        assert!(!own(&[&[0], &[0], &[1, 2, 3]]), "enough cores, but two share one");
        let many: Vec<u32> = (0..512).collect();
        assert!(own(&vec![many.as_slice(); 512]) && !own(&vec![many.as_slice(); 513]));
    }

    #[test]
    fn this_machine_has_cores_and_a_cache() {
        assert!(!usable_cores().is_empty());
        assert!(last_level_cache_bytes() >= 1 << 16);
    }
}
