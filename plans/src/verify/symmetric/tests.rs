//! The proof of the first ranks says what the proof of all says, of what is right and of what is
//! wrong in the same way on every rank; and what is wrong on one rank alone is found by comparing
//! it.

use super::compare::{Firsts, compare};
use super::{Difference, Symmetric, Unproven, find, prove_firsts};
use crate::algorithms::{Algorithm, Encoding, Entry, catalogue};
use crate::collective::{Collective, Kind, Order};
use crate::schedule::{Instruction, Operand, SLOTS, Schedule, Slots};
use crate::topology::Placement;
use crate::verify::{Violation, verify};
use std::mem::discriminant;

const FEW: Slots = Slots { ll: 2, ll128: 2, slots: 2 };

fn schedules(entry: &Entry) -> bool {
    !matches!(entry.kind, Kind::SendRecv) && entry.encoding != Encoding::Ll128
}

/// Whether an algorithm is proven so; what else there is to say, if not.
fn by_symmetry(entry: &Entry, ranks: usize, local: usize, order: Order) -> Result<(), Unproven> {
    let (collective, placement) = (Collective::new(entry.kind, ranks), Placement::uniform(local));
    let proof = Symmetric::prove(entry, collective, placement, order, SLOTS)?;
    proof.compare(0..ranks)
}

/// Algorithms whose steps grow with the square of the ranks, without a bound on these.
#[test]
fn what_grows_with_the_square_of_the_ranks_is_proven_by_symmetry() {
    let mut proven = 0;
    for entry in catalogue().filter(|entry| schedules(entry)) {
        let hierarchical = matches!(entry.algorithm, Algorithm::Hierarchical(..));
        let wanted = match entry.algorithm {
            Algorithm::Ring | Algorithm::MultiRing => entry.kind != Kind::Broadcast,
            Algorithm::Pairwise | Algorithm::HalvingDoubling => true,
            Algorithm::Direct => matches!(entry.kind, Kind::AllGather | Kind::AllToAll),
            Algorithm::Hierarchical(_, outer) => {
                use crate::algorithms::Outer::{Direct, Ring};
                matches!(outer, Direct | Ring) && !entry.kind.is_rooted()
            }
            _ => false,
        };
        if !wanted {
            continue;
        }
        let local = if hierarchical { 2 } else { 8 };
        for order in [Order::Any, Order::Tree] {
            if order == Order::Tree
                && (!entry.kind.reduces()
                    || !entry.keeps_unrounded(order, Placement::uniform(local)))
            {
                continue;
            }
            let found = by_symmetry(entry, 8, local, order);
            assert_eq!(found, Ok(()), "{} {} {}", entry.kind, entry.algorithm, entry.encoding);
            proven += 1;
        }
    }
    assert!(proven > 40, "{proven}");
}

/// No algorithm is proven by symmetry that is not proven rank by rank; and what is alike by
/// construction is found to be.
#[test]
fn both_proofs_accept_the_catalogue() {
    let (mut proven, mut by_construction) = (0, 0);
    for entry in catalogue().filter(|entry| schedules(entry)) {
        for (ranks, local) in [(2, 2), (3, 3), (5, 5), (6, 2), (8, 4), (9, 3)] {
            for order in [Order::Any, Order::Rank, Order::Tree] {
                let placement = Placement::uniform(local);
                if entry.check(ranks, placement, SLOTS).is_err()
                    || !entry.keeps_unrounded(order, placement)
                {
                    continue;
                }
                let collective = Collective::new(entry.kind, ranks);
                let made = Symmetric::prove(entry, collective, placement, order, SLOTS)
                    .is_ok_and(|proof| proof.is_by_construction());
                by_construction += usize::from(made);
                assert!(!made || order != Order::Tree, "{entry:?}: the tree's order is not turned");
                match by_symmetry(entry, ranks, local, order) {
                    Ok(()) => proven += 1,
                    Err(Unproven::Unlike(_)) if !made => {}
                    Err(other) => panic!("{entry:?}: {other}"),
                }
            }
        }
    }
    assert!(proven > 150, "{proven}");
    assert!((40..proven).contains(&by_construction), "{by_construction} of {proven}");
}

/// A case that is proven by symmetry.
struct Case {
    name: String,
    firsts: Firsts,
    order: Order,
    in_place: bool,
}

