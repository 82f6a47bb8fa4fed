//! Memory that is a process' own, which the system reads for the others (cross-memory attach).
#![allow(clippy::unwrap_used)]

mod common;

use common::element::TestElement;
use common::run::{Case, Shared, check};
use common::{Rng, apart, seed};
use oxccl::plans::algorithms::{Encoding, Entry, catalogue};
use oxccl::plans::schedule::SLOTS;
use oxccl::plans::topology::Placement;
use oxccl::{
    Advanced, Call, Collectives, Communicator, Config, DataType, Error, Kind, Memory, OpKind,
    Order, ReduceOp, bf16,
};
use std::time::Duration;

fn config() -> Config {
    Config {
        timeout: Duration::from_secs(60),
        heap_bytes: 1 << 20,
        max_channels: 2,
        advanced: Advanced { cma: Some(true), ..Advanced::default() },
        ..Config::default()
    }
}

/// What reads peers' buffers and writes to none, of every kind.
fn reading() -> impl Iterator<Item = &'static Entry> {
    catalogue().filter(|entry| entry.encoding == Encoding::Windows && !entry.writes_peers())
}

fn cases<T: TestElement>(n: usize, seed: u64) -> Vec<Case> {
    let mut rng = Rng(seed);
    let placement = Placement::uniform(n);
    let mut cases = Vec::new();
    for entry in reading().filter(|entry| entry.check(n, placement, SLOTS).is_ok()) {
        let ops = match entry.kind.reduces() {
            true => vec![OpKind::Sum, OpKind::Max, OpKind::Avg, OpKind::PreMulSum],
            false => vec![OpKind::Sum],
        };
        for (op, in_place) in ops.into_iter().flat_map(|op| [(op, false), (op, true)]) {
            if in_place && !entry.in_place {
                continue;
            }
            let keeps = |order: &Order| entry.keeps(*order, placement, T::DATA_TYPE);
            for order in [Order::Any, Order::Rank, Order::Tree].into_iter().filter(keeps) {
                if order != Order::Any && !entry.kind.reduces() {
                    continue;
                }
                // More than a bounce, among others.
                let long = 150_000 + (rng.next() % 1000) as usize;
                for count in [0, 1, 17, 3000, long] {
                    let root = rng.next() as usize % n;
                    let channels = 1 + rng.next() as usize % 2;
                    let seed = rng.next();
                    cases.push(Case {
                        entry,
                        placement,
                        order,
                        op,
                        in_place,
                        root,
                        count,
                        channels,
                        seed,
                    });
                }
            }
        }
    }
    cases
}

fn all_of<T: TestElement>() {
    for n in [2, 3, 4] {
        let cases = cases::<T>(n, seed() ^ n as u64);
        let kinds: std::collections::BTreeSet<Kind> =
            cases.iter().map(|case| case.entry.kind).collect();
        assert_eq!(kinds.len(), 9, "all but barriers: {kinds:?}");
        let solutions: Vec<Shared<T>> = cases.iter().map(|_| Shared::new()).collect();
        apart::run(n, &config(), |mut comm| {
            for (case, solution) in cases.iter().zip(&solutions) {
                check::<T>(&mut comm, case, &solution.take(case, n));
            }
        });
    }
}

#[test]
fn floats_are_read_in_every_order() {
    all_of::<f32>();
}

#[test]
fn half_floats_are_read_in_every_order() {
    all_of::<bf16>();
}

