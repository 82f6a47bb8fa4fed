//! Any schedule, with each of its chunks divided: what it does with one, it does with each part of
//! it. The parts of what was one segment of a message are segments of the same message.

use crate::plans::schedule::{Chunking, Instruction, Operand, Schedule, Source};

/// The same with `parts` chunks for each chunk.
pub(crate) fn divided(schedule: &Schedule, parts: usize) -> Schedule {
    let chunking = |of: Chunking| match of {
        Chunking::Whole => Chunking::Parts(parts),
        Chunking::PerRank(chunks) => Chunking::PerRank(chunks * parts),
        Chunking::Parts(chunks) => Chunking::Parts(chunks * parts),
    };
    let list = |list: &Vec<Instruction>| list.iter().flat_map(|one| each(one, parts)).collect();
    Schedule {
        input: chunking(schedule.input),
        output: chunking(schedule.output),
        ranks: schedule.ranks.iter().map(list).collect(),
        ..schedule.clone()
    }
}

fn each(instruction: &Instruction, parts: usize) -> Vec<Instruction> {
    let Instruction::ReduceCopy { sources, destinations, tree, finish } = instruction else {
        return vec![instruction.clone()];
    };
    if sources[0].operand == Operand::Tokens || matches!(destinations[0], Operand::PeerTokens(_)) {
        return vec![instruction.clone()];
    }
    let part = |part: usize| Instruction::ReduceCopy {
        sources: sources
            .iter()
            .map(|source| Source { operand: operand(source.operand, parts, part), ..*source })
            .collect(),
        destinations: destinations.iter().map(|to| operand(*to, parts, part)).collect(),
        tree: *tree,
        finish: *finish,
    };
    (0..parts).map(part).collect()
}

fn operand(operand: Operand, parts: usize, part: usize) -> Operand {
    let of = |chunk: usize| chunk * parts + part;
    let segment_of = |segment: u32| segment * parts as u32 + part as u32;
    match operand {
        Operand::Input(chunk) => Operand::Input(of(chunk)),
        Operand::Output(chunk) => Operand::Output(of(chunk)),
        Operand::Slot { link, message, segment } => {
            Operand::Slot { link, message, segment: segment_of(segment) }
        }
        Operand::PeerSlot { link, message, segment } => {
            Operand::PeerSlot { link, message, segment: segment_of(segment) }
        }
        Operand::Window { peer, buffer, chunk } => {
            Operand::Window { peer, buffer, chunk: of(chunk) }
        }
        Operand::Multicast { buffer, chunk } => Operand::Multicast { buffer, chunk: of(chunk) },
        other => other,
    }
}
