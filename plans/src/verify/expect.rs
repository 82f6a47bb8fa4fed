//! What each kind of collective promises, and how its buffers lie.

use super::value::Part;
use crate::collective::{Collective, Kind};
use crate::schedule::{Buffer, Chunking, Schedule};

/// A chunk of one of a rank's buffers: a place in memory.
pub(super) type Place = (Buffer, usize);

/// Where chunks lie, and what must be in them at the end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expectation {
    pub(super) collective: Collective,
    inputs: usize,
    outputs: usize,
    /// Chunks of a rank's part, where buffers have parts by rank.
    of_part: usize,
    /// Whether each rank's input and output are one buffer.
    in_place: bool,
}

impl Expectation {
    pub(super) fn new(schedule: &Schedule, in_place: bool) -> Expectation {
        let ranks = schedule.collective.ranks;
        Expectation {
            collective: schedule.collective,
            inputs: schedule.input.chunks(ranks),
            outputs: schedule.output.chunks(ranks),
            of_part: match (schedule.input, schedule.output) {
                (Chunking::PerRank(chunks), _) | (_, Chunking::PerRank(chunks)) => chunks.max(1),
                _ => 1,
            },
            in_place,
        }
    }

    /// Number of chunks.
    pub(super) fn chunks(&self, buffer: Buffer) -> usize {
        match buffer {
            Buffer::Input => self.inputs,
            Buffer::Output => self.outputs,
        }
    }

    /// Whether the buffer has a part in the collective.
    pub(super) fn has(&self, rank: usize, buffer: Buffer) -> bool {
        match buffer {
            Buffer::Input => self.collective.has_input(rank),
            Buffer::Output => self.collective.has_output(rank),
        }
    }

    /// Which elements a chunk holds.
    pub(super) fn part(&self, rank: usize, buffer: Buffer, chunk: usize) -> Part {
        use Buffer::{Input, Output};
        let (from, to) = match (self.collective.kind, buffer) {
            (Kind::ReduceScatter | Kind::Scatter, Output) => (0, self.of_all(rank, chunk)),
            (Kind::AllGather | Kind::Gather, Input) => (0, self.of_all(rank, chunk)),
            (Kind::AllToAll, Input) => (rank, chunk),
            (Kind::AllToAll, Output) => {
                (chunk / self.of_part, self.of_all(rank, chunk % self.of_part))
            }
            _ => (0, chunk),
        };
        Part(from as u32, to as u32)
    }

    /// The chunk's place: in place, some chunks of input and output are the same.
    pub(super) fn place(&self, rank: usize, buffer: Buffer, chunk: usize) -> Place {
        let shared =
            self.in_place && self.collective.has_input(rank) && self.collective.has_output(rank);
        if !shared {
            return (buffer, chunk);
        }
        match (self.collective.kind, buffer) {
            (Kind::AllGather | Kind::Gather, Buffer::Input) => {
                (Buffer::Output, self.of_all(rank, chunk))
            }
            (Kind::ReduceScatter | Kind::Scatter, Buffer::Output) => {
                (Buffer::Input, self.of_all(rank, chunk))
            }
            (Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::AllToAll, Buffer::Output) => {
                (Buffer::Input, chunk)
            }
            _ => (buffer, chunk),
        }
    }

    /// The input chunk that a place holds when the call begins.
    pub(super) fn input_at(&self, rank: usize, place: Place) -> Option<usize> {
        let gathers = matches!(self.collective.kind, Kind::AllGather | Kind::Gather);
        let chunk = match place.0 {
            Buffer::Input => place.1,
            Buffer::Output => place.1 % self.of_part,
        };
        let there = self.collective.has_input(rank)
            && (place.0 == Buffer::Input || gathers)
            && self.place(rank, Buffer::Input, chunk) == place;
        there.then_some(chunk)
    }

