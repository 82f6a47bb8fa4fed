//! The executor under a sanitizer: every algorithm on threads of one process. Without the test harness, whose own threads would be
//! in the reports.
#![allow(clippy::unwrap_used)]

mod common;

use common::Rng;
use common::element::TestElement;
use common::run::{Case, check};
use oxccl::algorithms::catalogue;
use oxccl::schedule::SLOTS;
use oxccl::{Communicator, Config, OpKind, Order, bf16};
use std::time::Duration;

fn main() {
    let cases = run::<f32>() + run::<bf16>() + run::<i8>();
    println!("{cases} passed, 0 failed");
}

fn run<T: TestElement>() -> usize {
    let config = Config {
        timeout: Duration::from_secs(120),
        max_channels: 2,
        heap_bytes: 1 << 20,
        slot_bytes: 576,
        ll_slot_bytes: 256,
        ..Config::default()
    };
    let mut done = 0;
    for (n, ranks_per_node) in [(2, None), (3, None), (4, Some(2))] {
        let config = Config { ranks_per_node, ..config.clone() };
        let placement = config.placement(n);
        let ranks = Communicator::local_with(n, &config).unwrap();
        let mut rng = Rng(common::seed());
        let cases: Vec<Case> = catalogue()
            .filter(|entry| entry.check(n, placement, SLOTS).is_ok())
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
                    cases.iter().for_each(|case| check::<T>(&mut comm, case))
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }
    done
}
