//! What is simulated: a schedule that is there, or an algorithm whose ranks' instructions are made
//! one by one.

use super::SimulationError;
use crate::algorithms::Entry;
use crate::collective::{Collective, Order};
use crate::schedule::{Chunking, Instruction, Schedule, Slots};
use crate::topology::Placement;
use crate::verify::check_structure;
use std::borrow::Cow;

/// A schedule, or how to make one rank's part of it.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    source: Source<'a>,
    pub(super) collective: Collective,
    pub(super) input: Chunking,
    pub(super) output: Chunking,
    /// After how many ranks instructions repeat, where they are made so.
    pub(super) period: Option<usize>,
}

#[derive(Clone, Debug)]
enum Source<'a> {
    Schedule(&'a Schedule),
    Entry { entry: &'a Entry, placement: Placement, order: Order, slots: Slots },
}

impl<'a> Subject<'a> {
    /// A schedule. It need not be proven.
    ///
    /// # Errors
    /// An operand or a shape that no executor takes.
    pub fn schedule(schedule: &'a Schedule) -> Result<Subject<'a>, SimulationError> {
        check_structure(schedule)?;
        Ok(Subject {
            source: Source::Schedule(schedule),
            collective: schedule.collective,
            input: schedule.input,
            output: schedule.output,
            period: None,
        })
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
        slots: Slots,
    ) -> Result<Subject<'a>, SimulationError> {
        let first = entry.schedule_of_ranks(collective, placement, order, slots, 0..1)?;
        let period = entry.period(collective, placement, order, slots)?;
        let source = Source::Entry { entry, placement, order, slots };
        Ok(Subject { source, collective, input: first.input, output: first.output, period })
    }

    /// How input and output are divided.
    pub fn chunking(&self) -> (Chunking, Chunking) {
        (self.input, self.output)
    }

    /// A rank's instructions.
    pub(super) fn list(&self, rank: usize) -> Result<Cow<'a, [Instruction]>, SimulationError> {
        match self.source {
            Source::Schedule(schedule) => Ok(Cow::Borrowed(&schedule.ranks[rank])),
            Source::Entry { entry, placement, order, slots } => {
                let ranks = rank..rank + 1;
                let one =
                    entry.schedule_of_ranks(self.collective, placement, order, slots, ranks)?;
                Ok(Cow::Owned(one.ranks.into_iter().flatten().collect()))
            }
        }
    }
}
