//! Schedules with several chunks in each rank's part, and with scratch, are proven as they are
//! without, and what is wrong with those is refused.
#![allow(clippy::unwrap_used)]

use oxccl_plans as plans;

#[allow(dead_code)]
#[path = "../../tests/common/rewritten.rs"]
mod rewritten;

use oxccl_plans::algorithms::catalogue;
use oxccl_plans::collective::{Collective, Kind, Order};
use oxccl_plans::schedule::{
    Chunking, Instruction, Operand, SEGMENTS, SLOTS, Schedule, ScheduleFile,
};
use oxccl_plans::topology::Placement;
use oxccl_plans::verify::{Misuse, Violation, verify};
use rewritten::{by_scratch, divided};

const RANKS: usize = 4;

/// Those whose messages have room, each with three chunks for one.
fn schedules() -> impl Iterator<Item = (Schedule, bool)> {
    catalogue().filter_map(|entry| {
        let collective = match entry.kind {
            Kind::SendRecv => Collective::send_recv(RANKS, 1, 2),
            kind => Collective::new(kind, RANKS),
        };
        let whole =
            entry.schedule(collective, Placement::uniform(RANKS), Order::Any, SLOTS).ok()?;
        let most = whole.most_segments().into_iter().map(|(_, most)| most).max()?;
        let has_room = most * 3 <= SEGMENTS as usize && entry.kind != Kind::Barrier;
        has_room.then(|| (divided(&whole, 3), entry.in_place))
    })
}

#[test]
fn whatever_is_right_stays_so_when_its_chunks_are_divided() {
    let mut kinds = std::collections::BTreeSet::new();
    for (schedule, in_place) in schedules() {
        kinds.insert(schedule.collective.kind);
        let file = ScheduleFile::new(schedule.clone(), Order::Any, in_place);
        assert_eq!(ScheduleFile::from_json(&file.to_json()).unwrap(), file);
        let verified = verify(schedule.clone(), Order::Any, in_place)
            .unwrap_or_else(|violation| panic!("{}: {violation}", schedule.collective.kind));
        assert_eq!(verified.schedule(), &schedule);
    }
    assert_eq!(kinds.len(), Kind::ALL.len() - 1);
}

/// A chunk of the same part is another chunk: each operand that is memory, moved by one, is
/// refused.
#[test]
fn another_chunk_of_the_same_part_is_refused() {
    for (schedule, in_place) in schedules() {
        let mut places = Vec::new();
        for (rank, list) in schedule.lists.iter().enumerate() {
            for (step, instruction) in list.iter().enumerate() {
                if let Instruction::ReduceCopy { destinations, .. } = instruction {
                    let outputs = destinations.iter().enumerate();
                    let outputs = outputs.filter(|(_, to)| matches!(to, Operand::Output(_)));
                    places.extend(outputs.map(|(at, _)| (rank, step, at)));
                }
            }
        }
        for (rank, step, at) in places.into_iter().step_by(7) {
            let mut changed = schedule.clone();
            let Instruction::ReduceCopy { destinations, .. } = &mut changed.lists[rank][step]
            else {
                unreachable!()
            };
            let Operand::Output(chunk) = &mut destinations[at] else { unreachable!() };
            *chunk = *chunk / 3 * 3 + (*chunk + 1) % 3;
            assert!(verify(changed, Order::Any, in_place).is_err());
        }
    }
}

#[test]
fn both_buffers_are_divided_alike() {
    for (schedule, _) in schedules() {
        let mut changed = schedule.clone();
        changed.input = match changed.input {
            Chunking::PerRank(chunks) => Chunking::PerRank(chunks + 1),
            Chunking::Parts(chunks) => Chunking::Parts(chunks + 1),
            Chunking::Whole => unreachable!("it is divided"),
        };
        let refused = verify(changed, Order::Any, false).unwrap_err();
        assert!(matches!(refused, Violation::Schedule(_)), "{refused}");
        assert!(schedule.input.chunks(RANKS).is_multiple_of(3));
    }
}