impl Case {
    /// All ranks' lists, made by turning the first ones.
    fn whole(&self, firsts: &Schedule) -> Schedule {
        let symmetry = &self.firsts.symmetry;
        let list = |rank| {
            let (home, by) = symmetry.home(rank);
            firsts.lists[home].iter().map(|one| symmetry.instruction(one, by)).collect()
        };
        Schedule { lists: (0..symmetry.ranks()).map(list).collect(), ..firsts.clone() }
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let worlds = [(3, 3, FEW), (4, 4, SLOTS), (6, 2, FEW), (4, 2, SLOTS)];
    for (entry, (ranks, local, slots)) in
        catalogue().flat_map(|entry| worlds.into_iter().map(move |world| (entry, world)))
    {
        let hierarchical = matches!(entry.algorithm, Algorithm::Hierarchical(..));
        if !schedules(entry) || hierarchical == (ranks == local) {
            continue;
        }
        let (collective, placement) =
            (Collective::new(entry.kind, ranks), Placement::uniform(local));
        // Where an order is promised, ranks are not quite alike.
        let order = Order::Any;
        let lists = |ranks| entry.schedule_of_ranks(collective, placement, order, slots, ranks);
        let Ok((schedule, symmetry)) = find(collective, placement, order, lists) else { continue };
        let name = format!("{} {} {} {ranks} {order}", entry.kind, entry.algorithm, entry.encoding);
        let in_place = entry.in_place;
        let Ok((firsts, _)) = prove_firsts(schedule, symmetry, order, in_place) else {
            panic!("{name}");
        };
        cases.push(Case { name, firsts, order, in_place });
    }
    assert!(cases.len() > 40, "{}", cases.len());
    cases
}

/// An instruction with one thing wrong, in every way.
fn wrong(instruction: &Instruction, chunks: usize) -> Vec<Instruction> {
    match instruction {
        Instruction::Wait { flag, value } => [value - 1, value + 1]
            .into_iter()
            .map(|value| Instruction::Wait { flag: *flag, value })
            .collect(),
        Instruction::Signal { flag, value } => [value - 1, value + 1]
            .into_iter()
            .map(|value| Instruction::Signal { flag: *flag, value })
            .collect(),
        Instruction::ReduceCopy { sources, destinations, tree, finish } => {
            let with = |sources: Vec<_>, destinations: Vec<_>, finish| Instruction::ReduceCopy {
                sources,
                destinations,
                tree: *tree,
                finish,
            };
            let mut all = vec![with(sources.clone(), destinations.clone(), !finish)];
            for at in 0..sources.len() {
                let mut more = sources.clone();
                more.insert(at, sources[at]);
                all.push(with(more, destinations.clone(), *finish));
                let mut other = sources.clone();
                other[at].operand = changed(other[at].operand, chunks);
                all.push(with(other, destinations.clone(), *finish));
                let mut fewer = sources.clone();
                fewer.remove(at);
                all.push(with(fewer, destinations.clone(), *finish));
            }
            for at in 0..destinations.len() {
                let mut other = destinations.clone();
                other[at] = changed(other[at], chunks);
                all.push(with(sources.clone(), other, *finish));
            }
            all
        }
    }
}

/// Another message, or another chunk.
fn changed(operand: Operand, chunks: usize) -> Operand {
    match operand {
        Operand::Slot { link, message, segment } => {
            Operand::Slot { link, message: message ^ 1, segment }
        }
        Operand::PeerSlot { link, message, segment } => {
            Operand::PeerSlot { link, message: message ^ 1, segment }
        }
        Operand::Input(chunk) => Operand::Input((chunk + 1) % chunks),
        Operand::Output(chunk) => Operand::Output((chunk + 1) % chunks),
        Operand::Window { peer, buffer, chunk } => {
            Operand::Window { peer, buffer, chunk: (chunk + 1) % chunks }
        }
        other => other,
    }
}

/// Whether both say the same. Where nothing orders two accesses, the one that is met first decides
/// how that shows: as a race, as something that is read before it is there, or as a rank that
/// leaves too early.
fn are_same(one: &Violation, other: &Violation) -> bool {
    use Violation::{InPlace, Leaves, Race, Undefined};
    let (InPlace(one), InPlace(other)) = (one, other) else {
        let unordered =
            |one: &Violation| matches!(one, Race { .. } | Leaves { .. } | Undefined { .. });
        return discriminant(one) == discriminant(other) || (unordered(one) && unordered(other));
    };
    are_same(one, other)
}

/// What is wrong on all ranks in the same way is found by both proofs, and both call it the same.
#[test]
fn both_proofs_refuse_the_same() {
    let (mut refused, mut accepted, mut otherwise) = (0, 0, Vec::new());
    for case in cases() {
        let schedule = &case.firsts.schedule;
        let places = schedule.lists.iter().enumerate();
        let places = places.flat_map(|(rank, list)| (0..list.len()).map(move |step| (rank, step)));
        let total: usize = schedule.lists.iter().map(Vec::len).sum();
        for (rank, step) in places.step_by(total.div_ceil(40)) {
            let mut mutants = vec![schedule.clone()];
            mutants[0].lists[rank].remove(step);
            let chunks = schedule.input.chunks(schedule.collective.ranks);
            for instruction in wrong(&schedule.lists[rank][step], chunks) {
                let mut mutant = schedule.clone();
                mutant.lists[rank][step] = instruction;
                mutants.push(mutant);
            }
            for mutant in mutants {
                let whole = verify(case.whole(&mutant), case.order, case.in_place);
                let symmetry = case.firsts.symmetry;
                let first = prove_firsts(mutant, symmetry, case.order, case.in_place);
                let what = format!("{}: rank {rank}, step {step}", case.name);
                match (whole.map(|_| ()), first) {
                    (Ok(()), Ok(_)) => accepted += 1,
                    (Err(whole), Err(first)) if are_same(&whole, &first) => refused += 1,
                    (Err(whole), Err(first)) => {
                        otherwise.push(format!("{what}: {whole} / {first}"))
                    }
                    (whole, first) => panic!("{what}: {whole:?}, {:?}", first.err()),
                }
            }
        }
    }
    println!("{refused} refused, {accepted} accepted, {} refused differently", otherwise.len());
    assert!(refused > 1000 && accepted < refused / 4, "{refused} {accepted}");
    assert!(otherwise.is_empty(), "{otherwise:#?}");
}

/// What is wrong on one rank is found when that rank is compared.
#[test]
fn one_rank_that_differs_is_found() {
    let mut found = 0;
    for case in cases() {
        let whole = case.whole(&case.firsts.schedule);
        let rank = whole.lists.len() - 1;
        let list = &whole.lists[rank];
        let chunks = whole.input.chunks(whole.lists.len());
        for step in (0..list.len()).step_by(list.len().div_ceil(20)) {
            let mut shorter = list.clone();
            shorter.remove(step);
            let differs = compare(&case.firsts, rank, &shorter).unwrap_err();
            assert_eq!(differs.rank, rank);
            assert!(matches!(differs.difference, Difference::Steps { .. }), "{differs}");
            for instruction in wrong(&list[step], chunks) {
                let mut other = list.clone();
                let same = other[step] == instruction;
                other[step] = instruction;
                match compare(&case.firsts, rank, &other) {
                    Ok(()) => assert!(same, "{}: step {step}", case.name),
                    Err(differs) => {
                        let at = matches!(differs.difference, Difference::Instruction { step: at, .. } if at == step);
                        assert!(at && differs.rank == rank, "{}: {differs}", case.name);
                        found += 1;
                    }
                }
            }
        }
    }
    assert!(found > 1000, "{found}");
}

/// Where the tree is promised, the order of sources is looked at on every rank, though ranks may
/// differ in it.
#[test]
fn sources_in_the_wrong_order_are_found_on_any_rank() {
    let mut found = 0;
    for entry in catalogue().filter(|entry| schedules(entry) && entry.kind.reduces()) {
        let local = if matches!(entry.algorithm, Algorithm::Hierarchical(..)) { 2 } else { 8 };
        let (collective, placement) = (Collective::new(entry.kind, 8), Placement::uniform(local));
        if !entry.keeps_unrounded(Order::Tree, placement) {
            continue;
        }
        let proof = Symmetric::prove(entry, collective, placement, Order::Tree, SLOTS);
        let proof = match proof {
            Ok(proof) => proof,
            Err(Unproven::Unlike(_)) => continue,
            Err(other) => panic!("{entry:?}: {other}"),
        };
        let lists = entry.schedule(collective, placement, Order::Tree, SLOTS).unwrap().lists;
        for (rank, list) in lists.iter().enumerate() {
            for (step, instruction) in list.iter().enumerate() {
                let Instruction::ReduceCopy { sources, .. } = instruction else { continue };
                if sources.len() < 2 {
                    continue;
                }
                let mut swapped = list.clone();
                let Instruction::ReduceCopy { sources, .. } = &mut swapped[step] else { continue };
                sources.swap(0, 1);
                let differs = compare(&proof.firsts, rank, &swapped).unwrap_err();
                assert_eq!(differs.difference, Difference::Order { step }, "{entry:?}");
                found += 1;
            }
        }
    }
    assert!(found > 100, "{found}");
}
