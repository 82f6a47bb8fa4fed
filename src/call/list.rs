//! A group's list of calls, over bare memory.

use super::{Asked, Call, Counts, Memory, one_count_each};
use crate::error::Error;
use oxccl_plans::collective::{Collective, Kind};
use oxccl_plans::element::{Element, ReduceOp};

/// The calls of a group while it is made. A list can be used again: where the next group asks for the same, its calls are there already.
#[derive(Debug, Default)]
pub(crate) struct CallList {
    rank: usize,
    world: usize,
    /// The group's so far, and behind them those of the group before it.
    calls: Vec<Call>,
    /// The group's calls so far.
    len: usize,
    /// Most channels of these; 0: as many as the communicator takes.
    channels: u16,
    /// Where the engine has these calls, as long as they stay the same.
    pub(crate) placed: Option<Placed>,
}

/// Where the engine has placed calls: until it has given their place to others, they can be launched again without a look at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// The launch, and what tells it from other buffers that this launch has had.
    pub(crate) at: usize,
    pub(crate) placing: u64,
}

impl CallList {
    /// Begins a group of this rank, whose calls have at most so many channels; 0: as many as the communicator takes.
    pub(crate) fn begin(self, rank: usize, world: usize, channels: u16) -> CallList {
        let mut list = CallList { rank, world, len: 0, ..self };
        if channels != list.channels {
            list.truncate();
            list.channels = channels;
        }
        list
    }

    /// The group's calls so far.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Ends the list here.
    pub(crate) fn finish(&mut self) {
        if self.len < self.calls.len() {
            self.truncate();
        }
    }

    /// The calls of a finished list.
    pub(crate) fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// Forgets what the group before it had from here on.
    fn truncate(&mut self) {
        self.calls.truncate(self.len);
        self.placed = None;
    }

    /// A call with equal parts. Returns its place in the group.
    #[inline(always)]
    pub(crate) fn push<T: Element>(
        &mut self,
        collective: Collective,
        input: Memory,
        output: Memory,
        op: ReduceOp<T>,
    ) -> Result<usize, Error> {
        let asked = Asked::new(collective, input, output, op);
        if self.calls.get(self.len).is_some_and(|call| call.asked == asked) {
            self.len += 1;
            return Ok(self.len - 1);
        }
        self.keep(Call::new(collective, self.rank, input, output, op)?)
    }

    /// A gather or scatter in place.
    pub(crate) fn push_of_root<T: Element>(
        &mut self,
        collective: Collective,
        buffer: Memory,
    ) -> Result<usize, Error> {
        let [input, output] = buffer.of_root::<T>(collective, self.rank)?;
        self.push(collective, input, output, ReduceOp::<T>::Sum)
    }

    /// A call whose parts differ by rank, alike on all ranks, with one buffer: this rank's part is the input of an all-gather, the output of
    /// others.
    pub(crate) fn push_per_rank_in_place<T: Element>(
        &mut self,
        kind: Kind,
        counts: &[usize],
        all: Memory,
        op: ReduceOp<T>,
    ) -> Result<usize, Error> {
        one_count_each(kind, "counts", counts, self.world)?;
        let own = all.uneven_part::<T>(kind, self.rank, counts)?;
        let buffers = if kind == Kind::AllGather { (own, all) } else { (all, own) };
        self.push_per_rank(kind, counts, buffers, op)
    }

    /// A call whose parts differ by rank, alike on all ranks.
    pub(crate) fn push_per_rank<T: Element>(
        &mut self,
        kind: Kind,
        counts: &[usize],
        (input, output): (Memory, Memory),
        op: ReduceOp<T>,
    ) -> Result<usize, Error> {
        one_count_each(kind, "counts", counts, self.world)?;
        let counts = Counts::PerRank(counts.to_vec());
        self.keep(Call::with_counts(kind, self.rank, counts, input, output, op)?)
    }

    /// An all-to-all whose parts differ, of which this rank knows its own.
    pub(crate) fn push_all_to_all_v<T: Element>(
        &mut self,
        (input, send_counts): (Memory, &[usize]),
        (output, recv_counts): (Memory, &[usize]),
    ) -> Result<usize, Error> {
        let kind = Kind::AllToAll;
        let counts = Counts::own(self.rank, self.world, send_counts, recv_counts)?;
        let op = ReduceOp::<T>::Sum;
        self.keep(Call::with_counts(kind, self.rank, counts, input, output, op)?)
    }

    pub(crate) fn collective(&self, kind: Kind) -> Collective {
        Collective::new(kind, self.world)
    }

    pub(crate) fn rooted(&self, kind: Kind, root: usize) -> Collective {
        Collective::rooted(kind, self.world, root)
    }

    pub(crate) fn send_to(&self, peer: usize) -> Collective {
        Collective::send_recv(self.world, self.rank, peer)
    }

    pub(crate) fn recv_from(&self, peer: usize) -> Collective {
        Collective::send_recv(self.world, peer, self.rank)
    }

    pub(crate) fn own_part<T: Element>(&self, kind: Kind, all: Memory) -> Result<Memory, Error> {
        all.part::<T>(kind, self.rank, self.world)
    }

    #[cold]
    fn keep(&mut self, call: Call) -> Result<usize, Error> {
        self.truncate();
        self.calls.push(Call { channels: self.channels, ..call });
        self.len += 1;
        Ok(self.len - 1)
    }
}
