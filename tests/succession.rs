//! Ranks go on without the process that served the rendezvous: its duty moves.
#![allow(clippy::unwrap_used)]

use oxccl::{Collectives, Communicator, Config, Error, ReduceOp, UniqueId};
use oxccl_transports::Secret;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const RANK: &str = "SUCCESSION_TEST_RANK";
const WORLD: &str = "SUCCESSION_TEST_WORLD";
const ID: &str = "SUCCESSION_TEST_ID";
const NODES: &str = "SUCCESSION_TEST_NODES";

/// What a rank is told.
fn told<T: std::str::FromStr>(name: &str) -> T {
    std::env::var(name).unwrap().parse().ok().unwrap()
}

/// Runs processes, of which these may fail, and rank 0 serves the rendezvous.
fn run(rank_of: &str, world: usize, nodes: usize, fail: &[usize]) {
    let port = free_port();
    let id = UniqueId::new("127.0.0.1", port, Secret::random().unwrap());
    let start = |rank: usize| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", rank_of, "--ignored", "--nocapture"])
            .env(RANK, rank.to_string())
            .env(WORLD, world.to_string())
            .env(ID, id.to_string())
            .env(NODES, nodes.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let ranks: Vec<Child> = (0..world).map(start).collect();
    for (rank, child) in ranks.into_iter().enumerate() {
        let end = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&end.stderr);
        assert_eq!(end.status.success(), !fail.contains(&rank), "rank {rank} on {nodes}: {said}");
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn connect() -> Communicator {
    let (id, rank): (UniqueId, usize) = (told(ID), told(RANK));
    // As long as the process runs.
    (rank == 0).then(|| std::mem::forget(id.serve().unwrap()));
    connect_to(&id)
}

fn connect_to(id: &UniqueId) -> Communicator {
    let nodes: usize = told(NODES);
    let config = Config {
        nodes: (nodes > 1).then_some(nodes),
        timeout: Duration::from_secs(60),
        heap_bytes: 1 << 20,
        max_channels: 2,
        ..Config::default()
    };
    Communicator::connect(id, told(RANK), told(WORLD), &config).unwrap()
}

fn die() {
    // What it has sent arrives.
    std::thread::sleep(Duration::from_millis(200));
    // SAFETY: it ends the process, past everything.
    unsafe { libc::_exit(9) }
}

/// What the ranks of a communicator come to by a sum.
fn counts(comm: &Communicator) -> usize {
    let mut sum = vec![1u64; 1000];
    comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
    sum[999] as usize
}

/// Fails unless a call names this rank, and soon.
fn loses(comm: &Communicator, rank: usize) {
    let begin = Instant::now();
    let error = comm.barrier().unwrap_err();
    assert_eq!(error.ranks(), [rank], "{error}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

/// The rank that serves dies, then one that does not, then the next that serves.
#[test]
#[ignore = "a rank of the other tests"]
fn rank_of_deaths() {
    let comm = connect();
    let rank = comm.rank();
    let pair = comm.split((rank == 2 || rank == 3).then_some(0), 0).unwrap();
    assert_eq!(counts(&comm), 5);
    if rank == 0 {
        die();
    }
    loses(&comm, 0);
    if let Some(pair) = &pair {
        // Nothing has happened to these.
        assert_eq!(counts(pair), 2);
        assert_eq!(counts(&pair.split(Some(0), 0).unwrap().unwrap()), 2);
    }
    let four = comm.shrink(&[0]).unwrap();
    assert_eq!(counts(&four), 4);
    let half = four.split(Some(rank as u32 % 2), 0).unwrap().unwrap();
    assert_eq!(counts(&half), 2);
    if rank == 4 {
        die();
    }
    loses(&four, 3);
    let three = four.shrink(&[3]).unwrap();
    assert_eq!(counts(&three), 3);
    if rank == 1 {
        die();
    }
    loses(&three, 0);
    let two = three.shrink(&[0]).unwrap();
    assert_eq!((two.rank(), counts(&two)), (rank - 2, 2));
    pair.unwrap().close().unwrap();
    two.close().unwrap();
}

#[test]
fn the_duty_moves_as_often_as_its_process_dies() {
    run("rank_of_deaths", 5, 1, &[0, 1, 4]);
}

#[test]
fn the_duty_moves_to_another_node() {
    run("rank_of_deaths", 5, 2, &[0, 1, 4]);
}

/// Those that would serve next die with the one that does.
#[test]
#[ignore = "a rank of the other test"]
fn rank_of_deaths_at_once() {
    let comm = connect();
    let rank = comm.rank();
    assert_eq!(counts(&comm), 4);
    if rank < 2 {
        die();
    }
    let error = comm.barrier().unwrap_err();
    assert!(!error.ranks().is_empty(), "{error}");
    let two = comm.shrink(&[0, 1]).unwrap();
    assert_eq!(counts(&two), 2);
    two.close().unwrap();
}

#[test]
fn a_successor_that_is_dead_is_passed_over() {
    run("rank_of_deaths_at_once", 4, 2, &[0, 1]);
}

/// The rank that serves is left out, and leaves in order.
#[test]
#[ignore = "a rank of the other test"]
fn rank_of_a_departure() {
    let id: UniqueId = told(ID);
    let server = (told::<usize>(RANK) == 0).then(|| id.serve().unwrap());
    let comm = connect_to(&id);
    assert_eq!(counts(&comm), 3);
    if let Some(server) = server {
        comm.close().unwrap();
        server.set_linger(Duration::from_millis(100));
        return;
    }
    let two = comm.shrink(&[0]).unwrap();
    comm.close().unwrap();
    let begin = Instant::now();
    // Over the old server, and then over the new one.
    let mut over = [0u32];
    while over == [0] {
        over = [u32::from(begin.elapsed() > Duration::from_secs(1))];
        let both = two.split(Some(0), 0).unwrap().unwrap();
        both.all_reduce_in_place(&mut over, ReduceOp::Max).unwrap();
    }
    assert!(two.handle().error().is_none());
    two.close().unwrap();
}

#[test]
fn the_duty_moves_when_its_process_leaves() {
    run("rank_of_a_departure", 3, 1, &[]);
}

/// Parts that do not have the rank that has died are closed as if nothing had been.
#[test]
#[ignore = "a rank of the other test"]
fn rank_of_a_part() {
    let comm = connect();
    let rank = comm.rank();
    let part = comm.split((rank > 0).then_some(0), 0).unwrap();
    if rank == 0 {
        die();
    }
    let part = part.unwrap();
    loses(&comm, 0);
    drop(comm);
    let late = part.monitored_barrier(Duration::from_secs(30)).unwrap();
    assert_eq!(late.len(), 2);
    assert!(!matches!(part.handle().error(), Some(Error::ServerLost { .. })));
    part.close().unwrap();
}

#[test]
fn parts_are_closed_after_the_duty_has_moved() {
    run("rank_of_a_part", 3, 1, &[0]);
}
