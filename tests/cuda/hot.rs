//! Kernels of one schedule each: they do, bit for bit, what the interpreter does with it, and a
//! communicator's calls may run in either.

use crate::calls::{check, config, pin, stream};
use crate::common::Rng;
use crate::common::run::Case;
use crate::groups::{Of, Wanted, buckets, launch};
use crate::processes::{line_up, nothing_is_left, on_hardware};
use oxccl::cuda::Stream;
use oxccl::plans::algorithms::{Algorithm, Encoding, Entry, find};
use oxccl::plans::hot::{self, Hot, Role};
use oxccl::plans::topology::Placement;
use oxccl::{
    Advanced, Collectives, Communicator, Config, DataType, Kind, OpKind, Order, Pin, ReduceOp,
    Unready, bf16, f16,
};
use oxccl_cuda_stand_in::control::Control;
use oxccl_transports::Bootstrap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Slots as programs have them: most of these calls are one round.
fn with(hot_kernels: bool) -> Config {
    let usual = Advanced::default();
    let advanced = Advanced {
        hot_kernels,
        single_launch: Some(false),
        slot_bytes: usual.slot_bytes,
        ll_slot_bytes: usual.ll_slot_bytes,
        ..config().advanced
    };
    // Of two communicators of eight ranks.
    Config { advanced, heap_bytes: 32 << 20, ..config() }
}

/// The calls of each hot schedule, by its kernels and by the interpreter, between others that are
/// interpreted.
pub(crate) fn kernels(_: &mut dyn Bootstrap) {
    by_both(all);
}

/// The same of groups.
pub(crate) fn groups(_: &mut dyn Bootstrap) {
    by_both(all_groups);
}

/// Calls of two communicators of each rank, the first of which has hot kernels; `calls` tells how
/// many a rank has made by these.
fn by_both(calls: fn((Communicator, Communicator)) -> u64) {
    let launches = || (!on_hardware()).then(|| Control::attach().unwrap().hot());
    let (before, expected) = (launches(), AtomicU64::new(0));
    // On hardware streams of more ranks may share connections.
    for ranks in [2, 3, 8].into_iter().take(if on_hardware() { 2 } else { 3 }) {
        let worlds = [true, false].map(|hot| Communicator::local_with(ranks, &with(hot)).unwrap());
        let [by_kernels, interpreted] = worlds;
        std::thread::scope(|scope| {
            for pair in by_kernels.into_iter().zip(interpreted) {
                scope.spawn(|| expected.fetch_add(calls(pair), Ordering::Relaxed));
            }
        });
    }
    let made = before.zip(launches()).map(|(before, after)| after - before);
    let expected = expected.into_inner();
    assert_eq!(made.unwrap_or(expected), expected, "launches of hot kernels");
    nothing_is_left();
}

/// The same of the schedule whose reductions a switch does: as much as it can, or nothing where the
/// ranks' buffers are not at the same place, or are averaged.
pub(crate) fn by_a_switch(mut comm: Communicator) {
    let (control, stream, ranks) = (Control::attach().unwrap(), stream(&comm), comm.world_size());
    let entry = find(Kind::AllReduce, Algorithm::Nvls, Encoding::Windows).unwrap();
    line_up();
    let (mut rng, before, mut made) = (Rng(29), control.hot(), 0);
    line_up();
    let ops = [OpKind::Sum, OpKind::Avg].into_iter();
    let ops: Vec<OpKind> = ops.filter(|op| entry.reduces(DataType::F32, *op)).collect();
    for apart in [false, true] {
        // Of ranks whose heaps hold something else first.
        let _held = comm.alloc::<f32>(if apart { 64 * comm.rank() } else { 0 }).unwrap();
        for (count, in_place) in [(1, false), (333, true), (9001, false), (16_384, true)] {
            for &op in &ops {
                let case = Case { op, ..case(entry, ranks, (count, 2, in_place), rng.next()) };
                comm.set_pin(pin(&case)).unwrap();
                check::<f32>(&comm, &stream, &case);
                check::<bf16>(&comm, &stream, &case);
                made += 2;
            }
        }
    }
    comm.set_pin(Pin::default()).unwrap();
    line_up();
    assert_eq!(control.hot() - before, made * ranks as u64);
    assert!(control.switched_bytes() > 0);
}

