//! The wire: proxies of two ranks in one process, over the devices of two nodes.

use std::process::Command;
use std::sync::Arc;

use oxccl_transports::Cause;
use oxccl_transports::proxy::{Conditions, Fabric};
use oxccl_transports::rdma::{Port, RdmaFabric, Settings};

use super::link;
use super::links::{LIMIT, end_behind_messages, exchange, exchange_until_broken, pair};
use super::pair::port;

/// Over the node's first device, by so many queue pairs.
pub fn fabric(queue_pairs: usize) -> impl Fn(usize) -> Arc<dyn Fabric> {
    move |rank| over(vec![port(rank)], queue_pairs)
}

fn over(ports: Vec<Port>, queue_pairs: usize) -> Arc<dyn Fabric> {
    let settings = Settings { queue_pairs, ..Settings::default() };
    Arc::new(RdmaFabric::new(ports, settings).unwrap())
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn messages_and_counters_cross_over_one_queue_pair_and_over_several() {
    // More messages than a receive queue holds: credits come back in time.
    exchange(&pair(fabric(1), Conditions::default()), 60);
    exchange(&pair(fabric(3), Conditions::default()), 20);
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn messages_may_overtake_each_other() {
    exchange(&pair(fabric(2), "jitter=2ms".parse().unwrap()), 20);
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn what_was_written_last_arrives_though_its_sender_ends() {
    for _ in 0..10 {
        end_behind_messages(pair(fabric(2), Conditions::default()));
    }
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn a_wire_that_breaks_is_named_on_both_sides() {
    let ends = pair(fabric(1), "cut=20".parse().unwrap());
    for cause in exchange_until_broken(&ends) {
        assert!(matches!(cause, Cause::LinkLost { rank, peer, .. } if rank + peer == 1), "{cause}");
    }
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn a_port_that_goes_down_is_named() {
    let ends = pair(fabric(1), Conditions::default());
    assert!(ends[0].ports.write(1, 0, &[7; 100], LIMIT));
    ends[0].proxy.begin();
    assert!(ends[1].ports.read(1, 0, LIMIT).is_some());
    link::down(0);
    let causes = exchange_until_broken(&ends);
    link::up(0);
    let said = causes.map(|cause| cause.to_string()).join(" / ");
    assert!(
        said.contains("rxe0_0: port error") || said.contains("retry counter exceeded"),
        "{said}"
    );
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn ends_that_do_not_go_together_say_so() {
    let refusal = |ends| exchange_until_broken(&ends)[0].to_string();
    let said = refusal(pair(|rank| fabric(rank + 1)(rank), Conditions::default()));
    let either = ["1 here and 2 there", "2 here and 1 there"];
    assert!(either.iter().any(|expected| said.contains(expected)), "{said}");

    link::set_mtu(1, 1500);
    let said = refusal(pair(fabric(1), Conditions::default()));
    link::set_mtu(1, 9000);
    let either =
        ["4096 bytes, the peer's rxe1_0 one of 1024", "1024 bytes, the peer's rxe0_0 one of 4096"];
    assert!(either.iter().any(|expected| said.contains(expected)), "{said}");

    link::take_address(1);
    let said = refusal(pair(fabric(1), Conditions::default()));
    link::give_address(1);
    let either = ["sends from 10.0.0.1, the peer's", "sends from fe80::"];
    assert!(either.iter().any(|expected| said.contains(expected)), "{said}");
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn ports_may_lie_in_memory_of_a_gpu() {
    // The stand-in's driver knows no dmabuf; its memory is the host's, which adapters take by its
    // address.
    let folder = oxccl_cuda_stand_in::control::library_folder().unwrap();
    for capability in ["80", "90"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process::messages_cross_memory_of_gpus", "--ignored"])
            .env("LD_LIBRARY_PATH", &folder)
            .env("OXCCL_STAND_IN_CAPABILITY", capability)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}
