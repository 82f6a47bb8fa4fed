//! What the threads of a block may do at once, and once for several instructions: as the lowering
//! marks it.

use crate::schedule::{Instruction, Operand};
use oxccl_format as f;
use std::collections::HashSet;

/// Waits behind waits, and signals behind signals, are one step as long as no two are of one
/// counter.
pub(super) fn note_runs(instructions: &mut [f::Instruction]) {
    let opcode = |instruction: &f::Instruction| instruction.opcode;
    let mut counters = HashSet::new();
    for same in instructions.chunk_by_mut(|a, b| opcode(a) == opcode(b)) {
        if opcode(&same[0]) == f::Opcode::ReduceCopy as u8 {
            continue;
        }
        let mut first = 0;
        while first < same.len() {
            counters.clear();
            let others = same[first..].iter().take(usize::from(u16::MAX));
            let run = others.take_while(|one| counters.insert((one.index, one.flags))).count();
            for (at, one) in same[first..][..run].iter_mut().enumerate() {
                one.run = (run - at) as u16;
            }
            first += run;
        }
    }
}

/// Peers' tokens that are taken one behind the other are one step, as long as each is of another
/// peer.
pub(super) fn note_token_runs(list: &[Instruction], encoded: &mut [f::Instruction]) {
    let sender = |instruction: &Instruction| match instruction {
        Instruction::ReduceCopy { sources, destinations, .. } => {
            match (sources.as_slice(), destinations.as_slice()) {
                ([_], [Operand::PeerTokens(peer)]) => Some(*peer),
                _ => None,
            }
        }
        _ => None,
    };
    let mut first = 0;
    while first < list.len() {
        let mut peers = HashSet::new();
        let others = list[first..].iter().take(usize::from(u16::MAX));
        let run = others.map_while(sender).take_while(|peer| peers.insert(*peer)).count();
        for (at, one) in encoded[first..][..run].iter_mut().enumerate() {
            one.run = (run - at) as u16;
        }
        first += run.max(1);
    }
}

/// Copies that follow one another are one step, as long as none writes what another reads or
/// writes, each has one destination, and all are about as long. Buffers may be in place, so an
/// input and an output of the same rank count as one memory, wherever they lie.
pub(super) fn note_copy_runs(encoded: &mut [f::Instruction], operands: &[f::Operand]) {
    const APART: u8 = f::INSTRUCTION_MULTICAST_READ
        | f::INSTRUCTION_MULTICAST_WRITE
        | f::INSTRUCTION_RELEASE
        | f::INSTRUCTION_ACQUIRE
        | f::INSTRUCTION_CMA;
    let is_copy = |one: &f::Instruction| {
        one.opcode == f::Opcode::ReduceCopy as u8
            && one.sources == 1
            && one.destinations == 1
            && one.flags & APART == 0
            && one.run == 1
    };
    let is_as_long = |a: &f::Instruction, b: &f::Instruction| {
        let (a, b) = (a.len_bytes.max(SHORT_COPY_BYTES), b.len_bytes.max(SHORT_COPY_BYTES));
        a / 2 <= b && b / 2 <= a
    };
    let own = |one: &f::Instruction| {
        let first = one.index as usize;
        &operands[first..first + 1 + usize::from(one.destinations)]
    };
    let disturb = |a: &f::Instruction, b: &f::Instruction| {
        let writes = |writer: &f::Instruction, other: &f::Instruction| {
            own(writer)[1..].iter().any(|to| {
                own(other).iter().any(|at| overlap((to, writer.len_bytes), (at, other.len_bytes)))
            })
        };
        writes(a, b) || writes(b, a)
    };
    let mut first = 0;
    while first < encoded.len() {
        let mut run = 0;
        while run < MOST_COPIES
            && encoded.get(first + run).is_some_and(|one| {
                is_copy(one)
                    && is_as_long(one, &encoded[first])
                    && !encoded[first..first + run].iter().any(|other| disturb(other, one))
            })
        {
            run += 1;
        }
        for (at, one) in encoded[first..first + run].iter_mut().enumerate() {
            one.run = (run - at) as u16;
        }
        first += run.max(1);
    }
}

/// So that looking for runs takes no longer than a multiple of a list's length.
const MOST_COPIES: usize = 64;

/// Up to here the length of a copy is of no matter.
const SHORT_COPY_BYTES: u64 = 4096;

