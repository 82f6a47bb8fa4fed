//! What every transport promises, tested on each of them: local threads, shm between threads, and
//! shm between processes. A new transport is one more line in `conformance!`.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Case, assigned, connect_as, deadline, wait_for_cause, wait_until};
use oxccl_transports::rendezvous::PIECE_LIMIT_BYTES;
use oxccl_transports::{Bootstrap, Cause, Error, Reach, Region};

const CASES: &[(&str, Case)] = &[
    ("bytes", bytes),
    ("longest_bytes", longest_bytes),
    ("bytes_too_long", bytes_too_long),
    ("regions", regions),
    ("many_regions", many_regions),
    ("abort", abort),
    ("goodbye", goodbye),
    ("missing", missing),
    ("left", left),
    ("dropped", dropped),
];

macro_rules! conformance {
    ($($case:ident)*) => {
        mod local_threads {
            $(#[test] fn $case() {
                for world in super::worlds(stringify!($case)) {
                    super::common::in_local_threads(world, super::$case);
                }
            })*
        }
        mod shm_threads {
            $(#[test] fn $case() {
                for world in super::worlds(stringify!($case)) {
                    super::common::in_shm_threads(world, super::$case);
                }
            })*
        }
        mod shm_processes {
            $(#[test] fn $case() {
                for world in super::worlds(stringify!($case)) {
                    super::common::in_processes(world, stringify!($case));
                }
            })*
        }
        #[test]
        fn every_case_is_run() {
            assert_eq!(CASES.iter().map(|case| case.0).collect::<Vec<_>>(), [$(stringify!($case)),*]);
        }
    };
}

conformance!(bytes longest_bytes bytes_too_long regions many_regions abort goodbye missing left dropped);

/// One rank alone cannot miss another.
fn worlds(case: &str) -> Vec<usize> {
    let needs_others = ["abort", "goodbye", "missing", "left", "dropped"].contains(&case);
    if needs_others { vec![2, 3, 8] } else { vec![1, 2, 3, 8] }
}

#[test]
#[ignore = "one rank, started by the other tests"]
fn rank_process() {
    let (name, place) = assigned();
    let (_, case) = CASES.iter().find(|(known, _)| *known == name).unwrap();
    case(&mut connect_as(&place));
}

fn others(b: &dyn Bootstrap) -> impl Iterator<Item = usize> + use<> {
    let me = b.rank();
    (0..b.world()).filter(move |&rank| rank != me)
}

fn barrier(b: &mut dyn Bootstrap) {
    b.all_gather(&[], deadline()).unwrap();
}

/// Nobody leaves before all are done, so that no end is early for anybody.
fn finish(b: &mut dyn Bootstrap) {
    barrier(b);
    assert_eq!(b.liveness().cause(), None);
    b.liveness().close(0);
}

fn bytes(b: &mut dyn Bootstrap) {
    let give = |rank: usize, round: usize| vec![(rank + round) as u8; rank * 1000 + round];
    for round in 0..20 {
        let all = b.all_gather(&give(b.rank(), round), deadline()).unwrap();
        let expected: Vec<_> = (0..b.world()).map(|rank| give(rank, round)).collect();
        assert!(all == expected, "round {round}");
    }
    finish(b);
}

fn longest_bytes(b: &mut dyn Bootstrap) {
    let mine: Vec<u8> = (0..PIECE_LIMIT_BYTES).map(|i| (i * 31 + b.rank()) as u8).collect();
    let all = b.all_gather(&mine, deadline()).unwrap();
    for (rank, theirs) in all.iter().enumerate() {
        assert!((0..PIECE_LIMIT_BYTES).all(|i| theirs[i] == (i * 31 + rank) as u8));
    }
    finish(b);
}

