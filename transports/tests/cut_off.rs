//! A node that vanishes from the network without a word: two network namespaces joined by a pair of
//! virtual interfaces, of which one goes down. Needs no root where the system lets users have
//! namespaces of their own.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

use common::{assigned, connect_as, deadline, wait_for_cause};
use oxccl_transports::silence::LEAST_SILENCE;
use oxccl_transports::{Bootstrap, Cause, Error, Nodes, Secret, UniqueId};

/// Ranks 0 and 3 are in one namespace, where rank 0 serves; 1 and 2 in the other, which rank 1 cuts
/// off.
const SCRIPT: &str = r#"
set -e
ip link set lo up
unshare -n sleep 300 & other=$!
trap 'kill $other' EXIT
until nsenter -t $other -n ip link show lo >/dev/null && [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.02; done
ip link add here type veth peer name there
ip link set there netns $other
ip addr add 10.77.0.1/24 dev here && ip link set here up
nsenter -t $other -n sh -c 'ip addr add 10.77.0.2/24 dev there && ip link set there up'
rank() { OXCCL_RANK=$1 "$TEST" --exact rank_process --ignored --nocapture --test-threads=1; }
there() { OXCCL_RANK=$1 nsenter -t $other -n "$TEST" --exact rank_process --ignored --nocapture --test-threads=1; }
rank 0 & a=$!
rank 3 & b=$!
there 1 & c=$!
there 2 & d=$!
wait $a; wait $b; wait $c; wait $d
"#;

#[test]
fn a_node_that_is_cut_off_is_named() {
    let namespaces =
        Command::new("unshare").args(["-Urn", "ip", "link", "set", "lo", "up"]).output();
    if !namespaces.is_ok_and(|output| output.status.success()) {
        let why = "the system gives no network namespaces (unshare -Urn, ip)";
        let _ = writeln!(std::io::stderr(), "skipped: a_node_that_is_cut_off_is_named: {why}");
        return;
    }
    let id = UniqueId::new("10.77.0.1", 20_777, Secret::random().unwrap());
    let mut script = Command::new("unshare");
    script.args(["-Urn", "--kill-child", "--fork", "sh", "-c", SCRIPT]);
    script.env("TEST", std::env::current_exe().unwrap()).env("OXCCL_TEST_CASE", "cut_off");
    script.env("OXCCL_WORLD_SIZE", "4").env("OXCCL_UNIQUE_ID", id.to_string());
    let output = script.stdin(Stdio::null()).output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{said:?}");
    println!("{}", said[0]);
}

#[test]
#[ignore = "one rank, started by the other test"]
fn rank_process() {
    let (_, place) = assigned();
    let _server = (place.rank == 0).then(|| place.unique_id.serve().unwrap());
    let mut rank = connect_as(&place);
    rank.set_silence(LEAST_SILENCE).unwrap();
    assert_eq!(rank.nodes(), &Nodes::of([0, 1, 1, 0]));
    let met = rank.all_gather(&[], deadline());
    let start = Instant::now();
    if rank.rank() == 1 {
        let cut = Command::new("ip").args(["link", "set", "there", "down"]).status();
        assert!(cut.unwrap().success());
    }
    // Rank 1 may have met the others, and cut the link, before they know that all have.
    let cause = match met {
        Ok(_) => wait_for_cause(&rank),
        Err(Error::Stopped(cause)) => cause,
        Err(other) => panic!("rank {} could not meet the others: {other}", rank.rank()),
    };
    println!("rank {} knows after {:?}: {cause}", rank.rank(), start.elapsed());
    match (rank.rank(), cause) {
        (0 | 3, Cause::CutOff { rank: 1 | 2 }) | (1 | 2, Cause::CutOff { rank: 0 }) => {}
        (rank, other) => panic!("rank {rank} has heard: {other}"),
    }
}
