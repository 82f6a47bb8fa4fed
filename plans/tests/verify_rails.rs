//! What a fabric's switches reduce: every way in which a contribution or its result goes wrong is
//! found, and named.
#![allow(clippy::unwrap_used)]

mod verify_support;

use oxccl_plans::algorithms::{Algorithm, Encoding, Inner, Outer, find};
use oxccl_plans::collective::{Collective, Kind, Order};
use oxccl_plans::schedule::{
    Instruction, Notes, Operand, Rail, SLOTS, Schedule, ScheduleFile, Source,
};
use oxccl_plans::topology::Placement;
use oxccl_plans::verify::{Arithmetic, Awaited, Misuse, Violation, verify};
use verify_support::{Case, model};

/// Three nodes of two ranks.
const RANKS: usize = 6;
const RAIL: Rail = Rail(2);
/// Its rail is 1, 3 and 5.
const RANK: usize = 3;

fn whole() -> Schedule {
    made(RAIL.0)
}

/// Of nodes of so many ranks.
fn made(local: usize) -> Schedule {
    let algorithm = Algorithm::Hierarchical(Inner::Direct, Outer::CollNet);
    let entry = find(Kind::AllReduce, algorithm, Encoding::Slots).unwrap();
    let collective = Collective::new(Kind::AllReduce, RANKS);
    entry.schedule(collective, Placement::uniform(local), Order::Any, SLOTS).unwrap()
}

fn refused(schedule: Schedule) -> Violation {
    let notes = Notes::default();
    let violation = verify(schedule.clone(), Order::Any, true).unwrap_err();
    println!("{violation}\n{}", violation.story(&schedule, &notes));
    violation
}

/// One rank's instructions that have such an operand, in order, with their steps.
fn steps(schedule: &Schedule, is_it: impl Fn(Operand) -> bool) -> Vec<usize> {
    let list = schedule.lists[RANK].iter().enumerate();
    list.filter(|(_, one)| one.operands().any(&is_it)).map(|(step, _)| step).collect()
}

fn gives(operand: Operand) -> bool {
    matches!(operand, Operand::Contribution { .. })
}

fn reads(operand: Operand) -> bool {
    matches!(operand, Operand::Reduced { .. })
}

fn parts(schedule: &mut Schedule, step: usize) -> (&mut Vec<Source>, &mut Vec<Operand>) {
    match &mut schedule.lists[RANK][step] {
        Instruction::ReduceCopy { sources, destinations, .. } => (sources, destinations),
        other => panic!("{other}"),
    }
}

#[test]
fn what_is_right_is_accepted_and_runs_right() {
    let (schedule, order) = (whole(), Order::Any);
    verify(schedule.clone(), order, true).unwrap();
    for order in [Order::Rank, Order::Tree] {
        let violation = verify(schedule.clone(), order, true).unwrap_err();
        assert!(matches!(violation, Violation::WrongValue { .. }), "{violation}");
    }
    let case = Case { name: "collnet".into(), schedule, order, in_place: true };
    for seed in 0..50 {
        model::run(&case, seed % 2 == 0, seed).unwrap();
    }
    let file = ScheduleFile::new(case.schedule, order, true);
    assert_eq!(ScheduleFile::from_json(&file.to_json()).unwrap(), file);
}

#[test]
fn a_missing_contribution_keeps_the_others_waiting() {
    let mut schedule = whole();
    // It takes its node's part for the result.
    let (gives, reads) = (steps(&schedule, gives)[1], steps(&schedule, reads)[1]);
    parts(&mut schedule, gives).1[0] = Operand::Output(3);
    if let Instruction::ReduceCopy { sources, finish, .. } = &mut schedule.lists[RANK][reads] {
        (sources[0].operand, *finish) = (Operand::Output(3), false);
    }
    let violation = refused(schedule.clone());
    let Violation::Deadlock(stuck) = &violation else { panic!("{violation}") };
    let reduced = Operand::Reduced { rail: RAIL, message: 1 };
    for rank in [1, 5] {
        let stuck = stuck.iter().find(|stuck| stuck.rank == rank).unwrap();
        assert_eq!((stuck.peer, stuck.awaited), (RANK, Awaited::Message(reduced)));
    }
    let story = violation.story(&schedule, &Notes::default());
    assert!(story.contains("for rank 3: for its contribution to rail of 2#1."), "{story}");
}