fn bytes_too_long(b: &mut dyn Bootstrap) {
    let guilty = b.world() - 1;
    let len = if b.rank() == guilty { PIECE_LIMIT_BYTES + 1 } else { 5 };
    match b.all_gather(&vec![0; len], deadline()) {
        Err(Error::MessageTooLong { rank, len_bytes, limit_bytes }) => {
            assert_eq!((rank, len_bytes), (guilty, PIECE_LIMIT_BYTES as u64 + 1));
            assert_eq!(limit_bytes, PIECE_LIMIT_BYTES as u64);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(b.all_gather(&[7], deadline()).unwrap(), vec![vec![7]; b.world()], "still in step");
    finish(b);
}

const PAGE: usize = 4096;

fn regions(b: &mut dyn Bootstrap) {
    for round in 0..2u8 {
        // Rank r shares r regions, so rank 0 none.
        let make = |k: usize| {
            let region = Region::create("test", PAGE * (k + 1)).unwrap();
            region.reserve(0, PAGE).unwrap();
            write(&region, 0, b.rank() as u8 * 16 + k as u8 + round);
            Arc::new(region)
        };
        let mine: Vec<_> = (0..b.rank()).map(make).collect();
        let all = b.share(&mine, deadline()).unwrap();
        check_regions(b, &mine, &all, round);
        // What any rank writes, all see.
        let (me, world) = (b.rank(), b.world());
        for region in all.iter().flatten() {
            write(region, 1 + me, 100 + me as u8);
        }
        barrier(b);
        for region in all.iter().flatten() {
            assert!((0..world).all(|rank| read(region, 1 + rank) == 100 + rank as u8));
        }
        barrier(b);
    }
    finish(b);
}

fn check_regions(b: &dyn Bootstrap, mine: &[Arc<Region>], all: &[Vec<Arc<Region>>], round: u8) {
    assert_eq!(all.len(), b.world());
    assert!(mine.iter().zip(&all[b.rank()]).all(|(own, back)| Arc::ptr_eq(own, back)));
    for (rank, regions) in all.iter().enumerate() {
        assert_eq!(regions.len(), rank);
        for (k, region) in regions.iter().enumerate() {
            assert_eq!(region.len_bytes(), PAGE * (k + 1));
            assert_eq!(read(region, 0), rank as u8 * 16 + k as u8 + round);
            let foreign = rank != b.rank() && b.reach() == Reach::SharedMemory;
            assert_eq!(matches!(region.reserve(0, 1), Err(Error::NotOwner)), foreign);
        }
    }
}

fn write(region: &Region, offset: usize, value: u8) {
    assert!(offset < region.len_bytes());
    // SAFETY: inside the region; each byte has one writer, and the ranks meet before it is read.
    unsafe { region.as_ptr().add(offset).write_volatile(value) };
}

fn read(region: &Region, offset: usize) -> u8 {
    assert!(offset < region.len_bytes());
    // SAFETY: inside the region; each byte has one writer, and the ranks met since it wrote.
    unsafe { region.as_ptr().add(offset).read_volatile() }
}

/// As many as one call can share; where there is a limit, one more is an error on every rank.
fn many_regions(b: &mut dyn Bootstrap) {
    const LIMIT: usize = oxccl_transports::ShmBootstrap::REGIONS_LIMIT;
    let count = if b.rank() == 0 { LIMIT } else { 1 };
    let make = |k: usize| Arc::new(Region::create("test", PAGE + k).unwrap());
    let mut mine: Vec<_> = (0..count).map(make).collect();
    let all = b.share(&mine, deadline()).unwrap();
    assert!((0..LIMIT).all(|k| all[0][k].len_bytes() == PAGE + k));
    mine.extend((b.rank() == 0).then(|| make(LIMIT)));
    match (b.reach(), b.share(&mine, deadline())) {
        (Reach::SameProcess, Ok(all)) => assert_eq!(all[0].len(), LIMIT + 1),
        (Reach::SharedMemory, Err(Error::TooManyRegions { rank: 0, count, limit })) => {
            assert_eq!((count, limit), (LIMIT + 1, LIMIT));
        }
        (_, other) => panic!("{other:?}"),
    }
    finish(b);
}

fn abort(b: &mut dyn Bootstrap) {
    let who = b.world() - 1;
    let cause = Cause::Mismatch { rank: who, detail: "called broadcast".to_owned() };
    barrier(b);
    if b.rank() == who {
        b.liveness().abort(cause.clone());
    }
    match b.all_gather(&[], deadline()) {
        Err(Error::Stopped(told)) => assert_eq!(told, cause),
        other => panic!("{other:?}"),
    }
    assert_eq!(wait_for_cause(b), cause);
    b.liveness().abort(Cause::Aborted { rank: b.rank(), reason: "later".to_owned() });
    assert_eq!(b.liveness().cause(), Some(cause), "the first one stays");
}

fn goodbye(b: &mut dyn Bootstrap) {
    barrier(b);
    if b.rank() == 0 {
        for peer in others(b) {
            wait_until("a goodbye", || b.liveness().left(peer).is_some());
            assert_eq!(b.liveness().left(peer), Some(peer as u64 * 10));
        }
        assert_eq!(b.liveness().left(0), None);
        assert_eq!(b.liveness().cause(), None, "leaving is no death");
    }
    b.liveness().close(b.rank() as u64 * 10);
    b.liveness().close(99);
    assert_eq!(b.liveness().left(b.rank()), Some(b.rank() as u64 * 10), "the first one counts");
}

fn missing(b: &mut dyn Bootstrap) {
    let absent = b.world() - 1;
    if b.rank() != absent {
        let soon = Instant::now() + Duration::from_millis(300);
        match b.all_gather(&[], soon) {
            Err(Error::Timeout { missing, .. }) => assert_eq!(missing, [absent]),
            other => panic!("{other:?}"),
        }
        assert!(Instant::now() >= soon, "not before the deadline");
        b.liveness().close(0);
    } else {
        let gone = |peer| b.liveness().left(peer).is_some();
        wait_until("the others to give up", || others(b).all(gone));
        b.liveness().close(0);
    }
}

fn left(b: &mut dyn Bootstrap) {
    let early = b.world() - 1;
    barrier(b);
    if b.rank() != early {
        match b.all_gather(&[], deadline()) {
            Err(Error::Left { rank, calls: 3 }) if rank == early => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(b.liveness().cause(), None);
        match b.share(&[], deadline()) {
            Err(Error::Left { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    b.liveness().close(3);
}

/// The last rank ends without a goodbye.
fn dropped(b: &mut dyn Bootstrap) {
    let who = b.world() - 1;
    barrier(b);
    if b.rank() == who {
        return;
    }
    match b.share(&[], deadline()) {
        Err(Error::Stopped(cause)) => assert_eq!(cause, Cause::Died { rank: who }),
        other => panic!("{other:?}"),
    }
    assert_eq!(wait_for_cause(b), Cause::Died { rank: who });
}
