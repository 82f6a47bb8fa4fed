//! Groups against the same calls one by one, bit for bit; and what happens when ranks make different ones.
#![allow(clippy::unwrap_used)]

use oxccl::algorithms::Encoding;
use oxccl::{Communicator, Config, Element, Error, Order, Pin, ReduceOp};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use std::time::Duration;

/// One call, of `count` elements as that kind counts them.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    AllReduce,
    AllReduceMax,
    AllReduceInPlace,
    ReduceScatter,
    AllGather,
    AllToAll,
    Broadcast(usize),
    Reduce(usize),
    Barrier,
}

#[derive(Clone, Debug)]
struct Case {
    ranks: usize,
    order: Order,
    encoding: Option<Encoding>,
    channels: usize,
    calls: Vec<(Wanted, bool, usize)>,
}

/// The buffers of one call on one rank.
enum Buffers {
    Float(Vec<f32>, Vec<f32>),
    Small(Vec<i8>, Vec<i8>),
}

fn wanted(ranks: usize) -> impl Strategy<Value = Wanted> {
    prop_oneof![
        4 => Just(Wanted::AllReduce),
        1 => Just(Wanted::AllReduceMax),
        2 => Just(Wanted::AllReduceInPlace),
        2 => Just(Wanted::ReduceScatter),
        2 => Just(Wanted::AllGather),
        2 => Just(Wanted::AllToAll),
        1 => (0..ranks).prop_map(Wanted::Broadcast),
        1 => (0..ranks).prop_map(Wanted::Reduce),
        1 => Just(Wanted::Barrier),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    (1usize..=8).prop_flat_map(|ranks| {
        let count = prop_oneof![Just(0usize), 1usize..40, 40usize..3000];
        let calls = prop::collection::vec((wanted(ranks), any::<bool>(), count), 0..24);
        let encoding = prop_oneof![
            2 => Just(None),
            1 => Just(Some(Encoding::Ll)),
            1 => Just(Some(Encoding::Slots)),
        ];
        let order = prop_oneof![Just(Order::Rank), Just(Order::Tree)];
        (Just(ranks), order, encoding, 1usize..3, calls).prop_map(
            |(ranks, order, encoding, channels, calls)| Case {
                ranks,
                order,
                encoding,
                channels,
                calls,
            },
        )
    })
}

fn lengths(wanted: Wanted, count: usize, ranks: usize) -> (usize, usize) {
    match wanted {
        Wanted::AllGather => (count, count * ranks),
        Wanted::ReduceScatter => (count * ranks, count),
        Wanted::AllToAll => (count * ranks, count * ranks),
        Wanted::Barrier => (0, 0),
        _ => (count, count),
    }
}

fn buffers(case: &Case, rank: usize) -> Vec<Buffers> {
    let make = |(at, (wanted, small, count)): (usize, &(Wanted, bool, usize))| {
        let (input, output) = lengths(*wanted, *count, case.ranks);
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
    wanted: Wanted,
    input: &mut [T],
    output: &mut [T],
) -> Result<(), Error> {
    match wanted {
        Wanted::AllReduce => comm.all_reduce(input, output, ReduceOp::Sum),
        Wanted::AllReduceMax => comm.all_reduce(input, output, ReduceOp::Max),
        Wanted::AllReduceInPlace => comm.all_reduce_in_place(input, ReduceOp::Sum),
        Wanted::ReduceScatter => comm.reduce_scatter(input, output, ReduceOp::Sum),
        Wanted::AllGather => comm.all_gather(input, output),
        Wanted::AllToAll => comm.all_to_all(input, output),
        Wanted::Broadcast(root) => comm.broadcast_in_place(input, root),
        Wanted::Reduce(root) => comm.reduce_in_place(input, ReduceOp::Sum, root),
        Wanted::Barrier => comm.barrier(),
    }
}

fn grouped<'a, T: Element>(
    group: &mut oxccl::Group<'a>,
    wanted: Wanted,
    input: &'a mut [T],
    output: &'a mut [T],
) -> Result<usize, Error> {
    match wanted {
        Wanted::AllReduce => group.all_reduce(input, output, ReduceOp::Sum),
        Wanted::AllReduceMax => group.all_reduce(input, output, ReduceOp::Max),
        Wanted::AllReduceInPlace => group.all_reduce_in_place(input, ReduceOp::Sum),
        Wanted::ReduceScatter => group.reduce_scatter(input, output, ReduceOp::Sum),
        Wanted::AllGather => group.all_gather(input, output),
        Wanted::AllToAll => group.all_to_all(input, output),
        Wanted::Broadcast(root) => group.broadcast_in_place(input, root),
        Wanted::Reduce(root) => group.reduce_in_place(input, ReduceOp::Sum, root),
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
    for (one, (wanted, _, _)) in expected.iter_mut().zip(&case.calls) {
        match one {
            Buffers::Float(input, output) => one_by_one(comm, *wanted, input, output),
            Buffers::Small(input, output) => one_by_one(comm, *wanted, input, output),
        }
        .unwrap();
    }
    let expected = bits(&expected);
    // The second launch finds the group prepared, at other addresses.
    for _ in 0..2 {
        let mut found = buffers(case, comm.rank());
        let launches = comm.launches();
        comm.group(|group| {
            for (one, (wanted, _, _)) in found.iter_mut().zip(&case.calls) {
                match one {
                    Buffers::Float(input, output) => grouped(group, *wanted, input, output),
                    Buffers::Small(input, output) => grouped(group, *wanted, input, output),
                }?;
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(comm.launches(), launches + 1, "one launch, whatever the number of buckets");
        let found = bits(&found);
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "bucket {at}: {:?}", case.calls[at]);
        }
    }
}

fn run(case: &Case) {
    let pin = Pin { encoding: case.encoding, channels: Some(case.channels), ..Pin::default() };
    let config = Config { order: case.order, pin, ..Config::default() };
    let ranks = Communicator::local_with(case.ranks, &config).unwrap();
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(move || compare(&comm, case));
        }
    });
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

#[test]
fn thousands_of_buckets() {
    let calls = (0..4096).map(|at| (Wanted::AllReduce, at % 3 == 0, at % 29)).collect();
    for encoding in [None, Some(Encoding::Ll), Some(Encoding::Slots)] {
        let calls: Vec<_> = Vec::clone(&calls);
        run(&Case { ranks: 3, order: Order::Rank, encoding, channels: 2, calls });
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
