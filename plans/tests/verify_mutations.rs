//! The verifier refuses what is wrong: every schedule of the catalogue, with one thing broken at a
//! time, in every place.
//!
//! Three kinds of instruction can be left out of some schedules: a wait for a credit, where the
//! sender knows by another way that the slot is free; a wait for an arrival, where another wait
//! says as much; and a signal, where a later one of the same counter says more and nobody waits for
//! the first. Such mutants are run on the model, many times, in random interleavings: none may ever
//! go wrong.

mod verify_support;

use oxccl_plans::collective::Order;
use oxccl_plans::schedule::{Flag, Instruction, Lane, Operand, Schedule};
use oxccl_plans::verify::{Violation, verify};
use verify_support::{Case, cases, model};

/// Worlds in which everything happens that happens in larger ones, and the smallest with two
/// different peers.
const WORLDS: [usize; 2] = [3, 4];

/// A schedule in which this one place has been changed.
fn mutant(
    schedule: &Schedule,
    rank: usize,
    change: impl FnOnce(&mut Vec<Instruction>),
) -> Schedule {
    let mut schedule = schedule.clone();
    change(&mut schedule.lists[rank]);
    schedule
}

/// Places in a case, with their instructions: all of a short schedule. A long one does the same
/// again and again; of that, as many as of a short one, from all over it.
fn places(case: &Case) -> impl Iterator<Item = (usize, usize, &Instruction)> {
    const PLACES: usize = 150;
    let total: usize = case.schedule.lists.iter().map(Vec::len).sum();
    // Primes, since steps are repeated by fives and tens.
    let strides = [1, 3, 7, 11, 17, 23, 31, 41, 61, 83];
    let stride = strides.into_iter().find(|stride| total <= stride * PLACES).unwrap_or(101);
    let lists = case.schedule.lists.iter().enumerate();
    lists
        .flat_map(|(rank, list)| list.iter().enumerate().map(move |(step, one)| (rank, step, one)))
        .step_by(stride)
}

/// Applies `change` wherever it makes a mutant, and says how many there were and which were
/// accepted.
fn try_everywhere(
    mut change: impl FnMut(&Case, usize, usize, &Instruction) -> Vec<Schedule>,
) -> (usize, Vec<(String, Case)>) {
    let (mut tried, mut accepted) = (0, Vec::new());
    for case in WORLDS.into_iter().flat_map(cases) {
        assert!(case.is_accepted(), "{}", case.name);
        for (rank, step, instruction) in places(&case) {
            for schedule in change(&case, rank, step, instruction) {
                tried += 1;
                let mutated = case.with(schedule);
                if mutated.is_accepted() {
                    accepted.push((
                        format!("{}: rank {rank}, step {step}: {instruction}", case.name),
                        mutated,
                    ));
                }
            }
        }
    }
    (tried, accepted)
}

fn assert_all_refused(change: impl FnMut(&Case, usize, usize, &Instruction) -> Vec<Schedule>) {
    let (tried, accepted) = try_everywhere(change);
    assert!(tried > 20, "only {tried} mutants");
    let names: Vec<&String> = accepted.iter().map(|(name, _)| name).collect();
    assert!(names.is_empty(), "{} of {tried} mutants are accepted: {names:#?}", names.len());
}

/// The model has to agree that what was left out was redundant.
fn assert_refused_or_redundant(
    change: impl FnMut(&Case, usize, usize, &Instruction) -> Vec<Schedule>,
) {
    let (tried, accepted) = try_everywhere(change);
    println!("{} of {tried} mutants are accepted", accepted.len());
    assert!(tried > 20 && accepted.len() < tried, "{} of {tried}", accepted.len());
    // Where there are many, they are much alike.
    let seeds = (3000 / accepted.len().max(1) as u64).clamp(2, 20);
    for (name, mutated) in &accepted {
        for seed in 0..seeds {
            for in_place in [false, mutated.in_place] {
                model::run(mutated, in_place, seed)
                    .unwrap_or_else(|fault| panic!("{name}: {fault}"));
            }
        }
    }
}

fn without(case: &Case, rank: usize, step: usize) -> Vec<Schedule> {
    vec![mutant(&case.schedule, rank, |list| drop(list.remove(step)))]
}

