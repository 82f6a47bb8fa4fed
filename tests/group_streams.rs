//! Groups on streams: done bucket by bucket, and ready bucket by bucket, in any order.
#![allow(clippy::unwrap_used)]

use oxccl::{
    Collectives, Communicator, Config, Error, HostBuffer, Order, ReduceOp, Stream, Unready,
};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use std::time::Duration;

/// More than a part of a group, so that two of these are done one after the other.
const LARGE: usize = 1_100_000;

fn config(timeout_ms: u64) -> Config {
    Config {
        timeout: Duration::from_millis(timeout_ms),
        heap_bytes: 256 << 20,
        order: Order::Rank,
        ..Config::default()
    }
}

/// Runs `rank` on a thread for every rank and returns what they return, in rank order.
fn on_ranks<T: Send>(n: usize, config: &Config, rank: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let ranks = Communicator::local_with(n, config).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| rank(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn a_bucket_is_used_while_the_next_is_not_ready() {
    on_ranks(2, &config(20_000), |comm| {
        let stream = Stream::new().unwrap();
        let mut buffers = [(); 2].map(|()| comm.alloc_host::<f32>(LARGE).unwrap());
        for round in 1..=3 {
            let [first, second] = &mut buffers;
            let [mut one, mut two] = [&mut *first, &mut *second].map(Unready::new);
            let (work, _) = comm
                .on(&stream)
                .group(|group| {
                    group.all_reduce_in_place(&mut one, ReduceOp::Sum)?;
                    group.all_reduce_in_place(&mut two, ReduceOp::Sum)
                })
                .unwrap();
            let bucket = work.bucket(0).unwrap();
            assert!(work.bucket(2).is_none());
            assert!(bucket.wait_timeout(Duration::from_millis(20)).is_none());
            one.fill(round as f32);
            one.ready();
            bucket.wait().unwrap();
            assert!(!work.bucket(1).unwrap().is_done() && !work.is_done());
            two.fill(1.0);
            two.ready();
            assert_eq!(first[LARGE - 1], 2.0 * round as f32);
            work.wait().unwrap();
            assert_eq!(second[0], 2.0);
        }
        assert_eq!(comm.plans(), 1);
    });
}

#[test]
fn another_stream_waits_for_a_bucket_alone() {
    let others = std::sync::Mutex::new(Communicator::local_with(2, &config(20_000)).unwrap());
    on_ranks(2, &config(20_000), |comm| {
        let other = {
            let mut others = others.lock().unwrap();
            let at = others.iter().position(|other| other.rank() == comm.rank()).unwrap();
            others.swap_remove(at)
        };
        let streams = [(); 2].map(|()| Stream::new().unwrap());
        let mut buffers = [(); 2].map(|()| comm.alloc_host::<i32>(LARGE).unwrap());
        buffers[0].fill(1);
        let [first, second] = &mut buffers;
        let mut late = Unready::new(second);
        let (work, _) = comm
            .on(&streams[0])
            .group(|group| {
                group.all_reduce_in_place(first, ReduceOp::Sum)?;
                group.all_reduce_in_place(&mut late, ReduceOp::Sum)
            })
            .unwrap();
        let waited = streams[1].wait(&work.bucket(0).unwrap()).unwrap();
        late.fill(5);
        // The second bucket is ready only when the other stream has seen the first done.
        late.ready_on(&streams[1]).unwrap();
        let again = other.on(&streams[1]).all_reduce_in_place(first, ReduceOp::Sum).unwrap();
        work.wait().unwrap();
        assert!(waited.is_done());
        waited.wait().unwrap();
        again.wait().unwrap();
        assert_eq!((first[7], second[7]), (4, 10));
    });
}

#[test]
fn a_bucket_that_is_never_ready_is_named() {
    let errors = on_ranks(2, &config(1000), |comm| {
        let stream = Stream::new().unwrap();
        let mut buffers = [(); 3].map(|()| comm.alloc_host::<f32>(LARGE).unwrap());
        let mut unready = buffers.each_mut().map(Unready::new);
        let (work, ()) = comm
            .on(&stream)
            .group(|group| {
                let mut buffers = unready.iter_mut();
                buffers.try_for_each(|of| group.all_reduce_in_place(of, ReduceOp::Sum).map(drop))
            })
            .unwrap();
        let (first, second) = (work.bucket(0).unwrap(), work.bucket(1).unwrap());
        for (at, bucket) in unready.into_iter().enumerate() {
            // Rank 1 forgets bucket 1.
            if comm.rank() == 0 || at != 1 {
                bucket.ready();
            }
        }
        let error = work.wait().unwrap_err();
        first.wait().unwrap();
        let broken = second.wait().unwrap_err();
        assert!(matches!(broken, Error::Broken { .. }), "{broken}");
        assert_eq!(buffers[2][0], 0.0);
        let later = comm.barrier().unwrap_err();
        assert!(matches!(later, Error::Broken { .. }), "{later}");
        assert_eq!([broken.ranks(), later.ranks()], [error.ranks(), error.ranks()]);
        error
    });
    let late = errors.iter().filter(|error| matches!(error, Error::TimedOut { .. }));
    let late: Vec<&Error> = late.collect();
    assert!(!late.is_empty() && late.iter().all(|error| error.ranks() == [1]), "{errors:?}");
    let named = "bucket 1 has not been marked ready on rank 1";
    assert!(errors.iter().any(|error| error.to_string().contains(named)), "{errors:?}");
    assert!(errors.iter().all(|error| error.to_string().contains("rank 1")), "{errors:?}");
}

/// A bucket: what it is, its count, and on which ranks it is ready at first.
type Wanted = (usize, usize, u8);

/// Buckets of one rank: input and output.
type Buffers = Vec<(HostBuffer<f32>, HostBuffer<f32>)>;

fn allocate(comm: &Communicator, wanted: &[Wanted]) -> Buffers {
    let world = comm.world_size();
    let one = |(kind, count, _): &Wanted| {
        let (input, output) = match kind {
            0 => (*count, *count),
            1 => (count * world, *count),
            _ => (*count, count * world),
        };
        (comm.alloc_host(input).unwrap(), comm.alloc_host(output).unwrap())
    };
    wanted.iter().map(one).collect()
}

fn fill(bucket: usize, rank: usize, input: &mut [f32]) {
    for (at, value) in input.iter_mut().enumerate() {
        *value = ((at * 37 + bucket * 11 + rank * 101) % 251) as f32 * 0.37 - 40.0;
    }
}

/// Launches the group first and marks its buckets in an order of this rank's own.
fn marked(
    comm: &Communicator,
    wanted: &[Wanted],
    order: &[usize],
    stream: &Stream,
    marks: &Stream,
) {
    let mut expected = allocate(comm, wanted);
    for (at, ((kind, _, _), (input, output))) in wanted.iter().zip(&mut expected).enumerate() {
        fill(at, comm.rank(), input);
        match kind {
            0 => comm.all_reduce(input, output, ReduceOp::Sum),
            1 => comm.reduce_scatter(input, output, ReduceOp::Sum),
            _ => comm.all_gather(input, output),
        }
        .unwrap();
    }
    let mut buffers = allocate(comm, wanted);
    for (at, (input, _)) in buffers.iter_mut().enumerate() {
        if wanted[at].2 >> comm.rank() & 1 == 1 {
            fill(at, comm.rank(), input);
        }
    }
    let (mut inputs, mut outputs): (Vec<_>, Vec<_>) = buffers.into_iter().unzip();
    let is_late = |at: usize| wanted[at].2 >> comm.rank() & 1 == 0;
    let late = |(at, input)| if is_late(at) { Err(Unready::new(input)) } else { Ok(input) };
    let mut inputs: Vec<_> = inputs.iter_mut().enumerate().map(late).collect();
    let (work, ()) = comm
        .on(stream)
        .group(|group| {
            for ((kind, _, _), (input, output)) in
                wanted.iter().zip(inputs.iter().zip(&mut outputs))
            {
                let op = ReduceOp::Sum;
                match (kind, input) {
                    (0, Ok(input)) => group.all_reduce(*input, output, op),
                    (1, Ok(input)) => group.reduce_scatter(*input, output, op),
                    (_, Ok(input)) => group.all_gather(*input, output),
                    (0, Err(late)) => group.all_reduce(late, output, op),
                    (1, Err(late)) => group.reduce_scatter(late, output, op),
                    (_, Err(late)) => group.all_gather(late, output),
                }?;
            }
            Ok(())
        })
        .unwrap();
    let mut unready: Vec<_> = inputs.drain(..).map(Result::err).collect();
    for (turn, at) in order.iter().enumerate() {
        let Some(mut bucket) = unready[*at].take() else { continue };
        fill(*at, comm.rank(), &mut bucket);
        match turn % 3 {
            0 => bucket.ready_on(marks).unwrap(),
            _ => bucket.ready(),
        }
        if turn % 4 == 1 {
            std::thread::sleep(Duration::from_micros(300));
        }
    }
    // Buckets are waited for from the last to the first, and used at once.
    for at in (0..wanted.len()).rev() {
        work.bucket(at).unwrap().wait().unwrap();
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&outputs[at]), bits(&expected[at].1), "bucket {at}: {:?}", wanted[at]);
    }
    work.wait().unwrap();
}

