//! Every schedule of the catalogue is proven, for every world of 1 to 64 ranks.

use oxccl::algorithms::{Algorithm, Encoding, Entry, catalogue, find};
use oxccl::collective::{Collective, Kind, Order};
use oxccl::schedule::Slots;
use oxccl::verify::{Violation, verify};
use std::sync::atomic::{AtomicUsize, Ordering};

const SLOTS: Slots = Slots { ll: 2, slots: 2 };
const RANKS_MAX: usize = 64;

/// The collectives of a kind: all roots of small worlds, two of large ones.
fn collectives(kind: Kind, ranks: usize) -> Vec<Collective> {
    let picked = |rank: &usize| ranks <= 6 || [ranks / 3, ranks - 1].contains(rank);
    let roots = (0..ranks).filter(picked);
    match kind {
        Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter => {
            roots.map(|root| Collective::rooted(kind, ranks, root)).collect()
        }
        Kind::SendRecv => roots
            .flat_map(|from| (0..ranks).filter(picked).map(move |to| (from, to)))
            .filter(|(from, to)| from != to)
            .map(|(from, to)| Collective::send_recv(ranks, from, to))
            .collect(),
        _ => vec![Collective::new(kind, ranks)],
    }
}

/// A schedule that keeps an order is the one that is taken where any will do.
fn orders(entry: &Entry) -> &'static [Order] {
    if entry.ordered && entry.kind.reduces() { &[Order::Rank, Order::Tree] } else { &[Order::Any] }
}

fn prove(entry: &Entry, ranks: usize) -> usize {
    let mut proofs = 0;
    for collective in collectives(entry.kind, ranks) {
        for &order in orders(entry) {
            let what = || format!("{collective:?} {} {} {order}", entry.algorithm, entry.encoding);
            let schedule = entry.schedule(collective, order, SLOTS);
            let verified = verify(schedule.clone(), order, entry.in_place)
                .unwrap_or_else(|violation| panic!("{}: {violation}", what()));
            assert_eq!(verified.schedule(), &schedule);
            if entry.ordered {
                assert!(verified.single_rounding(), "{}: partial results are rounded", what());
            }
            proofs += 1;
        }
    }
    proofs
}

#[test]
fn every_schedule_of_the_catalogue_is_proven() {
    // Large worlds first, so that threads end together.
    let tasks: Vec<(usize, &Entry)> = (1..=RANKS_MAX)
        .rev()
        .flat_map(|ranks| catalogue().map(move |entry| (ranks, entry)))
        .collect();
    let (next, proofs) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((ranks, entry)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    proofs.fetch_add(prove(entry, *ranks), Ordering::Relaxed);
                }
            });
        }
    });
    let (proofs, entries) = (proofs.into_inner(), catalogue().count());
    println!("{proofs} schedules of {entries} algorithms are proven");
    assert!(proofs > entries * RANKS_MAX);
}

/// Whether it works in place is a promise too: the flag of the catalogue is not more careful than it need be.
#[test]
fn what_is_not_offered_in_place_would_not_work_in_place() {
    for entry in catalogue().filter(|entry| !entry.in_place) {
        let collective = match entry.kind {
            Kind::SendRecv => Collective::send_recv(4, 0, 1),
            kind => Collective::new(kind, 4),
        };
        let result = verify(entry.schedule(collective, Order::Any, SLOTS), Order::Any, true);
        assert!(
            matches!(result, Err(Violation::InPlace(_) | Violation::Schedule(_))),
            "{} {} {}: {result:?}",
            entry.kind,
            entry.algorithm,
            entry.encoding
        );
    }
}

/// An algorithm that does not keep an order is refused when that order is promised, from the world on where it matters.
#[test]
fn unkept_orders_are_refused() {
    for entry in catalogue().filter(|entry| !entry.ordered) {
        for order in [Order::Rank, Order::Tree] {
            let collective = Collective::new(entry.kind, 4);
            let result =
                verify(entry.schedule(collective, Order::Any, SLOTS), order, entry.in_place);
            let refused = matches!(result, Err(Violation::WrongValue { .. }));
            assert!(refused, "{} {} {order}: {result:?}", entry.kind, entry.algorithm);
        }
    }
}

/// A step that receives and sends on at once needs a second slot: with one, every rank of the ring waits for the next.
#[test]
fn a_ring_with_one_slot_is_a_deadlock() {
    let entry = find(Kind::AllReduce, Algorithm::Ring, Encoding::Slots).expect("in the catalogue");
    for ranks in [3, 4, 8] {
        let collective = Collective::new(Kind::AllReduce, ranks);
        let schedule = entry.schedule(collective, Order::Any, Slots { ll: 1, slots: 1 });
        match verify(schedule, Order::Any, true) {
            Err(Violation::Deadlock(stuck)) => {
                assert_eq!(stuck.len(), ranks);
                assert!(stuck.iter().all(|stuck| stuck.peer == (stuck.rank + 1) % ranks));
            }
            other => panic!("{ranks} ranks: {other:?}"),
        }
    }
}
