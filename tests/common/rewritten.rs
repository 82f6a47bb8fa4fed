//! Schedules of the catalogue, rewritten so that they use what the catalogue does not.

use crate::plans::schedule::{Chunking, Instruction, Operand, Schedule, Source};

/// With `parts` chunks for each chunk: what is done with one is done with each of them. The parts
/// of what was one segment of a message are segments of the same message.
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

/// With all that comes copied to scratch, all that is reduced made in scratch, and all results
/// copied from there.
pub(crate) fn by_scratch(schedule: &Schedule) -> Schedule {
    let most = |instruction: &Instruction| match instruction {
        Instruction::ReduceCopy { sources, .. } => sources.len(),
        _ => 0,
    };
    let scratch = schedule.ranks.iter().flatten().map(most).max().unwrap_or(0) + 1;
    let list = |list: &Vec<Instruction>| {
        list.iter().flat_map(|one| in_scratch(one, scratch - 1)).collect()
    };
    let ranks = schedule.ranks.iter().map(list).collect();
    Schedule { scratch, ranks, ..schedule.clone() }
}

fn in_scratch(instruction: &Instruction, result: usize) -> Vec<Instruction> {
    let Instruction::ReduceCopy { sources, destinations, tree, finish } = instruction else {
        return vec![instruction.clone()];
    };
    let is_tokens = |operand: &Operand| matches!(operand, Operand::Tokens | Operand::PeerTokens(_));
    // A copy within a rank may be one onto itself, which is left out.
    let moves = sources.len() == 1 && !sources[0].operand.is_slot() && !finish;
    if moves
        || is_tokens(&sources[0].operand)
        || is_tokens(&destinations[0])
        || instruction.uses_multicast()
    {
        return vec![instruction.clone()];
    }
    let copy = |from: Operand, to: Operand| Instruction::ReduceCopy {
        sources: vec![Source::plain(from)],
        destinations: vec![to],
        tree: Default::default(),
        finish: false,
    };
    let mut list = Vec::new();
    let mut kept = sources.clone();
    for (at, source) in kept.iter_mut().enumerate().filter(|(_, source)| source.operand.is_slot()) {
        list.push(copy(source.operand, Operand::Scratch(at)));
        source.operand = Operand::Scratch(at);
    }
    let (destinations, tree, finish) = (destinations, *tree, *finish);
    let result = Operand::Scratch(result);
    list.push(Instruction::ReduceCopy { sources: kept, destinations: vec![result], tree, finish });
    list.extend(destinations.iter().map(|to| copy(result, *to)));
    list
}
