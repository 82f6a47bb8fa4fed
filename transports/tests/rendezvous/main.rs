//! Joining and leaving when things go wrong.

#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "../common/mod.rs"]
mod common;
mod joining;
mod launchers;
mod leaving;
mod many;
mod ports;
mod processes;
mod strangers;

use std::thread;
use std::time::{Duration, Instant};

use oxccl_transports::{Bootstrap, Error, Secret, ShmBootstrap, UniqueId, shm};

use common::{assigned, connect_as, deadline};

type Joined = thread::JoinHandle<Result<ShmBootstrap, Error>>;

#[test]
#[ignore = "one rank, started by the other tests"]
fn rank_process() {
    let (case, place) = assigned();
    match case.as_str() {
        "names_the_dead" => processes::names_the_dead(&mut connect_as(&place)),
        "serves" => {
            let _server = place.unique_id.serve().unwrap();
            processes::names_the_dead(&mut connect_as(&place));
        }
        "only_serves" => {
            let _server = place.unique_id.serve().unwrap();
            thread::sleep(Duration::from_secs(300));
        }
        "launches" => launchers::launches(&place),
        "holds_nothing" => processes::holds_nothing(),
        other => panic!("no case {other}"),
    }
}

fn join(id: &UniqueId, rank: usize, world: usize) -> Joined {
    join_until(id, rank, world, deadline())
}

fn join_until(id: &UniqueId, rank: usize, world: usize, deadline: Instant) -> Joined {
    let id = id.clone();
    thread::spawn(move || shm::connect(&id, rank, world, deadline))
}

/// An id that nobody serves yet, outside the range from which the system gives ports to others.
fn unserved() -> UniqueId {
    let secret = Secret::random().unwrap();
    let seed = secret.as_bytes();
    let port = 20_000 + u16::from_le_bytes([seed[0], seed[1]]) % 10_000;
    UniqueId::new("127.0.0.1", port, secret)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(500)
}

/// Joins all ranks of a world, lets them exchange something, and closes them in order.
fn works(id: &UniqueId, world: usize) {
    let joined: Vec<_> = (0..world).map(|rank| join(id, rank, world)).collect();
    let finish = |joined: Joined| {
        let mut bootstrap = joined.join().unwrap().unwrap();
        thread::spawn(move || {
            let all = bootstrap.all_gather(&[bootstrap.rank() as u8], deadline()).unwrap();
            assert_eq!(all, (0..world).map(|rank| vec![rank as u8]).collect::<Vec<_>>());
            bootstrap.liveness().close(1);
        })
    };
    let done: Vec<_> = joined.into_iter().map(finish).collect();
    done.into_iter().for_each(|done| done.join().unwrap());
}

fn error(joined: Joined) -> Error {
    joined.join().unwrap().map(drop).unwrap_err()
}
