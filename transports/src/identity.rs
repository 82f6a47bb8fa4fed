//! What tells machines and processes apart, also from inside containers.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

/// Where ranks are: equal for two ranks that can reach each other through abstract Unix sockets
/// (the same boot of the same machine, the same network namespace).
pub(crate) fn node() -> [u8; 16] {
    digest(&["node", &boot(), &link("/proc/self/ns/net")])
}

/// A part of a node, by its number.
pub(crate) fn part(node: &[u8; 16], number: usize) -> [u8; 16] {
    let mut hash = Sha256::new();
    hash.update(node);
    hash.update((number as u64).to_le_bytes());
    first_bytes(hash)
}

/// Equal for two ranks that are threads of one process.
pub(crate) fn process() -> [u8; 16] {
    digest(&["process", &boot(), &link("/proc/self/ns/pid"), &std::process::id().to_string()])
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

fn link(path: &str) -> String {
    fs::read_link(Path::new(path)).unwrap_or_default().to_string_lossy().into_owned()
}

fn digest(parts: &[&str]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    first_bytes(hash)
}

fn first_bytes(hash: Sha256) -> [u8; 16] {
    let mut id = [0; 16];
    id.copy_from_slice(&hash.finalize()[..16]);
    id
}
