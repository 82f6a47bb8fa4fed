//! The calls on a stream.

use super::OnStream;
use crate::call::{Call, Counts, Memory, one_count_each};
use crate::device::{DeviceBuffer, InFlight};
use crate::error::Error;
use crate::work::Work;
use oxccl_plans::collective::{Collective, Kind};
use oxccl_plans::element::{Element, ReduceOp};

/// What keeps the buffers of a call.
type Hold = [Option<InFlight>; 2];

/// Each returns the errors that this rank can see at once; the rest come from the [`Work`]. Shapes and rules are those of the blocking calls.
impl OnStream<'_> {
    /// [`Communicator::all_reduce`](crate::Communicator::all_reduce).
    ///
    /// # Errors
    /// See above.
    pub fn all_reduce<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        op: ReduceOp<T>,
    ) -> Result<Work, Error> {
        self.enqueue(self.collective(Kind::AllReduce), input, output, op)
    }

    /// [`Communicator::all_reduce_in_place`](crate::Communicator::all_reduce_in_place).
    ///
    /// # Errors
    /// See above.
    pub fn all_reduce_in_place<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        op: ReduceOp<T>,
    ) -> Result<Work, Error> {
        self.enqueue_in_place(self.collective(Kind::AllReduce), buffer, op)
    }

    /// [`Communicator::reduce_scatter`](crate::Communicator::reduce_scatter).
    ///
    /// # Errors
    /// See above.
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        op: ReduceOp<T>,
    ) -> Result<Work, Error> {
        self.enqueue(self.collective(Kind::ReduceScatter), input, output, op)
    }

    /// [`Communicator::reduce_scatter_in_place`](crate::Communicator::reduce_scatter_in_place).
    ///
    /// # Errors
    /// See above.
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        op: ReduceOp<T>,
    ) -> Result<Work, Error> {
        let all = memory(buffer);
        let own = self.own_part::<T>(Kind::ReduceScatter, all)?;
        self.enqueue_memory(self.collective(Kind::ReduceScatter), all, own, op, hold(buffer))
    }

    /// [`Communicator::reduce_scatter_v`](crate::Communicator::reduce_scatter_v).
    ///
    /// # Errors
    /// See above.
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        counts: &[usize],
        op: ReduceOp<T>,
    ) -> Result<Work, Error> {
        let (memory, hold) =
            ((memory(input), memory(output)), [Some(input.fly()), Some(output.fly())]);
        self.enqueue_per_rank(Kind::ReduceScatter, counts, memory, op, hold)
    }

    /// [`Communicator::reduce_scatter_v_in_place`](crate::Communicator::reduce_scatter_v_in_place).
    ///
    /// # Errors
    /// See above.
    pub fn reduce_scatter_v_in_place<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        counts: &[usize],
        op: ReduceOp<T>,
    ) -> Result<Work, Error> {
        let all = memory(buffer);
        let own = self.uneven_part::<T>(Kind::ReduceScatter, counts, all)?;
        self.enqueue_per_rank(Kind::ReduceScatter, counts, (all, own), op, hold(buffer))
    }

    /// [`Communicator::all_gather`](crate::Communicator::all_gather).
    ///
    /// # Errors
    /// See above.
    pub fn all_gather<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
    ) -> Result<Work, Error> {
        self.enqueue(self.collective(Kind::AllGather), input, output, ReduceOp::Sum)
    }

    /// [`Communicator::all_gather_in_place`](crate::Communicator::all_gather_in_place).
    ///
    /// # Errors
    /// See above.
    pub fn all_gather_in_place<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
    ) -> Result<Work, Error> {
        let all = memory(buffer);
        let own = self.own_part::<T>(Kind::AllGather, all)?;
        let op = ReduceOp::<T>::Sum;
        self.enqueue_memory(self.collective(Kind::AllGather), own, all, op, hold(buffer))
    }

    /// [`Communicator::all_gather_v`](crate::Communicator::all_gather_v).
    ///
    /// # Errors
    /// See above.
    pub fn all_gather_v<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        counts: &[usize],
    ) -> Result<Work, Error> {
        let (memory, hold) =
            ((memory(input), memory(output)), [Some(input.fly()), Some(output.fly())]);
        self.enqueue_per_rank(Kind::AllGather, counts, memory, ReduceOp::<T>::Sum, hold)
    }

    /// [`Communicator::all_gather_v_in_place`](crate::Communicator::all_gather_v_in_place).
    ///
    /// # Errors
    /// See above.
    pub fn all_gather_v_in_place<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        counts: &[usize],
    ) -> Result<Work, Error> {
        let all = memory(buffer);
        let own = self.uneven_part::<T>(Kind::AllGather, counts, all)?;
        let op = ReduceOp::<T>::Sum;
        self.enqueue_per_rank(Kind::AllGather, counts, (own, all), op, hold(buffer))
    }

    /// [`Communicator::all_to_all`](crate::Communicator::all_to_all).
    ///
    /// # Errors
    /// See above.
    pub fn all_to_all<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
    ) -> Result<Work, Error> {
        self.enqueue(self.collective(Kind::AllToAll), input, output, ReduceOp::Sum)
    }

    /// [`Communicator::all_to_all_in_place`](crate::Communicator::all_to_all_in_place).
    ///
    /// # Errors
    /// See above.
    pub fn all_to_all_in_place<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
    ) -> Result<Work, Error> {
        self.enqueue_in_place(self.collective(Kind::AllToAll), buffer, ReduceOp::Sum)
    }

    /// [`Communicator::all_to_all_v`](crate::Communicator::all_to_all_v), carried out as messages, so that counts need not be exchanged
    /// before, and the call is one launch.
    ///
    /// # Errors
    /// See above. Counts that differ between two ranks are an [`Error::Mismatch`] of the work.
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        send_counts: &[usize],
        output: &mut DeviceBuffer<T>,
        recv_counts: &[usize],
    ) -> Result<Work, Error> {
        let hold = [Some(input.fly()), Some(output.fly())];
        let counts =
            Counts::own(self.comm.rank(), self.comm.world_size(), send_counts, recv_counts)?;
        let (kind, op) = (Kind::AllToAll, ReduceOp::<T>::Sum);
        let call =
            Call::with_counts(kind, self.comm.rank(), counts, memory(input), memory(output), op)?;
        // SAFETY: the hold keeps the buffers.
        unsafe { self.submit_one(call, hold) }
    }

    /// [`Communicator::broadcast`](crate::Communicator::broadcast).
    ///
    /// # Errors
    /// See above.
    pub fn broadcast<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        root: usize,
    ) -> Result<Work, Error> {
        self.enqueue(self.rooted(Kind::Broadcast, root), input, output, ReduceOp::Sum)
    }

    /// [`Communicator::broadcast_in_place`](crate::Communicator::broadcast_in_place).
    ///
    /// # Errors
    /// See above.
    pub fn broadcast_in_place<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        root: usize,
    ) -> Result<Work, Error> {
        self.enqueue_in_place(self.rooted(Kind::Broadcast, root), buffer, ReduceOp::Sum)
    }

    /// [`Communicator::reduce`](crate::Communicator::reduce).
    ///
    /// # Errors
    /// See above.
    pub fn reduce<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        op: ReduceOp<T>,
        root: usize,
    ) -> Result<Work, Error> {
        self.enqueue(self.rooted(Kind::Reduce, root), input, output, op)
    }

    /// [`Communicator::reduce_in_place`](crate::Communicator::reduce_in_place).
    ///
    /// # Errors
    /// See above.
    pub fn reduce_in_place<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        op: ReduceOp<T>,
        root: usize,
    ) -> Result<Work, Error> {
        self.enqueue_in_place(self.rooted(Kind::Reduce, root), buffer, op)
    }

    /// [`Communicator::gather`](crate::Communicator::gather).
    ///
    /// # Errors
    /// See above.
    pub fn gather<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        root: usize,
    ) -> Result<Work, Error> {
        self.enqueue(self.rooted(Kind::Gather, root), input, output, ReduceOp::Sum)
    }

    /// [`Communicator::gather_in_place`](crate::Communicator::gather_in_place).
    ///
    /// # Errors
    /// See above.
    pub fn gather_in_place<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        root: usize,
    ) -> Result<Work, Error> {
        self.enqueue_of_root(self.rooted(Kind::Gather, root), buffer)
    }

    /// [`Communicator::scatter`](crate::Communicator::scatter).
    ///
    /// # Errors
    /// See above.
    pub fn scatter<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        root: usize,
    ) -> Result<Work, Error> {
        self.enqueue(self.rooted(Kind::Scatter, root), input, output, ReduceOp::Sum)
    }

    /// [`Communicator::scatter_in_place`](crate::Communicator::scatter_in_place).
    ///
    /// # Errors
    /// See above.
    pub fn scatter_in_place<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        root: usize,
    ) -> Result<Work, Error> {
        self.enqueue_of_root(self.rooted(Kind::Scatter, root), buffer)
    }

    /// [`Communicator::send`](crate::Communicator::send).
    ///
    /// # Errors
    /// See above.
    pub fn send<T: Element>(&self, input: &DeviceBuffer<T>, peer: usize) -> Result<Work, Error> {
        let pair = Collective::send_recv(self.comm.world_size(), self.comm.rank(), peer);
        let hold = [Some(input.fly()), None];
        self.enqueue_memory(pair, memory(input), Memory::NONE, ReduceOp::<T>::Sum, hold)
    }

    /// [`Communicator::recv`](crate::Communicator::recv).
    ///
    /// # Errors
    /// See above.
    pub fn recv<T: Element>(
        &self,
        output: &mut DeviceBuffer<T>,
        peer: usize,
    ) -> Result<Work, Error> {
        let pair = Collective::send_recv(self.comm.world_size(), peer, self.comm.rank());
        self.enqueue_memory(pair, Memory::NONE, memory(output), ReduceOp::<T>::Sum, hold(output))
    }

    /// [`Communicator::barrier`](crate::Communicator::barrier).
    ///
    /// # Errors
    /// See above.
    pub fn barrier(&self) -> Result<Work, Error> {
        let (none, op) = (Memory::NONE, ReduceOp::<u8>::Sum);
        self.enqueue_memory(self.collective(Kind::Barrier), none, none, op, [None, None])
    }

    fn collective(&self, kind: Kind) -> Collective {
        Collective::new(kind, self.comm.world_size())
    }

    fn rooted(&self, kind: Kind, root: usize) -> Collective {
        Collective::rooted(kind, self.comm.world_size(), root)
    }

    fn own_part<T: Element>(&self, kind: Kind, all: Memory) -> Result<Memory, Error> {
        all.part::<T>(kind, self.comm.rank(), self.comm.world_size())
    }

    fn uneven_part<T: Element>(
        &self,
        kind: Kind,
        counts: &[usize],
        all: Memory,
    ) -> Result<Memory, Error> {
        one_count_each(kind, "counts", counts, self.comm.world_size())?;
        all.uneven_part::<T>(kind, self.comm.rank(), counts)
    }

    fn enqueue<T: Element>(
        &self,
        collective: Collective,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        op: ReduceOp<T>,
    ) -> Result<Work, Error> {
        let hold = [Some(input.fly()), Some(output.fly())];
        self.enqueue_memory(collective, memory(input), memory(output), op, hold)
    }

    fn enqueue_in_place<T: Element>(
        &self,
        collective: Collective,
        buffer: &mut DeviceBuffer<T>,
        op: ReduceOp<T>,
    ) -> Result<Work, Error> {
        let whole = memory(buffer);
        self.enqueue_memory(collective, whole, whole, op, hold(buffer))
    }

    fn enqueue_of_root<T: Element>(
        &self,
        collective: Collective,
        buffer: &mut DeviceBuffer<T>,
    ) -> Result<Work, Error> {
        let [input, output] = memory(buffer).of_root::<T>(collective, self.comm.rank())?;
        self.enqueue_memory(collective, input, output, ReduceOp::<T>::Sum, hold(buffer))
    }

    fn enqueue_per_rank<T: Element>(
        &self,
        kind: Kind,
        counts: &[usize],
        (input, output): (Memory, Memory),
        op: ReduceOp<T>,
        hold: Hold,
    ) -> Result<Work, Error> {
        one_count_each(kind, "counts", counts, self.comm.world_size())?;
        let counts = Counts::PerRank(counts.to_vec());
        let call = Call::with_counts(kind, self.comm.rank(), counts, input, output, op)?;
        // SAFETY: the hold keeps the buffers.
        unsafe { self.submit_one(call, hold) }
    }

    /// `hold` is that of the buffers that the memory is of.
    fn enqueue_memory<T: Element>(
        &self,
        collective: Collective,
        input: Memory,
        output: Memory,
        op: ReduceOp<T>,
        hold: Hold,
    ) -> Result<Work, Error> {
        let call = Call::new(collective, self.comm.rank(), input, output, op)?;
        // SAFETY: the hold keeps the buffers, which were borrowed as the call needs them.
        unsafe { self.submit_one(call, hold) }
    }
}

fn memory<T: Element>(buffer: &DeviceBuffer<T>) -> Memory {
    Memory { address: buffer.as_ptr().cast(), count: buffer.count() }
}

/// A hold on the one buffer of a call.
fn hold<T: Element>(buffer: &DeviceBuffer<T>) -> Hold {
    [Some(buffer.fly()), None]
}
