//! The links of nodes on the first rail, and what tests do to them. Each function comes back once
//! the device knows of it: the kernel tells devices, and the bridge between them, in its own time.

use std::fs;
use std::process::Command;

use oxccl_transports::proxy::testing::until;
use oxccl_transports::rdma::{Device, Port};

use super::links::LIMIT;

/// Takes a node's link down.
pub fn down(node: usize) {
    set(node, &["link", "set", &net_device(node), "down"]);
    assert!(until(LIMIT, || port(node).is_none()), "the port stays up");
}

/// Brings it up again.
pub fn up(node: usize) {
    set(node, &["link", "set", &net_device(node), "up"]);
    assert!(until(LIMIT, || has_ipv4(node) == Some(true)), "the port stays down");
    let bridged = format!("/sys/class/net/rail0/brif/port{node}_0/state");
    let forwards = || fs::read_to_string(&bridged).is_ok_and(|state| state.trim() == FORWARDING);
    assert!(until(LIMIT, forwards), "nothing leaves the port");
}

/// How the bridge says that it forwards what comes.
const FORWARDING: &str = "3";

/// Changes the MTU of a node's link.
pub fn set_mtu(node: usize, mtu_bytes: usize) {
    let before = port(node).unwrap().address().mtu_bytes;
    set(node, &["link", "set", &net_device(node), "mtu", &mtu_bytes.to_string()]);
    let changed = || port(node).is_some_and(|port| port.address().mtu_bytes != before);
    assert!(until(LIMIT, changed), "the MTU stays {before}");
}

/// Takes a node its IPv4 address.
pub fn take_address(node: usize) {
    set(node, &["addr", "del", &address(node), "dev", &net_device(node)]);
    assert!(until(LIMIT, || has_ipv4(node) == Some(false)));
}

/// Gives it back.
pub fn give_address(node: usize) {
    set(node, &["addr", "add", &address(node), "dev", &net_device(node)]);
    assert!(until(LIMIT, || has_ipv4(node) == Some(true)));
}

fn set(node: usize, what: &[&str]) {
    let status = Command::new("ip").args(["-n", &format!("node{node}")]).args(what).status();
    assert!(status.unwrap().success(), "ip {what:?}");
}

fn net_device(node: usize) -> String {
    format!("roce{node}_0")
}

fn address(node: usize) -> String {
    format!("10.0.0.{}/24", node + 1)
}

/// The port, if it is up and has an address.
fn port(node: usize) -> Option<Port> {
    Port::new(&Device::open(&format!("rxe{node}_0")).unwrap(), 1, None).ok()
}

fn has_ipv4(node: usize) -> Option<bool> {
    port(node).map(|port| port.address().gid.is_ipv4())
}
