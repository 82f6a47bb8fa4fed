//! Ranks that go on without those that have failed.
#![allow(clippy::unwrap_used)]

use oxccl::{Collectives, Communicator, Config, Error, ReduceOp, UniqueId};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const RANKS: usize = 4;
const RANK: &str = "SURVIVORS_TEST_RANK";
const ID: &str = "SURVIVORS_TEST_ID";
const NODES: &str = "SURVIVORS_TEST_NODES";
const FAILS: &str = "SURVIVORS_TEST_FAILS";

/// Runs processes of which rank 2, and then one more, fail like this, on so many nodes.
fn run(fails: &str, nodes: usize) {
    let (id, _server) = UniqueId::create().unwrap();
    let start = |rank: usize| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "survivor", "--ignored", "--nocapture"])
            .env(RANK, rank.to_string())
            .env(ID, id.to_string())
            .env(NODES, nodes.to_string())
            .env(FAILS, fails)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut ranks: Vec<Child> = (0..RANKS).map(start).collect();
    let others = [ranks.remove(2), ranks.remove(2)];
    for rank in ranks {
        let end = rank.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&end.stderr);
        assert!(end.status.success(), "{fails} on {nodes}: {told}");
    }
    for mut other in others {
        // One that has stopped itself goes on never.
        let _ = other.kill();
        other.wait().unwrap();
    }
}

fn fail(how: &str) {
    match how {
        // SAFETY: it ends the process, past everything.
        "dies" => unsafe { libc::_exit(9) },
        // SAFETY: it sends a signal to this process.
        "stops" => drop(unsafe { libc::raise(libc::SIGSTOP) }),
        other => panic!("no failure {other}"),
    }
}

fn summed(comm: &Communicator, buffer: &mut [f32], rank: usize, expected: usize) {
    buffer.fill(rank as f32);
    comm.all_reduce_in_place(buffer, ReduceOp::Sum).unwrap();
    assert!(buffer.iter().all(|value| *value == expected as f32), "{:?}", &buffer[..2]);
    let mut own = vec![rank as f32; 3000];
    comm.all_reduce_in_place(&mut own, ReduceOp::Sum).unwrap();
    assert!(own.iter().all(|value| *value == expected as f32), "{:?}", &own[..2]);
}

#[test]
#[ignore = "a rank of the other tests"]
fn survivor() {
    let variable = |name| std::env::var(name).unwrap();
    let rank: usize = variable(RANK).parse().unwrap();
    let nodes: usize = variable(NODES).parse().unwrap();
    let (id, fails): (UniqueId, _) = (variable(ID).parse().unwrap(), variable(FAILS));
    let timeout = Duration::from_secs(if fails == "stops" { 1 } else { 60 });
    let nodes = (nodes > 1).then_some(nodes);
    let config =
        Config { timeout, nodes, heap_bytes: 1 << 20, max_channels: 2, ..Config::default() };
    // The start may take longer.
    let patient = Config { timeout: Duration::from_secs(60), ..config.clone() };
    let mut comm = Communicator::connect(&id, rank, RANKS, &patient).unwrap();
    comm.set_timeout(timeout).unwrap();
    let mut buffer = comm.alloc_host::<f32>(3000).unwrap();
    summed(&comm, &mut buffer, rank, 6);
    if rank == 2 {
        // What it has sent arrives.
        std::thread::sleep(Duration::from_millis(300));
        fail(&fails);
    }
    let began = Instant::now();
    let error = comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap_err();
    let dead = error.ranks();
    assert_eq!(dead, [2], "{error}");
    let mut three = comm.shrink(&dead).unwrap();
    assert_eq!((three.rank(), three.world_size()), (rank - usize::from(rank == 3), 3));
    summed(&three, &mut buffer, rank, 4);
    assert!(matches!(comm.barrier(), Err(Error::Broken { .. })), "the first one has ended");
    drop(comm);
    // And once more, in a part and in the whole, which waits until the part has noticed.
    let pair = three.split((rank != 0).then_some(1), 0).unwrap();
    if rank == 3 {
        fail(&fails);
    }
    if let Some(pair) = pair {
        let error = pair.barrier().unwrap_err();
        assert_eq!(error.ranks(), [1], "{error}");
        let alone = pair.shrink(&[1]).unwrap();
        summed(&alone, &mut buffer, rank, rank);
    }
    three.set_timeout(4 * timeout).unwrap();
    let error = three.barrier().unwrap_err();
    assert_eq!(error.ranks(), [2], "{error}");
    let two = three.shrink(&[2]).unwrap();
    summed(&two, &mut buffer, rank, 1);
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    two.close().unwrap();
}

#[test]
fn the_dead_are_left_behind() {
    run("dies", 1);
}

#[test]
fn the_dead_of_another_node_are_left_behind() {
    run("dies", 2);
}

#[test]
fn the_stopped_are_left_behind() {
    run("stops", 1);
}

#[test]
fn the_stopped_of_another_node_are_left_behind() {
    run("stops", 2);
}

/// Threads, of which one panics.
#[test]
fn a_thread_that_panics_is_left_behind() {
    let config = Config { heap_bytes: 1 << 20, max_channels: 2, ..Config::default() };
    let ranks = Communicator::local_with(3, &config).unwrap();
    std::thread::scope(|scope| {
        let rank = |comm: Communicator| {
            let rank = comm.rank();
            let mut buffer = comm.alloc_host::<f32>(3000).unwrap();
            summed(&comm, &mut buffer, rank, 3);
            if rank == 1 {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
            let error = comm.barrier().unwrap_err();
            assert_eq!(error.ranks(), [1], "{error}");
            let two = comm.shrink(&[1]).unwrap();
            summed(&two, &mut buffer, rank, 2);
            two.close().unwrap();
        };
        let threads: Vec<_> =
            ranks.into_iter().map(|comm| scope.spawn(move || rank(comm))).collect();
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join().is_ok()).collect();
        assert_eq!(ends, [true, false, true]);
    });
}

/// Where nothing has failed, the others go on, too; and after calls that differ.
#[test]
fn ranks_that_live_are_left_out() {
    let config = Config { heap_bytes: 1 << 20, max_channels: 2, ..Config::default() };
    let ranks = Communicator::local_with(4, &config).unwrap();
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(move || {
                let rank = comm.rank();
                let refused = comm.shrink(&[rank]).unwrap_err();
                assert!(matches!(refused, Error::Rank { argument: "exclude", .. }), "{refused}");
                assert!(matches!(comm.shrink(&[9]), Err(Error::Rank { rank: 9, .. })));
                let mut buffer = comm.alloc_host::<f32>(3000).unwrap();
                if rank > 0 {
                    summed(&comm.shrink(&[0]).unwrap(), &mut buffer, rank, 6);
                }
                summed(&comm, &mut buffer, rank, 6);
                let end = comm.all_reduce_in_place(&mut buffer[..1 + rank / 3], ReduceOp::Sum);
                assert!(end.unwrap_err().ranks().contains(&3));
                if rank < 3 {
                    summed(&comm.shrink(&[3]).unwrap(), &mut buffer, rank, 3);
                }
            });
        }
    });
}