/// Without a pin: from some size on where it is asked for, and not where it is switched off.
#[test]
fn large_private_buffers_are_read_by_the_system() {
    for (cma, encoding) in [(Some(true), Encoding::Windows), (Some(false), Encoding::Slots)] {
        let config = Config { advanced: Advanced { cma, ..Advanced::default() }, ..config() };
        apart::run(2, &config, |comm| {
            let count = 1 << 20;
            for kind in [Kind::AllReduce, Kind::AllGather, Kind::Broadcast] {
                let plan = comm.plan::<f32>(kind, OpKind::Sum, count, 0, false, false).unwrap();
                assert_eq!(
                    (plan.encoding, plan.cma),
                    (encoding, cma == Some(true)),
                    "{kind}: {}",
                    plan.reason
                );
                let small = comm.plan::<f32>(kind, OpKind::Sum, 16, 0, false, false).unwrap();
                assert!(small.encoding != Encoding::Windows && !small.cma);
                let shared = comm.plan::<f32>(kind, OpKind::Sum, count, 0, false, true).unwrap();
                assert!(shared.encoding == Encoding::Windows && !shared.cma);
            }
            let mut values = vec![comm.rank() as f32 + 1.0; count];
            comm.all_reduce_in_place(&mut values, ReduceOp::Sum).unwrap();
            assert!(values.iter().all(|value| *value == 3.0));
        });
    }
}

/// Where nobody asks, what is measured at the start decides: for all ranks and parts alike.
#[test]
fn ranks_agree_on_what_is_faster() {
    let config = Config { advanced: Advanced { cma: None, ..Advanced::default() }, ..config() };
    apart::run(3, &config, |comm| {
        let part = comm.split(Some(0), 0).unwrap().unwrap();
        for count in [1 << 14, 1 << 17, 1 << 20] {
            let plans = [&comm, &part].map(|comm| {
                comm.plan::<f32>(Kind::AllReduce, OpKind::Sum, count, 0, false, false).unwrap()
            });
            assert_eq!(plans[0].encoding, plans[1].encoding);
            let own = [u8::from(plans[0].cma)];
            let mut all = [7; 3];
            comm.all_gather(&own, &mut all).unwrap();
            assert_eq!(all, [own[0]; 3]);
            let mut values = vec![comm.rank() as f32 + 1.0; count];
            comm.all_reduce_in_place(&mut values, ReduceOp::Sum).unwrap();
            assert!(values.iter().all(|value| *value == 6.0));
        }
    });
}

/// Parts of a world, and parts of parts, know whose memory it is.
#[test]
fn parts_read_their_members_memory() {
    apart::run(4, &config(), |comm| {
        let rank = comm.rank();
        let part = comm.split(Some(rank as u32 % 2), -(rank as i64)).unwrap().unwrap();
        assert_eq!(part.world_size(), 2);
        let plan = part.plan::<f64>(Kind::AllReduce, OpKind::Sum, 70_000, 0, true, false).unwrap();
        assert!(plan.cma, "{}", plan.reason);
        for turn in 0..3 {
            let mut values = vec![(rank + turn) as f64; 70_000];
            part.all_reduce_in_place(&mut values, ReduceOp::Sum).unwrap();
            let expected = (2 * (rank % 2) + 2 + 2 * turn) as f64;
            assert!(values.iter().all(|value| *value == expected), "{}", values[0]);
        }
    });
}

/// A buffer that is not there is not read, and the error says whose it was.
#[test]
fn a_buffer_that_is_not_there_names_its_rank() {
    let config = Config { timeout: Duration::from_secs(20), ..config() };
    apart::run(2, &config, |comm: Communicator| {
        let count = 100_000;
        let mut own = vec![0u8; count];
        // The root of a broadcast in place reads nothing itself; of these addresses nobody has
        // anything.
        let address = if comm.rank() == 0 { 4096 as *mut u8 } else { own.as_mut_ptr() };
        let memory = Memory { address, count };
        let call = Call::of(Kind::Broadcast, DataType::U8, memory, memory);
        // SAFETY: rank 1's memory is its own; rank 0 does not touch what it names, as this test
        // shows.
        let error = unsafe { comm.run(call) }.unwrap_err();
        match comm.rank() {
            1 => {
                assert!(
                    matches!(&error, Error::Unreadable { rank: 1, peer: 0, source, .. }
                    if source.raw_os_error() == Some(libc::EFAULT)),
                    "{error}"
                );
                assert_eq!(error.ranks(), [0, 1]);
                assert!(error.to_string().contains("OXCCL_CMA=0"), "{error}");
            }
            _ => {
                assert!(error.to_string().contains("could not read a buffer of rank 0"), "{error}")
            }
        }
        assert!(error.is_fatal());
    });
}
