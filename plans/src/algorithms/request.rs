//! What a page is asked for, and what all pages need.

use super::Encoding;
use super::team::Team;
use crate::collective::{Collective, Order};
use crate::schedule::{
    Buffer, Chunking, Distance, Instruction, Link, Operand, RankBuilder, Read, Schedule, Slots,
    Symmetry, Tree, Turning,
};
use crate::topology::Placement;
use std::ops::Range;

/// What a schedule is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Whose {
    /// Everybody's.
    All,
    /// These ranks' alone.
    Ranks(Range<usize>),
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

    /// The links to several peers.
    pub(super) fn links(&self, peers: &[usize]) -> Vec<Link> {
        peers.iter().map(|&peer| self.link(peer)).collect()
    }

    /// All other ranks, starting behind `rank`, so that ranks don't all turn to the same peer
    /// first.
    pub(super) fn peers(&self, rank: usize) -> Vec<usize> {
        (1..self.ranks()).map(|step| (rank + step) % self.ranks()).collect()
    }

    /// All ranks.
    pub(super) fn world(&self, rank: usize) -> Team {
        Team::new((0..self.ranks()).collect(), rank, self.encoding)
    }

    /// Into how many chunks something that travels far is divided, so that its steps overlap. Small
    /// messages are better not divided.
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
        let ranks = match &self.whose {
            Whose::All => (0..self.ranks()).map(|rank| self.list(rank, &part)).collect(),
            Whose::Ranks(ranks) => ranks.clone().map(|rank| self.list(rank, &part)).collect(),
            Whose::Period => Vec::new(),
        };
        Schedule {
            collective: self.collective,
            input,
            output,
            scratch: 0,
            slots: self.slots,
            ranks,
        }
    }

    /// As [`Request::schedule`], for symmetric algorithms, in which all ranks do the same relative
    /// to their own rank: `part` is asked for rank 0 alone, and rank r's instructions are those
    /// with r added to every rank and to every rank's chunk. That they are alike need not be proven
    /// then: `part` cannot know another rank.
    pub(super) fn rotational(
        &self,
        input: Chunking,
        output: Chunking,
        part: impl Fn(&mut RankBuilder),
    ) -> Schedule {
        let alike = |ranks: Range<usize>| -> Vec<Vec<Instruction>> {
            let first = self.list(0, &part);
            let symmetry = Symmetry::new(self.ranks(), 1, Turning::Add, (input, output));
            let turned = |rank: usize| match symmetry {
                Some(symmetry) if rank > 0 => {
                    let turned = |one| symmetry.instruction(one, rank as Distance);
                    first.iter().map(turned).collect()
                }
                _ => first.clone(),
            };
            ranks.map(turned).collect()
        };
        let ranks = match &self.whose {
            Whose::Period => vec![Vec::new()],
            Whose::Ranks(ranks) => alike(ranks.clone()),
            Whose::All => alike(0..self.ranks()),
        };
        Schedule {
            collective: self.collective,
            input,
            output,
            scratch: 0,
            slots: self.slots,
            ranks,
        }
    }

    fn list(&self, rank: usize, part: &impl Fn(&mut RankBuilder)) -> Vec<Instruction> {
        let tree = if self.order == Order::Tree { Tree::Aligned } else { Tree::Left };
        let mut builder = RankBuilder::new(rank, self.slots, tree);
        part(&mut builder);
        builder.finish()
    }

    /// Every rank's contribution to a chunk, by rank: the own one from memory, the others by their
    /// next message.
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