    /// A chunk that holds this part: whoever moves the part knows its length by it.
    pub(super) fn origin_of(&self, Part(from, to): Part) -> (usize, Buffer, usize) {
        let (from, to) = (from as usize, to as usize);
        match self.collective.kind {
            Kind::AllToAll => (from, Buffer::Input, to),
            Kind::AllGather | Kind::Gather => (to / self.of_part, Buffer::Input, to % self.of_part),
            Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce => (0, Buffer::Input, to),
            _ => (self.collective.root, Buffer::Input, to),
        }
    }

    /// The number among those of all ranks' parts of a chunk of one rank's.
    fn of_all(&self, rank: usize, chunk: usize) -> usize {
        rank * self.of_part + chunk
    }

    /// The output chunk that is in the same place as one of the input when a call is in place.
    pub(super) fn twin(&self, rank: usize, chunk: usize) -> Option<usize> {
        if !self.collective.has_input(rank) || !self.collective.has_output(rank) {
            return None;
        }
        match self.collective.kind {
            Kind::AllGather | Kind::Gather => Some(self.of_all(rank, chunk)),
            Kind::ReduceScatter | Kind::Scatter => {
                (chunk / self.of_part == rank).then_some(chunk % self.of_part)
            }
            Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::AllToAll => Some(chunk),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Chunking, Slots};

    fn expectation(kind: Kind, input: Chunking, output: Chunking, in_place: bool) -> Expectation {
        let (collective, slots) = (Collective::new(kind, 4), Slots { ll: 2, ll128: 2, slots: 2 });
        let schedule = Schedule {
            collective,
            input,
            output,
            scratch: 0,
            slots,
            lists_per_rank: 1,
            lists: vec![Vec::new(); 4],
        };
        Expectation::new(&schedule, in_place)
    }

    #[test]
    fn in_place_buffers_share_the_chunks_that_they_should() {
        use Buffer::{Input, Output};
        use Chunking::{Parts, PerRank, Whole};
        let gather = expectation(Kind::AllGather, Whole, PerRank(1), true);
        assert_eq!(gather.place(2, Input, 0), gather.place(2, Output, 2));
        assert_eq!(gather.input_at(2, (Output, 2)), Some(0));
        assert_eq!(gather.input_at(2, (Output, 1)), None);
        let scatter = expectation(Kind::ReduceScatter, PerRank(1), Whole, true);
        assert_eq!(scatter.place(2, Output, 0), scatter.place(2, Input, 2));
        assert_eq!(scatter.input_at(2, (Input, 3)), Some(3));
        let gather = expectation(Kind::AllGather, Parts(3), PerRank(3), true);
        assert_eq!(gather.place(2, Input, 1), gather.place(2, Output, 7));
        assert_eq!(gather.input_at(2, (Output, 7)), Some(1));
        assert_eq!([5, 9].map(|chunk| gather.input_at(2, (Output, chunk))), [None, None]);
        assert_eq!(gather.part(2, Input, 1), gather.part(0, Output, 7));
        assert_eq!(gather.origin_of(gather.part(0, Output, 7)), (2, Input, 1));
        let scatter = expectation(Kind::ReduceScatter, PerRank(3), Parts(3), true);
        assert_eq!(scatter.place(2, Output, 1), scatter.place(2, Input, 7));
        assert_eq!([6, 7, 9].map(|chunk| scatter.twin(2, chunk)), [Some(0), Some(1), None]);
        let exchange = expectation(Kind::AllToAll, PerRank(3), PerRank(3), false);
        // The second chunk of what rank 2 gets of rank 3.
        assert_eq!(exchange.part(3, Input, 7), exchange.part(2, Output, 10));
        // Only the root of a reduce has an output.
        let reduce = expectation(Kind::Reduce, Whole, Whole, true);
        assert_eq!(reduce.place(0, Output, 0), reduce.place(0, Input, 0));
        assert_eq!(reduce.place(1, Input, 0), (Input, 0));
    }

    #[test]
    fn buffers_apart_share_nothing() {
        let gather = expectation(Kind::AllGather, Chunking::Whole, Chunking::PerRank(1), false);
        assert_eq!(gather.input_at(2, (Buffer::Output, 2)), None);
        assert_eq!(gather.input_at(2, (Buffer::Input, 0)), Some(0));
    }
}
