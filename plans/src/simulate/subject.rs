//! What is simulated: a schedule that is there, or an algorithm whose ranks' instructions are made
//! one by one.

use super::compile::limit;
use super::fold::{Alike, Found, Shape, simulated};
use super::turns::Turns;
use super::{Fold, RANK_BY_RANK, SimulationError};
use crate::algorithms::{Entry, Pipeline};
use crate::collective::{Collective, Order};
use crate::schedule::{Chunking, Instruction, Schedule, Turning};
use crate::topology::{Network, Placement};
use crate::verify::needed_channels;
use std::borrow::Cow;
use std::sync::OnceLock;

/// A schedule, or how to make one rank's part of it.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    source: Source<'a>,
    pub(super) collective: Collective,
    pub(super) input: Chunking,
    pub(super) output: Chunking,
    pub(super) lists_per_rank: usize,
    /// Channels without which it cannot run.
    pub(super) needed_channels: usize,
    /// After how many ranks instructions repeat, where they are made so.
    pub(super) period: Option<usize>,
    /// The same of hypercubes ([`Entry::cube`]).
    pub(super) cube: Option<usize>,
    /// The same of ranks inside of nodes of so many ([`Entry::inside`]).
    pub(super) inside: Option<usize>,
    /// Who was found to be alike on networks of a shape: sizes do not matter.
    pub(super) alike: OnceLock<(Shape, Found)>,
}

#[derive(Clone, Debug)]
enum Source<'a> {
    Schedule(&'a Schedule),
    Entry { entry: &'a Entry, placement: Placement, order: Order, pipeline: Pipeline },
}

impl<'a> Subject<'a> {
    /// A schedule. It need not be proven.
    ///
    /// # Errors
    /// An operand or a shape that no executor takes.
    pub fn schedule(schedule: &'a Schedule) -> Result<Subject<'a>, SimulationError> {
        Ok(Self::of_channels(schedule, needed_channels(schedule)?))
    }

    /// The same of so many channels, of which each list has its own.
    pub(super) fn of_channels(schedule: &'a Schedule, needed_channels: usize) -> Subject<'a> {
        Subject {
            source: Source::Schedule(schedule),
            collective: schedule.collective,
            input: schedule.input,
            output: schedule.output,
            lists_per_rank: schedule.lists_per_rank,
            needed_channels,
            period: None,
            cube: None,
            inside: None,
            alike: OnceLock::new(),
        }
    }

    /// An algorithm out of the catalogue, for a world that may be too large to hold all of its
    /// instructions.
    ///
    /// # Errors
    /// It does not exist for so many ranks, placed so.
    pub fn entry(
        entry: &'a Entry,
        collective: Collective,
        placement: Placement,
        order: Order,
        pipeline: impl Into<Pipeline>,
    ) -> Result<Subject<'a>, SimulationError> {
        let pipeline = pipeline.into();
        let first = entry.schedule_of_ranks(collective, placement, order, pipeline, 0..1)?;
        let period = entry.period(collective, placement, order, pipeline)?;
        let cube = entry.cube(collective.ranks, placement);
        let inside = entry.inside(placement);
        let source = Source::Entry { entry, placement, order, pipeline };
        let (input, output, alike) = (first.input, first.output, OnceLock::new());
        Ok(Subject {
            source,
            collective,
            input,
            output,
            lists_per_rank: 1,
            needed_channels: 1,
            period,
            cube,
            inside,
            alike,
        })
    }

    /// Whether it is small enough, as far as that is known without simulating it.
    ///
    /// # Errors
    /// A schedule with too many instructions whose ranks are not alike.
    pub fn check_size(&self, network: &Network, fold: Fold) -> Result<(), SimulationError> {
        let none = Turns::none(self.collective.ranks, network.per_node());
        // Where that does not tell who is alike, all are made one by one to be compared.
        self.refuse_too_large(match Alike::of(self, network) {
            Ok(alike) if fold != Fold::Never => alike.known()?,
            _ => none,
        })
    }

    /// How many first ranks stand for those of other nodes by how the algorithm is made, and how
    /// they are turned; `None` where that does not tell.
    pub(super) fn firsts(&self, per_pod: usize) -> Option<(usize, Turning)> {
        let ranks = self.collective.ranks;
        let added = self.period.and_then(|period| simulated(ranks, per_pod, period));
        let cubes = self.cube.filter(|_| per_pod.is_power_of_two());
        let turned = cubes.map(|period| period.max(per_pod)).filter(|firsts| *firsts < ranks);
        let added = added.map(|firsts| (firsts, Turning::Add));
        added.or(turned.map(|firsts| (firsts, Turning::Xor)))
    }

    /// Refuses more instructions than are held at once.
    pub(super) fn refuse_too_large(&self, turns: Turns) -> Result<(), SimulationError> {
        if self.collective.ranks <= RANK_BY_RANK {
            return Ok(());
        }
        let (expected, limit) = (self.instructions(turns)?, limit(turns.simulated()));
        if expected > limit { Err(SimulationError::too_large(expected, limit)) } else { Ok(()) }
    }

    /// About how many instructions are simulated: a few ranks from all over give the number.
    pub(super) fn instructions(&self, turns: Turns) -> Result<u64, SimulationError> {
        let ranks = self.collective.ranks;
        let all = [0, ranks / 3, ranks / 2, ranks - 1];
        let sample = if turns.turns_nodes() { &all[..1] } else { &all };
        let mut total = 0;
        for rank in sample {
            for list in rank * self.lists_per_rank..(rank + 1) * self.lists_per_rank {
                total += self.list(list)?.len() as u64;
            }
        }
        Ok(total * turns.simulated() as u64 / sample.len() as u64)
    }

    /// All of it.
    pub(super) fn whole(&self) -> Result<Cow<'a, Schedule>, SimulationError> {
        Ok(match self.source {
            Source::Schedule(schedule) => Cow::Borrowed(schedule),
            Source::Entry { entry, placement, order, pipeline } => {
                Cow::Owned(entry.schedule(self.collective, placement, order, pipeline)?)
            }
        })
    }

    /// How input and output are divided.
    pub fn chunking(&self) -> (Chunking, Chunking) {
        (self.input, self.output)
    }

    /// A list's instructions, by its number among all: the rank, where each has one.
    pub(super) fn list(&self, rank: usize) -> Result<Cow<'a, [Instruction]>, SimulationError> {
        match self.source {
            Source::Schedule(schedule) => Ok(Cow::Borrowed(&schedule.lists[rank])),
            Source::Entry { entry, placement, order, pipeline } => {
                let ranks = rank..rank + 1;
                let one =
                    entry.schedule_of_ranks(self.collective, placement, order, pipeline, ranks)?;
                Ok(Cow::Owned(one.lists.into_iter().next().unwrap_or_default()))
            }
        }
    }
}
