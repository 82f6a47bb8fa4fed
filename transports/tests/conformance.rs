//! What every transport promises, tested on each of them: local threads, shm between threads, both
//! also with ranks on two nodes, in parts of a world and among survivors, and shm between
//! processes. A new transport is one more line in `conformance!`. What is promised of memory of
//! GPUs is tested against the stand-in driver, which only a process started for it can load.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Case, assigned, connect_as, deadline, wait_for_cause, wait_until};
use oxccl_transports::cuda::{Context, DeviceRegion, Driver, copy_in, copy_out};
use oxccl_transports::rendezvous::PIECE_LIMIT_BYTES;
use oxccl_transports::{Bootstrap, Cause, CudaError, Error, Offer, Reach, Region};

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
    ("reports", reports),
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
        mod local_nodes {
            $(#[test] fn $case() {
                for world in super::worlds(stringify!($case)) {
                    super::common::in_local_threads_on(world, 2, super::$case);
                }
            })*
        }
        mod shm_nodes {
            $(#[test] fn $case() {
                for world in super::worlds(stringify!($case)) {
                    super::common::in_shm_threads_on(world, 2, super::$case);
                }
            })*
        }
        mod local_parts {
            $(#[test] fn $case() {
                for world in super::worlds(stringify!($case)) {
                    super::common::in_local_parts(world, super::$case);
                }
            })*
        }
        mod shm_parts {
            $(#[test] fn $case() {
                for world in super::worlds(stringify!($case)) {
                    super::common::in_shm_parts(world, super::$case);
                }
            })*
        }
        mod local_survivors {
            $(#[test] fn $case() {
                for world in super::worlds(stringify!($case)) {
                    super::common::in_local_survivors(world, super::$case);
                }
            })*
        }
        mod shm_survivors {
            $(#[test] fn $case() {
                for world in super::worlds(stringify!($case)) {
                    super::common::in_shm_survivors(world, super::$case);
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

/// With memory of GPUs.
const CUDA_CASES: &[(&str, Case)] = &[
    ("device_regions", device_regions),
    ("one_without_gpu", one_without_gpu),
    ("no_peers", no_peers),
];

macro_rules! cuda_conformance {
    ($($case:ident($settings:expr))*) => {
        mod cuda_local_threads {
            $(#[test] fn $case() {
                let mut settings = $settings.to_vec();
                settings.push((super::THREADS, "3"));
                super::common::in_cuda_processes(1, stringify!($case), &settings);
            })*
        }
        mod cuda_ipc_processes {
            $(#[test] fn $case() {
                for world in [2, 3] {
                    super::common::in_cuda_processes(world, stringify!($case), &$settings);
                }
            })*
        }
        #[test]
        fn every_cuda_case_is_run() {
            let names: Vec<_> = CUDA_CASES.iter().map(|case| case.0).collect();
            assert_eq!(names, [$(stringify!($case)),*]);
        }
    };
}

cuda_conformance!(
    device_regions([("OXCCL_STAND_IN_DEVICES", "2")])
    one_without_gpu([("OXCCL_STAND_IN_DEVICES", "1")])
    no_peers([("OXCCL_STAND_IN_DEVICES", "3"), ("OXCCL_STAND_IN_PEERS", "0")])
);

/// Set for a process that runs a case in threads of its own: how many.
const THREADS: &str = "OXCCL_TEST_THREADS";

conformance!(bytes longest_bytes bytes_too_long regions many_regions abort goodbye missing left dropped reports);

/// One rank alone cannot miss another.
fn worlds(case: &str) -> Vec<usize> {
    let needs_others = ["abort", "goodbye", "missing", "left", "dropped"].contains(&case);
    if needs_others { vec![2, 3, 8] } else { vec![1, 2, 3, 8] }
}

#[test]
#[ignore = "one rank, started by the other tests"]
fn rank_process() {
    let (name, place) = assigned();
    let (_, case) = CASES.iter().chain(CUDA_CASES).find(|(known, _)| *known == name).unwrap();
    match std::env::var(THREADS).ok().and_then(|threads| threads.parse().ok()) {
        Some(threads) => common::in_local_threads(threads, *case),
        None => case(&mut connect_as(&place)),
    }
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
            region.reserve(0, PAGE, None).unwrap();
            write(&region, 0, b.rank() as u8 * 16 + k as u8 + round);
            Arc::new(region)
        };
        let mine: Vec<_> = (0..b.rank()).map(make).collect();
        let all = b.share(&mine, deadline()).unwrap();
        check_regions(b, &mine, &all, round);
        // What any rank writes, all see.
        let (me, world) = (b.rank(), b.world());
        for region in all.iter().flatten().flatten() {
            write(region, 1 + me, 100 + me as u8);
        }
        barrier(b);
        let nodes = b.nodes();
        for region in all.iter().flatten().flatten() {
            let seen = |rank| read(region, 1 + rank) == 100 + rank as u8;
            assert!((0..world).all(|rank| seen(rank) == nodes.share(me, rank)));
        }
        barrier(b);
    }
    finish(b);
}

