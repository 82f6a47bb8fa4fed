//! Launchers: they hold no rank, tell how theirs end, and hear how others do.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use oxccl_transports::{Bootstrap, Cause, Environment, Error, LauncherChannel, UniqueId};

use crate::common::{Rank, server, wait_for_cause};
use crate::{error, join, unserved};

/// Longer than anything here takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The launcher of one rank, and what it hears.
fn launcher(id: &UniqueId, rank: usize, world: usize) -> (LauncherChannel, Receiver<Cause>) {
    let (tell, news) = channel();
    let hear = move |cause| drop(tell.send(cause));
    (LauncherChannel::open(id, rank..rank + 1, world, hear).unwrap(), news)
}

fn failed(rank: usize) -> Cause {
    Cause::Ended { rank, status: 7, how: "failed with exit status 7".to_owned() }
}

fn tell(launcher: &LauncherChannel, rank: usize) {
    launcher.tell_end(rank, 7, "failed with exit status 7");
}

#[test]
fn a_rank_that_fails_before_it_joins_is_named_to_those_that_wait() {
    let (id, _server) = server();
    let waiting = [0, 2].map(|rank| join(&id, rank, 3));
    let (first, _news) = launcher(&id, 1, 3);
    tell(&first, 1);
    for told in waiting.map(error) {
        assert!(matches!(&told, Error::Stopped(cause) if *cause == failed(1)), "{told}");
    }
    drop(first);
    let late = error(join(&id, 0, 3));
    assert!(matches!(&late, Error::Stopped(cause) if *cause == failed(1)), "{late}");
}

#[test]
fn launchers_hear_of_each_other_also_late() {
    let (id, _server) = server();
    let (first, _) = launcher(&id, 0, 3);
    let (_second, heard) = launcher(&id, 1, 3);
    tell(&first, 0);
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(failed(0)));
    drop(first);
    let (_third, heard) = launcher(&id, 2, 3);
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(failed(0)));
}

#[test]
fn a_running_rank_hears_how_another_ended() {
    let (id, _server) = server();
    let ranks = [0, 1].map(|rank| join(&id, rank, 2)).map(|j| j.join().unwrap().unwrap());
    let (first, _) = launcher(&id, 1, 2);
    let (_second, heard) = launcher(&id, 0, 2);
    tell(&first, 1);
    assert_eq!(wait_for_cause(&ranks[0]), failed(1));
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(failed(1)));
    ranks[0].liveness().close(0);
}

#[test]
fn launchers_hear_why_ranks_were_stopped() {
    let (id, _server) = server();
    let ranks = [0, 1].map(|rank| join(&id, rank, 2)).map(|j| j.join().unwrap().unwrap());
    let (_launcher, heard) = launcher(&id, 0, 2);
    let cause = Cause::Mismatch { rank: 1, detail: "something else".to_owned(), ranks: vec![] };
    ranks[1].liveness().abort(cause.clone());
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(cause));
}

#[test]
fn a_launcher_that_is_killed_takes_its_ranks_along() {
    let (id, _server) = server();
    let waiting = join(&id, 0, 2);
    let (_mine, heard) = launcher(&id, 0, 2);
    let mut other = Rank::start(&id, 1, 2, "launches");
    // It says when it is there.
    let there = Cause::Ended { rank: 1, status: 0, how: "is there".to_owned() };
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(there.clone()));
    let told = error(waiting);
    assert!(matches!(&told, Error::Stopped(cause) if *cause == there), "{told}");
    other.kill();
    let gone = "ended with its launcher".to_owned();
    let gone = Cause::Ended { rank: 1, status: 1, how: gone };
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(gone));
    other.wait();
}

/// In a process of its own.
pub fn launches(place: &Environment) {
    let (launcher, _news) = launcher(&place.unique_id, place.rank, place.world);
    launcher.tell_end(place.rank, 0, "is there");
    thread::sleep(5 * PATIENCE);
}

#[test]
fn a_launcher_that_is_done_is_no_news() {
    let (id, server) = server();
    let (first, _) = launcher(&id, 0, 2);
    let (second, heard) = launcher(&id, 1, 2);
    tell(&first, 0);
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(failed(0)));
    drop(first);
    drop(server);
    drop(second);
    assert!(heard.recv_timeout(PATIENCE).is_err(), "nothing else, not even that the server ends");
}

#[test]
fn a_server_waits_for_launchers_that_must_hear_of_a_failure() {
    let (id, server) = server();
    server.set_linger(PATIENCE);
    server.expect_launchers(2);
    let (first, _) = launcher(&id, 0, 2);
    tell(&first, 0);
    drop(first);
    let stopped = thread::spawn(move || drop(server));
    thread::sleep(Duration::from_millis(300));
    let (second, heard) = launcher(&id, 1, 2);
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(failed(0)));
    let late = error(join(&id, 1, 2));
    assert!(matches!(&late, Error::Stopped(cause) if *cause == failed(0)), "{late}");
    assert!(!stopped.is_finished(), "the second launcher may have ranks that come yet");
    drop(second);
    stopped.join().unwrap();
}

#[test]
fn what_is_told_before_the_server_starts_reaches_it() {
    let id = unserved();
    let (first, _) = launcher(&id, 0, 2);
    tell(&first, 0);
    let _server = id.serve().unwrap();
    let (_second, heard) = launcher(&id, 1, 2);
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(failed(0)));
}

#[test]
fn a_launcher_hears_that_the_server_is_lost() {
    let id = unserved();
    let mut serving = Rank::start(&id, 0, 2, "only_serves");
    let (mine, heard) = launcher(&id, 1, 2);
    tell(&mine, 1);
    // So there is a connection.
    let (_other, connected) = launcher(&id, 0, 2);
    assert_eq!(connected.recv_timeout(PATIENCE), Ok(failed(1)));
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(failed(1)), "it was the first");
    serving.kill();
    assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), Cause::ServerLost);
    serving.wait();
}
