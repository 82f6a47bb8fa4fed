//! Groups against the same calls one by one, bit for bit; and what happens when ranks make
//! different ones.
#![allow(clippy::unwrap_used)]

#[allow(unreachable_pub)]
#[path = "common/apart.rs"]
mod apart;
#[allow(unreachable_pub)]
#[path = "common/turns.rs"]
mod turns;

use oxccl::plans::algorithms::Encoding;
use oxccl::{Collectives, Communicator, Config, Element, Error, OpKind, Order, Pin, ReduceOp};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use std::time::Duration;
use turns::{LENGTHS, TURNS, expected, value};

/// One call, of `count` elements as that kind counts them.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    AllReduce(OpKind),
    AllReduceInPlace,
    ReduceScatter,
    AllGather,
    AllToAll,
    Broadcast(usize),
    Reduce(usize),
    Gather(usize),
    Scatter(usize),
    ReduceScatterV,
    AllGatherV,
    AllToAllV,
    Barrier,
}

#[derive(Clone, Debug)]
struct Case {
    ranks: usize,
    order: Order,
    encoding: Option<Encoding>,
    /// Ranks meet as processes do: their memory is private, and the system reads it in windows.
    apart: bool,
    channels: usize,
    calls: Vec<(Wanted, bool, usize)>,
}

/// The buffers of one call on one rank.
enum Buffers {
    Float(Vec<f32>, Vec<f32>),
    Small(Vec<i8>, Vec<i8>),
}

/// Operations of both types, also those that scale what is read or written.
fn operation() -> impl Strategy<Value = OpKind> {
    prop_oneof![Just(OpKind::Sum), Just(OpKind::Max), Just(OpKind::Avg), Just(OpKind::PreMulSum)]
}

fn reduce_op<T: Element>(kind: OpKind, factor: T) -> ReduceOp<T> {
    match kind {
        OpKind::Max => ReduceOp::Max,
        OpKind::Avg => ReduceOp::Avg,
        OpKind::PreMulSum => ReduceOp::PreMulSum(factor),
        _ => ReduceOp::Sum,
    }
}