/// Whether two operands may have a byte in common, each with its length.
fn overlap((a, a_len): (&f::Operand, u64), (b, b_len): (&f::Operand, u64)) -> bool {
    /// A memory of its own.
    #[derive(PartialEq)]
    enum Memory {
        Buffers,
        Window(u32),
        Slot(u32, u32),
        PeerSlot(u32, u32),
        Scratch,
        Other,
    }
    let (input, output) = (f::Space::Input as u8, f::Space::Output as u8);
    let (window_input, window_output) = (f::Space::WindowInput as u8, f::Space::WindowOutput as u8);
    let memory = |one: &f::Operand| match one.space {
        space if space == input || space == output => Memory::Buffers,
        space if space == window_input || space == window_output => Memory::Window(one.index),
        space if space == f::Space::Slot as u8 => Memory::Slot(one.index, one.message),
        space if space == f::Space::PeerSlot as u8 => Memory::PeerSlot(one.index, one.message),
        space if space == f::Space::Scratch as u8 => Memory::Scratch,
        _ => Memory::Other,
    };
    let is_buffer = |one: &f::Operand| matches!(memory(one), Memory::Buffers | Memory::Window(_));
    if memory(a) != memory(b) || memory(a) == Memory::Other {
        return memory(a) == memory(b);
    }
    // Of a group's buffers each rank has its part, which `message` says.
    if is_buffer(a) && (a.space != b.space || a.message != b.message) {
        return a.space != b.space;
    }
    // What is empty in each round shares nothing; a slot's segment has a header too.
    let is_slot = matches!(memory(a), Memory::Slot(..) | Memory::PeerSlot(..));
    if is_slot {
        return a.offset_bytes == b.offset_bytes;
    }
    a.offset_bytes < b.offset_bytes + b_len && b.offset_bytes < a.offset_bytes + a_len
}

