//! What the fuzz targets have in common.

use oxccl_transports::fuzz::TARGETS;

/// Gives the bytes to the target of this name.
pub fn run(name: &str, data: &[u8]) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("a target");
    target(data);
}