#[test]
fn a_missing_node_keeps_the_others_waiting() {
    let mut schedule = whole();
    schedule.lists[4..].iter_mut().for_each(Vec::clear);
    let violation = refused(schedule);
    let Violation::Deadlock(stuck) = &violation else { panic!("{violation}") };
    let waits = |rank: usize| stuck.iter().any(|one| one.rank == rank && one.peer == 4 + rank % 2);
    assert!((0..4).all(waits), "{violation}");
}

#[test]
fn a_result_is_read_as_often_as_there_are_contributions() {
    let mut unread = whole();
    let last = *steps(&unread, reads).last().unwrap();
    unread.lists[RANK].remove(last);
    let left = |given, read| Violation::Left { rank: RANK, rail: RAIL, given, read };
    assert_eq!(refused(unread), left(2, 1));
    let mut doubled = whole();
    let last = *steps(&doubled, gives).last().unwrap();
    let mut again = doubled.lists[RANK][last].clone();
    if let Instruction::ReduceCopy { sources, destinations, .. } = &mut again {
        *sources = vec![Source::raw(Operand::Input(3))];
        destinations[0] = Operand::Contribution { rail: RAIL, message: 2 };
    }
    doubled.lists[RANK].insert(last + 1, again);
    assert_eq!(refused(doubled), left(3, 2));
    let mut once_more = whole();
    let end = once_more.lists[RANK].len();
    let last = *steps(&once_more, reads).last().unwrap();
    let mut again = once_more.lists[RANK][last].clone();
    if let Instruction::ReduceCopy { sources, destinations, .. } = &mut again {
        sources[0].operand = Operand::Reduced { rail: RAIL, message: 2 };
        destinations.truncate(1);
    }
    once_more.lists[RANK].insert(end, again);
    assert_eq!(refused(once_more), left(2, 3));
}

#[test]
fn messages_go_in_turn() {
    for is_it in [gives, reads] {
        for step in steps(&whole(), is_it) {
            for change in [|message: u32| message + 1, |message: u32| message ^ 1] {
                let mut schedule = whole();
                let (sources, destinations) = parts(&mut schedule, step);
                let all = sources.iter_mut().map(|source| &mut source.operand);
                for operand in all.chain(destinations) {
                    if let Operand::Contribution { message, .. }
                    | Operand::Reduced { message, .. } = operand
                    {
                        *message = change(*message);
                    }
                }
                let violation = refused(schedule);
                let found = matches!(violation, Violation::Message { rank: RANK, .. });
                assert!(found, "{violation}");
            }
        }
    }
}

/// Nobody knows a result to which it has not contributed.
#[test]
fn a_result_that_waits_for_its_reader_never_comes() {
    let mut schedule = made(1);
    let (given, read) = (steps(&schedule, gives)[0], steps(&schedule, reads)[0]);
    let early = schedule.lists[RANK].remove(read);
    schedule.lists[RANK].insert(given, early);
    let violation = refused(schedule.clone());
    let Violation::Deadlock(stuck) = &violation else { panic!("{violation}") };
    assert!(stuck.len() == RANKS && stuck.iter().all(|one| one.peer == RANK), "{stuck:?}");
    let story = violation.story(&schedule, &Notes::default());
    assert!(story.contains("So rank 3 waits for itself"), "{story}");
}

#[test]
fn no_more_are_on_their_way_than_there_are_slots() {
    let mut schedule = whole();
    schedule.slots.slots = 1;
    let violation = refused(schedule.clone());
    let operand = Operand::Contribution { rail: RAIL, message: 1 };
    let found = matches!(violation, Violation::Unfetched { operand: found, slots: 1, .. } if found == operand);
    assert!(found, "{violation}");
    // Chance finds it as well: a switch reads what has been overwritten.
    let case = Case { name: "one slot".into(), schedule, order: Order::Any, in_place: false };
    let wrong = (0..20).filter(|seed| model::run(&case, false, *seed).is_err()).count();
    assert!(wrong > 0, "{wrong}");
}