#[test]
fn a_dropped_wait_for_a_credit() {
    assert_refused_or_redundant(|case, rank, step, instruction| match instruction {
        Instruction::Wait { flag: Flag::Head(_), .. } => without(case, rank, step),
        _ => Vec::new(),
    });
}

/// A credit that comes after the arrival says as much.
#[test]
fn a_dropped_wait_for_an_arrival() {
    assert_refused_or_redundant(|case, rank, step, instruction| match instruction {
        Instruction::Wait { flag: Flag::Tail(_), .. } => without(case, rank, step),
        _ => Vec::new(),
    });
}

#[test]
fn a_credit_too_many() {
    assert_refused_or_redundant(|case, rank, step, instruction| match instruction {
        Instruction::Wait { flag: flag @ Flag::Head(_), value } => {
            let wait = Instruction::Wait { flag: *flag, value: value - 1 };
            vec![mutant(&case.schedule, rank, |list| list[step] = wait)]
        }
        _ => Vec::new(),
    });
}

/// Where nothing else tells the sender, one credit too many is always found: the first message of a
/// one-way link.
#[test]
fn a_credit_too_many_on_a_one_way_link() {
    let mut found = 0;
    for case in cases(3)
        .into_iter()
        .filter(|case| case.name.starts_with("broadcast direct") && !case.schedule.uses_windows())
    {
        for (rank, step, instruction) in places(&case) {
            let Instruction::Wait { flag: Flag::Head(link), value } = instruction else { continue };
            let wait = Instruction::Wait { flag: Flag::Head(*link), value: value - 1 };
            let schedule = mutant(&case.schedule, rank, |list| list[step] = wait);
            match verify(schedule, Order::Any, false) {
                Err(Violation::Credit { rank: sender, credit, reader, .. }) => {
                    assert_eq!((sender, credit, reader), (rank, *value, link.peer));
                }
                other => panic!("{}: {other:?}", case.name),
            }
            found += 1;
        }
    }
    assert_eq!(found, 4);
}

/// Whether a later signal of the same counter follows: nobody may be waiting for this one.
fn is_overtaken(case: &Case, rank: usize, step: usize, flag: Flag) -> bool {
    let later = &case.schedule.lists[rank][step + 1..];
    later.iter().any(|one| matches!(one, Instruction::Signal { flag: other, .. } if *other == flag))
}

#[test]
fn a_dropped_last_signal() {
    assert_all_refused(|case, rank, step, instruction| match instruction {
        Instruction::Signal { flag, .. } if !is_overtaken(case, rank, step, *flag) => {
            without(case, rank, step)
        }
        _ => Vec::new(),
    });
}

#[test]
fn a_dropped_signal_before_the_last() {
    assert_refused_or_redundant(|case, rank, step, instruction| match instruction {
        Instruction::Signal { flag, .. } if is_overtaken(case, rank, step, *flag) => {
            without(case, rank, step)
        }
        _ => Vec::new(),
    });
}

#[test]
fn a_signal_that_says_too_much_or_too_little() {
    assert_all_refused(|case, rank, step, instruction| match instruction {
        Instruction::Signal { flag, value } => [value - 1, value + 1]
            .into_iter()
            .map(|value| Instruction::Signal { flag: *flag, value })
            .map(|signal| mutant(&case.schedule, rank, |list| list[step] = signal))
            .collect(),
        _ => Vec::new(),
    });
}