fn check_regions(
    b: &dyn Bootstrap,
    mine: &[Arc<Region>],
    all: &[Option<Vec<Arc<Region>>>],
    round: u8,
) {
    assert_eq!(all.len(), b.world());
    let back = all[b.rank()].as_ref().unwrap();
    assert!(mine.iter().zip(back).all(|(own, back)| Arc::ptr_eq(own, back)));
    for (rank, regions) in all.iter().enumerate() {
        assert_eq!(regions.is_some(), b.nodes().share(b.rank(), rank));
        let Some(regions) = regions else { continue };
        assert_eq!(regions.len(), rank);
        for (k, region) in regions.iter().enumerate() {
            assert_eq!(region.len_bytes(), PAGE * (k + 1));
            assert_eq!(read(region, 0), rank as u8 * 16 + k as u8 + round);
            let foreign = rank != b.rank() && b.reach() == Reach::SharedMemory;
            assert_eq!(matches!(region.reserve(0, 1, None), Err(Error::NotOwner)), foreign);
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
    let of_rank_0 = |all: &[Option<Vec<Arc<Region>>>]| {
        let regions = all[0].as_ref()?;
        assert!(regions.iter().enumerate().all(|(k, region)| region.len_bytes() == PAGE + k));
        Some(regions.len())
    };
    let shares = b.nodes().share(b.rank(), 0);
    assert_eq!(of_rank_0(&all), shares.then_some(LIMIT));
    mine.extend((b.rank() == 0).then(|| make(LIMIT)));
    match (b.reach(), b.share(&mine, deadline())) {
        (Reach::SameProcess, Ok(all)) => {
            assert_eq!(of_rank_0(&all), shares.then_some(LIMIT + 1));
        }
        (Reach::SharedMemory, Err(Error::TooManyRegions { rank: 0, count, limit })) => {
            assert_eq!((count, limit), (LIMIT + 1, LIMIT));
        }
        (_, other) => panic!("{other:?}"),
    }
    finish(b);
}

/// Ranks of other nodes answer, and no others.
fn reports(b: &mut dyn Bootstrap) {
    let (me, nodes) = (b.rank(), b.nodes().clone());
    let heard = Arc::new(Mutex::new(BTreeMap::new()));
    let kept = heard.clone();
    b.liveness().on_ask(
        move || vec![me as u8; 3],
        move |rank, report| {
            kept.lock().unwrap().insert(rank, report.to_vec());
        },
    );
    barrier(b);
    let apart = (0..b.world()).filter(|&rank| !nodes.share(me, rank));
    let expected: BTreeMap<_, _> = apart.map(|rank| (rank, vec![rank as u8; 3])).collect();
    b.liveness().ask();
    wait_until("all reports", || *heard.lock().unwrap() == expected);
    finish(b);
}

fn abort(b: &mut dyn Bootstrap) {
    let who = b.world() - 1;
    let cause = Cause::Mismatch { rank: who, detail: "called broadcast".to_owned(), ranks: vec![] };
    let heard = Arc::new(AtomicU32::new(0));
    let early = heard.clone();
    b.liveness().on_stop(move || {
        early.fetch_add(1, Ordering::Relaxed);
    });
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
    wait_until("the listener to be told", || heard.load(Ordering::Relaxed) == 1);
    let late = heard.clone();
    b.liveness().on_stop(move || {
        late.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(heard.load(Ordering::Relaxed), 2, "who comes late is told at once");
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

/// This rank's GPU: ranks take turns with those there are.
fn gpu(b: &dyn Bootstrap) -> Context {
    let driver = Driver::load().unwrap();
    let ordinal = b.rank() % driver.count().unwrap();
    Context::primary(driver.device(ordinal).unwrap()).unwrap()
}

/// Host regions and device regions in one exchange, each reached by all, on one GPU and on two.
fn device_regions(b: &mut dyn Bootstrap) {
    let live = oxccl_cuda_stand_in::control::Control::attach().unwrap();
    {
        let context = gpu(b);
        let mine: Vec<_> = (0..=b.rank())
            .map(|_| Arc::new(DeviceRegion::create(&context, PAGE).unwrap()))
            .collect();
        for (k, region) in mine.iter().enumerate() {
            // SAFETY: inside the region, which nobody else knows yet.
            unsafe { copy_in(&context, region.as_ptr(), &[10 * b.rank() as u8 + k as u8]) }
                .unwrap();
        }
        let host = [Arc::new(Region::create("test", PAGE).unwrap())];
        write(&host[0], 0, b.rank() as u8);
        let offer = Offer { host: &host, device: &mine, team: None, context: Some(&context) };
        let all = b.exchange(&offer, deadline()).unwrap();
        assert_eq!(all.iter().flatten().count(), b.world());
        for (rank, shared) in all.iter().flatten().enumerate() {
            assert_eq!(read(&shared.host[0], 0), rank as u8);
            assert_eq!(shared.device.len(), rank + 1);
            for (k, region) in shared.device.iter().enumerate() {
                assert!(
                    rank != b.rank() || Arc::ptr_eq(region, &mine[k]),
                    "the own ones come back"
                );
                assert_eq!(region.len_bytes() % (2 << 20), 0);
                let mut bytes = [0; 2];
                // SAFETY: inside the region; what is read is not written any more.
                unsafe { copy_out(&context, &mut bytes, region.as_ptr()) }.unwrap();
                assert_eq!(bytes, [10 * rank as u8 + k as u8, 0], "zeros behind what was written");
                // SAFETY: each rank writes a byte of its own.
                let place = unsafe { region.as_ptr().add(64 + b.rank()) };
                // SAFETY: as above.
                unsafe { copy_in(&context, place, &[200 + b.rank() as u8]) }.unwrap();
            }
        }
        barrier(b);
        for region in &mine {
            let mut bytes = vec![0; b.world()];
            // SAFETY: inside the region, and all ranks have written.
            unsafe { copy_out(&context, &mut bytes, region.as_ptr().add(64)) }.unwrap();
            assert!((0..b.world()).all(|rank| bytes[rank] == 200 + rank as u8));
        }
        barrier(b);
    }
    barrier(b);
    assert_eq!(live.live(), Default::default(), "all is given back");
    finish(b);
}

/// A rank that has no GPU cannot take device memory in, and all ranks say so.
fn one_without_gpu(b: &mut dyn Bootstrap) {
    let without = b.world() - 1;
    let context = (b.rank() != without).then(|| gpu(b));
    let mine: Vec<_> = (b.rank() == 0)
        .then(|| Arc::new(DeviceRegion::create(context.as_ref().unwrap(), PAGE).unwrap()))
        .into_iter()
        .collect();
    let offer = Offer { device: &mine, context: context.as_ref(), ..Offer::default() };
    match b.exchange(&offer, deadline()) {
        Err(Error::NoGpu { rank, owner: 0 }) => assert_eq!(rank, without),
        other => panic!("{other:?}"),
    }
    let host_only = b.share(&[], deadline()).unwrap();
    assert_eq!(host_only.len(), b.world(), "the ranks are still in step");
    finish(b);
}

/// GPUs that cannot reach each other: each rank finds out for itself.
fn no_peers(b: &mut dyn Bootstrap) {
    let context = gpu(b);
    let mine = [Arc::new(DeviceRegion::create(&context, PAGE).unwrap())];
    let offer = Offer { device: &mine, context: Some(&context), ..Offer::default() };
    match b.exchange(&offer, deadline()) {
        Err(Error::Cuda(CudaError::NoPeerAccess { ordinal, .. })) => assert_eq!(ordinal, b.rank()),
        other => panic!("{other:?}"),
    }
    finish(b);
}
