//! Every schedule of the catalogue is proven for every world and every shape of up to 64 ranks, and
//! for some larger shapes (of those of more than 32 ranks `make test` takes one in four); with
//! `OXCCL_TEST_SHAPES=2-256` for every shape of up to 256, which takes more than nine minutes on 2
//! cores.

#[path = "../../tests/common/left.rs"]
mod left;

use oxccl_plans::algorithms::{
    Algorithm, Encoding, Entry, Orders, Outer, Pipeline, catalogue, find,
};
use oxccl_plans::collective::{Collective, Kind, Order};
use oxccl_plans::schedule::Slots;
use oxccl_plans::topology::Placement;
use oxccl_plans::verify::{Violation, verify};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

const SLOTS: Slots = Slots { ll: 2, ll128: 2, slots: 2 };
const MANY: Slots = Slots { ll: 8, ll128: 8, slots: 32 };
const WORLDS: std::ops::RangeInclusive<usize> = 1..=64;

/// Whether so many ranks are taken: of large worlds a few.
fn is_taken(all: bool, ranks: usize) -> bool {
    all || ranks <= 32 || ranks % 4 == 1 || ranks >= 64
}

/// Nodes and ranks of a node: all with a product of up to 64, and some. `OXCCL_TEST_SHAPES=247-256`
/// takes those with such a product, to prove in parts all of up to 256.
fn shapes() -> Vec<(usize, usize)> {
    let part = std::env::var("OXCCL_TEST_SHAPES").ok().map(|part| {
        let ends = part.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (first, last) = ends.expect("OXCCL_TEST_SHAPES is a range such as 247-256");
        first..=last
    });
    let all = part.is_some() || !left::to_test_all("verify_all: shapes of more than 32 ranks");
    let picked = |nodes: usize, local: usize| {
        let some = [(16, 8), (33, 2), (2, 33)];
        match &part {
            Some(part) => part.contains(&(nodes * local)),
            None => {
                (nodes * local <= 64 && is_taken(all, nodes * local))
                    || some.contains(&(nodes, local))
            }
        }
    };
    (2..=256)
        .flat_map(|nodes| (1..=256 / nodes).map(move |local| (nodes, local)))
        .filter(|(nodes, local)| picked(*nodes, *local))
        .collect()
}

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
fn orders(entry: &Entry, placement: Placement) -> Vec<Order> {
    let kept = [Order::Rank, Order::Tree]
        .into_iter()
        .filter(|order| entry.kind.reduces() && entry.keeps_unrounded(*order, placement));
    let kept: Vec<Order> = kept.collect();
    if kept.is_empty() { vec![Order::Any] } else { kept }
}

/// Proves it for all roots and orders; the number of proofs. None where it does not exist.
fn prove(entry: &Entry, ranks: usize, placement: Placement) -> usize {
    let mut proofs = 0;
    for collective in collectives(entry.kind, ranks) {
        for order in orders(entry, placement) {
            let what = || {
                let (algorithm, encoding) = (entry.algorithm, entry.encoding);
                format!("{collective:?} {placement:?} {algorithm} {encoding} {order}")
            };
            let Ok(schedule) = entry.schedule(collective, placement, order, SLOTS) else {
                continue;
            };
            let verified = verify(schedule, order, entry.in_place)
                .unwrap_or_else(|violation| panic!("{}: {violation}", what()));
            if entry.orders == Orders::All {
                assert!(verified.single_rounding(), "{}: partial results are rounded", what());
            }
            proofs += 1;
        }
    }
    proofs
}

fn is_hierarchical(entry: &Entry) -> bool {
    matches!(entry.algorithm, Algorithm::Hierarchical(..))
}

/// Proves all of them on all cores; the number of proofs.
fn prove_all(tasks: &[(usize, Placement, &Entry)]) -> usize {
    let (next, proofs) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((ranks, placement, entry)) =
                    tasks.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    proofs.fetch_add(prove(entry, *ranks, *placement), Ordering::Relaxed);
                }
            });
        }
    });
    proofs.into_inner()
}

/// Large worlds first, so that threads end together.
#[test]
fn every_schedule_of_the_catalogue_is_proven() {
    let is_of_its_own = |entry: &&Entry| entry.encoding != Encoding::Ll128;
    let flat = || catalogue().filter(is_of_its_own).filter(|entry| !is_hierarchical(entry));
    let all = !left::to_test_all("verify_all: worlds of more than 32 ranks");
    let worlds: Vec<usize> = WORLDS.rev().filter(|ranks| is_taken(all, *ranks)).collect();
    let tasks: Vec<_> = worlds
        .iter()
        .copied()
        .flat_map(|ranks| flat().map(move |entry| (ranks, Placement::one_node(ranks), entry)))
        .collect();
    let proofs = prove_all(&tasks);
    println!("{proofs} schedules of {} algorithms are proven", flat().count());
    assert!(proofs > flat().count() * worlds.len() * 3 / 4);
}

