//! `oxccl doctor` on a node with network adapters: in the software RoCE guest, whose nodes are
//! network namespaces.
#![allow(clippy::unwrap_used)]

#[path = "../../transports/tests/common/guest.rs"]
mod guest;

use std::process::Command;

#[test]
fn in_the_guest() {
    guest::run("doctor_lists_", &[]);
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn doctor_lists_the_devices_of_its_node_and_tries_them() {
    let doctor = |arguments: &[&str]| {
        let oxccl = env!("CARGO_BIN_EXE_oxccl");
        let mut doctor = Command::new(arguments[0]);
        let said = doctor.args(&arguments[1..]).args([oxccl, "doctor"]).output().unwrap();
        assert!(said.status.success());
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    let node0 = doctor(&["ip", "netns", "exec", "node0"]);
    for line in [
        "ok       rdma device        rxe0_0 port 1: active, RoCE v2, MTU 4096, ",
        "1: 10.0.0.1 (RoCE v2 of roce0_0)",
        "note     rdma device        rxe1_0 port 1: active, RoCE v2, ",
        "-> port 1 of rxe1_0 belongs to the net device roce1_0, which is not in this process's",
        "ok       locked memory      no limit; links to a rank of another node pin ",
        "ok       rdma (nodes)       an all-reduce over 2 ranks is right",
    ] {
        assert!(node0.contains(line), "{line:?} is not in\n{node0}");
    }
    let limits = ["--memlock=65536", "setpriv", "--bounding-set=-ipc_lock"];
    let limits = [&["prlimit"], &limits[..], &["--inh-caps=-ipc_lock"]].concat();
    let short = doctor(&[&["ip", "netns", "exec", "node1"], &limits[..]].concat());
    for line in [
        "note     locked memory      65536 bytes (RLIMIT_MEMLOCK): room for 0 ranks",
        "ulimit -l unlimited",
    ] {
        assert!(short.contains(line), "{line:?} is not in\n{short}");
    }
}
