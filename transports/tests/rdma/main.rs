//! RDMA on software RoCE: the layer over libibverbs, and the wire over it.
//!
//! The tests run inside a guest with two devices; `guest.rs` starts it, once for all of them.
#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "../common/guest.rs"]
mod guest;
mod link;
#[path = "../common/links.rs"]
mod links;
mod lossy;
mod pair;
mod process;
mod rails;
mod verbs;
mod wire;

#[test]
fn verbs_in_the_guest() {
    guest::run("verbs::", &[]);
}

#[test]
fn wire_in_the_guest() {
    guest::run("wire::", &[]);
}

#[test]
fn rails_in_the_guest() {
    guest::run("rails::", &["--rails", "2"]);
}

#[test]
fn lossy_in_the_guest() {
    guest::run("lossy::", &["--netem", "loss 1% delay 200us"]);
}