/// Ranks mark in orders of their own, from the host and from streams; the result is the same as one
/// by one, and always comes.
#[test]
fn no_order_of_marks_deadlocks() {
    let case = (1usize..=4).prop_flat_map(|ranks| {
        let count = prop_oneof![Just(0usize), 1usize..100, 100usize..5000];
        let wanted = prop::collection::vec((0usize..3, count, any::<u8>()), 1..10);
        (Just(ranks), wanted, any::<u64>(), 1usize..3)
    });
    let mut runner = TestRunner::new(Cases { cases: 40, ..Cases::default() });
    let run = |(ranks, wanted, seed, channels): (usize, Vec<Wanted>, u64, usize)| {
        let pin = oxccl::Pin { channels: Some(channels), ..Default::default() };
        on_ranks(ranks, &Config { pin, ..config(20_000) }, |comm| {
            let [stream, marks] = [(); 2].map(|()| Stream::new().unwrap());
            let mut order: Vec<usize> = (0..wanted.len()).collect();
            let key = |at: &usize| {
                (seed ^ comm.rank() as u64)
                    .wrapping_mul(2 * *at as u64 + 0x9e37_79b9_7f4a_7c15)
                    .rotate_left(29)
            };
            order.sort_by_key(key);
            marked(&comm, &wanted, &order, &stream, &marks);
        });
        Ok(())
    };
    runner.run(&case, run).unwrap();
}

/// Messages that are not ready when their group is launched.
#[test]
fn messages_can_be_late() {
    on_ranks(3, &config(20_000), |comm| {
        let (rank, world) = (comm.rank(), comm.world_size());
        let stream = Stream::new().unwrap();
        let (mut own, mut other) =
            (comm.alloc_host::<u8>(5000).unwrap(), comm.alloc_host::<u8>(5000).unwrap());
        let mut late = Unready::new(&mut own);
        let (work, _) = comm
            .on(&stream)
            .group(|group| {
                group.recv(&mut other, (rank + world - 1) % world)?;
                group.send(&late, (rank + 1) % world)
            })
            .unwrap();
        late.fill(rank as u8 + 1);
        late.ready();
        work.bucket(0).unwrap().wait().unwrap();
        assert_eq!(other[4999] as usize, (rank + world - 1) % world + 1);
        work.wait().unwrap();
    });
}
