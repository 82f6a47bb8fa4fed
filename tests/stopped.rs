//! A rank whose process is stopped inside a call is named by those that wait for it, and holds them
//! no longer than their time-out.
#![allow(clippy::unwrap_used)]

use oxccl::{Collectives, Communicator, Config, Error, ReduceOp, UniqueId};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Under which names rank 1, this program once more, is told where to meet, and on how many nodes.
const MEETING: &str = "STOPPED_TEST_UNIQUE_ID";
const NODES: &str = "STOPPED_TEST_NODES";

/// Too long for one message: each rank needs the other inside the call to end it.
const COUNT: usize = 4 << 20;

fn connect(id: &UniqueId, rank: usize, nodes: usize) -> Communicator {
    let timeout = Duration::from_secs(60);
    let config = Config { timeout, nodes: Some(nodes), heap_bytes: 64 << 20, ..Config::default() };
    Communicator::connect(id, rank, 2, &config).unwrap()
}

fn call(comm: &Communicator) -> Result<(), Error> {
    comm.all_reduce_in_place(&mut vec![1.0f32; COUNT], ReduceOp::Sum)
}

#[test]
#[ignore = "rank 1 of the other tests"]
fn rank_1() {
    let told = |name| std::env::var(name).unwrap();
    let comm = connect(&told(MEETING).parse().unwrap(), 1, told(NODES).parse().unwrap());
    comm.barrier().unwrap();
    call(&comm).unwrap_err();
}

/// Rank 0, with rank 1 stopped inside the call that rank 0 has not made.
fn beside_a_stopped_rank(nodes: usize, rank_0: impl FnOnce(Communicator)) {
    let (id, _server) = UniqueId::create().unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "rank_1", "--ignored"])
        .env(MEETING, id.to_string())
        .env(NODES, nodes.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let comm = connect(&id, 0, nodes);
    comm.barrier().unwrap();
    // By then rank 1 waits in its call for this rank.
    std::thread::sleep(Duration::from_secs(2));
    signal(&other, "STOP");
    rank_0(comm);
    signal(&other, "CONT");
    assert!(other.wait().unwrap().success());
}

fn signal(process: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &process.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn a_stopped_rank_is_named_and_holds_nobody() {
    beside_a_stopped_rank(1, |mut comm| {
        comm.set_timeout(Duration::from_secs(1)).unwrap();
        let buffer = comm.alloc_host::<f32>(1000).unwrap();
        let at = buffer.as_ptr();
        let begin = Instant::now();
        let error = call(&comm).unwrap_err();
        // Twice the time-out, and what a busy machine adds: far from a minute.
        assert!(begin.elapsed() < Duration::from_secs(40), "{:?}", begin.elapsed());
        let text = error.to_string();
        assert!(matches!(error, Error::TimedOut { .. }), "{text}");
        assert!(text.contains("rank 1 is inside a call, but has not run for 300 ms"), "{text}");
        assert!(text.contains("rank 0 waits at step"), "{text}");
        assert!(!text.contains("rank 1 waits") && !text.contains("rank 0 is inside"), "{text}");
        // It could still write.
        assert!(text.contains("rank 1 has not left its call since"), "{text}");
        drop(buffer);
        assert_ne!(comm.alloc_host::<f32>(1000).unwrap().as_ptr(), at, "it is not given out again");
    });
}

/// It does not answer, and of what it has called nothing is made up.
#[test]
fn a_stopped_rank_of_another_node_has_not_answered() {
    beside_a_stopped_rank(2, |mut comm| {
        comm.set_timeout(Duration::from_secs(1)).unwrap();
        let text = call(&comm).unwrap_err().to_string();
        assert!(text.contains("rank 1 has not answered for"), "{text}");
        assert!(!text.contains("called nothing") && !text.contains("has not called"), "{text}");
    });
}
