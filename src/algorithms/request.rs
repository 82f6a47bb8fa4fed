//! What a page is asked for, and what all pages need.

use super::Encoding;
use super::team::Team;
use super::turn::Turn;
use crate::collective::{Collective, Order};
use crate::schedule::{
    Buffer, Chunking, Instruction, Link, Operand, RankBuilder, Read, Schedule, Slots, Tree,
};
use crate::topology::Placement;

/// What a schedule is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The collective.
    pub collective: Collective,
    /// Which ranks share a node.
    pub placement: Placement,
    /// How data crosses.
    pub encoding: Encoding,
    /// The order of reduction that is promised.
    pub order: Order,
    /// Slots per connection.
    pub slots: Slots,
    /// Whose instructions are wanted.
    pub(super) whose: Whose,
}

/// Whose instructions are wanted: simulating many thousands of ranks never holds all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Whose {
    /// Everybody's.
    All,
    /// This rank's alone.
    Rank(usize),
    /// Nobody's: only after how many ranks they repeat.
    Period,
}

impl Request {
    pub(super) fn ranks(&self) -> usize {
        self.collective.ranks
    }

    /// The data connection to a peer.
    pub(super) fn link(&self, peer: usize) -> Link {
        Link { peer, lane: self.encoding.lane() }
    }

    /// All other ranks, starting behind `rank`, so that ranks don't all turn to the same peer first.
    pub(super) fn peers(&self, rank: usize) -> Vec<usize> {
        (1..self.ranks()).map(|step| (rank + step) % self.ranks()).collect()
    }

    /// All ranks.
    pub(super) fn world(&self, rank: usize) -> Team {
        Team::new((0..self.ranks()).collect(), rank, self.encoding)
    }

    /// Into how many chunks something that travels far is divided, so that its steps overlap. Small messages are better not divided.
    pub(super) fn pipelined(&self, parts: usize) -> usize {
        if self.encoding.has_flags() { 1 } else { parts }
    }

    /// Makes the schedule from each rank's part.
    pub(super) fn schedule(
        &self,
        input: Chunking,
        output: Chunking,
        part: impl Fn(&mut RankBuilder),
    ) -> Schedule {
        let ranks = match self.whose {
            Whose::All => (0..self.ranks()).map(|rank| self.list(rank, &part)).collect(),
            Whose::Rank(rank) => vec![self.list(rank, &part)],
            Whose::Period => Vec::new(),
        };
        Schedule { collective: self.collective, input, output, slots: self.slots, ranks }
    }

    /// As [`Request::schedule`], for algorithms in which all ranks do the same seen from where they stand: `part` is asked for rank 0 alone,
    /// and rank r's instructions are those with r added to every rank and to every rank's chunk. That they are alike need not be
    /// proven then: `part` cannot know another rank.
    pub(super) fn rotational(
        &self,
        input: Chunking,
        output: Chunking,
        part: impl Fn(&mut RankBuilder),
    ) -> Schedule {
        let turned = |list: &[Instruction], rank: usize| {
            let turn = Turn { by: rank, ranks: self.ranks(), input, output };
            list.iter().map(|instruction| turn.instruction(instruction)).collect()
        };
        let ranks = match self.whose {
            Whose::Period => vec![Vec::new()],
            Whose::Rank(rank) => vec![turned(&self.list(0, &part), rank)],
            Whose::All => {
                let first = self.list(0, &part);
                (0..self.ranks()).map(|rank| turned(&first, rank)).collect()
            }
        };
        Schedule { collective: self.collective, input, output, slots: self.slots, ranks }
    }

    fn list(&self, rank: usize, part: &impl Fn(&mut RankBuilder)) -> Vec<Instruction> {
        let tree = if self.order == Order::Tree { Tree::Aligned } else { Tree::Left };
        let mut builder = RankBuilder::new(rank, self.slots, tree);
        part(&mut builder);
        builder.finish()
    }

    /// Every rank's contribution to a chunk, by rank: the own one from memory, the others by their next message.
    pub(super) fn contributions(&self, rank: usize, chunk: usize) -> Vec<Read> {
        self.by_rank(rank, chunk, |peer| Read::RecvRaw(self.link(peer)))
    }

    /// Every rank's contribution to a chunk, by rank, all in place.
    pub(super) fn windows(&self, rank: usize, chunk: usize) -> Vec<Read> {
        self.by_rank(rank, chunk, |peer| {
            Read::Raw(Operand::Window { peer, buffer: Buffer::Input, chunk })
        })
    }

    fn by_rank(&self, rank: usize, chunk: usize, other: impl Fn(usize) -> Read) -> Vec<Read> {
        let own = Read::Raw(Operand::Input(chunk));
        (0..self.ranks()).map(|peer| if peer == rank { own } else { other(peer) }).collect()
    }
}

/// A chunk of a peer's output, in place.
pub(super) fn output_of(peer: usize, chunk: usize) -> Operand {
    Operand::Window { peer, buffer: Buffer::Output, chunk }
}

/// A chunk of a peer's input, in place.
pub(super) fn input_of(peer: usize, chunk: usize) -> Operand {
    Operand::Window { peer, buffer: Buffer::Input, chunk }
}