/// One for each algorithm: where there is a root, the root's.
pub(crate) fn of_calls() -> impl Iterator<Item = &'static Hot> {
    hot::hot().iter().filter(|one| one.shape.role != Role::Leaf)
}

/// How many calls a rank has made that hot kernels carry out.
fn all((mut by_kernels, mut interpreted): (Communicator, Communicator)) -> u64 {
    let (stream, beside) = (stream(&by_kernels), stream(&interpreted));
    let (mut rng, mut made, ranks) = (Rng(23), 0, by_kernels.world_size());
    for one in of_calls().filter(|one| one.algorithm != Algorithm::Nvls) {
        // Of eight ranks, of which the emulator has thousands of threads, one length.
        let most = if ranks == 8 { 1 } else { usize::MAX };
        for (count, channels) in lengths(one).into_iter().rev().take(most) {
            for in_place in [false, true].into_iter().take(1 + usize::from(is_in_place(one))) {
                let entry = find(one.kind, one.algorithm, one.encoding).unwrap();
                let case = case(entry, ranks, (count, channels, in_place), rng.next());
                let root = if one.kind.is_rooted() { rng.next() as usize % ranks } else { 0 };
                let case = Case { root, ..case };
                let averages = one.reduces() && rng.next() % 2 == 0;
                let case = Case { op: if averages { OpKind::Avg } else { OpKind::Sum }, ..case };
                interpreted.set_pin(pin(&case)).unwrap();
                by_kernels.set_pin(pin(&case)).unwrap();
                match (one.reduces(), rng.next() % 3) {
                    (true, 0) => {
                        check::<bf16>(&by_kernels, &stream, &case);
                        check::<bf16>(&interpreted, &beside, &case);
                    }
                    (true, 1) => {
                        check::<f16>(&by_kernels, &stream, &case);
                        check::<f16>(&interpreted, &beside, &case);
                    }
                    _ => {
                        check::<f32>(&by_kernels, &stream, &case);
                        check::<f32>(&interpreted, &beside, &case);
                    }
                }
                made += 1;
                other(&mut by_kernels, &stream, rng.next());
            }
        }
    }
    by_kernels.set_pin(Pin::default()).unwrap();
    by_kernels.barrier().unwrap();
    made
}

/// Elements of the buckets of a group, and its channels: none of some, and lengths that are no
/// multiple of anything.
fn groups_of(one: &Hot) -> Vec<(Vec<usize>, usize)> {
    match one.encoding {
        Encoding::Windows => {
            vec![(vec![1, 0, 64], 1), (vec![5, 1000, 0, 333, 2048, 17, 1], 2), (vec![9; 120], 2)]
        }
        _ => vec![(vec![3, 1], 1), (vec![1, 77, 0, 130, 3, 40], 2), (vec![0, 16, 31], 1)],
    }
}

/// How many groups a rank has made that hot kernels carry out.
fn all_groups((mut by_kernels, mut interpreted): (Communicator, Communicator)) -> u64 {
    let (stream, beside) = (stream(&by_kernels), stream(&interpreted));
    let (mut rng, mut made, ranks) = (Rng(31), 0, by_kernels.world_size());
    for one in of_calls().filter(|one| one.in_buckets.is_some()) {
        let most = if ranks == 8 { 1 } else { usize::MAX };
        for (counts, channels) in groups_of(one).into_iter().rev().take(most) {
            for in_place in [false, true].into_iter().take(1 + usize::from(is_in_place(one))) {
                let of = [Of::F32, Of::F16, Of::Bf16][rng.next() as usize % 3];
                let averages = one.reduces() && rng.next() % 2 == 0;
                let op = if averages { OpKind::Avg } else { OpKind::Sum };
                let kind = one.kind;
                let root = if kind.is_rooted() { rng.next() as usize % ranks } else { 0 };
                let wanted = counts.iter().map(|&count| {
                    let shift = rng.next() as usize % 2;
                    Wanted { kind, of, op, count, root, in_place, shift }
                });
                let wanted: Vec<Wanted> = wanted.collect();
                let pin = Pin {
                    algorithm: Some(one.algorithm),
                    encoding: Some(one.encoding),
                    channels: Some(channels),
                };
                let run = |comm: &mut Communicator, stream| {
                    comm.set_pin(pin).unwrap();
                    let buckets = buckets(comm, &wanted);
                    launch(comm, stream, &buckets).wait().unwrap();
                    buckets
                };
                let pair = (run(&mut by_kernels, &stream), run(&mut interpreted, &beside));
                for (at, (found, expected)) in pair.0.iter().zip(&pair.1).enumerate() {
                    let (found, expected) = (found.read(), expected.read());
                    assert_eq!(found, expected, "{}, bucket {at}: {:?}", one.name, wanted[at]);
                }
                made += 1;
                other(&mut by_kernels, &stream, rng.next());
            }
        }
    }
    made += marked(&mut by_kernels, &stream);
    by_kernels.set_pin(Pin::default()).unwrap();
    by_kernels.barrier().unwrap();
    made
}

