//! What a process holds, by which tests see that nothing is left of what they did.
#![allow(unreachable_pub, reason = "shared by several test binaries")]
#![allow(dead_code, reason = "each uses a part")]

/// Descriptors, threads and mappings of this process.
pub fn held() -> [usize; 3] {
    [entries("/proc/self/fd"), entries("/proc/self/task"), mappings("")]
}

/// Descriptors, threads, and mappings of memory files, which no allocator makes.
pub fn shared() -> [usize; 3] {
    [entries("/proc/self/fd"), entries("/proc/self/task"), mappings("/memfd:")]
}

fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

fn mappings(of: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(of)).count()
}
