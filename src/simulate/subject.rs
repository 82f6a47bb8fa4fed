//! What is simulated: a schedule that is there, or an algorithm whose ranks' instructions are made one by one.

use super::SimulationError;
use crate::algorithms::Entry;
use crate::collective::{Collective, Order};
use crate::schedule::{Chunking, Instruction, Schedule, Slots};
use crate::verify::check_structure;
use std::borrow::Cow;

/// A schedule, or how to make one rank's part of it.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    source: Source<'a>,
    pub(super) collective: Collective,
    pub(super) input: Chunking,
    pub(super) output: Chunking,
}

#[derive(Clone, Debug)]
enum Source<'a> {
    Schedule(&'a Schedule),
    Entry { entry: &'a Entry, order: Order, slots: Slots },
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
        })
    }

    /// An algorithm out of the catalogue, for a world that may be too large to hold all of its instructions.
    pub fn entry(
        entry: &'a Entry,
        collective: Collective,
        order: Order,
        slots: Slots,
    ) -> Subject<'a> {
        let first = entry.schedule_of_rank(collective, order, slots, 0);
        let source = Source::Entry { entry, order, slots };
        Subject { source, collective, input: first.input, output: first.output }
    }

    /// How input and output are divided.
    pub fn chunking(&self) -> (Chunking, Chunking) {
        (self.input, self.output)
    }

    /// A rank's instructions.
    pub(super) fn list(&self, rank: usize) -> Cow<'a, [Instruction]> {
        match self.source {
            Source::Schedule(schedule) => Cow::Borrowed(&schedule.ranks[rank]),
            Source::Entry { entry, order, slots } => {
                let mut one = entry.schedule_of_rank(self.collective, order, slots, rank);
                Cow::Owned(one.ranks.pop().unwrap_or_default())
            }
        }
    }

    /// After how many ranks instructions repeat, where they are made so.
    pub(super) fn period(&self) -> Option<usize> {
        match self.source {
            Source::Schedule(_) => None,
            Source::Entry { entry, order, slots } => entry.period(self.collective, order, slots),
        }
    }
}
