//! Schedules whose ranks have several lists: those of the catalogue that pass messages, rewritten
//! so, are proven and never go wrong, and what is wrong with them is refused.
#![allow(clippy::unwrap_used)]

use oxccl_plans as plans;

#[allow(dead_code)]
#[path = "../../tests/common/rewritten.rs"]
mod rewritten;
mod verify_support;

use oxccl_plans::algorithms::catalogue;
use oxccl_plans::collective::{Collective, Kind, Order};
use oxccl_plans::schedule::{
    Chunking, Flag, Instruction, Lane, Link, Operand, Schedule, ScheduleFile, Source,
};
use oxccl_plans::verify::{Malformed, Misuse, Violation, verify};
use rewritten::{received_apart, side_by_side};
use verify_support::{Case, is_of_its_own, model, orders, placement};

const RANKS: usize = 3;

/// Each that passes messages alone, with three lists that do the same side by side, and with two
/// that take turns.
fn cases() -> impl Iterator<Item = Case> {
    let entries = catalogue().filter(is_of_its_own).filter(|entry| {
        let exists = entry.check(RANKS, placement(entry, RANKS), verify_support::SLOTS).is_ok();
        exists && entry.kind != Kind::Barrier && !entry.is_in_fabric()
    });
    let whole = entries.flat_map(|entry| {
        orders(entry, RANKS).into_iter().map(move |order| Case::new(entry, RANKS, order))
    });
    whole.filter(|case| !case.schedule.uses_windows()).flat_map(|case| {
        let [beside, by_turns] = [side_by_side(&case.schedule, 3), received_apart(&case.schedule)];
        let name = |how: &str| format!("{}, {how}", case.name);
        [
            Case { name: name("side by side"), ..case.with(beside) },
            Case { name: name("by turns"), ..case.with(by_turns) },
        ]
    })
}

#[test]
fn what_is_right_with_one_list_is_right_with_several() {
    let mut seen = 0;
    for case in cases() {
        let file = ScheduleFile::new(case.schedule.clone(), case.order, case.in_place);
        assert_eq!(ScheduleFile::from_json(&file.to_json()).unwrap(), file);
        verify(case.schedule.clone(), case.order, case.in_place)
            .unwrap_or_else(|found| panic!("{}: {found}", case.name));
        for seed in 0..3 {
            for in_place in [false, case.in_place] {
                model::run(&case, in_place, seed)
                    .unwrap_or_else(|fault| panic!("{}: {fault}", case.name));
            }
        }
        seen += 1;
    }
    assert!(seen > 60, "{seen}");
}

/// Whatever one change leaves right goes right.
fn assert_refused_or_redundant(change: impl Fn(&Schedule, usize, usize) -> Option<Schedule>) {
    let (mut tried, mut accepted) = (0, Vec::new());
    for case in cases() {
        for (list, instructions) in case.schedule.lists.iter().enumerate() {
            for step in (list % 3..instructions.len()).step_by(3) {
                let Some(schedule) = change(&case.schedule, list, step) else { continue };
                tried += 1;
                let mutant = case.with(schedule);
                if mutant.is_accepted() {
                    accepted.push((list, step, mutant));
                }
            }
        }
    }
    println!("{} of {tried} mutants are accepted", accepted.len());
    assert!(tried > 20 && accepted.len() < tried / 2, "{} of {tried}", accepted.len());
    let stride = accepted.len().div_ceil(300).max(1);
    for (list, step, mutant) in accepted.iter().step_by(stride) {
        for seed in 0..4 {
            for in_place in [false, mutant.in_place] {
                model::run(mutant, in_place, seed).unwrap_or_else(|fault| {
                    panic!("{}: list {list}, step {step}: {fault}", mutant.name)
                });
            }
        }
    }
}

fn with(schedule: &Schedule, change: impl FnOnce(&mut Schedule)) -> Option<Schedule> {
    let mut changed = schedule.clone();
    change(&mut changed);
    Some(changed)
}

#[test]
fn a_dropped_step() {
    assert_refused_or_redundant(|schedule, list, step| {
        with(schedule, |changed| drop(changed.lists[list].remove(step)))
    });
}

