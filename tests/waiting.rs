//! What the time-out counts: waiting without progress.
#![allow(clippy::unwrap_used)]

use oxccl::{Advanced, Collectives, Communicator, Config, ReduceOp, Stream};
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
            link_slot_bytes: 64 << 10,
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