/// Encodings do not matter to a schedule: what is proven of LL holds of LL128.
#[test]
fn schedules_in_ll128_are_those_in_ll_on_another_lane() {
    let (mut compared, mut proven) = (0, 0);
    for entry in catalogue().filter(|entry| entry.encoding == Encoding::Ll128) {
        let ll = find(entry.kind, entry.algorithm, Encoding::Ll).expect("in the catalogue");
        assert_eq!((ll.in_place, ll.orders), (entry.in_place, entry.orders));
        for ranks in 1..=17 {
            let placement = Placement::one_node(ranks);
            let exists = entry.check(ranks, placement, SLOTS);
            assert_eq!(exists.is_ok(), ll.check(ranks, placement, SLOTS).is_ok());
            for collective in collectives(entry.kind, ranks).into_iter().filter(|_| exists.is_ok())
            {
                let steps = |entry: &Entry| {
                    let schedule = entry.schedule(collective, placement, Order::Any, SLOTS);
                    let text = |list: &Vec<_>| list.iter().map(ToString::to_string).collect();
                    schedule
                        .expect("it exists")
                        .lists
                        .iter()
                        .map(text)
                        .collect::<Vec<Vec<String>>>()
                };
                let other = |step: &String| step.replace(".ll128", ".ll");
                let renamed: Vec<Vec<String>> =
                    steps(entry).iter().map(|list| list.iter().map(other).collect()).collect();
                assert_eq!(renamed, steps(ll), "{} {}", entry.algorithm, collective.kind);
                compared += 1;
            }
        }
        proven += prove(entry, 4, Placement::one_node(4));
    }
    assert!(compared > 300 && proven > 20, "{compared} {proven}");
}

#[test]
fn hierarchical_schedules_are_proven_for_all_shapes() {
    let rows = || catalogue().filter(|entry| is_hierarchical(entry));
    let mut tasks = Vec::new();
    for (nodes, local) in shapes() {
        let placement = Placement::uniform(local);
        tasks.extend(rows().map(|entry| (nodes * local, placement, entry)));
    }
    tasks.sort_by_key(|(ranks, ..)| std::cmp::Reverse(*ranks));
    let proofs = prove_all(&tasks);
    println!(
        "{proofs} hierarchical schedules of {} algorithms over {} shapes are proven",
        rows().count(),
        shapes().len()
    );
    assert!(proofs >= tasks.len());
}

/// Whatever number of parts is on its way at once, and with as many slots as there are at least.
#[test]
fn schedules_are_proven_for_any_depth_of_their_pipelines() {
    let worlds = [(4, 4), (5, 5), (6, 3), (6, 2), (8, 2), (9, 3)]
        .map(|(ranks, local)| (ranks, Placement::uniform(local)));
    let uneven = [vec![3, 2], vec![2, 1, 2]]
        .map(|sizes: Vec<usize>| (sizes.iter().sum(), Placement::of_sizes(&sizes)));
    let mut depths = BTreeSet::new();
    for (ranks, placement) in worlds.into_iter().chain(uneven) {
        for entry in catalogue() {
            if entry.check(ranks, placement, SLOTS).is_err() {
                continue;
            }
            for collective in collectives(entry.kind, ranks) {
                let made = |slots, parts| {
                    let pipeline = Pipeline { slots, parts: Some(parts) };
                    entry.schedule(collective, placement, Order::Any, pipeline).unwrap()
                };
                for (slots, parts) in
                    [1, 2, 3, 5, 16].map(|parts| [(SLOTS, parts), (MANY, parts)]).concat()
                {
                    let schedule = made(slots, parts);
                    if schedule != made(slots, 1) {
                        depths.insert((entry.algorithm.name(), parts));
                    }
                    let name = format!("{}/{} of {ranks}", entry.algorithm, entry.encoding);
                    verify(schedule, Order::Any, entry.in_place)
                        .unwrap_or_else(|violation| panic!("{name}, {parts} parts: {violation}"));
                }
            }
        }
    }
    for algorithm in ["chain", "tree", "hierarchical_direct_doubling", "hierarchical_nvls_tree"] {
        assert!(
            depths.contains(&(algorithm, 3)) && depths.contains(&(algorithm, 16)),
            "{algorithm}"
        );
    }
}

