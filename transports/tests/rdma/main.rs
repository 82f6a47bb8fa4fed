//! RDMA on software RoCE: the layer over libibverbs, and the wire over it.
//!
//! The tests run inside a guest with two devices; `guest.rs` starts it, once for all of them.
#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "../common/guest.rs"]
mod guest;
mod pair;
mod process;
mod verbs;

#[test]
fn in_the_guest() {
    guest::run("verbs::", &[]);
}
