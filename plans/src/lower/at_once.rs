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
        let link = |peer| Link { peer, lane: f::Lane::Ll };
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
    fn tokens_behind_tokens_need_no_fence() {
        let link = Link { peer: 1, lane: f::Lane::Ll };
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