/// Between tokens and tokens nothing is read or written that they give access to.
pub(super) fn note_fences(list: &[Instruction], encoded: &mut [f::Instruction]) {
    #[derive(Clone, Copy, PartialEq)]
    enum Moves {
        Tokens,
        PeerTokens,
        Data,
    }
    let moves = |instruction: &Instruction| match instruction {
        Instruction::ReduceCopy { sources, destinations, .. } => {
            let is_tokens = sources.iter().any(|one| one.operand == Operand::Tokens);
            let is_peers = destinations.iter().any(|to| matches!(to, Operand::PeerTokens(_)));
            Some(match (is_tokens, is_peers) {
                (true, _) => Moves::Tokens,
                (_, true) => Moves::PeerTokens,
                _ => Moves::Data,
            })
        }
        _ => None,
    };
    let moving: Vec<(usize, Moves)> =
        list.iter().enumerate().filter_map(|(at, one)| Some((at, moves(one)?))).collect();
    for (place, &(at, what)) in moving.iter().enumerate() {
        let is = |place: Option<usize>| place.and_then(|at| moving.get(at)).map(|one| one.1);
        let flag = match what {
            Moves::Tokens if is(place.checked_sub(1)) != Some(what) => f::INSTRUCTION_RELEASE,
            Moves::PeerTokens if is(place.checked_add(1)) != Some(what) => f::INSTRUCTION_ACQUIRE,
            _ => 0,
        };
        encoded[at].flags |= flag;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Flag, Link, Source, Tree};
    use super::*;

    fn counter(opcode: f::Opcode, index: u32, flags: u8) -> f::Instruction {
        let (sources, destinations, run, step, value, len_bytes) = (0, 0, 1, 0, 0, 0);
        let opcode = opcode as u8;
        f::Instruction { opcode, flags, sources, destinations, run, index, step, value, len_bytes }
    }

    #[test]
    fn a_run_has_each_counter_once() {
        use f::Opcode::{ReduceCopy, Signal, Wait};
        let head = f::INSTRUCTION_HEAD;
        let list = [
            (Wait, 0, head, 3),
            (Wait, 1, head, 2),
            (Wait, 1, 0, 1),
            (ReduceCopy, 0, 0, 1),
            (ReduceCopy, 0, 0, 1),
            (Signal, 5, 0, 2),
            (Signal, 6, 0, 1),
            (Signal, 5, 0, 3),
            (Signal, 6, 0, 2),
            (Signal, 7, 0, 1),
            (Wait, 7, 0, 1),
        ];
        let mut encoded = list.map(|(opcode, index, flags, _)| counter(opcode, index, flags));
        note_runs(&mut encoded);
        assert_eq!(encoded.map(|one| one.run), list.map(|(_, _, _, run)| run));
    }

    #[test]
    fn tokens_of_several_peers_are_one_step() {
        let link = |peer| Link::new(peer, f::Lane::Ll);
        let receive = |peer| Instruction::ReduceCopy {
            sources: vec![Source::plain(Operand::Slot {
                link: link(peer),
                message: 0,
                segment: 0,
            })],
            destinations: vec![Operand::PeerTokens(peer)],
            tree: Tree::Left,
            finish: false,
        };
        let credit = |peer| Instruction::Signal { flag: Flag::Head(link(peer)), value: 1 };
        let list = [
            (receive(1), 3),
            (receive(2), 2),
            (receive(3), 1),
            (credit(1), 1),
            (receive(1), 1),
            (receive(1), 2),
            (receive(2), 1),
        ];
        let (list, expected): (Vec<_>, Vec<u16>) = list.into_iter().unzip();
        let mut encoded = vec![counter(f::Opcode::ReduceCopy, 0, 0); list.len()];
        note_token_runs(&list, &mut encoded);
        assert_eq!(encoded.iter().map(|one| one.run).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn copies_that_share_nothing_are_one_step() {
        use f::Space::{Input, Output, PeerSlot, Scratch, Slot, WindowOutput};
        let mut operands = vec![];
        let mut copy = |from: (f::Space, u32, u64), to: &[(f::Space, u32, u64)]| {
            let index = operands.len() as u32;
            operands.extend(std::iter::once(&from).chain(to).map(
                |&(space, index, offset_bytes)| {
                    let (space, message) = (space as u8, 0);
                    f::Operand {
                        space,
                        flags: 0,
                        lane: 0,
                        reserved: 0,
                        index,
                        message,
                        signature: 0,
                        offset_bytes,
                    }
                },
            ));
            let one = counter(f::Opcode::ReduceCopy, index, 0);
            f::Instruction { sources: 1, destinations: to.len() as u16, len_bytes: 64, ..one }
        };
        let list = [
            (copy((Input, 0, 0), &[(PeerSlot, 4, 0)]), 3),
            (copy((Input, 0, 64), &[(PeerSlot, 8, 0)]), 2),
            (copy((Input, 0, 0), &[(PeerSlot, 12, 0)]), 1),
            // The same slot once more.
            (copy((Input, 0, 64), &[(PeerSlot, 12, 0)]), 1),
            // More destinations.
            (copy((Input, 0, 0), &[(PeerSlot, 16, 0), (PeerSlot, 20, 0)]), 1),
            (copy((Slot, 4, 0), &[(Output, 0, 0)]), 2),
            (copy((Slot, 8, 0), &[(Output, 0, 64)]), 1),
            // Bytes of the one before.
            (copy((Slot, 12, 0), &[(Output, 0, 96)]), 1),
            // It may be the output.
            (copy((Input, 0, 512), &[(Scratch, 0, 0)]), 2),
            (copy((Slot, 4, 64), &[(WindowOutput, 1, 0)]), 1),
            (copy((Scratch, 0, 0), &[(WindowOutput, 2, 0)]), 1),
        ];
        let (mut encoded, expected): (Vec<_>, Vec<u16>) = list.into_iter().unzip();
        note_copy_runs(&mut encoded, &operands);
        assert_eq!(encoded.iter().map(|one| one.run).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn tokens_behind_tokens_need_no_fence() {
        let link = Link::new(1, f::Lane::Ll);
        let slot = |message| Operand::Slot { link, message, segment: 0 };
        let moves = |from: Operand, to: Operand| Instruction::ReduceCopy {
            sources: vec![Source::plain(from)],
            destinations: vec![to],
            tree: Tree::Left,
            finish: false,
        };
        let send = || moves(Operand::Tokens, Operand::PeerSlot { link, message: 0, segment: 0 });
        let receive = || moves(slot(0), Operand::PeerTokens(1));
        let credit = || Instruction::Signal { flag: Flag::Head(link), value: 1 };
        let (release, acquire) = (f::INSTRUCTION_RELEASE, f::INSTRUCTION_ACQUIRE);
        let list = [
            (send(), release),
            (credit(), 0),
            (send(), 0),
            (receive(), 0),
            (credit(), 0),
            (receive(), acquire),
            (moves(Operand::Input(0), Operand::Output(0)), 0),
            (receive(), acquire),
            (send(), release),
            (moves(Operand::Input(0), Operand::Output(0)), 0),
            (send(), release),
            (receive(), acquire),
        ];
        let (list, expected): (Vec<_>, Vec<_>) = list.into_iter().unzip();
        let mut encoded = vec![counter(f::Opcode::ReduceCopy, 0, 0); list.len()];
        note_fences(&list, &mut encoded);
        assert_eq!(encoded.iter().map(|one| one.flags).collect::<Vec<_>>(), expected);
    }
}
