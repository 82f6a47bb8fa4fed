//! Buckets of gradients: what they hold after a step, however parameters are sized and marked.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../examples/overlap/main.rs"]
mod overlap;

use clap::Parser;
use oxccl::bucket::{GradientBuckets, ShardedBuckets, narrow, widen};
use oxccl::{Collectives, Communicator, Config, Error, F8E4M3, Order, ReduceOp, Stream, bf16};

const PARAMETERS: [usize; 7] = [3000, 7, 0, 129, 20_000, 1, 64];

/// Runs `rank` on a thread for every rank.
fn on_ranks(n: usize, rank: impl Fn(Communicator) + Sync) {
    let config = Config { order: Order::Rank, heap_bytes: 256 << 20, ..Config::default() };
    let ranks = Communicator::local_with(n, &config).unwrap();
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(|| rank(comm));
        }
    });
}

fn gradient(parameter: usize, rank: usize, at: usize) -> f32 {
    ((at * 31 + parameter * 17 + rank * 7) % 113) as f32 * 0.25 - 9.0
}

#[test]
fn gradients_are_reduced_whatever_the_capacity() {
    for (ranks, capacity_bytes) in [(1, 1 << 20), (2, 4096), (3, 100_000)] {
        on_ranks(ranks, |comm| {
            let stream = Stream::new().unwrap();
            let mut buckets =
                GradientBuckets::<f32>::with_capacity(&comm, &PARAMETERS, capacity_bytes).unwrap();
            let first = buckets.place(6).unwrap();
            assert_eq!((first.bucket, first.offset), (0, 0), "the last parameter comes first");
            for turn in 0..2 {
                let mut step = buckets.launch(&comm, &stream, ReduceOp::Sum).unwrap();
                for parameter in (0..PARAMETERS.len()).rev() {
                    // Ranks mark in different orders.
                    let parameter = (parameter + comm.rank() * 2 + turn) % PARAMETERS.len();
                    let values = step.gradient(parameter).unwrap().iter_mut().enumerate();
                    values.for_each(|(at, value)| *value = gradient(parameter, comm.rank(), at));
                    step.ready(parameter).unwrap();
                    let again = step.gradient(parameter).unwrap_err();
                    assert!(matches!(again, Error::Parameter { .. }), "{again}");
                }
                step.finish().wait().unwrap();
                for (parameter, count) in PARAMETERS.into_iter().enumerate() {
                    let sum =
                        |at| (0..comm.world_size()).map(|rank| gradient(parameter, rank, at)).sum();
                    let expected: Vec<f32> = (0..count).map(sum).collect();
                    assert_eq!(buckets.gradient(parameter).unwrap(), expected);
                }
            }
            assert_eq!(comm.plans(), 1);
            assert!(matches!(buckets.gradient(7), Err(Error::Parameter { parameter: 7, .. })));
        });
    }
}

/// Gradients travel as bf16 and parameters as 8-bit floats; the optimizer works in f32 on its
/// rank's share. The result is that of every rank doing all the work.
#[test]
fn shards_are_updated_as_the_whole_would_be() {
    for ranks in [1, 2, 3] {
        on_ranks(ranks, |comm| {
            let stream = Stream::new().unwrap();
            let mut buckets =
                ShardedBuckets::<bf16, F8E4M3>::with_capacity(&comm, &PARAMETERS, 4096).unwrap();
            let mut masters: Vec<Vec<f32>> = (0..buckets.buckets())
                .map(|bucket| vec![1.0; buckets.shard(bucket).unwrap().len()])
                .collect();
            for _ in 0..2 {
                let mut step = buckets.launch_gradients(&comm, &stream, ReduceOp::Avg).unwrap();
                for parameter in (0..PARAMETERS.len()).rev() {
                    let values: Vec<f32> = (0..PARAMETERS[parameter])
                        .map(|at| gradient(parameter, comm.rank(), at))
                        .collect();
                    narrow(&values, step.gradient(parameter).unwrap());
                    step.ready(parameter).unwrap();
                }
                let gradients = step.finish();
                let mut step = buckets.launch_parameters(&comm, &stream).unwrap();
                for (bucket, master) in masters.iter_mut().enumerate() {
                    gradients.bucket(bucket).unwrap().wait().unwrap();
                    let update = |gradients: &[bf16], parameters: &mut [F8E4M3]| {
                        let mut wide = vec![0f32; gradients.len()];
                        widen(gradients, &mut wide);
                        master.iter_mut().zip(&wide).for_each(|(value, one)| *value -= 0.125 * one);
                        narrow(master, parameters);
                    };
                    step.update(bucket, update).unwrap();
                }
                let again = step.update(0, |_, _| {}).unwrap_err();
                assert!(matches!(again, Error::Bucket { bucket: 0, .. }), "{again}");
                let parameters = step.finish();
                gradients.wait().unwrap();
                parameters.wait().unwrap();
            }
            for (parameter, count) in PARAMETERS.into_iter().enumerate() {
                let mut whole: Vec<bf16> = (0..count)
                    .map(|at| bf16::from_f32(gradient(parameter, comm.rank(), at)))
                    .collect();
                comm.all_reduce_in_place(&mut whole, ReduceOp::Avg).unwrap();
                let values: Vec<f32> = whole
                    .iter()
                    .map(|one| 1.0 - 0.125 * one.to_f32() - 0.125 * one.to_f32())
                    .collect();
                let mut expected = vec![F8E4M3(0); count];
                narrow(&values, &mut expected);
                assert_eq!(
                    buckets.parameter(parameter).unwrap(),
                    expected,
                    "parameter {parameter}"
                );
            }
        });
    }
}

/// The example fails unless its three ways give the same bits.
#[test]
fn the_example_trains_alike_in_three_ways() {
    for ranks in ["1", "3"] {
        let small = ["overlap", "--shrink", "24", "--capacity", "60000", "--steps", "2"];
        let options = overlap::Options::parse_from(small.into_iter().chain(["--ranks", ranks]));
        overlap::run(&options).unwrap();
    }
}
