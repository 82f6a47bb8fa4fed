//! The executor under a sanitizer: every algorithm on threads of one process. Without the test
//! harness, whose own threads would be in the reports.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

use common::Rng;
use common::element::TestElement;
use common::run::{Case, Solution, check};
use oxccl::plans::algorithms::{Encoding, catalogue};
use oxccl::plans::schedule::SLOTS;
use oxccl::{Advanced, Collectives, Communicator, Config, OpKind, Order, Pin, ReduceOp, bf16};
use std::time::Duration;

fn main() {
    // The protocol is the same for all types; others than f32 differ in how they are folded.
    let cases = run::<f32>(&[(2, None), (3, None), (4, Some(2))])
        + run::<bf16>(&[(2, None)])
        + run::<i8>(&[(2, None)])
        + groups();
    println!("{cases} passed, 0 failed");
}

fn run<T: TestElement>(worlds: &[(usize, Option<usize>)]) -> usize {
    let config = Config {
        timeout: Duration::from_secs(120),
        max_channels: 2,
        heap_bytes: 1 << 20,
        advanced: Advanced { slot_bytes: Some(576), ll_slot_bytes: 256, ..Advanced::default() },
        ..Config::default()
    };
    let mut done = 0;
    for &(n, ranks_per_node) in worlds {
        let config = Config { ranks_per_node, ..config.clone() };
        let placement = config.placement(n);
        let ranks = Communicator::local_with(n, &config).unwrap();
        let mut rng = Rng(common::seed());
        let cases: Vec<Case> = catalogue()
            .filter(|entry| !entry.is_in_fabric() && entry.check(n, placement, SLOTS).is_ok())
            .filter(|entry| entry.reduces(T::DATA_TYPE, OpKind::Sum))
            .flat_map(|entry| [0, 5, 900].map(|count| (entry, count)))
            .map(|(entry, count)| Case {
                entry,
                placement,
                order: Order::Any,
                op: OpKind::Sum,
                in_place: entry.in_place && rng.next().is_multiple_of(2),
                root: rng.next() as usize % n,
                count,
                channels: 1 + count % 2,
                seed: rng.next(),
            })
            .collect();
        done += cases.len() * n;
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|mut comm| {
                let cases = cases.clone();
                std::thread::spawn(move || {
                    cases
                        .iter()
                        .for_each(|case| check(&mut comm, case, &Solution::<T>::of(case, n)))
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }
    done
}

/// Groups of buckets that begin and end anywhere.
fn groups() -> usize {
    let encodings = [None, Some(Encoding::Ll), Some(Encoding::Slots)];
    for encoding in encodings {
        let pin = Pin { encoding, channels: Some(2), ..Pin::default() };
        let config = Config { pin, heap_bytes: 4 << 20, ..Config::default() };
        let ranks = Communicator::local_with(3, &config).unwrap();
        let threads: Vec<_> =
            ranks.into_iter().map(|comm| std::thread::spawn(move || group(&comm))).collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }
    encodings.len()
}

fn group(comm: &Communicator) {
    for round in 0..2 {
        let mut buckets: Vec<Vec<f32>> = (0..40).map(|at| vec![at as f32; at * 13 % 700]).collect();
        let mut gathered = vec![0i8; 3 * 17];
        let input = vec![comm.rank() as i8 + round; 17];
        comm.group(|group| {
            for bucket in &mut buckets {
                group.all_reduce_in_place(bucket, ReduceOp::Sum)?;
            }
            group.all_gather(&input, &mut gathered)
        })
        .unwrap();
        for (at, bucket) in buckets.iter().enumerate() {
            assert!(bucket.iter().all(|value| *value == 3.0 * at as f32));
        }
        assert_eq!(gathered[17], 1 + round);
    }
}
