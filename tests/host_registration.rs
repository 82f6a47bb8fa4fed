//! Memory of the host that others have allocated, and that peers reach in place.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Rng, apart, seed};
use oxccl::{
    Collectives, Communicator, Config, DeviceSlice, Error, HostRegistration, ReduceOp, Stream,
    Unready,
};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const PAGE: usize = 4096;

fn config() -> Config {
    Config { timeout: Duration::from_secs(60), heap_bytes: 64 << 20, ..Config::default() }
}

/// What peers reach in place and what they do not is no call that they can make together: that is
/// how a rank is seen to use what is registered.
#[test]
fn a_registered_slice_is_reached_in_place() {
    apart::run(2, &config(), |comm| {
        let mut mine = vec![1.0f32; 100_000];
        let mut buffer = comm.alloc_host::<f32>(100_000).unwrap();
        buffer.fill(1.0);
        {
            let mut mine = comm.register_host(&mut mine).unwrap();
            if comm.rank() == 0 {
                comm.all_reduce_in_place(&mut mine, ReduceOp::Sum).unwrap();
            } else {
                comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
            }
        }
        let ended = if comm.rank() == 0 {
            comm.all_reduce_in_place(&mut mine, ReduceOp::Sum)
        } else {
            comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum)
        };
        assert!(matches!(ended, Err(Error::Mismatch { .. })), "{ended:?}");
    });
}

/// Slices that begin and end anywhere in a page, alone, in place and beside others.
#[test]
fn all_kinds_give_the_same_wherever_slices_begin_and_end() {
    let seed = seed();
    apart::run(3, &config(), |comm| {
        let (n, rank, mut rng) = (3, comm.rank(), Rng(seed));
        for round in 0..40 {
            let mut below = |bound: usize| rng.next() as usize % bound;
            let count = [1, 7, 1024, 1 + below(9000), 40_000 + below(300_000)][round % 5];
            let offset = below(2 * PAGE / 4);
            let root = below(n);
            // Beside the slices is other memory, which nobody may touch.
            let mut input = vec![-7.0f32; offset + n * count + 2000];
            let mut output = vec![-7.0f32; offset + n * count + 2000];
            let (from, to) = (offset..offset + count, offset..offset + n * count);
            input[from.clone()].fill(rank as f32 + 1.0);
            {
                let input = comm.register_host(&mut input[from.clone()]).unwrap();
                let mut gathered = comm.register_host(&mut output[to.clone()]).unwrap();
                comm.all_gather(&input, &mut gathered).unwrap();
                let expected = |at: usize| (at / count) as f32 + 1.0;
                assert!(gathered.iter().enumerate().all(|(at, found)| *found == expected(at)));
                comm.all_to_all_in_place(&mut gathered).unwrap();
                assert!(gathered.iter().all(|found| *found == rank as f32 + 1.0));
                comm.all_reduce_in_place(&mut gathered, ReduceOp::Sum).unwrap();
                assert!(gathered.iter().all(|found| *found == 6.0));
                gathered.iter_mut().enumerate().for_each(|(at, one)| *one = (at / count) as f32);
            }
            let mut input = comm.register_host(&mut input[from]).unwrap();
            {
                let summed = comm.register_host(&mut output[to.clone()]).unwrap();
                comm.reduce_scatter(&summed, &mut input, ReduceOp::Sum).unwrap();
            }
            assert!(input.iter().all(|found| *found == (n * rank) as f32));
            input.fill(rank as f32);
            comm.broadcast_in_place(&mut input, root).unwrap();
            assert!(input.iter().all(|found| *found == root as f32));
            drop(input);
            for (at, found) in output.iter().enumerate() {
                let expected = if to.contains(&at) { ((at - offset) / count) as f32 } else { -7.0 };
                assert_eq!(*found, expected, "round {round}, element {at}");
            }
        }
    });
}

/// A call that is known is looked at anew when its memory is registered, and when it no longer is.
#[test]
fn calls_that_are_known_follow_what_is_registered() {
    apart::run(2, &config(), |comm| {
        let part = comm.split(Some(0), 0).unwrap().unwrap();
        let mut mine = vec![0.0f32; 70_000];
        let address = mine.as_ptr();
        let check = |comm: &Communicator, slice: &mut [f32]| {
            slice.fill(comm.rank() as f32 + 1.0);
            assert_eq!(slice.as_ptr(), address);
            for expected in [3.0, 6.0, 12.0] {
                comm.all_reduce_in_place(slice, ReduceOp::Sum).unwrap();
                assert!(slice.iter().all(|found| *found == expected), "{:?}", &slice[..3]);
            }
        };
        for round in 0..6 {
            let used = if round % 2 == 0 { &comm } else { &part };
            check(used, &mut mine);
            let mut registered = comm.register_host(&mut mine).unwrap();
            check(&part, &mut registered);
            check(&comm, &mut registered);
            drop(registered);
            check(&part, &mut mine);
        }
        // It outlives the communicators, and is memory as any other again.
        let mut registered = comm.register_host(&mut mine).unwrap();
        part.close().unwrap();
        comm.close().unwrap();
        registered.fill(5.0);
        drop(registered);
        assert!(mine.iter().all(|found| *found == 5.0));
    });
}