/// Waits among waits, and signals among signals, may come in any order.
#[test]
fn steps_that_have_changed_places() {
    assert_refused_or_redundant(|schedule, list, step| {
        let next = step + 1;
        let [one, other] = schedule.lists[list].get(step..=next)? else { return None };
        let alike = std::mem::discriminant(one) == std::mem::discriminant(other);
        let moves = matches!(one, Instruction::ReduceCopy { .. });
        if one == other || (alike && !moves) {
            return None;
        }
        with(schedule, |changed| changed.lists[list].swap(step, next))
    });
}

/// Another chunk of scratch, which may hold something else, or be used by the other list.
#[test]
fn scratch_used_for_something_else() {
    assert_refused_or_redundant(|schedule, list, step| {
        let mut changed = schedule.clone();
        let chunks = schedule.scratch;
        let Instruction::ReduceCopy { sources, destinations, .. } = &mut changed.lists[list][step]
        else {
            return None;
        };
        let operands = sources.iter_mut().map(|source| &mut source.operand);
        let chunk = operands.chain(destinations).find_map(|operand| match operand {
            Operand::Scratch(chunk) => Some(chunk),
            _ => None,
        })?;
        *chunk = (*chunk + 1) % chunks;
        (chunks > 1).then_some(changed)
    });
}

/// Another list at the far end of a link is another link: whoever waits there does so in vain.
#[test]
fn a_swapped_list() {
    let mut tried = 0;
    for case in cases() {
        let (schedule, of_each) = (&case.schedule, case.schedule.lists_per_rank);
        for (list, instructions) in schedule.lists.iter().enumerate() {
            for (step, instruction) in instructions.iter().enumerate() {
                let mut changed = schedule.clone();
                let link = match &mut changed.lists[list][step] {
                    Instruction::Signal { flag: Flag::Tail(link), .. } => link,
                    Instruction::Wait { flag: Flag::Tail(link), .. } => link,
                    _ => continue,
                };
                link.list = (link.list + 1) % of_each as u16;
                tried += 1;
                let accepted = case.with(changed).is_accepted();
                assert!(!accepted, "{}: list {list}, step {step}: {instruction}", case.name);
            }
        }
    }
    assert!(tried > 1000, "{tried}");
}

/// An all-reduce of two ranks: a rank's second list receives what the peer has into scratch, and
/// its first reduces it.
fn through_scratch() -> Schedule {
    let list = |rank: usize| {
        let (peer, own) = (1 - rank, rank);
        let slots = |list: u16| Link { peer, list, lane: Lane::Slots };
        let sync = |list: u16| Flag::Tail(Link { peer: own, list, lane: Lane::Sync });
        let plain = |operand| vec![Source::plain(operand)];
        let moves = |sources, to| Instruction::ReduceCopy {
            sources,
            destinations: vec![to],
            tree: Default::default(),
            finish: false,
        };
        let message = |link| Operand::PeerSlot { link, message: 0, segment: 0 };
        let come = Operand::Slot { link: slots(0), message: 0, segment: 0 };
        let mut reduced = moves(
            vec![Source::raw(Operand::Input(0)), Source::plain(Operand::Scratch(0))],
            Operand::Output(0),
        );
        let Instruction::ReduceCopy { finish, .. } = &mut reduced else { unreachable!() };
        *finish = true;
        let first = vec![
            Instruction::Wait { flag: Flag::Head(slots(1)), value: -3 },
            moves(vec![Source::raw(Operand::Input(0))], message(slots(1))),
            Instruction::Signal { flag: Flag::Tail(slots(1)), value: 1 },
            Instruction::Wait { flag: sync(1), value: 1 },
            reduced,
            Instruction::Signal { flag: sync(1), value: 1 },
        ];
        let second = vec![
            Instruction::Wait { flag: Flag::Tail(slots(0)), value: 1 },
            moves(plain(come), Operand::Scratch(0)),
            Instruction::Signal { flag: Flag::Head(slots(0)), value: 1 },
            Instruction::Signal { flag: sync(0), value: 1 },
            Instruction::Wait { flag: sync(0), value: 1 },
        ];
        [first, second]
    };
    Schedule {
        collective: Collective::new(Kind::AllReduce, 2),
        input: Chunking::Whole,
        output: Chunking::Whole,
        scratch: 1,
        slots: oxccl_plans::schedule::SLOTS,
        lists_per_rank: 2,
        lists: (0..2).flat_map(list).collect(),
    }
}