fn wanted(ranks: usize) -> impl Strategy<Value = Wanted> {
    prop_oneof![
        4 => Just(Wanted::AllReduce(OpKind::Sum)),
        2 => operation().prop_map(Wanted::AllReduce),
        2 => Just(Wanted::AllReduceInPlace),
        2 => Just(Wanted::ReduceScatter),
        2 => Just(Wanted::AllGather),
        2 => Just(Wanted::AllToAll),
        1 => (0..ranks).prop_map(Wanted::Broadcast),
        1 => (0..ranks).prop_map(Wanted::Reduce),
        1 => (0..ranks).prop_map(Wanted::Gather),
        1 => (0..ranks).prop_map(Wanted::Scatter),
        1 => Just(Wanted::ReduceScatterV),
        1 => Just(Wanted::AllGatherV),
        1 => Just(Wanted::AllToAllV),
        1 => Just(Wanted::Barrier),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    (1usize..=8).prop_flat_map(|ranks| {
        let count = prop_oneof![Just(0usize), 1usize..40, 40usize..3000];
        let calls = prop::collection::vec((wanted(ranks), any::<bool>(), count), 0..24);
        let ways = prop_oneof![
            2 => Just((None, false)),
            1 => Just((Some(Encoding::Ll), false)),
            1 => Just((Some(Encoding::Slots), false)),
            2 => Just((Some(Encoding::Windows), true)),
        ];
        let order = prop_oneof![Just(Order::Rank), Just(Order::Tree)];
        (Just(ranks), order, ways, 1usize..3, calls).prop_map(
            |(ranks, order, (encoding, apart), channels, calls)| Case {
                ranks,
                order,
                encoding,
                apart,
                channels,
                calls,
            },
        )
    })
}

/// Uneven parts: of rank `at`, or from it to another.
fn uneven(count: usize, at: usize) -> usize {
    count * (at % 3) / 2 + at % 2
}

fn parts(count: usize, ranks: usize) -> Vec<usize> {
    (0..ranks).map(|rank| uneven(count, rank)).collect()
}

/// From and to a rank, in an all-to-all.
fn sent(count: usize, ranks: usize, rank: usize) -> [Vec<usize>; 2] {
    let to = |peer: usize| uneven(count, rank * 5 + peer);
    let from = |peer: usize| uneven(count, peer * 5 + rank);
    [(0..ranks).map(to).collect(), (0..ranks).map(from).collect()]
}

fn lengths(wanted: Wanted, count: usize, ranks: usize, rank: usize) -> (usize, usize) {
    let (own, all) = (uneven(count, rank), parts(count, ranks).iter().sum());
    match wanted {
        Wanted::AllGather | Wanted::Gather(_) => (count, count * ranks),
        Wanted::ReduceScatter | Wanted::Scatter(_) => (count * ranks, count),
        Wanted::ReduceScatterV => (all, own),
        Wanted::AllGatherV => (own, all),
        Wanted::AllToAllV => {
            let [to, from] = sent(count, ranks, rank);
            (to.iter().sum(), from.iter().sum())
        }
        Wanted::AllToAll => (count * ranks, count * ranks),
        Wanted::Barrier => (0, 0),
        _ => (count, count),
    }
}

fn buffers(case: &Case, rank: usize) -> Vec<Buffers> {
    let make = |(at, (wanted, small, count)): (usize, &(Wanted, bool, usize))| {
        let (input, output) = lengths(*wanted, *count, case.ranks, rank);
        let value = |i: usize| ((i * 37 + at * 11 + rank * 101) % 251) as f32 * 0.37 - 40.0;
        match small {
            true => {
                let input = (0..input).map(|i| value(i) as i8).collect();
                Buffers::Small(input, vec![-77; output])
            }
            false => Buffers::Float((0..input).map(value).collect(), vec![f32::NAN; output]),
        }
    };
    case.calls.iter().enumerate().map(make).collect()
}

/// Makes each call by itself.
fn one_by_one<T: Element>(
    comm: &Communicator,
    (wanted, count): (Wanted, usize),
    factor: T,
    input: &mut [T],
    output: &mut [T],
) -> Result<(), Error> {
    let (ranks, rank) = (comm.world_size(), comm.rank());
    match wanted {
        Wanted::AllReduce(kind) => comm.all_reduce(input, output, reduce_op(kind, factor)),
        Wanted::AllReduceInPlace => comm.all_reduce_in_place(input, ReduceOp::Sum),
        Wanted::ReduceScatter => comm.reduce_scatter(input, output, ReduceOp::Sum),
        Wanted::AllGather => comm.all_gather(input, output),
        Wanted::AllToAll => comm.all_to_all(input, output),
        Wanted::Broadcast(root) => comm.broadcast_in_place(input, root),
        Wanted::Reduce(root) => comm.reduce_in_place(input, ReduceOp::Sum, root),
        Wanted::Gather(root) => comm.gather(input, output, root),
        Wanted::Scatter(root) => comm.scatter(input, output, root),
        Wanted::ReduceScatterV => {
            comm.reduce_scatter_v(input, output, &parts(count, ranks), ReduceOp::Sum)
        }
        Wanted::AllGatherV => comm.all_gather_v(input, output, &parts(count, ranks)),
        Wanted::AllToAllV => {
            let [to, from] = sent(count, ranks, rank);
            comm.all_to_all_v(input, &to, output, &from)
        }
        Wanted::Barrier => comm.barrier(),
    }
}

fn grouped<'a, T: Element>(
    group: &mut oxccl::Group<'a>,
    (wanted, count): (Wanted, usize),
    (ranks, rank, factor): (usize, usize, T),
    input: &'a mut [T],
    output: &'a mut [T],
) -> Result<usize, Error> {
    match wanted {
        Wanted::AllReduce(kind) => group.all_reduce(input, output, reduce_op(kind, factor)),
        Wanted::AllReduceInPlace => group.all_reduce_in_place(input, ReduceOp::Sum),
        Wanted::ReduceScatter => group.reduce_scatter(input, output, ReduceOp::Sum),
        Wanted::AllGather => group.all_gather(input, output),
        Wanted::AllToAll => group.all_to_all(input, output),
        Wanted::Broadcast(root) => group.broadcast_in_place(input, root),
        Wanted::Reduce(root) => group.reduce_in_place(input, ReduceOp::Sum, root),
        Wanted::Gather(root) => group.gather(input, output, root),
        Wanted::Scatter(root) => group.scatter(input, output, root),
        Wanted::ReduceScatterV => {
            group.reduce_scatter_v(input, output, &parts(count, ranks), ReduceOp::Sum)
        }
        Wanted::AllGatherV => group.all_gather_v(input, output, &parts(count, ranks)),
        Wanted::AllToAllV => {
            let [to, from] = sent(count, ranks, rank);
            group.all_to_all_v(input, &to, output, &from)
        }
        Wanted::Barrier => group.barrier(),
    }
}

