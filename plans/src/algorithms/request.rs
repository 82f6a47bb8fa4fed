//! What a page is asked for, and what all pages need.

use super::Encoding;
use super::team::Team;
use crate::collective::{Collective, Order};
use crate::schedule::{
    Buffer, Chunking, Instruction, Link, Operand, RankBuilder, Read, Schedule, Slots, Symmetry,
    Tree, Turning,
};
use crate::topology::Placement;
use std::ops::Range;

/// How messages follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pipeline {
    /// Slots per connection.
    pub slots: Slots,
    /// So many parts of a buffer are on their way at once where each travels far: along trees and
    /// chains, and in hierarchical all-reduces. If that is not said, as many as predict best.
    pub parts: Option<usize>,
}

impl From<Slots> for Pipeline {
    fn from(slots: Slots) -> Pipeline {
        Pipeline { slots, parts: None }
    }
}

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
    /// Parts that are on their way at once, if that is said.
    pub parts: Option<usize>,
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
        Link::new(peer, self.encoding.lane())
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
        Team::new(self.ranks(), rank, self.encoding, |place| place)
    }

    /// Into how many chunks something that travels far is divided, so that its steps overlap: so
    /// many, unless that is said. Small messages are better not divided.
    pub(super) fn pipelined(&self, parts: usize) -> usize {
        if self.encoding.has_flags() { 1 } else { self.parts.unwrap_or(parts) }
    }

    /// Makes the schedule from each rank's part.
    pub(super) fn schedule(
        &self,
        input: Chunking,
        output: Chunking,
        part: impl Fn(&mut RankBuilder),
    ) -> Schedule {
        let lists = match &self.whose {
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
            lists_per_rank: 1,
            lists,
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
        self.rotational_by(1, input, output, part)
    }

    /// The same where nodes are alike: `part` is asked for the ranks of the first node alone, and
    /// those of other nodes are turned by as many nodes.
    pub(super) fn rotational_by_node(
        &self,
        input: Chunking,
        output: Chunking,
        part: impl Fn(&mut RankBuilder),
    ) -> Schedule {
        self.rotational_by(self.placement.ranks_per_node(), input, output, part)
    }

    /// The same where ranks are alike when they are turned by a multiple of `period`.
    pub(super) fn rotational_by(
        &self,
        period: usize,
        input: Chunking,
        output: Chunking,
        part: impl Fn(&mut RankBuilder),
    ) -> Schedule {
        let Some(symmetry) = Symmetry::new(self.ranks(), period, Turning::Add, (input, output))
        else {
            return self.schedule(input, output, part);
        };
        let alike = |ranks: Range<usize>| -> Vec<Vec<Instruction>> {
            let firsts = ranks.clone().take(period).map(|rank| self.list(rank % period, &part));
            let firsts: Vec<_> = firsts.collect();
            let turned = |(rank, first): (usize, &Vec<Instruction>)| {
                let (_, by) = symmetry.home(rank);
                first.iter().map(|one| symmetry.instruction(one, by)).collect()
            };
            ranks.zip(firsts.iter().cycle()).map(turned).collect()
        };
        let lists = match &self.whose {
            Whose::Period => vec![Vec::new(); period],
            Whose::Ranks(ranks) => alike(ranks.clone()),
            Whose::All => alike(0..self.ranks()),
        };
        Schedule {
            collective: self.collective,
            input,
            output,
            scratch: 0,
            slots: self.slots,
            lists_per_rank: 1,
            lists,
        }
    }

    fn list(&self, rank: usize, part: &impl Fn(&mut RankBuilder)) -> Vec<Instruction> {
        let tree = if self.order == Order::Tree { Tree::Aligned } else { Tree::Left };
        let several_nodes = self.placement.nodes(self.ranks()) != Some(1);
        let mut builder = RankBuilder::new(rank, self.slots, tree).one_by_one(several_nodes);
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
