//! A group's list of calls, over bare memory, and the typed methods that fill it.

use crate::call::{Asked, Call, Counts, Memory, one_count_each};
use crate::collective::{Collective, Kind};
use crate::element::{Element, ReduceOp};
use crate::engine::Placed;
use crate::error::Error;

/// The calls of a group while it is made. A list can be used again: where the next group asks for the same, its calls are there already.
#[derive(Debug, Default)]
pub(crate) struct CallList {
    rank: usize,
    world: usize,
    /// The group's so far, and behind them those of the group before it.
    calls: Vec<Call>,
    /// What each was made from, where an equal call may come again.
    asked: Vec<Option<Asked>>,
    /// The group's calls so far.
    len: usize,
    /// Where the engine has these calls, as long as they are those that it was given last.
    pub(crate) placed: Option<Placed>,
}

impl CallList {
    /// Begins a group of this rank.
    pub(crate) fn begin(self, rank: usize, world: usize) -> CallList {
        CallList { rank, world, len: 0, ..self }
    }

    /// The group's calls so far.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Ends the list here.
    pub(super) fn finish(&mut self) {
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
        self.asked.truncate(self.len);
        self.placed = None;
    }

    /// A call with equal parts. Returns its place in the group.
    pub(super) fn push<T: Element>(
        &mut self,
        collective: Collective,
        input: Memory,
        output: Memory,
        op: ReduceOp<T>,
    ) -> Result<usize, Error> {
        let asked = Some(Asked::new(collective, input, output, op));
        if self.asked.get(self.len) == Some(&asked) {
            self.len += 1;
            return Ok(self.len - 1);
        }
        self.keep(Call::new(collective, self.rank, input, output, op)?, asked)
    }

    /// A call whose parts differ by rank, alike on all ranks.
    pub(super) fn push_per_rank<T: Element>(
        &mut self,
        kind: Kind,
        counts: &[usize],
        (input, output): (Memory, Memory),
        op: ReduceOp<T>,
    ) -> Result<usize, Error> {
        one_count_each(kind, "counts", counts, self.world)?;
        let counts = Counts::PerRank(counts.to_vec());
        self.keep(Call::with_counts(kind, self.rank, counts, input, output, op)?, None)
    }

    /// An all-to-all whose parts differ, of which this rank knows its own.
    pub(super) fn push_all_to_all_v<T: Element>(
        &mut self,
        (input, send_counts): (Memory, &[usize]),
        (output, recv_counts): (Memory, &[usize]),
    ) -> Result<usize, Error> {
        let kind = Kind::AllToAll;
        for (argument, counts) in [("send_counts", send_counts), ("recv_counts", recv_counts)] {
            one_count_each(kind, argument, counts, self.world)?;
        }
        let (sent, received) = (send_counts[self.rank], recv_counts[self.rank]);
        if sent != received {
            let (sender, receiver) = (self.rank, self.rank);
            return Err(Error::CountsDiffer { sender, receiver, sent, received });
        }
        let counts = Counts::Own { send: send_counts.to_vec(), recv: recv_counts.to_vec() };
        let op = ReduceOp::<T>::Sum;
        self.keep(Call::with_counts(kind, self.rank, counts, input, output, op)?, None)
    }

    pub(super) fn collective(&self, kind: Kind) -> Collective {
        Collective::new(kind, self.world)
    }

    pub(super) fn rooted(&self, kind: Kind, root: usize) -> Collective {
        Collective::rooted(kind, self.world, root)
    }

    pub(super) fn send_to(&self, peer: usize) -> Collective {
        Collective::send_recv(self.world, self.rank, peer)
    }

    pub(super) fn recv_from(&self, peer: usize) -> Collective {
        Collective::send_recv(self.world, peer, self.rank)
    }

    pub(super) fn own_part<T: Element>(&self, kind: Kind, all: Memory) -> Result<Memory, Error> {
        all.part::<T>(kind, self.rank, self.world)
    }

    fn keep(&mut self, call: Call, asked: Option<Asked>) -> Result<usize, Error> {
        self.truncate();
        self.calls.push(call);
        self.asked.push(asked);
        self.len += 1;
        Ok(self.len - 1)
    }
}

