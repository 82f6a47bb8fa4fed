//! What this rank's processor has.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use std::fs;

/// What a machine that does not tell is taken to have.
const TYPICAL_CACHE_BYTES: usize = 32 << 20;

/// The cores that this thread may run on.
pub(crate) fn usable_cores() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count() as u32).filter(|core| set.is_set(*core as usize) == Ok(true)).collect()
}

/// The size of the last-level cache that the first core uses.
pub(crate) fn last_level_cache_bytes() -> usize {
    let size = |index: usize| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        parse_size(fs::read_to_string(path).ok()?.trim())
    };
    (0..8).filter_map(size).max().unwrap_or(TYPICAL_CACHE_BYTES)
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
    fn this_machine_has_cores_and_a_cache() {
        assert!(!usable_cores().is_empty());
        assert!(last_level_cache_bytes() >= 1 << 16);
    }
}
