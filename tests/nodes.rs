//! Ranks on several nodes: no memory in common, links by TCP between them.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "../transports/tests/common/guest.rs"]
mod guest;
mod rdma;

use common::element::TestElement;
use common::nodes::{COUNTS, Memory, cases};
use common::{left, seed};
use oxccl::plans::algorithms::{Algorithm, Encoding};
use oxccl::{
    Advanced, Collectives, Communicator, Config, Error, Kind, Pin, ReduceOp, UniqueId, bf16,
};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn config(nodes: usize, link: &str) -> Config {
    Config {
        nodes: Some(nodes),
        advanced: Advanced { link: link.parse().unwrap(), ..common::nodes::config().advanced },
        ..common::nodes::config()
    }
}

fn on_ranks<T: Send>(n: usize, config: &Config, rank: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let ranks = Communicator::local_with(n, config).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| rank(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn matrix<T: TestElement>(n: usize, nodes: usize, link: &str) {
    let cases = cases::<T>((n, nodes), Memory::Reachable, &COUNTS, seed());
    on_ranks(n, &config(nodes, link), |mut comm| common::nodes::run::<T>(&mut comm, &cases));
}

#[test]
fn every_operation_by_every_algorithm_on_2_nodes_with_2_ranks() {
    matrix::<f32>(4, 2, "");
}

#[test]
fn every_operation_by_every_algorithm_on_4_nodes_with_2_ranks() {
    if left::to_test_all("every operation on four nodes") {
        return;
    }
    matrix::<bf16>(8, 4, "");
}

/// Of 3 and 2 ranks, and of 3, 2 and 2.
#[test]
fn every_operation_by_every_algorithm_on_nodes_that_differ() {
    matrix::<f32>(5, 2, "");
    matrix::<i32>(7, 3, "");
}

#[test]
fn every_operation_by_every_algorithm_with_deeper_pipelines() {
    // Of integers, whose results do not depend on how many parts there are.
    let cases = cases::<i32>((4, 2), Memory::Reachable, &COUNTS, seed());
    let mut config = config(2, "");
    (config.advanced.pipeline, config.advanced.slots) = (Some(3), 8);
    on_ranks(4, &config, |mut comm| common::nodes::run::<i32>(&mut comm, &cases));
}

#[test]
fn and_over_links_that_reorder_and_write_little() {
    matrix::<i32>(4, 2, "jitter=100us,short=300");
}

#[test]
fn the_tuner_finds_its_way_on_nodes_of_any_size() {
    for (n, nodes) in [(2, 2), (3, 2), (5, 2), (4, 2), (6, 3)] {
        let config = Config { heap_bytes: 64 << 20, nodes: Some(nodes), ..Config::default() };
        on_ranks(n, &config, |comm| {
            for count in [1, 1000, 100_000, 1_000_000] {
                let mut data: Vec<i64> = (0..count).map(|i| i + comm.rank() as i64).collect();
                comm.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
                let ranks = n as i64;
                let right =
                    |(i, x): (usize, &i64)| *x == ranks * i as i64 + ranks * (ranks - 1) / 2;
                assert!(data.iter().enumerate().all(right));
            }
            let mut blocks: Vec<i32> = (0..n).map(|to| (comm.rank() * n + to) as i32).collect();
            comm.all_to_all_in_place(&mut blocks).unwrap();
            let from = |from: usize| (from * n + comm.rank()) as i32;
            assert_eq!(blocks, (0..n).map(from).collect::<Vec<_>>());
        });
    }
}

#[test]
fn messages_and_groups_cross_nodes() {
    on_ranks(4, &config(2, ""), |comm| {
        let (rank, n) = (comm.rank(), comm.world_size());
        for count in [1, 3000] {
            let mine = vec![rank as u32; count];
            let mut theirs = vec![0u32; count];
            let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
            let mut sum = vec![1.5f32; count];
            comm.group(|group| {
                group.send(&mine, next)?;
                group.recv(&mut theirs, previous)?;
                group.all_reduce_in_place(&mut sum, ReduceOp::Sum)
            })
            .unwrap();
            assert!(theirs.iter().all(|x| *x == previous as u32));
            assert!(sum.iter().all(|x| *x == 6.0));
        }
    });
}

#[test]
fn what_needs_mapped_memory_is_refused_and_named() {
    let windows = Pin {
        algorithm: Some(Algorithm::TwoShot),
        encoding: Some(Encoding::Windows),
        ..Pin::default()
    };
    let config = Config { pin: windows, ..config(2, "") };
    for error in on_ranks(2, &config, |comm| {
        comm.all_reduce_in_place(&mut [1.0f32; 8], ReduceOp::Sum).unwrap_err()
    }) {
        assert!(matches!(error, Error::NoAlgorithm { kind: Kind::AllReduce, .. }), "{error}");
    }
}

#[test]
fn a_link_that_breaks_in_a_call_is_named_on_every_rank() {
    let config = Config { heap_bytes: 1 << 30, ..config(2, "cut=400") };
    let errors = on_ranks(4, &config, |comm| {
        let mut data = vec![1.0f32; 1 << 20];
        loop {
            if let Err(error) = comm.all_reduce_in_place(&mut data, ReduceOp::Max) {
                break error;
            }
        }
    });
    for error in &errors {
        let text = error.to_string();
        assert!(text.contains("lost its link to rank"), "{text}");
    }
}

#[test]
fn sealed_links_carry_all_messages() {
    let config = Config {
        integrity: true,
        advanced: Advanced { link_sockets: 3, ..config(2, "").advanced },
        ..config(2, "")
    };
    on_ranks(4, &config, |comm| {
        for count in [1, 1000, 300_000] {
            let mut data = vec![comm.rank() as u32 + 1; count];
            comm.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
            assert!(data.iter().all(|x| *x == 10));
        }
    });
}

#[test]
fn ranks_that_differ_in_integrity_are_told() {
    let (id, _server) = UniqueId::create().unwrap();
    let ranks = [(0, true), (1, false)].map(|(rank, integrity)| {
        let (id, config) = (id.clone(), Config { integrity, ..config(2, "") });
        std::thread::spawn(move || Communicator::connect(&id, rank, 2, &config).map(drop))
    });
    for rank in ranks {
        let error = rank.join().unwrap().unwrap_err().to_string();
        assert!(error.starts_with("integrity: ") && error.contains("all ranks need the same"));
    }
}

/// Under which name a rank, this program once more, is told where to meet.
const MEETING: &str = "NODES_TEST_UNIQUE_ID";
const RANK: &str = "NODES_TEST_RANK";

fn of_four(id: &UniqueId, rank: usize) -> Communicator {
    let config = Config { nodes: Some(2), timeout: Duration::from_secs(300), ..Config::default() };
    Communicator::connect(id, rank, 4, &config).unwrap()
}

fn large(comm: &Communicator) -> Result<(), Error> {
    comm.all_reduce_in_place(&mut vec![1.0f32; 8 << 20], ReduceOp::Sum)
}

#[test]
#[ignore = "a rank of the other test"]
fn one_of_four() {
    let rank = std::env::var(RANK).unwrap().parse().unwrap();
    let comm = of_four(&std::env::var(MEETING).unwrap().parse().unwrap(), rank);
    while large(&comm).is_ok() {}
}

fn spawn(id: &UniqueId, rank: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "one_of_four", "--ignored"])
        .envs([(MEETING, id.to_string()), (RANK, rank.to_string())])
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_node_that_dies_in_a_call_is_named_and_others_go_on() {
    let (id, _server) = UniqueId::create().unwrap();
    let mut others: Vec<Child> = (1..4).map(|rank| spawn(&id, rank)).collect();
    let comm = of_four(&id, 0);
    large(&comm).unwrap();
    let dying = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        for child in &mut others[1..] {
            child.kill().unwrap();
        }
        let since = Instant::now();
        others.iter_mut().for_each(|child| drop(child.wait()));
        since
    });
    let error = loop {
        if let Err(error) = large(&comm) {
            break error;
        }
    };
    let since = dying.join().unwrap();
    assert!(since.elapsed() < Duration::from_secs(60), "{error}");
    assert!(matches!(error, Error::Died { rank: 2 | 3, .. }), "{error}");
    drop(comm);
    let again = Config { nodes: Some(2), ..Config::default() };
    on_ranks(2, &again, |comm| large(&comm).unwrap());
}
