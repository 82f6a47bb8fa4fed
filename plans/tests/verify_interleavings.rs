//! The verifier against the model: what it accepts never goes wrong, however chance interleaves the
//! ranks.

use oxccl_plans as plans;

#[allow(dead_code)]
#[path = "../../tests/common/rewritten.rs"]
mod rewritten;
mod verify_support;

use oxccl_plans::algorithms::catalogue;
use oxccl_plans::collective::Kind;
use oxccl_plans::schedule::{Flag, Instruction, Operand};
use proptest::prelude::*;
use verify_support::{Case, SLOTS, cases, is_of_its_own, model, orders, placement};

/// A case of a random algorithm, world and order.
fn any_case() -> impl Strategy<Value = Case> {
    let entries: Vec<_> = catalogue().filter(is_of_its_own).collect();
    (2..=5_usize, 0..entries.len(), 0..3_usize, proptest::bool::ANY).prop_filter_map(
        "it does not exist for so many ranks",
        move |(ranks, index, order, in_scratch)| {
            let entry = entries[index];
            let orders = orders(entry, ranks);
            entry.check(ranks, placement(entry, ranks), SLOTS).ok()?;
            let case = Case::new(entry, ranks, orders[order % orders.len()]);
            Some(if in_scratch { case.with(rewritten::by_scratch(&case.schedule)) } else { case })
        },
    )
}

/// One change of one instruction; not all of them do harm.
fn damage(case: &Case, rank: usize, step: usize, choice: usize) -> Case {
    let mut schedule = case.schedule.clone();
    let ranks = schedule.lists.len();
    let list = &mut schedule.lists[rank];
    match choice {
        0 => drop(list.remove(step)),
        1 => list.swap(step, (step + 1).min(case.schedule.lists[rank].len() - 1)),
        2 => {
            let moved = list.remove(step);
            list.insert(step / 2, moved);
        }
        3 => {
            let again = list[step].clone();
            list.insert(step, again);
        }
        _ => match &mut list[step] {
            Instruction::Wait { value, .. } => *value += [-2, -1, 1, 2][choice % 4],
            Instruction::Signal { flag: Flag::Tail(link) | Flag::Head(link), value } => {
                match choice % 3 {
                    0 => *value += 1,
                    1 => *value -= 1,
                    _ => link.peer = (link.peer + 1) % ranks,
                }
            }
            Instruction::ReduceCopy { sources, destinations, finish, .. } => match choice % 6 {
                0 => *finish = !*finish,
                1 => sources[0].raw = !sources[0].raw,
                2 => sources.reverse(),
                3 => sources.truncate(1),
                4 => destinations.reverse(),
                _ => {
                    if let Operand::Input(chunk)
                    | Operand::Output(chunk)
                    | Operand::Scratch(chunk)
                    | Operand::Multicast { chunk, .. } = &mut sources[0].operand
                    {
                        *chunk = (*chunk + 1) % ranks;
                    }
                }
            },
        },
    }
    case.with(schedule)
}

/// Whether two neighbours may change places: both only wait, both only signal, for different
/// counters, or they copy between different places of memory.
fn are_independent(one: &Instruction, other: &Instruction) -> bool {
    let memory = |instruction: &Instruction| match instruction {
        Instruction::ReduceCopy { sources, destinations, .. } => {
            let all =
                sources.iter().map(|source| source.operand).chain(destinations.iter().copied());
            let all: Vec<Operand> = all.collect();
            let memory = |one: &Operand| {
                matches!(one, Operand::Input(_) | Operand::Output(_)) || one.is_window()
            };
            all.iter().all(memory).then_some((all, destinations.clone()))
        }
        _ => None,
    };
    match (one, other) {
        (Instruction::Wait { flag: a, .. }, Instruction::Wait { flag: b, .. }) => a != b,
        (Instruction::Signal { flag: a, .. }, Instruction::Signal { flag: b, .. }) => a != b,
        _ => match (memory(one), memory(other)) {
            (Some((all, written)), Some((others, others_written))) => {
                let chunk = |operand: &Operand| match operand {
                    Operand::Input(chunk)
                    | Operand::Output(chunk)
                    | Operand::Window { chunk, .. }
                    | Operand::Multicast { chunk, .. } => *chunk,
                    _ => usize::MAX,
                };
                // In place, input and output are one: compare chunks only.
                written.iter().all(|w| others.iter().all(|o| chunk(w) != chunk(o)))
                    && others_written.iter().all(|w| all.iter().all(|o| chunk(w) != chunk(o)))
            }
            _ => false,
        },
    }
}

