//! Schedules of the catalogue, rewritten so that they use what the catalogue does not.

use crate::plans::schedule::{Chunking, Flag, Instruction, Lane, Link, Operand, Schedule, Source};

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
        lists: schedule.lists.iter().map(list).collect(),
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
        Operand::Multicast { of: members, buffer, chunk } => {
            Operand::Multicast { of: members, buffer, chunk: of(chunk) }
        }
        // Each part is a message of its own.
        Operand::Contribution { rail, message } => {
            Operand::Contribution { rail, message: segment_of(message) }
        }
        Operand::Reduced { rail, message } => {
            Operand::Reduced { rail, message: segment_of(message) }
        }
        other => other,
    }
}

/// With so many lists for one, which do all of it side by side, each with its part of every chunk.
pub(crate) fn side_by_side(schedule: &Schedule, lists: usize) -> Schedule {
    let whole = divided(schedule, lists);
    let list = |(list, which): (&Vec<Instruction>, usize)| -> Vec<Instruction> {
        list.iter().map(|one| with_list(&part(one, lists, which), &|_, _| which)).collect()
    };
    let each = schedule.lists.iter().flat_map(|list| (0..lists).map(move |which| (list, which)));
    Schedule { lists_per_rank: lists, lists: each.map(list).collect(), ..whole }
}

/// One part of what an instruction moves, as a message of its own.
fn part(instruction: &Instruction, parts: usize, part: usize) -> Instruction {
    let memory = |operand: Operand| match operand {
        Operand::Input(chunk) => Operand::Input(chunk * parts + part),
        Operand::Output(chunk) => Operand::Output(chunk * parts + part),
        Operand::Scratch(chunk) => Operand::Scratch(chunk * parts + part),
        other => other,
    };
    changed(instruction, &memory)
}

/// With a second list that receives all messages, into scratch, and a first one that does the rest:
/// they take turns.
pub(crate) fn received_apart(schedule: &Schedule) -> Schedule {
    let whole = by_scratch(schedule);
    let lists = whole.lists.iter().enumerate().flat_map(|(rank, list)| {
        let mut lists = [Vec::new(), Vec::new()];
        let (mut turn, mut turns) = (0, [0, 0]);
        let mut go_over = |lists: &mut [Vec<Instruction>; 2], to: usize| {
            let from = 1 - to;
            turns[from] += 1;
            let tail =
                |list: usize| Flag::Tail(Link { peer: rank, list: list as u16, lane: Lane::Sync });
            let value = turns[from];
            lists[from].push(Instruction::Signal { flag: tail(to), value });
            lists[to].push(Instruction::Wait { flag: tail(from), value });
        };
        for instruction in list {
            let own = usize::from(receives(instruction));
            if own != turn {
                go_over(&mut lists, own);
                turn = own;
            }
            // Who sends is met in its first list, and who receives in its second.
            let list = |lane: Lane, sends: bool| usize::from(sends && lane != Lane::Sync);
            lists[own].push(with_list(instruction, &list));
        }
        // Scratch is the second one's again.
        if turn == 0 {
            go_over(&mut lists, 1);
        }
        lists
    });
    let lists = lists.collect();
    Schedule { lists_per_rank: 2, lists, ..whole }
}

/// Whether it waits for a message, takes it, or gives its slot back.
fn receives(instruction: &Instruction) -> bool {
    match instruction {
        Instruction::Wait { flag: Flag::Tail(link), .. } => link.lane != Lane::Sync,
        Instruction::Signal { flag, .. } => matches!(flag, Flag::Head(_)),
        Instruction::Wait { .. } => false,
        Instruction::ReduceCopy { sources, .. } => {
            sources.iter().any(|source| source.operand.is_slot())
        }
    }
}

/// With other lists at the far ends of links: by the lane, and whether this end sends.
fn with_list(instruction: &Instruction, list: &impl Fn(Lane, bool) -> usize) -> Instruction {
    let with = |link: Link, sends: bool| Link { list: list(link.lane, sends) as u16, ..link };
    let flag = |flag: Flag, waits: bool| match flag {
        Flag::Tail(link) => Flag::Tail(with(link, !waits)),
        Flag::Head(link) => Flag::Head(with(link, waits)),
    };
    match instruction {
        Instruction::Wait { flag: of, value } => {
            Instruction::Wait { flag: flag(*of, true), value: *value }
        }
        Instruction::Signal { flag: of, value } => {
            Instruction::Signal { flag: flag(*of, false), value: *value }
        }
        moves => changed(moves, &|operand| match operand {
            Operand::Slot { link, message, segment } => {
                Operand::Slot { link: with(link, false), message, segment }
            }
            Operand::PeerSlot { link, message, segment } => {
                Operand::PeerSlot { link: with(link, true), message, segment }
            }
            other => other,
        }),
    }
}

/// With other operands.
fn changed(instruction: &Instruction, operand: &impl Fn(Operand) -> Operand) -> Instruction {
    match instruction {
        Instruction::ReduceCopy { sources, destinations, tree, finish } => {
            let source = |source: &Source| Source { operand: operand(source.operand), ..*source };
            Instruction::ReduceCopy {
                sources: sources.iter().map(source).collect(),
                destinations: destinations.iter().map(|to| operand(*to)).collect(),
                tree: *tree,
                finish: *finish,
            }
        }
        other => other.clone(),
    }
}

/// With all that comes copied to scratch, all that is reduced made in scratch, and all results
/// copied from there.
pub(crate) fn by_scratch(schedule: &Schedule) -> Schedule {
    let most = |instruction: &Instruction| match instruction {
        Instruction::ReduceCopy { sources, .. } => sources.len(),
        _ => 0,
    };
    let scratch = schedule.lists.iter().flatten().map(most).max().unwrap_or(0) + 1;
    let list = |list: &Vec<Instruction>| {
        list.iter().flat_map(|one| in_scratch(one, scratch - 1)).collect()
    };
    let lists = schedule.lists.iter().map(list).collect();
    Schedule { scratch, lists, ..schedule.clone() }
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
