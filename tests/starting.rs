//! Starts that do not block: several of one thread, and starts that are given up.
#![allow(clippy::unwrap_used)]

use oxccl::{Collectives, Communicator, Config, Error, ReduceOp, Starting, UniqueId};
use oxccl_transports::{Bootstrap, Secret, deadline_in, shm};
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// Longer than any of this takes, and much shorter than the time-out.
const SOON: Duration = Duration::from_secs(5);

fn config() -> Config {
    Config { heap_bytes: 1 << 20, max_channels: 2, ..Config::default() }
}

fn starting(id: &UniqueId, rank: usize, world: usize) -> Starting {
    Communicator::starting(id, rank, world, &config()).unwrap()
}

/// Fails unless the start ends soon, with an error that names this rank and reason.
fn is_given_up(starting: Starting, rank: usize, reason: &str) {
    let begin = Instant::now();
    let error = starting.wait().unwrap_err();
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    assert_eq!(error.ranks(), [rank], "{error}");
    assert!(error.to_string().contains(reason), "{error}");
}

#[test]
fn one_thread_starts_several_communicators() {
    let meetings: Vec<_> = (0..3).map(|_| UniqueId::create().unwrap()).collect();
    let starts: Vec<Vec<Starting>> =
        meetings.iter().map(|(id, _)| (0..2).map(|rank| starting(id, rank, 2)).collect()).collect();
    let ready = |starts: Vec<Starting>| -> Vec<Communicator> {
        starts.into_iter().map(|rank| rank.wait().unwrap()).collect()
    };
    for pair in starts.into_iter().map(ready).collect::<Vec<_>>() {
        std::thread::scope(|scope| {
            for comm in pair {
                scope.spawn(move || {
                    let mut sum = [comm.rank() as u64 + 1];
                    comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
                    assert_eq!(sum, [3]);
                    comm.close().unwrap();
                });
            }
        });
    }
}

#[test]
fn a_start_is_done_when_all_have_come() {
    let (id, _server) = UniqueId::create().unwrap();
    let first = starting(&id, 0, 2);
    assert!(!first.wait_timeout(Duration::from_millis(100)) && !first.is_done());
    let second = starting(&id, 1, 2);
    assert!(first.wait_timeout(SOON) && first.is_done());
    assert_eq!((first.wait().unwrap().rank(), second.wait().unwrap().rank()), (0, 1));
    let wrong = Config { max_channels: 0, ..config() };
    assert!(matches!(Communicator::starting(&id, 0, 2, &wrong), Err(Error::Config { .. })));
}

/// Rank 2 never comes.
#[test]
fn a_start_that_is_given_up_ends_on_all_ranks() {
    for dropped in [false, true] {
        let (id, _server) = UniqueId::create().unwrap();
        let (first, second) = (starting(&id, 0, 3), starting(&id, 1, 3));
        // Both have met the server, as a rule.
        assert!(!first.wait_timeout(Duration::from_millis(200)));
        if dropped {
            drop(first);
            is_given_up(second, 0, "its start was given up");
        } else {
            first.abort("not needed").unwrap();
            assert!(first.is_done());
            is_given_up(first, 0, "not needed");
            is_given_up(second, 0, "not needed");
        }
        is_given_up(starting(&id, 2, 3), 0, "");
    }
}

/// The server does not answer, or there is none.
#[test]
fn a_start_that_finds_nobody_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let id = UniqueId::new("127.0.0.1", port, Secret::random().unwrap());
    for open in [Some(listener), None] {
        let first = starting(&id, 0, 2);
        assert!(!first.wait_timeout(Duration::from_millis(100)));
        first.abort("nobody comes").unwrap();
        is_given_up(first, 0, "nobody comes");
        drop(open);
    }
}

/// The ranks have met, and one of them goes no further.
#[test]
fn a_start_is_given_up_after_the_ranks_have_met() {
    let (id, _server) = UniqueId::create().unwrap();
    let first = starting(&id, 0, 2);
    let mut second = shm::connect(&id, 1, 2, deadline_in(SOON)).unwrap();
    assert!(!first.wait_timeout(Duration::from_millis(100)));
    first.abort("too slow").unwrap();
    is_given_up(first, 0, "too slow");
    while second.liveness().cause().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let error = second.all_gather(&[], deadline_in(SOON)).unwrap_err();
    assert_eq!(error.to_string(), "stopped: rank 0 aborted: too slow");
}

#[test]
fn a_communicator_that_has_started_is_aborted() {
    let (id, _server) = UniqueId::create().unwrap();
    let [first, second] = [0, 1].map(|rank| starting(&id, rank, 2));
    assert!(first.wait_timeout(SOON) && second.wait_timeout(SOON));
    first.abort("late").unwrap();
    let (first, second) = (first.wait().unwrap(), second.wait().unwrap());
    for comm in [first, second] {
        let begin = Instant::now();
        while comm.handle().error().is_none() {
            assert!(begin.elapsed() < SOON, "rank {} has not heard of it", comm.rank());
            std::thread::sleep(Duration::from_millis(1));
        }
        // One for which it need not wait may end well.
        let error = std::iter::repeat_with(|| comm.barrier()).find_map(Result::err).unwrap();
        assert_eq!(error.ranks(), [0], "{error}");
    }
}
