//! Large worlds: 4,096 ranks, rank by rank for what has few steps a rank, by symmetry for what has
//! a step for every other rank. In release all of them, each in under 10 seconds and 2 GiB;
//! otherwise the quick ones.
#![allow(clippy::unwrap_used)]

use oxccl_plans::algorithms::{Algorithm, Encoding, Inner, Outer, find};
use oxccl_plans::collective::{Collective, Kind, Order};
use oxccl_plans::schedule::SLOTS;
use oxccl_plans::topology::Placement;
use oxccl_plans::verify::{Symmetric, verify};
use std::time::Instant;

/// Ranks, and ranks of a node.
type World = (usize, usize);

const FLAT: World = (4096, 4096);
const NODES: World = (4096, 8);
const BIG_NODES: World = (4096, 32);

fn prove(kind: Kind, algorithm: Algorithm, order: Order, (ranks, local): World) {
    let collective = match kind {
        Kind::Broadcast | Kind::Reduce => Collective::rooted(kind, ranks, ranks / 3),
        _ => Collective::new(kind, ranks),
    };
    let encoding = if kind == Kind::Barrier { Encoding::Ll } else { Encoding::Slots };
    let entry = find(kind, algorithm, encoding).unwrap();
    let start = Instant::now();
    let schedule = entry.schedule(collective, Placement::uniform(local), order, SLOTS).unwrap();
    let steps: usize = schedule.lists.iter().map(Vec::len).sum();
    verify(schedule, order, entry.in_place)
        .unwrap_or_else(|violation| panic!("{kind} {algorithm} {order}: {violation}"));
    println!("{kind} {algorithm} {ranks} ranks: {steps} instructions, {:.1?}", start.elapsed());
}

/// By symmetry; all ranks are compared, by two threads.
fn prove_alike(
    kind: Kind,
    algorithm: Algorithm,
    encoding: Encoding,
    order: Order,
    (ranks, local): World,
) {
    let entry = find(kind, algorithm, encoding).unwrap();
    let (collective, placement) = (Collective::new(kind, ranks), Placement::uniform(local));
    let start = Instant::now();
    let proof = Symmetric::prove(entry, collective, placement, order, SLOTS)
        .unwrap_or_else(|why| panic!("{kind} {algorithm} {encoding} {order}: {why}"));
    let proven = start.elapsed();
    let results = std::thread::scope(|scope| {
        let halves = [0..ranks / 2, ranks / 2..ranks];
        let run = halves.map(|ranks| scope.spawn(|| proof.compare(ranks)));
        run.map(|thread| thread.join().unwrap())
    });
    for result in results {
        result.unwrap_or_else(|why| panic!("{kind} {algorithm} {encoding} {order}: {why}"));
    }
    println!(
        "{kind} {algorithm} {encoding} {order} {ranks} ranks: {} instructions of {} ranks in {proven:.1?}, all in {:.1?}",
        proof.first().lists.iter().map(Vec::len).sum::<usize>(),
        proof.symmetry().firsts(),
        start.elapsed()
    );
}

/// By symmetry, where all ranks' lists are made from those of the first.
fn prove_by_construction(kind: Kind, algorithm: Algorithm, encoding: Encoding, world: World) {
    let (ranks, local) = world;
    let entry = find(kind, algorithm, encoding).unwrap();
    let (collective, placement) = (Collective::new(kind, ranks), Placement::uniform(local));
    let start = Instant::now();
    let proof = Symmetric::prove(entry, collective, placement, Order::Any, SLOTS)
        .unwrap_or_else(|why| panic!("{kind} {algorithm} {encoding}: {why}"));
    assert!(proof.is_by_construction(), "{kind} {algorithm} {encoding}");
    println!("{kind} {algorithm} {encoding} {ranks} ranks from rank 0: {:.1?}", start.elapsed());
}

#[test]
fn few_steps_a_rank() {
    prove(Kind::Barrier, Algorithm::Dissemination, Order::Any, FLAT);
    prove(Kind::Broadcast, Algorithm::Binomial, Order::Any, FLAT);
    prove(Kind::Reduce, Algorithm::Binomial, Order::Tree, FLAT);
    prove(Kind::AllReduce, Algorithm::ReduceBroadcast, Order::Tree, FLAT);
    prove(Kind::AllReduce, Algorithm::Chain, Order::Rank, FLAT);
    if !cfg!(debug_assertions) {
        prove(Kind::AllReduce, Algorithm::Tree, Order::Any, FLAT);
        prove(Kind::AllReduce, Algorithm::RecursiveDoubling, Order::Tree, FLAT);
        let doubling = Algorithm::Hierarchical(Inner::Direct, Outer::Doubling);
        prove(Kind::AllReduce, doubling, Order::Tree, NODES);
        let tree = Algorithm::Hierarchical(Inner::Direct, Outer::Tree);
        prove(Kind::AllReduce, tree, Order::Any, NODES);
    }
}