#[test]
fn groups_and_streams_take_them() {
    apart::run(2, &config(), |comm| {
        let mut values = vec![0.0f32; 300_000];
        let mut buffer = comm.alloc_host::<f32>(5000).unwrap();
        // Buckets that share pages, and one of the communicator.
        let lengths = [999, 1, 70_000, 3, 2000, 100_000];
        let mut registered = comm.register_host(&mut values[1..]).unwrap();
        for round in 1..5 {
            registered.fill(round as f32);
            buffer.fill(round as f32);
            let mut rest = &mut registered[..];
            let mut buckets = Vec::new();
            for length in lengths {
                let (bucket, behind) = rest.split_at_mut(length);
                buckets.push(bucket);
                rest = behind;
            }
            comm.group(|group| {
                group.all_reduce_in_place(&mut buffer, ReduceOp::Sum)?;
                buckets.iter_mut().try_for_each(|bucket| {
                    group.all_reduce_in_place(&mut **bucket, ReduceOp::Sum).map(drop)
                })
            })
            .unwrap();
            let all: usize = lengths.iter().sum();
            assert!(buffer.iter().all(|found| *found == 2.0 * round as f32));
            assert!(registered[..all].iter().all(|found| *found == 2.0 * round as f32));
            assert!(registered[all..].iter().all(|found| *found == round as f32));
        }
        let stream = Stream::new().unwrap();
        registered.fill(1.0);
        let (at, len) = (registered.as_mut_ptr(), registered.len());
        // SAFETY: it is registered as long as the works, and nobody looks at it meanwhile.
        let mut halves = [(at, len / 2), (at.wrapping_add(len / 2), len - len / 2)]
            .map(|(at, len)| unsafe { DeviceSlice::from_raw_parts(at, len) });
        let (work, _) = comm
            .on(&stream)
            .group(|group| {
                halves
                    .iter_mut()
                    .try_for_each(|half| group.all_reduce_in_place(half, ReduceOp::Sum).map(drop))
            })
            .unwrap();
        // A bucket that is done is all there.
        work.bucket(1).unwrap().wait().unwrap();
        // SAFETY: this bucket is done.
        assert_eq!(unsafe { (at.add(len / 2).read(), at.add(len - 1).read()) }, (2.0, 2.0));
        work.wait().unwrap();
        assert!(registered.iter().all(|found| *found == 2.0));

        // What is not ready cannot be copied before it begins.
        let mut unready = Unready::new(&mut buffer);
        // SAFETY: as above.
        let mut slice = unsafe { DeviceSlice::from_raw_parts(at, len) };
        let refused = comm.on(&stream).group(|group| {
            group.all_reduce_in_place(&mut unready, ReduceOp::Sum)?;
            group.all_reduce_in_place(&mut slice, ReduceOp::Sum)
        });
        unready.ready();
        let error = refused.map(|(work, _)| work.wait()).unwrap_or_else(Err);
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        // Nothing has been called.
        comm.all_reduce_in_place(&mut registered, ReduceOp::Sum).unwrap();
        assert!(registered.iter().all(|found| *found == 4.0));
    });
}

/// Others write beside a slice, on its pages, while it is registered, used and given back.
#[test]
fn what_lies_beside_a_slice_is_not_touched() {
    let stop = AtomicBool::new(false);
    let counters: Vec<AtomicU32> = (0..30_000).map(|_| AtomicU32::new(0)).collect();
    // SAFETY: atomics may be written through a shared reference; each rank has those of its own
    // range, which nobody else uses.
    let range = |rank: usize| unsafe {
        let at = counters.as_ptr().add(10_000 * rank + 3).cast::<f32>().cast_mut();
        std::slice::from_raw_parts_mut(at, 9_990)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let beside = [0, 2, 9_993, 9_999, 10_000, 10_002, 19_993, 19_999, 20_000, 29_999];
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                count += 1;
                for at in beside {
                    // A load and a store: a copy of the page between them would be seen.
                    let before = counters[at].load(Ordering::Relaxed);
                    assert_eq!(before, count - 1, "counter {at}");
                    counters[at].store(count, Ordering::Relaxed);
                }
            }
        });
        apart::run(2, &config(), |comm| {
            for _ in 0..300 {
                let mut mine = comm.register_host(range(comm.rank())).unwrap();
                mine.fill(1.0);
                comm.all_reduce_in_place(&mut mine, ReduceOp::Sum).unwrap();
                assert!(mine.iter().all(|found| *found == 2.0));
            }
        });
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn what_is_not_private_is_refused() {
    apart::run(2, &config(), |comm| {
        let refused = |slice: &mut [f32]| {
            let error = comm.register_host(slice).unwrap_err();
            assert!(matches!(error, Error::NotLent { .. }) && error.is_misuse(), "{error}");
            error.to_string()
        };
        let mut buffer = comm.alloc_host::<f32>(9000).unwrap();
        let mut same = comm.register_host(&mut buffer).unwrap();
        same.fill(1.0);
        comm.all_reduce_in_place(&mut same, ReduceOp::Sum).unwrap();
        assert_eq!(buffer[8999], 2.0, "the communicator's own is registered as it is");
        let mut mine = vec![1.0f32; 90_000];
        std::mem::forget(comm.register_host(&mut mine).unwrap());
        assert!(refused(&mut mine).contains("not private"));
        let all: HostRegistration<'_, f32> = comm.register_host(&mut []).unwrap();
        assert!(all.is_empty());
        comm.barrier().unwrap();
    });
    let error = Communicator::local(1)
        .unwrap()
        .pop()
        .unwrap()
        .register_host(&mut [1.0f32])
        .map(|registered| registered[0]);
    assert_eq!(error.unwrap(), 1.0, "threads reach all memory");
}