/// Every bit, so that NaNs compare too.
fn bits(buffers: &[Buffers]) -> Vec<(Vec<u32>, Vec<u32>)> {
    let floats = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    let smalls = |values: &[i8]| values.iter().map(|value| *value as u32).collect();
    let of = |one: &Buffers| match one {
        Buffers::Float(input, output) => (floats(input), floats(output)),
        Buffers::Small(input, output) => (smalls(input), smalls(output)),
    };
    buffers.iter().map(of).collect()
}

fn compare(comm: &Communicator, case: &Case) {
    let mut expected = buffers(case, comm.rank());
    for (one, (wanted, _, count)) in expected.iter_mut().zip(&case.calls) {
        let wanted = (*wanted, *count);
        match one {
            Buffers::Float(input, output) => one_by_one(comm, wanted, 0.3, input, output),
            Buffers::Small(input, output) => one_by_one(comm, wanted, 3, input, output),
        }
        .unwrap();
    }
    let (expected, plans) = (bits(&expected), comm.plans());
    // The second launch finds the group prepared, at other addresses.
    for _ in 0..2 {
        let mut found = buffers(case, comm.rank());
        let launches = comm.launches();
        comm.group(|group| {
            for (one, (wanted, _, count)) in found.iter_mut().zip(&case.calls) {
                let (wanted, n, rank) = ((*wanted, *count), comm.world_size(), comm.rank());
                match one {
                    Buffers::Float(i, o) => grouped(group, wanted, (n, rank, 0.3), i, o),
                    Buffers::Small(i, o) => grouped(group, wanted, (n, rank, 3), i, o),
                }?;
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(comm.launches(), launches + 1, "one launch, whatever the number of buckets");
        assert_eq!(comm.plans(), plans + 1, "planned once");
        let found = bits(&found);
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "bucket {at}: {:?}", case.calls[at]);
        }
    }
}

fn run(case: &Case) {
    let pin = Pin { encoding: case.encoding, channels: Some(case.channels), ..Pin::default() };
    let config = Config { order: case.order, pin, ..Config::default() };
    match case.apart {
        true => apart::run(case.ranks, &config, |comm| compare(&comm, case)),
        false => {
            let ranks = Communicator::local_with(case.ranks, &config).unwrap();
            std::thread::scope(|scope| {
                for comm in ranks {
                    scope.spawn(move || compare(&comm, case));
                }
            });
        }
    }
}

#[test]
fn any_group_is_what_its_calls_are() {
    let mut runner = TestRunner::new(Cases { cases: 60, ..Cases::default() });
    runner
        .run(&case(), |case| {
            run(&case);
            Ok(())
        })
        .unwrap();
}

/// Buckets that are pieces of one buffer: where no rank leaves a gap, one behind the other in all
/// memory.
#[derive(Clone, Debug)]
struct Neighbours {
    ranks: usize,
    op: OpKind,
    shared: bool,
    buckets: Vec<Neighbour>,
}

#[derive(Clone, Debug)]
struct Neighbour {
    count: usize,
    /// Which rank, if there is one of this number, leaves a gap behind it, and in which of the
    /// inputs and the outputs.
    rank: usize,
    gaps: [bool; 2],
}

const INPUT: usize = 0;
const OUTPUT: usize = 1;

fn neighbours() -> impl Strategy<Value = Neighbours> {
    let more = prop_oneof![4 => Just(0), 1 => 0usize..16];
    let gaps = prop_oneof![Just([true, false]), Just([false, true]), Just([true, true])];
    let bucket = (0usize..200, more, 0usize..8, gaps)
        .prop_map(|(lines, more, rank, gaps)| Neighbour { count: 16 * lines + more, rank, gaps });
    let buckets = prop::collection::vec(bucket, 1..30);
    (1usize..=4, operation(), any::<bool>(), buckets)
        .prop_map(|(ranks, op, shared, buckets)| Neighbours { ranks, op, shared, buckets })
}

impl Neighbours {
    const GAP: usize = 16;
    const FACTOR: f32 = 0.5;

    fn gap(&self, buffer: usize, bucket: usize, rank: usize) -> usize {
        let Neighbour { rank: leaves, gaps, .. } = &self.buckets[bucket];
        if *leaves == rank && gaps[buffer] { Self::GAP } else { 0 }
    }

    /// Where a bucket begins; the buffer's length if there is none of this number.
    fn place(&self, buffer: usize, bucket: usize, rank: usize) -> usize {
        (0..bucket).map(|at| self.buckets[at].count + self.gap(buffer, at, rank)).sum()
    }

    fn reduce(&self, comm: &Communicator) {
        let (rank, all) = (comm.rank(), 0..self.buckets.len());
        let [input_len, output_len] =
            [INPUT, OUTPUT].map(|buffer| self.place(buffer, all.end, rank));
        let value = |rank: usize, at: usize| ((at * 7 + rank * 13) % 101) as f32;
        let values: Vec<f32> = (0..input_len).map(|at| value(rank, at)).collect();
        let mut input = comm.alloc_host(input_len).unwrap();
        let mut output = comm.alloc_host(output_len).unwrap();
        input.copy_from_slice(&values);
        output.fill(f32::NAN);
        let mut private = vec![f32::NAN; output_len];
        let (input, output): (&[f32], &mut [f32]) = match self.shared {
            true => (&input, &mut output),
            false => (&values, &mut private),
        };
        comm.group(|group| {
            let mut left = &mut *output;
            for bucket in all.clone() {
                let count = self.buckets[bucket].count;
                let (piece, rest) = left.split_at_mut(count);
                left = &mut rest[self.gap(OUTPUT, bucket, rank)..];
                let from = self.place(INPUT, bucket, rank);
                let op = reduce_op(self.op, Self::FACTOR);
                group.all_reduce(&input[from..from + count], piece, op)?;
            }
            Ok(())
        })
        .unwrap();
        for bucket in all {
            let (from, count) = (self.place(OUTPUT, bucket, rank), self.buckets[bucket].count);
            for at in 0..count {
                let of = |rank| value(rank, self.place(INPUT, bucket, rank) + at);
                let (sum, largest) = (0..self.ranks)
                    .map(of)
                    .fold((0.0, 0.0), |(sum, most): (f32, f32), one| (sum + one, most.max(one)));
                let expected = match self.op {
                    OpKind::Max => largest,
                    OpKind::Avg => sum / self.ranks as f32,
                    OpKind::PreMulSum => sum * Self::FACTOR,
                    _ => sum,
                };
                assert_eq!(output[from + at], expected, "bucket {bucket}, element {at}");
            }
            let behind = from + count;
            let gap = &output[behind..behind + self.gap(OUTPUT, bucket, rank)];
            assert!(gap.iter().all(|one| one.is_nan()), "behind bucket {bucket}");
        }
    }
}

#[test]
fn buckets_may_lie_behind_one_another() {
    let mut runner = TestRunner::new(Cases { cases: 60, ..Cases::default() });
    let run = |case: Neighbours| {
        let ranks = Communicator::local_with(case.ranks, &Config::default()).unwrap();
        std::thread::scope(|scope| {
            for comm in ranks {
                let case = &case;
                scope.spawn(move || case.reduce(&comm));
            }
        });
        Ok(())
    };
    runner.run(&neighbours(), run).unwrap();
}

#[test]
fn thousands_of_buckets() {
    let calls =
        (0..4096).map(|at| (Wanted::AllReduce(OpKind::Sum), at % 3 == 0, at % 29)).collect();
    for encoding in [None, Some(Encoding::Ll), Some(Encoding::Slots)] {
        let calls: Vec<_> = Vec::clone(&calls);
        run(&Case { ranks: 3, order: Order::Rank, encoding, apart: false, channels: 2, calls });
    }
}

/// Classes of several parts: large calls, small ones that share a part behind them, and a last part
/// of next to nothing.
#[test]
fn parts_of_any_size() {
    let kinds = [
        Wanted::AllReduce(OpKind::Avg),
        Wanted::AllReduceInPlace,
        Wanted::ReduceScatter,
        Wanted::AllGather,
        Wanted::AllToAll,
        Wanted::Broadcast(1),
        Wanted::Reduce(0),
        Wanted::Gather(1),
        Wanted::Scatter(0),
    ];
    let counts = [1_100_001, 3, 600_000, 0, 600_007, 1_048_576, 1];
    for kind in kinds {
        for (ranks, encoding, channels) in [(2, None, 2), (3, Some(Encoding::Slots), 1)] {
            let calls = counts.iter().map(|count| (kind, false, *count)).collect();
            run(&Case { ranks, order: Order::Rank, encoding, apart: false, channels, calls });
        }
    }
}

#[test]
fn different_groups_name_the_first_bucket() {
    let config = Config { timeout: Duration::from_secs(5), ..Config::default() };
    let ranks = Communicator::local_with(3, &config).unwrap();
    let errors: Vec<Error> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|comm| {
                scope.spawn(move || {
                    let mut buffers = vec![vec![1f32; 100]; 5];
                    if comm.rank() == 1 {
                        buffers[3].push(0.0);
                    }
                    let result = comm.group(|group| {
                        for buffer in &mut buffers {
                            group.all_reduce_in_place(buffer, ReduceOp::Sum)?;
                        }
                        Ok(())
                    });
                    result.unwrap_err()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let named = errors
        .iter()
        .any(|error| matches!(error, Error::Mismatch { bucket: Some(3), argument: "count", .. }));
    assert!(named, "{errors:?}");
    assert!(errors.iter().any(|error| error.to_string().contains("bucket 3")), "{errors:?}");
}

#[test]
fn a_wrong_argument_calls_nothing() {
    let mut ranks = Communicator::local(1).unwrap();
    let comm = ranks.remove(0);
    let (mut good, input, mut short) = (vec![1f32; 4], vec![1f32; 4], vec![0f32; 3]);
    let error = comm
        .group(|group| {
            group.all_reduce_in_place(&mut good, ReduceOp::Sum)?;
            group.all_reduce(&input, &mut short, ReduceOp::Sum)
        })
        .unwrap_err();
    assert!(matches!(error, Error::Length { .. }), "{error}");
    assert_eq!(comm.launches(), 0);
}

/// A list of calls of which some are as before, and others have other buffers, lengths or
/// operations.
#[test]
fn a_list_that_changes_in_part() {
    let config = Config { heap_bytes: 64 << 20, ..Config::default() };
    let ranks = Communicator::local_with(3, &config).unwrap();
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(move || {
                let (n, rank) = (comm.world_size(), comm.rank());
                let mut buffers: Vec<_> = LENGTHS.map(|len| vec![0f32; len]).into();
                for (turn, wanted) in TURNS.iter().enumerate().chain(TURNS.iter().enumerate()) {
                    for (at, buffer) in buffers.iter_mut().enumerate() {
                        let values = buffer.iter_mut().enumerate();
                        values.for_each(|(place, here)| *here = value(turn, at, rank, place));
                    }
                    let plans = comm.plans();
                    let mut free: Vec<_> = buffers.iter_mut().map(Some).collect();
                    comm.group(|group| {
                        for (bucket, at) in wanted.buffers.iter().enumerate() {
                            let is_other = wanted.other == Some(bucket);
                            let op = if is_other { ReduceOp::Max } else { ReduceOp::Sum };
                            group.all_reduce_in_place(free[*at].take().unwrap(), op)?;
                        }
                        Ok(())
                    })
                    .unwrap();
                    assert!(comm.plans() <= plans + u64::from(wanted.is_new), "turn {turn}");
                    for (at, buffer) in buffers.iter().enumerate() {
                        for (place, found) in buffer.iter().enumerate() {
                            let expected = expected(turn, at, rank, n, place);
                            assert_eq!(*found, expected, "turn {turn}, buffer {at}");
                        }
                    }
                }
                let shapes = TURNS.iter().filter(|turn| turn.is_new).count();
                assert_eq!(comm.plans(), shapes as u64);
            });
        }
    });
}