#[test]
fn what_is_refused_names_rank_step_and_list() {
    let right = through_scratch();
    verify(right.clone(), Order::Any, true).unwrap();
    let refused = |change: fn(&mut Schedule)| {
        let mut schedule = right.clone();
        change(&mut schedule);
        verify(schedule, Order::Any, false).unwrap_err()
    };
    let race = refused(|schedule| {
        // Behind what the first list hears of.
        schedule.lists[3].insert(
            4,
            Instruction::ReduceCopy {
                sources: vec![Source::plain(Operand::Input(0))],
                destinations: vec![Operand::Output(0)],
                tree: Default::default(),
                finish: false,
            },
        );
    });
    let operand = Operand::Output(0);
    assert_eq!(race, Violation::Race { rank: 1, step: 4, operand, other: 1 });
    assert!(race.to_string().contains("out[0] and that of another of its lists"), "{race}");
    let unread = refused(|schedule| schedule.lists[3].truncate(2));
    assert!(matches!(unread, Violation::Deadlock(_)), "{unread}");
    // A round ahead.
    let kept = refused(|schedule| {
        schedule.lists[0].pop();
        schedule.lists[1].pop();
    });
    assert_eq!(kept, Violation::Kept { rank: 0, list: 1, chunk: 0, other: 0 });
    // The second list waits for the first, which waits for it.
    let deadlock = refused(|schedule| {
        let signal = schedule.lists[3].remove(3);
        schedule.lists[3].push(signal);
    });
    let story = deadlock.story(&right, &Default::default());
    let Violation::Deadlock(stuck) = &deadlock else { panic!("{deadlock}") };
    let places: Vec<_> = stuck.iter().map(|one| (one.rank, one.list, one.step)).collect();
    assert_eq!(places, [(1, 0, 3), (1, 1, 9)]);
    assert!(story.contains("ist 1 of rank 1 waits at step 9 for list 0 of rank 1"), "{story}");
    let misuse = |change: fn(&mut Schedule)| match refused(change) {
        Violation::Instruction { rank, step, misuse } => (rank, step, misuse),
        Violation::Operand { rank, step, misuse, .. } => (rank, step, misuse),
        other => panic!("{other}"),
    };
    let own_list = misuse(|schedule| {
        let link = Link { peer: 1, list: 1, lane: Lane::Sync };
        schedule.lists[3].push(Instruction::Signal { flag: Flag::Tail(link), value: 1 });
    });
    assert_eq!(own_list, (1, 11, Misuse::OwnList));
    let no_list = misuse(|schedule| {
        let link = Link { peer: 0, list: 2, lane: Lane::Sync };
        schedule.lists[2].insert(0, Instruction::Signal { flag: Flag::Tail(link), value: 1 });
    });
    assert_eq!(no_list, (1, 0, Misuse::NoSuchList));
    let message = misuse(|schedule| {
        let link = Link { peer: 0, list: 1, lane: Lane::Slots };
        schedule.lists[0].insert(0, Instruction::Signal { flag: Flag::Tail(link), value: 1 });
    });
    assert_eq!(message, (0, 0, Misuse::OwnMessage));
    let window = misuse(|schedule| {
        let Instruction::ReduceCopy { sources, .. } = &mut schedule.lists[3][1] else {
            unreachable!()
        };
        let buffer = oxccl_plans::schedule::Buffer::Input;
        sources[0] = Source::plain(Operand::Window { peer: 0, buffer, chunk: 0 });
    });
    assert_eq!(window, (1, 7, Misuse::OfSeveralLists));
    let barrier = refused(|schedule| schedule.collective.kind = Kind::Barrier);
    assert_eq!(barrier, Violation::Schedule(Malformed::Lists(Kind::Barrier)));
    let uneven = refused(|schedule| drop(schedule.lists.pop()));
    assert_eq!(uneven, Violation::Schedule(Malformed::Ranks { ranks: 2, lists: 3 }));
}