#[test]
fn rails_are_those_of_full_nodes() {
    for local in [0, 4, 5, RANKS, usize::MAX] {
        let mut schedule = whole();
        for instruction in schedule.lists.iter_mut().flatten() {
            let Instruction::ReduceCopy { sources, destinations, .. } = instruction else {
                continue;
            };
            let all = sources.iter_mut().map(|source| &mut source.operand);
            for operand in all.chain(destinations) {
                if let Operand::Contribution { rail, .. } | Operand::Reduced { rail, .. } = operand
                {
                    rail.0 = local;
                }
            }
        }
        let violation = refused(schedule);
        let found = matches!(violation, Violation::Operand { misuse: Misuse::NoSuchRail, .. });
        assert!(found, "{violation}");
    }
}

/// One rank takes another rail: those of nodes of three, or of one.
#[test]
fn another_rail_has_other_ranks() {
    for local in [1, 3] {
        for only_reads in [false, true] {
            let mut schedule = whole();
            for instruction in &mut schedule.lists[RANK] {
                let Instruction::ReduceCopy { sources, destinations, .. } = instruction else {
                    continue;
                };
                for source in sources {
                    if let Operand::Reduced { rail, .. } = &mut source.operand {
                        rail.0 = local;
                    }
                }
                for operand in destinations.iter_mut().filter(|_| !only_reads) {
                    if let Operand::Contribution { rail, .. } = operand {
                        rail.0 = local;
                    }
                }
            }
            let violation = refused(schedule);
            let found = match only_reads {
                true => matches!(violation, Violation::Left { rank: RANK, .. }),
                false => matches!(violation, Violation::Deadlock(_)),
            };
            assert!(found, "{violation}");
        }
    }
}

#[test]
fn ranks_on_rails_have_one_list() {
    let mut schedule = whole();
    schedule.lists_per_rank = 2;
    schedule.lists = schedule.lists.into_iter().flat_map(|list| [list, Vec::new()]).collect();
    let violation = refused(schedule);
    let found = matches!(violation, Violation::Operand { misuse: Misuse::OfSeveralLists, .. });
    assert!(found, "{violation}");
}

#[test]
fn what_is_reduced_is_alone_and_has_its_side() {
    let misuse = |schedule| match refused(schedule) {
        Violation::Operand { rank: RANK, misuse, .. } => misuse,
        other => panic!("{other}"),
    };
    let read = steps(&whole(), reads)[0];
    let mut beside = whole();
    parts(&mut beside, read).0.push(Source::raw(Operand::Input(0)));
    assert_eq!(misuse(beside), Misuse::BesideReduced);
    let mut raw = whole();
    parts(&mut raw, read).0[0].raw = true;
    assert_eq!(misuse(raw), Misuse::BesideReduced);
    let (reduced, contribution) = (
        Operand::Reduced { rail: RAIL, message: 0 },
        Operand::Contribution { rail: RAIL, message: 0 },
    );
    let mut written = whole();
    parts(&mut written, read).1[0] = reduced;
    assert_eq!(misuse(written), Misuse::ReadOnly);
    let mut unwritten = whole();
    parts(&mut unwritten, read).0[0].operand = contribution;
    assert_eq!(misuse(unwritten), Misuse::WriteOnly);
}

#[test]
fn switches_neither_premultiply_nor_mix_nor_reduce_what_is_final() {
    let fault = |schedule| match refused(schedule) {
        Violation::Arithmetic { fault, .. } => fault,
        other => panic!("{other}"),
    };
    // Nodes of one rank, which gives its own chunks as they are.
    let whole = || made(1);
    let given = steps(&whole(), gives)[0];
    let mut unscaled = whole();
    parts(&mut unscaled, given).0[0].raw = false;
    assert_eq!(fault(unscaled), Arithmetic::NotPremultiplied);
    let mut finished = whole();
    if let Instruction::ReduceCopy { finish, .. } = &mut finished.lists[RANK][given] {
        *finish = true;
    }
    assert_eq!(fault(finished), Arithmetic::FinishedBefore);
    let mut mixed = whole();
    parts(&mut mixed, given).0[0].operand = Operand::Input(1);
    assert_eq!(fault(mixed), Arithmetic::Parts);
}
