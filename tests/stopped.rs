//! A rank whose process is stopped inside a call is named by those that wait for it.
#![allow(clippy::unwrap_used)]

use oxccl::{Communicator, Config, Error, ReduceOp, UniqueId};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Under which name rank 1, this program once more, is told where to meet.
const MEETING: &str = "STOPPED_TEST_UNIQUE_ID";

/// Too long for one message: each rank needs the other inside the call to end it.
const COUNT: usize = 4 << 20;

fn connect(id: &UniqueId, rank: usize) -> Communicator {
    let config = Config { timeout: Duration::from_secs(60), ..Config::default() };
    Communicator::connect(id, rank, 2, &config).unwrap()
}

fn call(comm: &Communicator) -> Result<(), Error> {
    comm.all_reduce_in_place(&mut vec![1.0f32; COUNT], ReduceOp::Sum)
}

#[test]
#[ignore = "rank 1 of the other test"]
fn rank_1() {
    let comm = connect(&std::env::var(MEETING).unwrap().parse().unwrap(), 1);
    comm.barrier().unwrap();
    call(&comm).unwrap_err();
}

#[test]
fn a_stopped_rank_is_named() {
    let (id, _server) = UniqueId::create().unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "rank_1", "--ignored"])
        .env(MEETING, id.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut comm = connect(&id, 0);
    comm.barrier().unwrap();
    // By then rank 1 waits in its call for this rank.
    std::thread::sleep(Duration::from_secs(2));
    signal(other.id(), "STOP");
    comm.set_timeout(Duration::from_secs(1)).unwrap();
    let error = std::thread::scope(|scope| {
        let call = scope.spawn(move || call(&comm).unwrap_err());
        // The error comes when rank 1 has left its call, so that it touches this rank's memory no more.
        std::thread::sleep(Duration::from_secs(5));
        signal(other.id(), "CONT");
        call.join().unwrap()
    });
    assert!(other.wait().unwrap().success());
    let text = error.to_string();
    assert!(matches!(error, Error::TimedOut { .. }), "{text}");
    assert!(text.contains("rank 1 is inside a call, but has not run for 300 ms"), "{text}");
    assert!(text.contains("rank 0 waits at step"), "{text}");
    assert!(!text.contains("rank 1 waits") && !text.contains("rank 0 is inside"), "{text}");
}

fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &process.to_string()]).status();
    assert!(sent.unwrap().success());
}
