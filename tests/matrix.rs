//! Type × operation × algorithm × encoding × in and out of place × ranks × sizes, against the declared order, bit for bit.
#![allow(clippy::unwrap_used)]

mod common;

use common::element::TestElement;
use common::run::{Case, check};
use common::{Rng, seed};
use oxccl::algorithms::catalogue;
use oxccl::{Communicator, Config, F8E4M3, F8E5M2, Kind, OpKind, Order, bf16, f16};
use std::time::Duration;

/// Small slots, so that a few thousand elements are several rounds.
fn config() -> Config {
    Config {
        timeout: Duration::from_secs(60),
        max_channels: 2,
        heap_bytes: 1 << 20,
        slot_bytes: 512,
        ll_slot_bytes: 256,
        ..Config::default()
    }
}

/// All cases for one type; the random choices are the same on every rank.
fn cases<T: TestElement>(n: usize, seed: u64) -> Vec<Case> {
    let mut rng = Rng(seed);
    let mut cases = Vec::new();
    for entry in catalogue() {
        let ops: Vec<OpKind> = if entry.kind.reduces() {
            OpKind::ALL.into_iter().filter(|op| op.applies_to(T::DATA_TYPE)).collect()
        } else {
            vec![OpKind::Sum]
        };
        let orders: &[Order] = match entry.kind.reduces() {
            true if entry.ordered => &[Order::Any, Order::Rank, Order::Tree],
            _ => &[Order::Any],
        };
        for op in ops {
            for &order in orders {
                for in_place in [false, true].into_iter().take(1 + usize::from(entry.in_place)) {
                    // Odd, tiny, a chunk that some ranks don't get, and several rounds long.
                    let long = 700 + (rng.next() % 800) as usize;
                    for count in [0, 1, 3, 17, long] {
                        let root = rng.next() as usize % n;
                        let channels = 1 + rng.next() as usize % 2;
                        cases.push(Case {
                            entry,
                            order,
                            op,
                            in_place,
                            root,
                            count,
                            channels,
                            seed: rng.next(),
                        });
                    }
                }
            }
        }
    }
    cases
}

fn matrix<T: TestElement>() {
    let seed = seed();
    for n in [1, 2, 3, 4, 7, 8] {
        let ranks = Communicator::local_with(n, &config()).unwrap();
        let cases = cases::<T>(n, seed ^ n as u64);
        std::thread::scope(|scope| {
            for mut comm in ranks {
                let cases = &cases;
                scope.spawn(move || {
                    for case in cases {
                        check::<T>(&mut comm, case);
                    }
                });
            }
        });
    }
}

macro_rules! per_type {
    ($($name:ident: $type:ty;)*) => {$(
        #[test]
        fn $name() {
            matrix::<$type>();
        }
    )*};
}

per_type! {
    int8: i8;
    uint8: u8;
    int32: i32;
    uint32: u32;
    int64: i64;
    uint64: u64;
    half: f16;
    bfloat16: bf16;
    float: f32;
    double: f64;
    f8e4m3: F8E4M3;
    f8e5m2: F8E5M2;
}

/// Every kind is in the matrix but those that have tests of their own (barrier and send/recv, in `calls.rs`).
#[test]
fn no_kind_is_forgotten() {
    let kinds: std::collections::BTreeSet<Kind> = catalogue().map(|entry| entry.kind).collect();
    assert_eq!(kinds.len(), Kind::ALL.len());
}