/// A group whose second bucket is marked late.
fn marked(comm: &mut Communicator, stream: &Stream) -> u64 {
    let encodings = [Encoding::Ll, Encoding::Windows].map(Some);
    for encoding in encodings {
        let algorithm = Some(match encoding {
            Some(Encoding::Windows) => Algorithm::TwoShotPush,
            _ => Algorithm::OneShot,
        });
        comm.set_pin(Pin { algorithm, encoding, channels: Some(1) }).unwrap();
        let mut buffers = [70, 9].map(|count| comm.alloc::<f32>(count).unwrap());
        buffers[0].write(&[1.0; 70]).unwrap();
        let [first, second] = &mut buffers;
        let mut late = Unready::new(second);
        let work = comm.on(stream).group(|group| {
            group.all_reduce_in_place(first, ReduceOp::Sum)?;
            group.all_reduce_in_place(&mut late, ReduceOp::Sum)
        });
        let (work, _) = work.unwrap();
        assert!(work.wait_timeout(Duration::from_millis(5)).is_none());
        late.write(&[3.0; 9]).unwrap();
        late.ready();
        work.wait().unwrap();
        let n = comm.world_size() as f32;
        for (buffer, sum) in buffers.iter().zip([n, 3.0 * n]) {
            let mut found = vec![0.0; buffer.len()];
            buffer.read(&mut found).unwrap();
            assert!(found.iter().all(|found| *found == sum), "{found:?}");
        }
    }
    encodings.len() as u64
}

/// A call over the same connections for which there is no hot kernel.
fn other(comm: &mut Communicator, stream: &Stream, seed: u64) {
    for encoding in [Encoding::Ll, Encoding::Windows] {
        let algorithm =
            if encoding == Encoding::Ll { Algorithm::OneShot } else { Algorithm::TwoShot };
        let entry = find(Kind::AllReduce, algorithm, encoding).unwrap();
        let case = case(entry, comm.world_size(), (5, 1, false), seed);
        comm.set_pin(pin(&case)).unwrap();
        check::<i32>(comm, stream, &case);
    }
}

/// Elements of a rank's part, or of the whole, and channels: a word and less, lengths that are no
/// multiple of anything, and such that are gathered in several turns.
fn lengths(one: &Hot) -> Vec<(usize, usize)> {
    let whole = is_in_place(one);
    match one.encoding {
        Encoding::Windows if whole => vec![(1, 1), (333, 1), (9001, 2), (16_384, 1)],
        Encoding::Windows => vec![(1, 1), (333, 2), (2048, 1)],
        _ => vec![(1, 1), (77, 2), (if whole { 1000 } else { 505 }, 1)],
    }
}

fn is_in_place(one: &Hot) -> bool {
    matches!(one.kind, Kind::AllReduce | Kind::Broadcast)
}

fn case(
    entry: &'static Entry,
    ranks: usize,
    (count, channels, in_place): (usize, usize, bool),
    seed: u64,
) -> Case {
    let (order, op, root) = (Order::Any, OpKind::Sum, 0);
    let placement = Placement::one_node(ranks);
    Case { entry, placement, order, op, in_place, root, count, channels, seed }
}
