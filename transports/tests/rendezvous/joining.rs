//! Ranks that come twice, late, never, or with another idea of the world.

use std::thread;
use std::time::{Duration, Instant};

use oxccl_transports::rendezvous::WORLD_LIMIT;
use oxccl_transports::{Bootstrap, Error};

use crate::common::{server, wait_until};
use crate::{error, join, join_until, soon, unserved};

#[test]
fn a_rank_cannot_join_twice() {
    let (id, _server) = server();
    let first = join(&id, 0, 2);
    let twin = join(&id, 0, 2);
    wait_until("one of them is refused", || first.is_finished() || twin.is_finished());
    let (refused, waiting) = if first.is_finished() { (first, twin) } else { (twin, first) };
    assert!(matches!(error(refused), Error::RankTwice { rank: 0 }));
    let second = join(&id, 1, 2).join().unwrap().unwrap();
    let waiting = waiting.join().unwrap().unwrap();
    assert!(matches!(error(join(&id, 1, 2)), Error::RankTwice { rank: 1 }), "also later");
    assert_eq!(second.liveness().cause(), None);
    second.liveness().close(0);
    waiting.liveness().close(0);
}

#[test]
fn worlds_of_two_sizes_fail_everywhere() {
    let (id, _server) = server();
    let [a, b] = [join(&id, 0, 3), join(&id, 1, 4)].map(error);
    for error in [a, b] {
        let sizes = match error {
            Error::WorldMismatch { rank: 1, theirs, ours } => (theirs, ours),
            Error::WorldMismatch { rank: 0, theirs, ours } => (ours, theirs),
            other => panic!("{other}"),
        };
        assert_eq!(sizes, (4, 3));
    }
    let late = error(join(&id, 2, 3));
    assert!(matches!(late, Error::WorldMismatch { .. }), "who comes later hears of it: {late}");
}

#[test]
fn a_rank_is_smaller_than_its_world() {
    let (id, _server) = server();
    for (rank, world) in [(2, 2), (0, 0), (usize::MAX, 1)] {
        let refused = error(join(&id, rank, world));
        assert!(matches!(refused, Error::RankOutOfRange { .. }), "{refused}");
    }
}

#[test]
fn a_world_has_a_limit() {
    let (id, _server) = server();
    let refused = error(join(&id, 0, WORLD_LIMIT + 1));
    assert!(matches!(refused, Error::WorldTooLarge { world: 65_537, limit: 65_536 }), "{refused}");
}

#[test]
fn a_rank_that_never_comes_is_named_everywhere() {
    let (id, _server) = server();
    // Only rank 0 is impatient; the others hear from it.
    let patient = [1, 4].map(|rank| join(&id, rank, 5));
    let impatient = error(join_until(&id, 0, 5, Instant::now() + Duration::from_secs(2)));
    for error in patient.map(error).into_iter().chain([impatient]) {
        match error {
            Error::Timeout { missing, .. } => assert_eq!(missing, [2, 3]),
            other => panic!("{other}"),
        }
    }
    match error(join(&id, 2, 5)) {
        Error::Timeout { missing, .. } => assert_eq!(missing, [2, 3], "too late"),
        other => panic!("{other}"),
    }
}

#[test]
fn ranks_may_start_before_the_server() {
    let id = unserved();
    let early = join(&id, 1, 2);
    thread::sleep(Duration::from_millis(200));
    let _server = id.serve().unwrap();
    let late = join(&id, 0, 2);
    for joined in [early, late] {
        joined.join().unwrap().unwrap().liveness().close(0);
    }
}

#[test]
fn no_server_is_an_error_that_says_so() {
    let id = unserved();
    let refused = error(join_until(&id, 0, 1, soon()));
    assert!(matches!(&refused, Error::Unreachable { address, .. } if *address == id.address()));
}

/// A second communicator at the same place, while the first one is not over for all.
#[test]
fn a_rank_that_has_left_waits_for_the_next_server() {
    let id = unserved();
    let server = id.serve().unwrap();
    let [first, second] = [0, 1].map(|rank| join(&id, rank, 2)).map(|j| j.join().unwrap().unwrap());
    second.liveness().close(1);
    drop(second);
    wait_until("the goodbye", || first.liveness().left(1).is_some());
    let again = join(&id, 1, 2);
    thread::sleep(Duration::from_millis(200));
    assert!(!again.is_finished(), "neither refused nor in the old world");
    first.liveness().close(1);
    drop(first);
    drop(server);
    let _server = id.serve().unwrap();
    let first = join(&id, 0, 2).join().unwrap().unwrap();
    first.liveness().close(0);
    again.join().unwrap().unwrap().liveness().close(0);
}
