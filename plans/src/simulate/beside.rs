//! Which copies a GPU's block makes as one step: as `lower` notes runs of them. Short ones are made
//! side by side, longer ones one behind the other with no barrier between them.

use crate::schedule::{Instruction, Operand};

/// So many at most: a block's warps, of which each makes a short one. As many are taken of longer
/// ones (`MOST_PIECES` of kernels/machine/cuda/target.h).
const MOST: usize = 16;

/// The copies that follow one another up to here, as (from, to).
#[derive(Default)]
pub(super) struct Copies(Vec<(Operand, Operand)>);

impl Copies {
    /// Whether this instruction is a copy that can be made beside those in front of it: none of
    /// them reads or writes what it writes, or writes what it reads.
    pub(super) fn take(&mut self, instruction: &Instruction) -> bool {
        let Some(one) = copy_of(instruction) else {
            self.0.clear();
            return false;
        };
        let disturbs = |other: &(Operand, Operand)| {
            other.1 == one.0 || other.0 == one.1 || (other.1 == one.1 && !one.1.is_slot())
        };
        // Tokens of peers are taken by a thread each, and there are more of these than ranks.
        let is_token = matches!(one.1, Operand::PeerTokens(_));
        let is_full = self.0.len() >= MOST && !is_token;
        if is_full || self.0.iter().any(disturbs) {
            self.0.clear();
        }
        self.0.push(one);
        self.0.len() > 1
    }
}

/// What an instruction copies, if it has one source and one destination, and changes nothing.
fn copy_of(instruction: &Instruction) -> Option<(Operand, Operand)> {
    let Instruction::ReduceCopy { sources, destinations, finish: false, .. } = instruction else {
        return None;
    };
    match (&sources[..], &destinations[..]) {
        ([from], [to]) if !instruction.uses_multicast() && !instruction.uses_rail() => {
            Some((from.operand, *to))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Lane, Link, Source, Tree};

    fn copy(from: Operand, to: Operand) -> Instruction {
        let (sources, destinations) = (vec![Source::plain(from)], vec![to]);
        Instruction::ReduceCopy { sources, destinations, tree: Tree::Left, finish: false }
    }

    #[test]
    fn copies_that_disturb_none_before_them_are_beside() {
        let to = |peer| {
            let link = Link::new(peer, Lane::Ll);
            Operand::PeerSlot { link, message: 0, segment: 0 }
        };
        let (input, output, scratch) = (Operand::Input(0), Operand::Output(1), Operand::Scratch(0));
        let list = [
            (copy(input, to(1)), false),
            (copy(input, to(2)), true),
            (copy(input, scratch), true),
            // It reads what was written, and the next writes what was read.
            (copy(scratch, output), false),
            (copy(input, scratch), false),
            (copy(output, to(3)), true),
        ];
        let mut copies = Copies::default();
        for (at, (one, expected)) in list.iter().enumerate() {
            assert_eq!(copies.take(one), *expected, "{at}");
        }
        let reduces = Instruction::ReduceCopy {
            sources: vec![Source::plain(input), Source::plain(scratch)],
            destinations: vec![output],
            tree: Tree::Left,
            finish: false,
        };
        assert!(!copies.take(&reduces));
        let beside = (1..20).map(|peer| copies.take(&copy(input, to(peer))));
        let alone: Vec<usize> = beside.enumerate().filter(|one| !one.1).map(|one| one.0).collect();
        assert_eq!(alone, [0, 16]);
        assert!(!copies.take(&reduces));
        let takes = |peer| {
            let link = Link::new(peer, Lane::Ll);
            copy(Operand::Slot { link, message: 0, segment: 0 }, Operand::PeerTokens(peer))
        };
        assert_eq!((1..72).filter(|peer| !copies.take(&takes(*peer))).count(), 1);
    }
}