#[test]
fn a_signal_before_the_data() {
    assert_all_refused(|case, rank, step, instruction| match instruction {
        Instruction::Signal { flag, .. } => {
            let (Flag::Tail(link) | Flag::Head(link)) = *flag;
            let before = &case.schedule.lists[rank][..step];
            let is_of_link = |operand: &Operand| match operand {
                Operand::Slot { link: other, .. } => {
                    *other == link && matches!(flag, Flag::Head(_))
                }
                Operand::PeerSlot { link: other, .. } => {
                    *other == link && matches!(flag, Flag::Tail(_))
                }
                _ => false,
            };
            let moves = |one: &Instruction| match one {
                Instruction::ReduceCopy { sources, destinations, .. } => {
                    let sources = sources.iter().map(|source| &source.operand);
                    sources.chain(destinations).any(is_of_link)
                }
                _ => false,
            };
            match before.iter().rposition(moves) {
                Some(earlier) if link.lane != Lane::Sync => {
                    vec![mutant(&case.schedule, rank, |list| {
                        let signal = list.remove(step);
                        list.insert(earlier, signal);
                    })]
                }
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    });
}

#[test]
fn a_dropped_reduce_copy() {
    assert_all_refused(|case, rank, step, instruction| match instruction {
        Instruction::ReduceCopy { .. } => without(case, rank, step),
        _ => Vec::new(),
    });
}

/// Mutants of a reduce-copy, one for each operand that `change` changes.
fn operands(
    case: &Case,
    rank: usize,
    step: usize,
    instruction: &Instruction,
    change: impl Fn(&mut Operand) -> bool,
) -> Vec<Schedule> {
    let Instruction::ReduceCopy { sources, destinations, .. } = instruction else {
        return Vec::new();
    };
    let mutants = (0..sources.len() + destinations.len()).filter_map(|index| {
        let mut changed = false;
        let schedule = mutant(&case.schedule, rank, |list| {
            let Instruction::ReduceCopy { sources, destinations, .. } = &mut list[step] else {
                return;
            };
            let operand = match index.checked_sub(sources.len()) {
                None => &mut sources[index].operand,
                Some(index) => &mut destinations[index],
            };
            changed = change(operand);
        });
        changed.then_some(schedule)
    });
    mutants.collect()
}

#[test]
fn a_swapped_slot() {
    assert_all_refused(|case, rank, step, instruction| {
        operands(case, rank, step, instruction, |operand| match operand {
            Operand::Slot { message, .. }
            | Operand::PeerSlot { message, .. }
            | Operand::Contribution { message, .. }
            | Operand::Reduced { message, .. } => {
                *message ^= 1;
                true
            }
            _ => false,
        })
    });
}

#[test]
fn another_peers_slot() {
    assert_all_refused(|case, rank, step, instruction| {
        let ranks = case.schedule.collective.ranks;
        operands(case, rank, step, instruction, |operand| match operand {
            Operand::Slot { link, .. } | Operand::PeerSlot { link, .. } => {
                link.peer =
                    (0..ranks).find(|peer| ![rank, link.peer].contains(peer)).expect("three ranks");
                true
            }
            _ => false,
        })
    });
}

#[test]
fn another_rail() {
    assert_all_refused(|case, rank, step, instruction| {
        operands(case, rank, step, instruction, |operand| match operand {
            Operand::Contribution { rail, .. } | Operand::Reduced { rail, .. } => {
                rail.0 = if rail.0 == 1 { 2 } else { rail.0 / 2 };
                true
            }
            _ => false,
        })
    });
}

#[test]
fn another_chunk() {
    assert_all_refused(|case, rank, step, instruction| {
        let ranks = case.schedule.collective.ranks;
        operands(case, rank, step, instruction, |operand| match operand {
            Operand::Input(chunk)
            | Operand::Output(chunk)
            | Operand::Window { chunk, .. }
            | Operand::Multicast { chunk, .. } => {
                *chunk = (*chunk + 1) % ranks;
                true
            }
            _ => false,
        })
    });
}

#[test]
fn a_doubled_contribution() {
    assert_all_refused(|case, rank, step, instruction| match instruction {
        Instruction::ReduceCopy { sources, .. } if sources.len() > 1 => (0..sources.len())
            .map(|index| {
                mutant(&case.schedule, rank, |list| {
                    let Instruction::ReduceCopy { sources, .. } = &mut list[step] else { return };
                    sources.insert(index, sources[index]);
                })
            })
            .collect(),
        _ => Vec::new(),
    });
}

#[test]
fn a_contribution_in_place_of_another() {
    assert_all_refused(|case, rank, step, instruction| match instruction {
        Instruction::ReduceCopy { sources, .. } if sources.len() > 1 => (0..sources.len())
            .map(|index| {
                mutant(&case.schedule, rank, |list| {
                    let Instruction::ReduceCopy { sources, .. } = &mut list[step] else { return };
                    sources[index] = sources[(index + 1) % sources.len()];
                })
            })
            .collect(),
        _ => Vec::new(),
    });
}

#[test]
fn a_missing_contribution() {
    assert_all_refused(|case, rank, step, instruction| match instruction {
        Instruction::ReduceCopy { sources, .. } if sources.len() > 1 => (0..sources.len())
            .map(|index| {
                mutant(&case.schedule, rank, |list| {
                    let Instruction::ReduceCopy { sources, .. } = &mut list[step] else { return };
                    sources.remove(index);
                })
            })
            .collect(),
        _ => Vec::new(),
    });
}

#[test]
fn a_wrong_order() {
    let swapped =
        |case: &Case, rank: usize, step: usize, instruction: &Instruction| match instruction {
            Instruction::ReduceCopy { sources, .. } => (1..sources.len())
                .map(|index| {
                    mutant(&case.schedule, rank, |list| {
                        let Instruction::ReduceCopy { sources, .. } = &mut list[step] else {
                            return;
                        };
                        sources.swap(index - 1, index);
                    })
                })
                .collect(),
            _ => Vec::new(),
        };
    assert_all_refused(|case, rank, step, instruction| match case.order {
        Order::Any => Vec::new(),
        _ => swapped(case, rank, step, instruction),
    });
    // Where no order is promised, none is demanded.
    let (tried, accepted) = try_everywhere(|case, rank, step, instruction| match case.order {
        Order::Any => swapped(case, rank, step, instruction),
        _ => Vec::new(),
    });
    assert_eq!(tried, accepted.len());
}

#[test]
fn the_other_tree() {
    use oxccl_plans::schedule::Tree;
    assert_all_refused(|case, rank, step, instruction| match instruction {
        // Of three values both trees are the same.
        Instruction::ReduceCopy { sources, .. }
            if sources.len() > 3 && case.order != Order::Any =>
        {
            vec![mutant(&case.schedule, rank, |list| {
                let Instruction::ReduceCopy { tree, .. } = &mut list[step] else { return };
                *tree = if *tree == Tree::Left { Tree::Aligned } else { Tree::Left };
            })]
        }
        _ => Vec::new(),
    });
}

#[test]
fn a_premature_or_missing_finish() {
    assert_all_refused(|case, rank, step, instruction| match instruction {
        Instruction::ReduceCopy { .. } => vec![mutant(&case.schedule, rank, |list| {
            let Instruction::ReduceCopy { finish, .. } = &mut list[step] else { return };
            *finish = !*finish;
        })],
        _ => Vec::new(),
    });
}

#[test]
fn a_contribution_premultiplied_never_or_twice() {
    assert_all_refused(|case, rank, step, instruction| match instruction {
        Instruction::ReduceCopy { sources, .. } => (0..sources.len())
            .map(|index| {
                mutant(&case.schedule, rank, |list| {
                    let Instruction::ReduceCopy { sources, .. } = &mut list[step] else { return };
                    sources[index].raw = !sources[index].raw;
                })
            })
            .collect(),
        _ => Vec::new(),
    });
}

#[test]
fn a_window_used_before_its_owner_has_entered() {
    assert_all_refused(|case, rank, step, instruction| match instruction.uses_window() {
        true => vec![mutant(&case.schedule, rank, |list| {
            let early = list.remove(step);
            list.insert(0, early);
        })],
        false => Vec::new(),
    });
}

/// The last barrier is missing, on one rank's side towards one peer, or everywhere.
#[test]
fn a_missing_exit_barrier() {
    let mut tried = 0;
    for case in WORLDS.into_iter().flat_map(cases).filter(|case| case.schedule.uses_windows()) {
        let mut schedule = case.schedule.clone();
        for list in &mut schedule.lists {
            let is_barrier = |one: &Instruction| match one {
                Instruction::Wait { flag: Flag::Tail(link), .. }
                | Instruction::Signal { flag: Flag::Tail(link), .. } => link.lane == Lane::Sync,
                _ => false,
            };
            while list.last().is_some_and(is_barrier) {
                list.pop();
            }
        }
        let result = verify(schedule, case.order, case.in_place);
        let found = matches!(result, Err(Violation::Leaves { .. } | Violation::Race { .. }));
        assert!(found, "{}: {result:?}", case.name);
        tried += 1;
    }
    assert!(tried > 10, "only {tried} schedules with windows");
}