/// Whether it works in place is a promise too: the flag of the catalogue is not more careful than
/// it need be.
/// Nodes of any numbers of ranks, in any order: those of two and three nodes of up to nine, and
/// some of more.
#[test]
fn hierarchical_schedules_are_proven_for_nodes_that_differ() {
    let pairs = (1..=9).flat_map(|a| (1..=9).map(move |b| vec![a, b]));
    let triples = [1, 2, 3, 5, 8].map(|a| [1, 2, 4, 7].map(|b| [1, 3, 9].map(|c| vec![a, b, c])));
    let more = [vec![8, 7, 8, 8, 8], vec![1, 2, 3, 4, 5, 6], vec![16, 16, 15], vec![2, 2, 2, 3, 2]];
    let shapes = pairs.chain(triples.into_iter().flatten().flatten()).chain(more);
    let placements: Vec<(usize, Placement)> = shapes
        .map(|sizes| (sizes.iter().sum(), Placement::of_sizes(&sizes)))
        .filter(|(ranks, placement)| placement.uneven(*ranks).is_some())
        .collect();
    assert!(placements.len() > 80);
    let fits = |(ranks, placement): (usize, Placement)| {
        let all = catalogue().filter(|entry| is_hierarchical(entry));
        all.filter(move |entry| entry.check(ranks, placement, SLOTS).is_ok())
            .map(move |entry| (ranks, placement, entry))
    };
    let tasks: Vec<_> = placements.iter().copied().flat_map(fits).collect();
    let algorithms: BTreeSet<String> =
        tasks.iter().map(|(.., e)| e.algorithm.name().to_string()).collect();
    assert!(algorithms.len() >= 2, "{algorithms:?}");
    assert!(prove_all(&tasks) >= tasks.len());
}

#[test]
fn what_is_not_offered_in_place_would_not_work_in_place() {
    for entry in catalogue().filter(|entry| !entry.in_place) {
        // Some do with powers of two.
        let works = |ranks: &usize| {
            let collective = match entry.kind {
                Kind::SendRecv => Collective::send_recv(*ranks, 0, 1),
                kind => Collective::new(kind, *ranks),
            };
            let placement = Placement::one_node(*ranks);
            let schedule = entry.schedule(collective, placement, Order::Any, SLOTS);
            match verify(schedule.expect("it exists"), Order::Any, true) {
                Ok(_) => true,
                Err(Violation::InPlace(_) | Violation::Schedule(_)) => false,
                Err(other) => panic!("{entry:?}: {other}"),
            }
        };
        assert!(![3, 4].iter().all(works), "{} {}", entry.algorithm, entry.encoding);
    }
}

/// An algorithm that does not keep an order is refused when that order is promised, from the world
/// on where it matters.
#[test]
fn unkept_orders_are_refused() {
    for entry in catalogue().filter(|entry| entry.kind.reduces()) {
        let (ranks, local) = match entry.algorithm {
            // With powers of two all the way groups of nodes keep the tree by chance.
            Algorithm::Hierarchical(_, Outer::Grid) => (12, 3),
            Algorithm::Hierarchical(..) => (4, 2),
            _ => (4, 4),
        };
        let placement = Placement::uniform(local);
        for order in [Order::Rank, Order::Tree] {
            if entry.keeps_unrounded(order, placement) {
                continue;
            }
            // By chance a chain that ends at rank 0 may keep an order of four.
            let collective = match entry.kind.is_rooted() {
                true => Collective::rooted(entry.kind, ranks, 2),
                false => Collective::new(entry.kind, ranks),
            };
            let schedule = entry.schedule(collective, placement, Order::Any, SLOTS);
            let result = verify(schedule.expect("it exists"), order, entry.in_place);
            let refused = matches!(result, Err(Violation::WrongValue { .. }));
            assert!(refused, "{} {} {order}: {result:?}", entry.kind, entry.algorithm);
        }
    }
}

/// A step that receives and sends on at once needs a second slot: with one, every rank of the ring
/// waits for the next.
#[test]
fn a_ring_with_one_slot_is_a_deadlock() {
    let entry = find(Kind::AllReduce, Algorithm::Ring, Encoding::Slots).expect("in the catalogue");
    for ranks in [3, 4, 8] {
        let collective = Collective::new(Kind::AllReduce, ranks);
        let placement = Placement::one_node(ranks);
        let one = Slots { ll: 1, ll128: 1, slots: 1 };
        let schedule = entry.schedule(collective, placement, Order::Any, one);
        match verify(schedule.expect("it exists"), Order::Any, true) {
            Err(Violation::Deadlock(stuck)) => {
                assert_eq!(stuck.len(), ranks);
                assert!(stuck.iter().all(|stuck| stuck.peer == (stuck.rank + 1) % ranks));
            }
            other => panic!("{ranks} ranks: {other:?}"),
        }
    }
}