/// Each way of the catalogue, in scratch.
fn in_scratch() -> impl Iterator<Item = (Schedule, Order, bool)> {
    catalogue().flat_map(|entry| {
        let collective = match entry.kind {
            Kind::SendRecv => Collective::send_recv(RANKS, 1, 2),
            kind => Collective::new(kind, RANKS),
        };
        let placement = Placement::uniform(2);
        let kept = [Order::Any, Order::Rank, Order::Tree].into_iter();
        let kept = kept.filter(move |order| entry.keeps_unrounded(*order, placement));
        kept.filter_map(move |order| {
            let whole = entry.schedule(collective, placement, order, SLOTS).ok()?;
            Some((by_scratch(&whole), order, entry.in_place))
        })
    })
}

#[test]
fn whatever_is_right_stays_so_in_scratch() {
    let mut seen = 0;
    for (schedule, order, in_place) in in_scratch() {
        let file = ScheduleFile::new(schedule.clone(), order, in_place);
        assert_eq!(ScheduleFile::from_json(&file.to_json()).unwrap(), file);
        let kind = schedule.collective.kind;
        verify(schedule, order, in_place).unwrap_or_else(|why| panic!("{kind} {order}: {why}"));
        seen += 1;
    }
    assert!(seen > 50, "{seen}");
}

fn scratch_of(operand: Operand) -> Option<usize> {
    match operand {
        Operand::Scratch(chunk) => Some(chunk),
        _ => None,
    }
}

/// What is read of scratch must have been written there in this round, and be what is wanted.
#[test]
fn scratch_that_was_not_written_or_was_used_again_is_refused() {
    let (mut unwritten, mut reused) = (0, 0);
    for (schedule, order, in_place) in in_scratch().filter(|one| one.1 != Order::Any) {
        let list = &schedule.lists[1];
        for (step, instruction) in list.iter().enumerate() {
            let Instruction::ReduceCopy { sources, destinations, .. } = instruction else {
                continue;
            };
            let Some(written) = scratch_of(destinations[0]) else { continue };
            // The first write of a chunk, left out.
            let is_it = |one: &Instruction| matches!(one, Instruction::ReduceCopy { destinations, .. } if destinations[0] == Operand::Scratch(written));
            if !list[..step].iter().any(is_it) {
                let mut changed = schedule.clone();
                let Instruction::ReduceCopy { destinations, .. } = &mut changed.lists[1][step]
                else {
                    unreachable!()
                };
                destinations[0] = Operand::Scratch(schedule.scratch);
                changed.scratch += 1;
                let refused = verify(changed, order, in_place).unwrap_err();
                assert!(matches!(refused, Violation::Undefined { .. }), "{refused}");
                unwritten += 1;
            }
            // Another source's chunk, overwritten before it is read.
            let slot = sources[0].operand.is_slot();
            let next = list[step + 1..].iter().take(1).find_map(|next| match next {
                Instruction::ReduceCopy { sources, destinations, .. }
                    if sources[0].operand.is_slot() =>
                {
                    scratch_of(destinations[0])
                }
                _ => None,
            });
            if let (true, Some(next)) = (slot, next) {
                let mut changed = schedule.clone();
                let Instruction::ReduceCopy { destinations, .. } = &mut changed.lists[1][step]
                else {
                    unreachable!()
                };
                destinations[0] = Operand::Scratch(next);
                assert!(verify(changed, order, in_place).is_err(), "{schedule:?}");
                reused += 1;
            }
        }
    }
    assert!(unwritten > 10 && reused > 10, "{unwritten} {reused}");
}

#[test]
fn scratch_holds_chunks_that_are_there_and_no_tokens() {
    let (mut schedule, order, in_place) = in_scratch().next().unwrap();
    let chunks = std::mem::take(&mut schedule.scratch);
    let refused = verify(schedule.clone(), order, in_place).unwrap_err();
    let fault = matches!(refused, Violation::Operand { misuse: Misuse::NoSuchChunk, .. });
    assert!(fault, "{refused}");
    schedule.scratch = usize::MAX;
    let refused = verify(schedule.clone(), order, in_place).unwrap_err();
    assert!(matches!(refused, Violation::Schedule(_)), "{refused}");
    schedule.scratch = chunks;
    schedule.lists[0].push(Instruction::ReduceCopy {
        sources: vec![oxccl_plans::schedule::Source::plain(Operand::Tokens)],
        destinations: vec![Operand::Scratch(0)],
        tree: Default::default(),
        finish: false,
    });
    let refused = verify(schedule, order, in_place).unwrap_err();
    assert!(matches!(refused, Violation::Misplaced { .. }), "{refused}");
}