/// The calls of a group over buffers of one kind: `T` is the element type. The group has a `list`, and `read` and `write` make memory
/// of buffers.
macro_rules! group_calls {
    ($group:ident, $buffer:ty) => {
        impl<'a> $group<'a> {
            /// [`Communicator::all_reduce`](crate::Communicator::all_reduce).
            ///
            /// # Errors
            /// Those that this rank can see; the rest come when the group runs.
            pub fn all_reduce<T: Element>(
                &mut self,
                from: &'a $buffer,
                to: &'a mut $buffer,
                op: ReduceOp<T>,
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(from), self.write(to));
                self.list.push(self.list.collective(Kind::AllReduce), input, output, op)
            }

            /// [`Communicator::all_reduce_in_place`](crate::Communicator::all_reduce_in_place).
            ///
            /// # Errors
            /// See above.
            pub fn all_reduce_in_place<T: Element>(
                &mut self,
                buffer: &'a mut $buffer,
                op: ReduceOp<T>,
            ) -> Result<usize, Error> {
                let all = self.write(buffer);
                self.list.push(self.list.collective(Kind::AllReduce), all, all, op)
            }

            /// [`Communicator::reduce_scatter`](crate::Communicator::reduce_scatter).
            ///
            /// # Errors
            /// See above.
            pub fn reduce_scatter<T: Element>(
                &mut self,
                from: &'a $buffer,
                to: &'a mut $buffer,
                op: ReduceOp<T>,
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(from), self.write(to));
                self.list.push(self.list.collective(Kind::ReduceScatter), input, output, op)
            }

            /// [`Communicator::reduce_scatter_in_place`](crate::Communicator::reduce_scatter_in_place).
            ///
            /// # Errors
            /// See above.
            pub fn reduce_scatter_in_place<T: Element>(
                &mut self,
                buffer: &'a mut $buffer,
                op: ReduceOp<T>,
            ) -> Result<usize, Error> {
                let all = self.write(buffer);
                let own = self.list.own_part::<T>(Kind::ReduceScatter, all)?;
                self.list.push(self.list.collective(Kind::ReduceScatter), all, own, op)
            }

            /// [`Communicator::reduce_scatter_v`](crate::Communicator::reduce_scatter_v).
            ///
            /// # Errors
            /// See above.
            pub fn reduce_scatter_v<T: Element>(
                &mut self,
                from: &'a $buffer,
                to: &'a mut $buffer,
                counts: &[usize],
                op: ReduceOp<T>,
            ) -> Result<usize, Error> {
                let memory = (self.read(from), self.write(to));
                self.list.push_per_rank(Kind::ReduceScatter, counts, memory, op)
            }

            /// [`Communicator::all_gather`](crate::Communicator::all_gather).
            ///
            /// # Errors
            /// See above.
            pub fn all_gather<T: Element>(
                &mut self,
                from: &'a $buffer,
                to: &'a mut $buffer,
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(from), self.write(to));
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.collective(Kind::AllGather), input, output, op)
            }

            /// [`Communicator::all_gather_in_place`](crate::Communicator::all_gather_in_place).
            ///
            /// # Errors
            /// See above.
            pub fn all_gather_in_place<T: Element>(
                &mut self,
                buffer: &'a mut $buffer,
            ) -> Result<usize, Error> {
                let all = self.write(buffer);
                let own = self.list.own_part::<T>(Kind::AllGather, all)?;
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.collective(Kind::AllGather), own, all, op)
            }

            /// [`Communicator::all_gather_v`](crate::Communicator::all_gather_v).
            ///
            /// # Errors
            /// See above.
            pub fn all_gather_v<T: Element>(
                &mut self,
                from: &'a $buffer,
                to: &'a mut $buffer,
                counts: &[usize],
            ) -> Result<usize, Error> {
                let memory = (self.read(from), self.write(to));
                self.list.push_per_rank(Kind::AllGather, counts, memory, ReduceOp::<T>::Sum)
            }

            /// [`Communicator::all_to_all`](crate::Communicator::all_to_all).
            ///
            /// # Errors
            /// See above.
            pub fn all_to_all<T: Element>(
                &mut self,
                from: &'a $buffer,
                to: &'a mut $buffer,
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(from), self.write(to));
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.collective(Kind::AllToAll), input, output, op)
            }

            /// [`Communicator::all_to_all_in_place`](crate::Communicator::all_to_all_in_place).
            ///
            /// # Errors
            /// See above.
            pub fn all_to_all_in_place<T: Element>(
                &mut self,
                buffer: &'a mut $buffer,
            ) -> Result<usize, Error> {
                let all = self.write(buffer);
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.collective(Kind::AllToAll), all, all, op)
            }

            /// As [`Communicator::all_to_all_v`](crate::Communicator::all_to_all_v), carried out as messages, so that counts need not be
            /// exchanged before.
            ///
            /// # Errors
            /// See above. Counts that differ between two ranks are an [`Error::Mismatch`] of their messages.
            pub fn all_to_all_v<T: Element>(
                &mut self,
                from: &'a $buffer,
                send_counts: &[usize],
                to: &'a mut $buffer,
                recv_counts: &[usize],
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(from), self.write(to));
                self.list.push_all_to_all_v::<T>((input, send_counts), (output, recv_counts))
            }

            /// [`Communicator::broadcast`](crate::Communicator::broadcast).
            ///
            /// # Errors
            /// See above.
            pub fn broadcast<T: Element>(
                &mut self,
                from: &'a $buffer,
                to: &'a mut $buffer,
                root: usize,
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(from), self.write(to));
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.rooted(Kind::Broadcast, root), input, output, op)
            }

            /// [`Communicator::broadcast_in_place`](crate::Communicator::broadcast_in_place).
            ///
            /// # Errors
            /// See above.
            pub fn broadcast_in_place<T: Element>(
                &mut self,
                buffer: &'a mut $buffer,
                root: usize,
            ) -> Result<usize, Error> {
                let all = self.write(buffer);
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.rooted(Kind::Broadcast, root), all, all, op)
            }

            /// [`Communicator::reduce`](crate::Communicator::reduce).
            ///
            /// # Errors
            /// See above.
            pub fn reduce<T: Element>(
                &mut self,
                from: &'a $buffer,
                to: &'a mut $buffer,
                op: ReduceOp<T>,
                root: usize,
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(from), self.write(to));
                self.list.push(self.list.rooted(Kind::Reduce, root), input, output, op)
            }

            /// [`Communicator::reduce_in_place`](crate::Communicator::reduce_in_place).
            ///
            /// # Errors
            /// See above.
            pub fn reduce_in_place<T: Element>(
                &mut self,
                buffer: &'a mut $buffer,
                op: ReduceOp<T>,
                root: usize,
            ) -> Result<usize, Error> {
                let all = self.write(buffer);
                self.list.push(self.list.rooted(Kind::Reduce, root), all, all, op)
            }

            /// [`Communicator::gather`](crate::Communicator::gather).
            ///
            /// # Errors
            /// See above.
            pub fn gather<T: Element>(
                &mut self,
                from: &'a $buffer,
                to: &'a mut $buffer,
                root: usize,
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(from), self.write(to));
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.rooted(Kind::Gather, root), input, output, op)
            }

            /// [`Communicator::scatter`](crate::Communicator::scatter).
            ///
            /// # Errors
            /// See above.
            pub fn scatter<T: Element>(
                &mut self,
                from: &'a $buffer,
                to: &'a mut $buffer,
                root: usize,
            ) -> Result<usize, Error> {
                let (input, output) = (self.read(from), self.write(to));
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.rooted(Kind::Scatter, root), input, output, op)
            }

            /// A message to another rank, which it receives in a group of its own: see [`Communicator::group`](crate::Communicator::group).
            ///
            /// # Errors
            /// See above.
            pub fn send<T: Element>(
                &mut self,
                from: &'a $buffer,
                peer: usize,
            ) -> Result<usize, Error> {
                let input = self.read(from);
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.send_to(peer), input, Memory::NONE, op)
            }

            /// The next message from another rank.
            ///
            /// # Errors
            /// See above.
            pub fn recv<T: Element>(
                &mut self,
                to: &'a mut $buffer,
                peer: usize,
            ) -> Result<usize, Error> {
                let output = self.write(to);
                let op = ReduceOp::<T>::Sum;
                self.list.push(self.list.recv_from(peer), Memory::NONE, output, op)
            }

            /// [`Communicator::barrier`](crate::Communicator::barrier).
            ///
            /// # Errors
            /// See above.
            pub fn barrier(&mut self) -> Result<usize, Error> {
                let (none, op) = (Memory::NONE, ReduceOp::<u8>::Sum);
                self.list.push(self.list.collective(Kind::Barrier), none, none, op)
            }
        }
    };
}
pub(super) use group_calls;