#[test]
fn what_is_accepted_runs_right() {
    for case in (1..=4).flat_map(cases).filter(|case| {
        case.schedule.lists.len() > 1 || !matches!(case.schedule.collective.kind, Kind::SendRecv)
    }) {
        assert!(case.is_accepted(), "{}", case.name);
        for seed in 0..4 {
            for in_place in [false, case.in_place] {
                model::run(&case, in_place, seed)
                    .unwrap_or_else(|fault| panic!("{}: {fault}", case.name));
            }
        }
    }
}

/// The model is no rubber stamp: it finds most of what the verifier refuses.
#[test]
fn the_model_finds_faults() {
    let (mut refused, mut seen) = (0, 0);
    for case in cases(3) {
        for rank in 0..3 {
            for step in 0..case.schedule.lists[rank].len() {
                let damaged = damage(&case, rank, step, 0);
                if !damaged.is_accepted() {
                    refused += 1;
                    seen +=
                        usize::from((0..4).any(|seed| model::run(&damaged, false, seed).is_err()));
                }
            }
        }
    }
    assert!(refused > 1000 && seen * 2 > refused, "{seen} of {refused}");
}

/// As below, in all places, of what the fabric's switches reduce.
#[test]
fn damage_of_rails_is_refused_or_does_no_harm() {
    let (mut tried, mut accepted) = (0, 0);
    for entry in catalogue().filter(|entry| entry.is_in_fabric()) {
        let case = Case::new(entry, 4, orders(entry, 4)[0]);
        for (rank, list) in case.schedule.lists.iter().enumerate() {
            for (step, choice) in (0..list.len()).flat_map(|step| (0..24).map(move |c| (step, c))) {
                let damaged = damage(&case, rank, step, choice);
                tried += 1;
                if !damaged.is_accepted() {
                    continue;
                }
                accepted += 1;
                for seed in 0..4 {
                    let outcome = model::run(&damaged, seed % 2 == 0, seed);
                    assert!(
                        outcome.is_ok(),
                        "{}, {rank}, {step}, {choice}: {outcome:?}",
                        case.name
                    );
                }
            }
        }
    }
    assert!(tried > 5000 && accepted < tried / 2, "{accepted} of {tried}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damage_is_refused_or_does_no_harm(
        case in any_case(),
        rank in any::<prop::sample::Index>(),
        step in any::<prop::sample::Index>(),
        choice in 0..24_usize,
        seed in any::<u64>(),
    ) {
        let rank = rank.index(case.schedule.lists.len());
        prop_assume!(!case.schedule.lists[rank].is_empty());
        let step = step.index(case.schedule.lists[rank].len());
        let damaged = damage(&case, rank, step, choice);
        if damaged.is_accepted() {
            for seed in (0..10).map(|round| seed.wrapping_add(round)) {
                for in_place in [false, damaged.in_place] {
                    let outcome = model::run(&damaged, in_place, seed);
                    prop_assert!(outcome.is_ok(), "{}, rank {rank}, step {step}, choice {choice}: {outcome:?}", case.name);
                }
            }
        }
    }

    #[test]
    fn independent_neighbours_may_change_places(
        case in any_case(),
        swaps in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..20),
    ) {
        let mut schedule = case.schedule.clone();
        for (rank, step) in swaps {
            let list = &mut schedule.lists[rank.index(case.schedule.lists.len())];
            if list.len() > 1 {
                let step = step.index(list.len() - 1);
                if are_independent(&list[step], &list[step + 1]) {
                    list.swap(step, step + 1);
                }
            }
        }
        let result = oxccl_plans::verify::verify(schedule, case.order, case.in_place);
        prop_assert!(result.is_ok(), "{}: {:?}", case.name, result.err());
    }
}
