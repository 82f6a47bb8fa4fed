//! The blocking calls.

use super::Communicator;
use crate::call::{Call, Counts, Memory, one_count_each};
use crate::error::Error;
use oxccl_plans::collective::{Collective, Kind};
use oxccl_plans::element::{Element, ReduceOp};

/// Calls that block until this rank's part is done. `n` is the number of ranks, all lengths are in elements, all ranks must agree on
/// type, count, op and root. Among processes, either all ranks' buffers are from `comm.alloc` or none's are.
///
/// Errors of all of them: [`Error::Length`] and the like for arguments that this rank can see are wrong, before anything is sent;
/// [`Error::Mismatch`] where ranks called different things; [`Error::TimedOut`], [`Error::Died`] and [`Error::Left`] name the rank
/// that did not come; [`Error::Broken`] after any of these.
impl Communicator {
    /// Every rank's output is the reduction of all inputs. Both have `count` elements.
    ///
    /// Ring (Patarasuk and Yuan 2009), one-shot and two-shot (Rabenseifner 2004; MSCCL++), as the tuner chooses.
    ///
    /// ```
    /// # use oxccl::{Communicator, ReduceOp};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let input = [1.0f32, comm.rank() as f32];
    /// let mut output = [0.0; 2];
    /// comm.all_reduce(&input, &mut output, ReduceOp::Sum)?;
    /// assert_eq!(output, [2.0, 1.0]);
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// See above.
    #[inline]
    pub fn all_reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp<T>,
    ) -> Result<(), Error> {
        self.blocking(
            self.collective(Kind::AllReduce),
            Memory::of(input),
            Memory::of_mut(output),
            op,
        )
    }

    /// [`all_reduce`](Communicator::all_reduce) with one buffer as input and output.
    ///
    /// # Errors
    /// See above.
    #[inline]
    pub fn all_reduce_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        op: ReduceOp<T>,
    ) -> Result<(), Error> {
        let memory = Memory::of_mut(buffer);
        self.blocking(self.collective(Kind::AllReduce), memory, memory, op)
    }

    /// Rank r's output, of `count` elements, is the reduction of chunk r of all inputs, of `n * count`.
    ///
    /// Direct exchange or the ring.
    ///
    /// ```
    /// # use oxccl::{Communicator, ReduceOp};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut output = [0i32];
    /// comm.reduce_scatter(&[1, 10], &mut output, ReduceOp::Sum)?;
    /// assert_eq!(output, [[2], [20]][comm.rank()]);
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// See above; [`Error::NotDivisible`] for an input that ranks cannot share evenly.
    #[inline]
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp<T>,
    ) -> Result<(), Error> {
        self.blocking(
            self.collective(Kind::ReduceScatter),
            Memory::of(input),
            Memory::of_mut(output),
            op,
        )
    }

    /// [`reduce_scatter`](Communicator::reduce_scatter) where the output is chunk `rank` of the buffer of `n * count` elements; its
    /// other chunks are unchanged.
    ///
    /// # Errors
    /// As [`reduce_scatter`](Communicator::reduce_scatter).
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        op: ReduceOp<T>,
    ) -> Result<(), Error> {
        let all = Memory::of_mut(buffer);
        self.blocking(
            self.collective(Kind::ReduceScatter),
            all,
            all.part::<T>(Kind::ReduceScatter, self.rank, self.world)?,
            op,
        )
    }

    /// Every rank's output, of `n * count` elements, is all inputs, of `count`, in rank order.
    ///
    /// Direct exchange or the ring.
    ///
    /// ```
    /// # use oxccl::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut output = [0u8; 2];
    /// comm.all_gather(&[comm.rank() as u8 + 5], &mut output)?;
    /// assert_eq!(output, [5, 6]);
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// See above; [`Error::NotDivisible`] for an output that ranks cannot share evenly.
    #[inline]
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.blocking(
            self.collective(Kind::AllGather),
            Memory::of(input),
            Memory::of_mut(output),
            ReduceOp::<T>::Sum,
        )
    }

    /// [`all_gather`](Communicator::all_gather) where the input is chunk `rank` of the buffer of `n * count` elements.
    ///
    /// # Errors
    /// As [`all_gather`](Communicator::all_gather).
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<(), Error> {
        let all = Memory::of_mut(buffer);
        self.blocking(
            self.collective(Kind::AllGather),
            all.part::<T>(Kind::AllGather, self.rank, self.world)?,
            all,
            ReduceOp::<T>::Sum,
        )
    }

    /// Chunk s of rank r's output is chunk r of rank s's input. Both have `n * count` elements.
    ///
    /// Pairwise exchange.
    ///
    /// ```
    /// # use oxccl::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut output = [0u64; 2];
    /// comm.all_to_all(&[[1, 2], [3, 4]][comm.rank()], &mut output)?;
    /// assert_eq!(output, [[1, 3], [2, 4]][comm.rank()]);
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// See above; [`Error::NotDivisible`] for an input that ranks cannot share evenly.
    #[inline]
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.blocking(
            self.collective(Kind::AllToAll),
            Memory::of(input),
            Memory::of_mut(output),
            ReduceOp::<T>::Sum,
        )
    }

    /// [`all_to_all`](Communicator::all_to_all) with one buffer as input and output, on every rank.
    ///
    /// # Errors
    /// As [`all_to_all`](Communicator::all_to_all).
    pub fn all_to_all_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<(), Error> {
        let memory = Memory::of_mut(buffer);
        self.blocking(self.collective(Kind::AllToAll), memory, memory, ReduceOp::<T>::Sum)
    }

    /// Every rank's output is the root's input. Both have `count` elements; the other ranks' input is not looked at and may be empty.
    ///
    /// Direct, or the chain. The root may return before the others have called.
    ///
    /// ```
    /// # use oxccl::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut output = [0.0f64; 3];
    /// comm.broadcast(if comm.rank() == 1 { &[1.0, 2.0, 3.0] } else { &[] }, &mut output, 1)?;
    /// assert_eq!(output, [1.0, 2.0, 3.0]);
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// See above; [`Error::Rank`] for a root that does not exist.
    #[inline]
    pub fn broadcast<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: usize,
    ) -> Result<(), Error> {
        self.blocking(
            self.rooted(Kind::Broadcast, root),
            Memory::of(input),
            Memory::of_mut(output),
            ReduceOp::<T>::Sum,
        )
    }

    /// [`broadcast`](Communicator::broadcast) with one buffer: the input on the root, the output elsewhere.
    ///
    /// # Errors
    /// As [`broadcast`](Communicator::broadcast).
    #[inline]
    pub fn broadcast_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        root: usize,
    ) -> Result<(), Error> {
        let memory = Memory::of_mut(buffer);
        self.blocking(self.rooted(Kind::Broadcast, root), memory, memory, ReduceOp::<T>::Sum)
    }

    /// The root's output is the reduction of all inputs. Both have `count` elements; the other ranks' output is not touched and may be
    /// empty.
    ///
    /// Direct, or the chain.
    ///
    /// ```
    /// # use oxccl::{Communicator, ReduceOp};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut output = [0u32; 2];
    /// comm.reduce(&[3, comm.rank() as u32], &mut output, ReduceOp::Max, 0)?;
    /// assert_eq!(output, [[3, 1], [0, 0]][comm.rank()]);
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`broadcast`](Communicator::broadcast).
    #[inline]
    pub fn reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp<T>,
        root: usize,
    ) -> Result<(), Error> {
        self.blocking(
            self.rooted(Kind::Reduce, root),
            Memory::of(input),
            Memory::of_mut(output),
            op,
        )
    }

    /// [`reduce`](Communicator::reduce) with one buffer, which only the root's call changes.
    ///
    /// # Errors
    /// As [`reduce`](Communicator::reduce).
    pub fn reduce_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        op: ReduceOp<T>,
        root: usize,
    ) -> Result<(), Error> {
        let memory = Memory::of_mut(buffer);
        self.blocking(self.rooted(Kind::Reduce, root), memory, memory, op)
    }

    /// The root's output, of `n * count` elements, is all inputs, of `count`, in rank order; the other ranks' output is not touched and
    /// may be empty. Direct.
    ///
    /// ```
    /// # use oxccl::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut output = vec![0i8; if comm.rank() == 0 { 2 } else { 0 }];
    /// comm.gather(&[comm.rank() as i8], &mut output, 0)?;
    /// assert_eq!(output, [vec![0, 1], vec![]][comm.rank()]);
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`broadcast`](Communicator::broadcast).
    pub fn gather<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: usize,
    ) -> Result<(), Error> {
        self.blocking(
            self.rooted(Kind::Gather, root),
            Memory::of(input),
            Memory::of_mut(output),
            ReduceOp::<T>::Sum,
        )
    }

    /// [`gather`](Communicator::gather) with one buffer: on the root, of `n * count` elements, of which its own are in place already; elsewhere
    /// the input.
    ///
    /// # Errors
    /// As [`gather`](Communicator::gather); [`Error::NotDivisible`] for a root's buffer that ranks cannot share evenly.
    pub fn gather_in_place<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<(), Error> {
        self.of_root(self.rooted(Kind::Gather, root), buffer)
    }

    /// Rank r's output, of `count` elements, is chunk r of the root's input, of `n * count`; the other ranks' input is not looked at
    /// and may be empty. Direct.
    ///
    /// ```
    /// # use oxccl::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut output = [0i64];
    /// comm.scatter(if comm.rank() == 0 { &[7, 8] } else { &[] }, &mut output, 0)?;
    /// assert_eq!(output, [[7], [8]][comm.rank()]);
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`broadcast`](Communicator::broadcast).
    pub fn scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: usize,
    ) -> Result<(), Error> {
        self.blocking(
            self.rooted(Kind::Scatter, root),
            Memory::of(input),
            Memory::of_mut(output),
            ReduceOp::<T>::Sum,
        )
    }

    /// [`scatter`](Communicator::scatter) with one buffer: on the root, of `n * count` elements, which does not change; elsewhere the output.
    ///
    /// # Errors
    /// As [`scatter`](Communicator::scatter); [`Error::NotDivisible`] for a root's buffer that ranks cannot share evenly.
    pub fn scatter_in_place<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<(), Error> {
        self.of_root(self.rooted(Kind::Scatter, root), buffer)
    }

    /// Sends to one other rank, which calls [`recv`](Communicator::recv). Small messages leave before the receiver has called; larger
    /// ones wait for it, so of two ranks that exchange, one must receive first.
    ///
    /// ```
    /// # use oxccl::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// if comm.rank() == 0 {
    ///     comm.send(&[1.5f32], 1)?;
    /// } else {
    ///     let mut output = [0.0f32];
    ///     comm.recv(&mut output, 0)?;
    ///     assert_eq!(output, [1.5]);
    /// }
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// See above; [`Error::Rank`] if the peer does not exist or is this rank.
    pub fn send<T: Element>(&self, input: &[T], peer: usize) -> Result<(), Error> {
        let pair = Collective::send_recv(self.world, self.rank, peer);
        self.blocking(pair, Memory::of(input), Memory::NONE, ReduceOp::<T>::Sum)
    }

    /// Receives what one other rank sends with [`send`](Communicator::send): as many elements.
    ///
    /// # Errors
    /// As [`send`](Communicator::send).
    pub fn recv<T: Element>(&self, output: &mut [T], peer: usize) -> Result<(), Error> {
        let pair = Collective::send_recv(self.world, peer, self.rank);
        self.blocking(pair, Memory::NONE, Memory::of_mut(output), ReduceOp::<T>::Sum)
    }

    /// Returns when every rank has called it. Dissemination (Hensgen, Finkel and Manber 1988).
    ///
    /// # Errors
    /// See above.
    pub fn barrier(&self) -> Result<(), Error> {
        self.blocking(
            self.collective(Kind::Barrier),
            Memory::NONE,
            Memory::NONE,
            ReduceOp::<u8>::Sum,
        )
    }

    /// [`all_gather`](Communicator::all_gather) of `counts[r]` elements from rank r, without gaps. All ranks pass the same counts.
    ///
    /// # Errors
    /// As [`all_gather`](Communicator::all_gather); [`Error::Length`] unless there is a count for every rank.
    pub fn all_gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<(), Error> {
        self.per_rank(
            Kind::AllGather,
            Memory::of(input),
            Memory::of_mut(output),
            counts,
            ReduceOp::<T>::Sum,
        )
    }

    /// [`all_gather_v`](Communicator::all_gather_v) where the input is this rank's part of the buffer.
    ///
    /// # Errors
    /// As [`all_gather_v`](Communicator::all_gather_v).
    pub fn all_gather_v_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        counts: &[usize],
    ) -> Result<(), Error> {
        one_count_each(Kind::AllGather, "counts", counts, self.world)?;
        let all = Memory::of_mut(buffer);
        let own = all.uneven_part::<T>(Kind::AllGather, self.rank, counts)?;
        self.per_rank(Kind::AllGather, own, all, counts, ReduceOp::<T>::Sum)
    }

    /// [`reduce_scatter`](Communicator::reduce_scatter) where rank r keeps `counts[r]` elements of an input without gaps. All ranks pass
    /// the same counts.
    ///
    /// # Errors
    /// As [`all_gather_v`](Communicator::all_gather_v).
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        op: ReduceOp<T>,
    ) -> Result<(), Error> {
        self.per_rank(Kind::ReduceScatter, Memory::of(input), Memory::of_mut(output), counts, op)
    }

    /// [`reduce_scatter_v`](Communicator::reduce_scatter_v) where the output is this rank's part of the buffer; the others are unchanged.
    ///
    /// # Errors
    /// As [`all_gather_v`](Communicator::all_gather_v).
    pub fn reduce_scatter_v_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        counts: &[usize],
        op: ReduceOp<T>,
    ) -> Result<(), Error> {
        one_count_each(Kind::ReduceScatter, "counts", counts, self.world)?;
        let all = Memory::of_mut(buffer);
        let own = all.uneven_part::<T>(Kind::ReduceScatter, self.rank, counts)?;
        self.per_rank(Kind::ReduceScatter, all, own, counts, op)
    }

    /// [`all_to_all`](Communicator::all_to_all) where this rank sends `send_counts[r]` elements to rank r and receives
    /// `recv_counts[r]` from it, both without gaps.
    ///
    /// The ranks exchange their counts first: one small all-gather more than the calls with equal parts.
    ///
    /// # Errors
    /// As [`all_gather_v`](Communicator::all_gather_v); [`Error::CountsDiffer`], on all ranks, names two whose
    /// counts differ.
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        send_counts: &[usize],
        output: &mut [T],
        recv_counts: &[usize],
    ) -> Result<(), Error> {
        let own = [send_counts, recv_counts];
        for (argument, counts) in [("send_counts", send_counts), ("recv_counts", recv_counts)] {
            one_count_each(Kind::AllToAll, argument, counts, self.world)?;
        }
        // Before anything is sent: what only this rank can see is an error on this rank alone.
        let counts = Counts::Own { send: send_counts.to_vec(), recv: recv_counts.to_vec() };
        let (rank, op) = (self.rank, ReduceOp::<T>::Sum);
        Call::with_counts(
            Kind::AllToAll,
            rank,
            counts,
            Memory::of(input),
            Memory::of_mut(output),
            op,
        )?;
        let row: Vec<u64> = own.concat().into_iter().map(|count| count as u64).collect();
        let mut rows = vec![0u64; row.len() * self.world];
        self.all_gather(&row, &mut rows)?;
        let rows: Vec<Vec<usize>> = rows
            .chunks(2 * self.world)
            .map(|row| row.iter().map(|count| *count as usize).collect())
            .collect();
        self.check_counts(&rows)?;
        let matrix = rows.iter().map(|row| row[..self.world].to_vec()).collect();
        let counts = Counts::Matrix(matrix);
        let call = Call::with_counts(
            Kind::AllToAll,
            self.rank,
            counts,
            Memory::of(input),
            Memory::of_mut(output),
            ReduceOp::<T>::Sum,
        )?;
        // SAFETY: the memory is that of the borrowed slices.
        unsafe { self.run(&call) }
    }

    fn collective(&self, kind: Kind) -> Collective {
        Collective::new(kind, self.world)
    }

    fn rooted(&self, kind: Kind, root: usize) -> Collective {
        Collective::rooted(kind, self.world, root)
    }

    fn of_root<T: Element>(&self, collective: Collective, buffer: &mut [T]) -> Result<(), Error> {
        let [input, output] = Memory::of_mut(buffer).of_root::<T>(collective, self.rank)?;
        self.blocking(collective, input, output, ReduceOp::<T>::Sum)
    }

    fn per_rank<T: Element>(
        &self,
        kind: Kind,
        input: Memory,
        output: Memory,
        counts: &[usize],
        op: ReduceOp<T>,
    ) -> Result<(), Error> {
        one_count_each(kind, "counts", counts, self.world)?;
        let call = Call::with_counts(
            kind,
            self.rank,
            Counts::PerRank(counts.to_vec()),
            input,
            output,
            op,
        )?;
        // SAFETY: every caller passes memory of slices that it has borrowed for as long as this takes.
        unsafe { self.run(&call) }
    }

    /// Every rank sees all counts, so every rank finds the same first pair that does not agree.
    fn check_counts(&self, rows: &[Vec<usize>]) -> Result<(), Error> {
        let n = self.world;
        let pairs = (0..n).flat_map(|sender| (0..n).map(move |receiver| (sender, receiver)));
        for (sender, receiver) in pairs {
            let (sent, received) = (rows[sender][receiver], rows[receiver][n + sender]);
            if sent != received {
                return Err(Error::CountsDiffer { sender, receiver, sent, received });
            }
        }
        Ok(())
    }
}
