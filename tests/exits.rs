//! Ranks whose process ends before they have dropped their communicator, as programs in other
//! languages and statics do: with status 0 that is no death, otherwise it is.
#![allow(clippy::unwrap_used)]

#[path = "common/port.rs"]
mod port;

use oxccl::{Collectives, Communicator, Config, ReduceOp};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

const RANKS: usize = 3;
/// What a rank does last.
const DOES: &str = "EXITS_TEST_DOES";

/// Runs a rank in each of three processes, on so many nodes, which must end with these statuses.
/// What they said.
fn run(does: &str, nodes: usize, statuses: [i32; RANKS]) -> [String; RANKS] {
    let port = port::free_port();
    let start = |rank: usize| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rank", "--ignored", "--nocapture"])
            .env(DOES, does)
            .env("OXCCL_NODES", nodes.to_string())
            .env("OXCCL_FABRIC", "tcp")
            // As torchrun tells it: rank 0 serves the others.
            .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port.to_string())])
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", RANKS.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("LOCAL_WORLD_SIZE", RANKS.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let ranks: Vec<Child> = (0..RANKS).map(start).collect();
    let ends: Vec<_> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    let said = |at: usize| String::from_utf8_lossy(&ends[at].stderr).into_owned();
    for (rank, status) in statuses.into_iter().enumerate() {
        assert_eq!(ends[rank].status.code(), Some(status), "rank {rank}: {}", said(rank));
    }
    std::array::from_fn(said)
}

/// A static is never dropped.
static COMM: OnceLock<Held> = OnceLock::new();

/// One thread uses it.
struct Held(Communicator);
// SAFETY: only the thread that sets it uses it.
unsafe impl Sync for Held {}

#[test]
#[ignore = "a rank of the other tests"]
fn rank() {
    let asked = Config::from_env().unwrap();
    let config = Config { timeout: Duration::from_secs(60), ..asked };
    let comm = Communicator::from_env_with(&config).unwrap();
    let comm = &COMM.get_or_init(|| Held(comm)).0;
    let (rank, later) = (comm.rank(), || std::thread::sleep(Duration::from_millis(700)));
    let (does, mut data) = (std::env::var(DOES).unwrap(), [1.0f32; 100]);
    if does != "send" {
        let met = comm.all_reduce_in_place(&mut data, ReduceOp::Sum);
        // Who dies behind it may be faster.
        assert!(met.is_ok() || does == "fail" && rank != 1, "{met:?}");
    }
    match (does.as_str(), rank) {
        // Rank 0, which serves the others, has gone when the others go on.
        ("go on", 1) => {
            later();
            comm.send(&[7.0f32; 5000], 2).unwrap();
            later();
        }
        ("go on", 2) => {
            let mut found = vec![0.0f32; 5000];
            comm.recv(&mut found, 1).unwrap();
            assert!(found.iter().all(|value| *value == 7.0));
        }
        // The first message of its pair, whose link is not there yet.
        ("send", 0) => comm.send(&[3.0f32; 10], 2).unwrap(),
        ("send", 2) => {
            later();
            let mut found = [0.0f32; 10];
            comm.recv(&mut found, 0).unwrap();
            assert_eq!(found, [3.0; 10]);
        }
        ("call", 1 | 2) => {
            let error = comm.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("rank 0 closed its communicator after 1 calls"), "{text}");
        }
        ("fail", 1) => std::process::exit(3),
        ("fail", _) => {
            let error = comm.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap_err();
            assert_eq!(error.ranks(), [1], "{error}");
            assert!(error.to_string().contains("rank 1 died"), "{error}");
        }
        _ => {}
    }
    std::process::exit(0);
}

#[test]
fn a_rank_that_ends_with_status_0_has_left_in_order() {
    for nodes in [1, 3] {
        for said in run("go on", nodes, [0; RANKS]) {
            assert!(said.is_empty(), "{said}");
        }
    }
}

#[test]
fn what_it_has_sent_arrives() {
    for nodes in [1, 3] {
        run("send", nodes, [0; RANKS]);
    }
}

#[test]
fn later_calls_say_that_it_has_left() {
    for nodes in [1, 3] {
        run("call", nodes, [0; RANKS]);
    }
}

#[test]
fn another_status_is_a_death() {
    for nodes in [1, 3] {
        run("fail", nodes, [0, 3, 0]);
    }
}