/// Rank by rank, which asks for nothing of the ranks.
#[test]
fn a_step_for_every_other_rank_rank_by_rank() {
    if cfg!(debug_assertions) {
        return prove(Kind::AllReduce, Algorithm::Ring, Order::Any, (128, 128));
    }
    let (flat, many) = ((256, 256), (1024, 1024));
    prove(Kind::AllReduce, Algorithm::Ring, Order::Any, many);
    prove(Kind::AllToAll, Algorithm::Pairwise, Order::Any, many);
    prove(Kind::AllToAll, Algorithm::Direct, Order::Any, many);
    prove(Kind::AllReduce, Algorithm::HalvingDoubling, Order::Tree, (512, 512));
    prove(Kind::AllGather, Algorithm::HalvingDoubling, Order::Any, (512, 512));
    prove(Kind::AllReduce, Algorithm::MultiRing, Order::Any, flat);
    prove(Kind::AllReduce, Algorithm::OneShot, Order::Tree, flat);
    prove(Kind::ReduceScatter, Algorithm::HalvingDoubling, Order::Any, (128, 128));
    prove(Kind::AllToAll, Algorithm::Bruck, Order::Any, (128, 128));
    let direct = Algorithm::Hierarchical(Inner::Direct, Outer::Direct);
    for kind in [Kind::AllReduce, Kind::ReduceScatter, Kind::AllGather, Kind::AllToAll] {
        prove(kind, direct, Order::Any, (512, 8));
    }
}

#[test]
fn a_step_for_every_other_rank_by_symmetry() {
    use Encoding::{Slots, Windows};
    let (flat, nodes) = match cfg!(debug_assertions) {
        true => ((64, 64), (64, 4)),
        false => (FLAT, NODES),
    };
    for kind in [Kind::AllReduce, Kind::ReduceScatter, Kind::AllGather] {
        prove_alike(kind, Algorithm::Ring, Slots, Order::Any, flat);
    }
    // Four rings at once have 670 million instructions at 4,096 ranks, more than can be made and
    // compared in ten seconds; but all are made from rank 0's.
    let half = (flat.0 / 2, flat.1 / 2);
    prove_alike(Kind::AllReduce, Algorithm::MultiRing, Slots, Order::Any, half);
    prove_by_construction(Kind::AllReduce, Algorithm::MultiRing, Slots, flat);
    prove_by_construction(Kind::AllReduce, Algorithm::Ring, Slots, flat);
    prove_by_construction(Kind::AllToAll, Algorithm::Pairwise, Slots, flat);
    prove_alike(Kind::AllReduce, Algorithm::HalvingDoubling, Slots, Order::Any, flat);
    prove_alike(Kind::AllReduce, Algorithm::HalvingDoubling, Slots, Order::Tree, flat);
    prove_alike(Kind::AllReduce, Algorithm::HalvingDoubling, Windows, Order::Tree, flat);
    prove_alike(Kind::AllGather, Algorithm::HalvingDoubling, Slots, Order::Any, flat);
    prove_alike(Kind::AllGather, Algorithm::HalvingDoubling, Windows, Order::Any, flat);
    prove_alike(Kind::AllGather, Algorithm::Direct, Slots, Order::Any, flat);
    prove_alike(Kind::AllGather, Algorithm::Direct, Windows, Order::Any, flat);
    prove_alike(Kind::AllToAll, Algorithm::Direct, Slots, Order::Any, flat);
    prove_alike(Kind::AllToAll, Algorithm::Pairwise, Slots, Order::Any, flat);
    prove_alike(Kind::AllToAll, Algorithm::Pairwise, Windows, Order::Any, flat);
    for inner in [Inner::Direct, Inner::Ring] {
        let ring = Algorithm::Hierarchical(inner, Outer::Ring);
        for kind in [Kind::AllReduce, Kind::ReduceScatter, Kind::AllGather] {
            prove_alike(kind, ring, Slots, Order::Any, nodes);
        }
    }
    let direct = Algorithm::Hierarchical(Inner::Direct, Outer::Direct);
    for kind in [Kind::AllGather, Kind::AllToAll] {
        prove_alike(kind, direct, Slots, Order::Any, nodes);
    }
    // One instruction reduces what comes from all nodes: there cannot be many.
    let big_nodes = if cfg!(debug_assertions) { (64, 16) } else { BIG_NODES };
    for kind in [Kind::AllReduce, Kind::ReduceScatter] {
        prove_alike(kind, direct, Slots, Order::Tree, big_nodes);
        prove_alike(kind, direct, Windows, Order::Any, big_nodes);
    }
}
