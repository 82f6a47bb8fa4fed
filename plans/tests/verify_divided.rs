//! Schedules with several chunks in each rank's part are proven.
#![allow(clippy::unwrap_used)]

use oxccl_plans as plans;

#[path = "../../tests/common/divided.rs"]
mod divided;

use divided::divided;
use oxccl_plans::algorithms::catalogue;
use oxccl_plans::collective::{Collective, Kind, Order};
use oxccl_plans::schedule::{
    Chunking, Instruction, Operand, SEGMENTS, SLOTS, Schedule, ScheduleFile,
};
use oxccl_plans::topology::Placement;
use oxccl_plans::verify::{Violation, verify};

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
        for (rank, list) in schedule.ranks.iter().enumerate() {
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
            let Instruction::ReduceCopy { destinations, .. } = &mut changed.ranks[rank][step]
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
