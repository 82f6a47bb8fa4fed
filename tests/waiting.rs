//! What the time-out counts: waiting without progress.
#![allow(clippy::unwrap_used)]

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use oxccl::{Advanced, CallOptions, Collectives, Communicator, Config, Error, ReduceOp, Stream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Runs `rank` on a thread for every rank.
fn on_ranks(n: usize, config: &Config, rank: impl Fn(Communicator) + Sync) {
    let ranks = Communicator::local_with(n, config).unwrap();
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(|| rank(comm));
        }
    });
}

/// Ten times as long as the time-out, though no slot takes a tenth of it.
#[test]
fn a_long_call_that_moves_does_not_time_out() {
    let config = Config {
        nodes: Some(2),
        heap_bytes: 64 << 20,
        advanced: Advanced {
            link: "40Mbit".parse().unwrap(),
            link_slot_bytes: Some(64 << 10),
            ..Advanced::default()
        },
        ..Config::default()
    };
    let timeout = Duration::from_secs(1);
    on_ranks(4, &config, |mut comm| {
        comm.barrier().unwrap();
        comm.set_timeout(timeout).unwrap();
        let mut data = vec![comm.rank() as f32; 10 << 20];
        let begin = Instant::now();
        comm.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
        assert!(begin.elapsed() > 4 * timeout, "it was not long: {:?}", begin.elapsed());
        assert!(data.iter().all(|value| *value == 6.0));
    });
}

#[test]
fn no_timeout_is_too_long() {
    for nodes in [1, 2] {
        let config = Config {
            timeout: Duration::MAX,
            nodes: Some(nodes),
            heap_bytes: 1 << 20,
            ..Config::default()
        };
        on_ranks(2, &config, |mut comm| {
            comm.all_reduce_in_place(&mut vec![1.0f32; 100_000], ReduceOp::Sum).unwrap();
            comm.set_timeout(Duration::MAX).unwrap();
            let stream = Stream::new().unwrap();
            let mut data = comm.alloc_host::<f32>(1000).unwrap();
            let work = comm.on(&stream).all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
            work.wait_timeout(Duration::MAX).unwrap().unwrap();
            let group = comm
                .on(&stream)
                .group(|group| group.all_reduce_in_place(&mut data, ReduceOp::Sum).map(drop));
            let bucket = group.unwrap().0.bucket(0).unwrap();
            bucket.wait_timeout(Duration::MAX).unwrap().unwrap();
        });
    }
}

/// The ways to make a call: blocking, in a group, and both on a stream.
const WAYS: usize = 4;

/// Makes a call with this time-out of its own.
fn call(comm: &Communicator, way: usize, timeout: Duration) -> Result<(), Error> {
    let options = CallOptions { timeout: Some(timeout), ..CallOptions::default() };
    let mut data = comm.alloc_host::<f32>(1000)?;
    let mut sum = [1.0f32; 10];
    let stream = Stream::new()?;
    match way {
        0 => comm.with_options(options, || comm.all_reduce_in_place(&mut sum, ReduceOp::Sum))?,
        1 => comm.with_options(options, || {
            comm.group(|group| group.all_reduce_in_place(&mut sum, ReduceOp::Sum).map(drop))
        })?,
        2 => {
            let on = comm.on(&stream).with_options(options)?;
            on.all_reduce_in_place(&mut data, ReduceOp::Sum)?.wait()
        }
        _ => {
            let on = comm.on(&stream).with_options(options)?;
            on.group(|group| group.all_reduce_in_place(&mut data, ReduceOp::Sum).map(drop))?
                .0
                .wait()
        }
    }
}

/// It ends that call, and holds for none after it.
#[test]
fn a_call_has_a_time_out_of_its_own() {
    let short = Duration::from_millis(200);
    for way in 0..WAYS {
        let config = Config { heap_bytes: 1 << 20, ..Config::default() };
        on_ranks(2, &config, |comm| {
            call(&comm, way, short).unwrap();
            if comm.rank() == 1 {
                // It calls nothing until the other has given up.
                while comm.handle().error().is_none() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                return;
            }
            let begin = Instant::now();
            let error = call(&comm, way, short).unwrap_err();
            assert!(matches!(error, Error::TimedOut { seconds: 0.2, .. }), "{way}: {error}");
            assert_eq!(error.ranks(), [1], "{way}: {error}");
            assert!(begin.elapsed() < config.timeout / 3, "{way}: {:?}", begin.elapsed());
        });
    }
}

/// One rank waits as long as it takes, in the next call no longer than the communicator says.
#[test]
fn a_call_waits_longer_than_others() {
    let timeout = Duration::from_millis(300);
    for (way, long) in (0..WAYS).zip([Duration::MAX, Duration::from_secs(60)].into_iter().cycle()) {
        let config = Config { heap_bytes: 1 << 20, ..Config::default() };
        on_ranks(2, &config, |mut comm| {
            comm.barrier().unwrap();
            comm.set_timeout(timeout).unwrap();
            if comm.rank() == 1 {
                std::thread::sleep(2 * timeout);
            }
            call(&comm, way, long).unwrap();
            if comm.rank() == 1 {
                while comm.handle().error().is_none() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                return;
            }
            let error = comm.barrier().unwrap_err();
            assert!(matches!(error, Error::TimedOut { seconds: 0.3, .. }), "{way}: {error}");
        });
    }
}

/// Binds this thread to one of the cores that it may run on.
fn bind(number: usize) {
    let all = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cores: Vec<usize> =
        (0..CpuSet::count()).filter(|core| all.is_set(*core).unwrap()).collect();
    let mut one = CpuSet::new();
    one.set(cores[number % cores.len()]).unwrap();
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
}

/// Small calls of so many ranks, each bound after the start to one of so many cores. Fails if they
/// take as long as waits would that only a nap's end ends.
fn small_calls(ranks: usize, cores: usize) {
    on_ranks(ranks, &Config { heap_bytes: 1 << 20, ..Config::default() }, |comm| {
        bind(comm.rank() % cores);
        for call in 0..1000u64 {
            let mut sum = [comm.rank() as u64 + call];
            comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum[0], (ranks * (ranks - 1) / 2) as u64 + ranks as u64 * call);
            let root = call as usize % ranks;
            let mut told = [if comm.rank() == root { call } else { 0 }];
            comm.broadcast_in_place(&mut told, root).unwrap();
            assert_eq!(told, [call]);
        }
        assert!(comm.missed_wakes() < 1000, "{} wakes were missed", comm.missed_wakes());
    });
}

#[test]
fn ranks_that_are_bound_to_one_core_after_the_start_go_on() {
    for ranks in [2, 4, 8] {
        small_calls(ranks, 1);
    }
}

/// A thread that leaves no core idle, at this scheduling policy, until the calls are over.
fn beside_a_busy_thread(policy: libc::c_int, calls: impl FnOnce() + Send) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            bind(0);
            let normal = libc::sched_param { sched_priority: 0 };
            // SAFETY: it reads the parameter, which lives as long as the call.
            assert_eq!(unsafe { libc::sched_setscheduler(0, policy, &normal) }, 0);
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let calls = scope.spawn(calls);
        let ended = calls.join();
        over.store(true, Ordering::Relaxed);
        ended.unwrap();
    });
}

#[test]
fn a_busy_thread_of_the_same_core_does_not_stop_ranks() {
    for policy in [libc::SCHED_IDLE, libc::SCHED_BATCH, libc::SCHED_OTHER] {
        beside_a_busy_thread(policy, || small_calls(4, 2));
    }
}
