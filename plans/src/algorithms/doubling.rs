//! Recursive doubling over aligned halves: all-reduce in ceil(log2 n) exchanges of the whole buffer
//! (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
//! 2005), for any number of ranks.

use super::spread::{spread, tell};
use super::team::{Held, Team, blocks};
use super::{Algorithm, Entries, IN_SLOTS, Orders, Request, entries};
use crate::collective::Kind::AllReduce;
use crate::schedule::{Chunking, Operand, RankBuilder, Read, Schedule, Write};
use std::ops::Range;

const ALGORITHM: Algorithm = Algorithm::RecursiveDoubling;

pub(super) const ENTRIES: &[Entries] =
    &[entries(AllReduce, ALGORITHM, IN_SLOTS, true, Orders::Tree, doubling)];

fn doubling(request: &Request) -> Schedule {
    request.schedule(Chunking::Whole, Chunking::Whole, |b| {
        let world = request.world(b.rank());
        let doubling = Doubling::of(&world);
        if doubling.levels() == 0 {
            let output = [Write::To(Operand::Output(0))];
            return b.transfer(&[Held::Raw.read(0)], &output, true);
        }
        tell(b, Operand::Input(0), &doubling.sends(0));
        for level in 0..doubling.levels() {
            doubling.combine(b, level, 0, Held::Raw, &doubling.sends(level + 1));
        }
    })
}

/// A rank's part in it: the two halves of a block tell each other what they have reduced, level by
/// level. Where the right half is smaller, each of its ranks tells several.
#[derive(Debug)]
pub(super) struct Doubling<'a> {
    team: &'a Team,
    /// As [`blocks`] has them.
    blocks: Vec<(usize, usize, usize)>,
}

impl Doubling<'_> {
    pub(super) fn of(team: &Team) -> Doubling<'_> {
        Doubling { team, blocks: blocks(team.len(), team.me) }
    }

    pub(super) fn levels(&self) -> usize {
        self.blocks.len()
    }

    /// To whom this rank tells at a level what it has reduced before; nobody behind the last.
    pub(super) fn sends(&self, level: usize) -> Vec<Write> {
        let Some((mine, others)) = self.halves(level) else { return Vec::new() };
        let told = (others.start + self.team.me - mine.start..others.end).step_by(mine.len());
        told.map(|place| Write::Send(self.team.link(place))).collect()
    }

    /// Reduces what this rank has of a chunk with what the other half tells; the result goes to the
    /// output, and to peers. `held` is what it has of the chunk before the first level.
    pub(super) fn combine(
        &self,
        b: &mut RankBuilder,
        level: usize,
        chunk: usize,
        held: Held,
        sends: &[Write],
    ) {
        let Some((mine, others)) = self.halves(level) else { return };
        let from = self.team.link(others.start + (self.team.me - mine.start) % others.len());
        // A single rank's half is that rank's own.
        let theirs = if others.len() == 1 { held.recv(from) } else { Read::Recv(from) };
        let own = if level == 0 { held } else { Held::Partial };
        let mut reads = [own.read(chunk), theirs];
        if others.start < mine.start {
            reads.reverse();
        }
        let last = level + 1 == self.levels();
        spread(b, reads.len(), Operand::Output(chunk), sends, |b, writes| {
            b.transfer(&reads, writes, last);
        });
    }

    /// The half of a level's block with this rank, and the other.
    fn halves(&self, level: usize) -> Option<(Range<usize>, Range<usize>)> {
        let &(low, middle, high) = self.blocks.get(level)?;
        let halves = (low..middle, middle..high);
        Some(if self.team.me < middle { halves } else { (halves.1, halves.0) })
    }
}
