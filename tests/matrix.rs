//! Type × operation × algorithm × encoding × in and out of place × ranks × sizes, against the
//! declared order, bit for bit.
#![allow(clippy::unwrap_used)]

mod common;

use common::element::TestElement;
use common::run::{Case, Shared, check};
use common::{Rng, left, seed};
use oxccl::plans::algorithms::{Algorithm, Encoding, Entry, catalogue};
use oxccl::plans::schedule::SLOTS;
use oxccl::plans::topology::Placement;
use oxccl::{
    Advanced, Communicator, Config, DataType, F8E4M3, F8E5M2, Kind, OpKind, Order, bf16, f16,
};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Small slots, so that a few thousand elements are several rounds: just large enough for the
/// segments of 8 ranks.
fn config(ranks_per_node: Option<usize>) -> Config {
    Config {
        timeout: Duration::from_secs(60),
        max_channels: 2,
        heap_bytes: 1 << 20,
        ranks_per_node,
        advanced: Advanced { slot_bytes: Some(576), ll_slot_bytes: 768, ..Advanced::default() },
        ..Config::default()
    }
}

/// All cases for one type; the random choices are the same on every rank. Several nodes are for
/// what needs them. In larger worlds, where ranks outnumber cores and every case takes long, each
/// operation has one length, and one of them all lengths.
fn cases<T: TestElement>(n: usize, placement: Placement, seed: u64) -> Vec<Case> {
    let mut rng = Rng(seed);
    let mut cases = Vec::new();
    let hierarchical = |entry: &Entry| matches!(entry.algorithm, Algorithm::Hierarchical(..));
    let wanted = |entry: &&Entry| {
        hierarchical(entry) == (placement.ranks_per_node() < n)
            && !entry.is_in_fabric()
            && entry.check(n, placement, SLOTS).is_ok()
    };
    for entry in catalogue().filter(wanted) {
        let ops: Vec<OpKind> = if entry.kind.reduces() {
            let exists =
                |op: &OpKind| op.applies_to(T::DATA_TYPE) && entry.reduces(T::DATA_TYPE, *op);
            OpKind::ALL.into_iter().filter(exists).collect()
        } else {
            vec![OpKind::Sum]
        };
        if ops.is_empty() {
            continue;
        }
        let orders = [Order::Any, Order::Rank, Order::Tree].into_iter().filter(|order| {
            *order == Order::Any
                || (entry.kind.reduces() && entry.keeps(*order, placement, T::DATA_TYPE))
        });
        let orders: Vec<Order> = orders.collect();
        let thorough = ops[rng.next() as usize % ops.len()];
        // Decoded lines are folded as those of LL are.
        let ops = if entry.encoding == Encoding::Ll128 { vec![thorough] } else { ops };
        for op in ops {
            for &order in &orders {
                for in_place in [false, true].into_iter().take(1 + usize::from(entry.in_place)) {
                    // Odd, tiny, a chunk that some ranks don't get, and several rounds long.
                    let long = 700 + (rng.next() % 800) as usize;
                    let short: &[usize] = if n <= 4 && !hierarchical(entry) || op == thorough {
                        &[0, 1, 3, 17]
                    } else {
                        &[]
                    };
                    for &count in short.iter().chain([&long]) {
                        let root = rng.next() as usize % n;
                        let channels = 1 + rng.next() as usize % 2;
                        cases.push(Case {
                            entry,
                            placement,
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

/// Types that are tested in large worlds by `make test`: schedules do not depend on the type. One
/// that accumulates in itself and one that does not.
const LARGE: [DataType; 2] = [DataType::BF16, DataType::F32];

fn matrix<T: TestElement>() {
    // Ranks outnumber cores as it is: two types at a time take longer than one after the other.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let seed = seed();
    let flat = [1, 2, 3, 4, 7, 8].map(|n| (n, None));
    let several = [(4, Some(2)), (6, Some(3)), (8, Some(2))];
    let small = !LARGE.contains(&T::DATA_TYPE)
        && left::to_test_all(&format!("matrix of {}: worlds of 6 ranks and more", T::DATA_TYPE));
    let worlds = flat.into_iter().chain(several).filter(|(n, _)| !small || *n < 6);
    for (n, ranks_per_node) in worlds {
        let config = config(ranks_per_node);
        let ranks = Communicator::local_with(n, &config).unwrap();
        let cases = cases::<T>(n, config.placement(n), seed ^ n as u64);
        assert!(!cases.is_empty());
        let solutions: Vec<Shared<T>> = cases.iter().map(|_| Shared::new()).collect();
        std::thread::scope(|scope| {
            for mut comm in ranks {
                let (cases, solutions) = (&cases, &solutions);
                scope.spawn(move || {
                    for (case, solution) in cases.iter().zip(solutions) {
                        check::<T>(&mut comm, case, &solution.take(case, n));
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

/// Every kind is in the matrix but those that have tests of their own (barrier and send/recv, in
/// `calls.rs`).
#[test]
fn no_kind_is_forgotten() {
    let kinds: std::collections::BTreeSet<Kind> = catalogue().map(|entry| entry.kind).collect();
    assert_eq!(kinds.len(), Kind::ALL.len());
}
