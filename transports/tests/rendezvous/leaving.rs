//! Servers and ranks that go, and what those who stay hear of it.

use std::thread;
use std::time::{Duration, Instant};

use oxccl_transports::{Bootstrap, Cause, Error, Liveness};

use crate::common::{deadline, server, wait_for_cause};
use crate::{error, join, join_until};

#[test]
fn a_server_that_stops_early_tells_who_waits() {
    let (id, server) = server();
    let waiting = join_until(&id, 1, 2, Instant::now() + Duration::from_secs(3));
    thread::sleep(Duration::from_millis(300));
    drop(server);
    let told = error(waiting);
    // If the rank had not got through by then, nobody was there to tell it.
    assert!(matches!(told, Error::ServerClosed | Error::Unreachable { .. }), "{told}");
}

#[test]
fn a_server_that_leaves_after_its_linger_is_no_death() {
    let (id, server) = server();
    let mut bootstrap = join(&id, 0, 1).join().unwrap().unwrap();
    server.set_linger(Duration::from_millis(10));
    drop(server);
    // The rank serves itself from here on.
    for round in 0..3 {
        assert_eq!(bootstrap.all_gather(&[round], deadline()).unwrap(), [[round]]);
    }
    assert_eq!(bootstrap.liveness().cause(), None);
}

#[test]
fn a_server_waits_for_goodbyes() {
    let (id, server) = server();
    let [first, second] = [0, 1].map(|rank| join(&id, rank, 2)).map(|j| j.join().unwrap().unwrap());
    server.set_linger(Duration::from_secs(60));
    first.liveness().close(0);
    drop(first);
    let stopped = thread::spawn(move || drop(server));
    thread::sleep(Duration::from_millis(100));
    assert!(!stopped.is_finished(), "rank 1 still runs");
    second.liveness().close(0);
    drop(second);
    stopped.join().unwrap();
}

#[test]
fn a_long_reason_is_cut_and_still_told() {
    let (id, _server) = server();
    let [first, second] = [0, 1].map(|rank| join(&id, rank, 2)).map(|j| j.join().unwrap().unwrap());
    let reason = "é".repeat(2 << 20);
    first.liveness().abort(Cause::Aborted { rank: 0, reason: reason.clone() });
    match wait_for_cause(&second) {
        Cause::Aborted { rank: 0, reason: told } => {
            assert_eq!(told.len(), Cause::TEXT_LIMIT_BYTES);
            assert!(reason.starts_with(&told));
        }
        other => panic!("{other}"),
    }
}

/// `Liveness` can be kept longer than what feeds it.
#[test]
fn liveness_outlives_its_bootstrap() {
    let (id, _server) = server();
    let bootstrap = join(&id, 0, 1).join().unwrap().unwrap();
    let liveness: std::sync::Arc<Liveness> = bootstrap.liveness();
    drop(bootstrap);
    assert_eq!(liveness.cause(), None, "its own end is no news");
    liveness.abort(Cause::Aborted { rank: 0, reason: "late".to_owned() });
    assert!(liveness.cause().is_some());
}
