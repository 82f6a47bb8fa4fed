//! The collectives: typed, once, for whatever carries them out.

use crate::call::{Call, Memory, one_count_each};
use crate::error::Error;
use crate::memory::{Access, Input, Output};
use oxccl_plans::collective::Kind;
use oxccl_plans::element::{DataType, Element, ReduceOp};

/// The collectives, of a [`Communicator`](crate::Communicator), where they block; [on a
/// stream](crate::Communicator::on), where they return a [`Work`](crate::Work) at once; and of
/// groups ([`Group`](crate::Group), [`StreamGroup`](crate::StreamGroup)), where they return their
/// place in the group. Sealed.
///
/// `n` is the number of ranks, all lengths are in elements, all ranks must agree on type, count, op
/// and root. What can be a buffer, [`memory`](crate::memory) says: blocking calls take slices and
/// buffers of communicators, streams buffers alone. Among processes either all ranks' buffers are
/// of communicators or none's are. Buffers of different calls of a group must not overlap.
///
/// Errors of all of them: [`Error::Length`] and the like for arguments that this rank can see are
/// wrong, before anything is sent; [`Error::Mismatch`] where ranks called different things;
/// [`Error::TimedOut`], [`Error::Died`] and [`Error::Left`] name the rank that did not come;
/// [`Error::Broken`] after any of these. What this rank cannot see at once comes from the
/// [`Work`](crate::Work), or from the group.
///
/// `'b` is how long buffers are borrowed: for the call, and in a group until that is launched.
pub trait Collectives<'b>: Submit<'b> {
    /// Every rank's output is the reduction of all inputs. Both have `count` elements.
    ///
    /// Ring (Patarasuk and Yuan 2009), one-shot and two-shot (Rabenseifner 2004; MSCCL++), as the
    /// tuner chooses.
    ///
    /// ```
    /// # use oxccl::{Collectives, Communicator, ReduceOp};
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
    fn all_reduce<T: Element>(
        self,
        input: &'b (impl Input<T, Self::Access> + ?Sized),
        output: &'b mut (impl Output<T, Self::Access> + ?Sized),
        op: ReduceOp<T>,
    ) -> Result<Self::Done, Error> {
        let ((input, read), (output, write)) = (input.lend(), output.lend_mut());
        // SAFETY: the holds stand for the memory.
        unsafe {
            self.submit(
                Call::of(Kind::AllReduce, T::DATA_TYPE, input, output).reduce_op(op),
                [read, write],
            )
        }
    }

    /// [`all_reduce`](Collectives::all_reduce) with one buffer as input and output.
    ///
    /// # Errors
    /// See above.
    #[inline]
    fn all_reduce_in_place<T: Element>(
        self,
        buffer: &'b mut (impl Output<T, Self::Access> + ?Sized),
        op: ReduceOp<T>,
    ) -> Result<Self::Done, Error> {
        let (all, hold) = buffer.lend_mut();
        let call = Call::of(Kind::AllReduce, T::DATA_TYPE, all, all).reduce_op(op);
        // SAFETY: the holds stand for the memory.
        unsafe { self.submit(call, [hold, Self::Access::unheld()]) }
    }

    /// Rank r's output, of `count` elements, is the reduction of chunk r of all inputs, of
    /// `n * count`.
    ///
    /// Direct exchange or the ring.
    ///
    /// ```
    /// # use oxccl::{Collectives, Communicator, ReduceOp};
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
    fn reduce_scatter<T: Element>(
        self,
        input: &'b (impl Input<T, Self::Access> + ?Sized),
        output: &'b mut (impl Output<T, Self::Access> + ?Sized),
        op: ReduceOp<T>,
    ) -> Result<Self::Done, Error> {
        let ((input, read), (output, write)) = (input.lend(), output.lend_mut());
        // SAFETY: the holds stand for the memory.
        unsafe {
            self.submit(
                Call::of(Kind::ReduceScatter, T::DATA_TYPE, input, output).reduce_op(op),
                [read, write],
            )
        }
    }

    /// [`reduce_scatter`](Collectives::reduce_scatter) where the output is chunk `rank` of the
    /// buffer of `n * count` elements; its other chunks are unchanged.
    ///
    /// # Errors
    /// As [`reduce_scatter`](Collectives::reduce_scatter).
    #[inline]
    fn reduce_scatter_in_place<T: Element>(
        self,
        buffer: &'b mut (impl Output<T, Self::Access> + ?Sized),
        op: ReduceOp<T>,
    ) -> Result<Self::Done, Error> {
        let (all, hold) = buffer.lend_mut();
        let own = self.own_part(Kind::ReduceScatter, T::DATA_TYPE, all)?;
        let call = Call::of(Kind::ReduceScatter, T::DATA_TYPE, all, own).reduce_op(op);
        // SAFETY: the holds stand for the memory.
        unsafe { self.submit(call, [hold, Self::Access::unheld()]) }
    }

    /// [`reduce_scatter`](Collectives::reduce_scatter) where rank r keeps `counts[r]` elements of
    /// an input without gaps. All ranks pass the same counts.
    ///
    /// # Errors
    /// As [`all_gather_v`](Collectives::all_gather_v).
    #[inline]
    fn reduce_scatter_v<T: Element>(
        self,
        input: &'b (impl Input<T, Self::Access> + ?Sized),
        output: &'b mut (impl Output<T, Self::Access> + ?Sized),
        counts: &[usize],
        op: ReduceOp<T>,
    ) -> Result<Self::Done, Error> {
        let ((input, read), (output, write)) = (input.lend(), output.lend_mut());
        // SAFETY: the holds stand for the memory.
        unsafe {
            self.submit(
                Call::of(Kind::ReduceScatter, T::DATA_TYPE, input, output)
                    .reduce_op(op)
                    .counts(counts),
                [read, write],
            )
        }
    }

    /// [`reduce_scatter_v`](Collectives::reduce_scatter_v) where the output is this rank's part of
    /// the buffer; the others are unchanged.
    ///
    /// # Errors
    /// As [`all_gather_v`](Collectives::all_gather_v).
    #[inline]
    fn reduce_scatter_v_in_place<T: Element>(
        self,
        buffer: &'b mut (impl Output<T, Self::Access> + ?Sized),
        counts: &[usize],
        op: ReduceOp<T>,
    ) -> Result<Self::Done, Error> {
        let (all, hold) = buffer.lend_mut();
        let own = self.uneven_part(Kind::ReduceScatter, T::DATA_TYPE, all, counts)?;
        let call =
            Call::of(Kind::ReduceScatter, T::DATA_TYPE, all, own).reduce_op(op).counts(counts);
        // SAFETY: the holds stand for the memory.
        unsafe { self.submit(call, [hold, Self::Access::unheld()]) }
    }

    /// Every rank's output, of `n * count` elements, is all inputs, of `count`, in rank order.
    ///
    /// Direct exchange or the ring.
    ///
    /// ```
    /// # use oxccl::{Collectives, Communicator};
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
    fn all_gather<T: Element>(
        self,
        input: &'b (impl Input<T, Self::Access> + ?Sized),
        output: &'b mut (impl Output<T, Self::Access> + ?Sized),
    ) -> Result<Self::Done, Error> {
        let ((input, read), (output, write)) = (input.lend(), output.lend_mut());
        // SAFETY: the holds stand for the memory.
        unsafe {
            self.submit(Call::of(Kind::AllGather, T::DATA_TYPE, input, output), [read, write])
        }
    }

    /// [`all_gather`](Collectives::all_gather) where the input is chunk `rank` of the buffer of
    /// `n * count` elements.
    ///
    /// # Errors
    /// As [`all_gather`](Collectives::all_gather).
    #[inline]
    fn all_gather_in_place<T: Element>(
        self,
        buffer: &'b mut (impl Output<T, Self::Access> + ?Sized),
    ) -> Result<Self::Done, Error> {
        let (all, hold) = buffer.lend_mut();
        let own = self.own_part(Kind::AllGather, T::DATA_TYPE, all)?;
        let call = Call::of(Kind::AllGather, T::DATA_TYPE, own, all);
        // SAFETY: the holds stand for the memory.
        unsafe { self.submit(call, [hold, Self::Access::unheld()]) }
    }

    /// [`all_gather`](Collectives::all_gather) of `counts[r]` elements from rank r, without gaps.
    /// All ranks pass the same counts.
    ///
    /// # Errors
    /// As [`all_gather`](Collectives::all_gather); [`Error::Length`] unless there is a count for
    /// every rank.
    #[inline]
    fn all_gather_v<T: Element>(
        self,
        input: &'b (impl Input<T, Self::Access> + ?Sized),
        output: &'b mut (impl Output<T, Self::Access> + ?Sized),
        counts: &[usize],
    ) -> Result<Self::Done, Error> {
        let ((input, read), (output, write)) = (input.lend(), output.lend_mut());
        // SAFETY: the holds stand for the memory.
        unsafe {
            self.submit(
                Call::of(Kind::AllGather, T::DATA_TYPE, input, output).counts(counts),
                [read, write],
            )
        }
    }

    /// [`all_gather_v`](Collectives::all_gather_v) where the input is this rank's part of the
    /// buffer.
    ///
    /// # Errors
    /// As [`all_gather_v`](Collectives::all_gather_v).
    #[inline]
    fn all_gather_v_in_place<T: Element>(
        self,
        buffer: &'b mut (impl Output<T, Self::Access> + ?Sized),
        counts: &[usize],
    ) -> Result<Self::Done, Error> {
        let (all, hold) = buffer.lend_mut();
        let own = self.uneven_part(Kind::AllGather, T::DATA_TYPE, all, counts)?;
        let call = Call::of(Kind::AllGather, T::DATA_TYPE, own, all).counts(counts);
        // SAFETY: the holds stand for the memory.
        unsafe { self.submit(call, [hold, Self::Access::unheld()]) }
    }

    /// Chunk s of rank r's output is chunk r of rank s's input. Both have `n * count` elements.
    ///
    /// Pairwise exchange.
    ///
    /// ```
    /// # use oxccl::{Collectives, Communicator};
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
    fn all_to_all<T: Element>(
        self,
        input: &'b (impl Input<T, Self::Access> + ?Sized),
        output: &'b mut (impl Output<T, Self::Access> + ?Sized),
    ) -> Result<Self::Done, Error> {
        let ((input, read), (output, write)) = (input.lend(), output.lend_mut());
        // SAFETY: the holds stand for the memory.
        unsafe { self.submit(Call::of(Kind::AllToAll, T::DATA_TYPE, input, output), [read, write]) }
    }

    /// [`all_to_all`](Collectives::all_to_all) with one buffer as input and output, on every rank.
    ///
    /// # Errors
    /// As [`all_to_all`](Collectives::all_to_all).
    #[inline]
    fn all_to_all_in_place<T: Element>(
        self,
        buffer: &'b mut (impl Output<T, Self::Access> + ?Sized),
    ) -> Result<Self::Done, Error> {
        let (all, hold) = buffer.lend_mut();
        let call = Call::of(Kind::AllToAll, T::DATA_TYPE, all, all);
        // SAFETY: the holds stand for the memory.
        unsafe { self.submit(call, [hold, Self::Access::unheld()]) }
    }

    /// [`all_to_all`](Collectives::all_to_all) where this rank sends `send_counts[r]` elements to
    /// rank r and receives `recv_counts[r]` from it, both without gaps.
    ///
    /// A blocking call on a host has the ranks exchange their counts first: one small all-gather
    /// more than the calls with equal parts. Streams, groups and GPUs carry it out as messages, so
    /// that it is one launch.
    ///
    /// # Errors
    /// As [`all_gather_v`](Collectives::all_gather_v); [`Error::CountsDiffer`], on all ranks, names
    /// two whose counts differ.
    #[inline]
    fn all_to_all_v<T: Element>(
        self,
        input: &'b (impl Input<T, Self::Access> + ?Sized),
        send_counts: &[usize],
        output: &'b mut (impl Output<T, Self::Access> + ?Sized),
        recv_counts: &[usize],
    ) -> Result<Self::Done, Error> {
        let ((input, read), (output, write)) = (input.lend(), output.lend_mut());
        // SAFETY: the holds stand for the memory.
        unsafe {
            self.submit(
                Call::of(Kind::AllToAll, T::DATA_TYPE, input, output)
                    .own_counts(send_counts, recv_counts),
                [read, write],
            )
        }
    }

    /// Every rank's output is the root's input. Both have `count` elements; the other ranks' input
    /// is not looked at and may be empty.
    ///
    /// Direct, or the chain. The root may return before the others have called.
    ///
    /// ```
    /// # use oxccl::{Collectives, Communicator};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut output = [0.0f64; 3];
    /// let input: &[f64] = if comm.rank() == 1 { &[1.0, 2.0, 3.0] } else { &[] };
    /// comm.broadcast(input, &mut output, 1)?;
    /// assert_eq!(output, [1.0, 2.0, 3.0]);
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// See above; [`Error::Rank`] for a root that does not exist.
    #[inline]
    fn broadcast<T: Element>(
        self,
        input: &'b (impl Input<T, Self::Access> + ?Sized),
        output: &'b mut (impl Output<T, Self::Access> + ?Sized),
        root: usize,
    ) -> Result<Self::Done, Error> {
        let ((input, read), (output, write)) = (input.lend(), output.lend_mut());
        // SAFETY: the holds stand for the memory.
        unsafe {
            self.submit(
                Call::of(Kind::Broadcast, T::DATA_TYPE, input, output).root(root),
                [read, write],
            )
        }
    }

    /// [`broadcast`](Collectives::broadcast) with one buffer: the input on the root, the output
    /// elsewhere.
    ///
    /// # Errors
    /// As [`broadcast`](Collectives::broadcast).
    #[inline]
    fn broadcast_in_place<T: Element>(
        self,
        buffer: &'b mut (impl Output<T, Self::Access> + ?Sized),
        root: usize,
    ) -> Result<Self::Done, Error> {
        let (all, hold) = buffer.lend_mut();
        let call = Call::of(Kind::Broadcast, T::DATA_TYPE, all, all).root(root);
        // SAFETY: the holds stand for the memory.
        unsafe { self.submit(call, [hold, Self::Access::unheld()]) }
    }

    /// The root's output is the reduction of all inputs. Both have `count` elements; the other
    /// ranks' output is not touched and may be empty.
    ///
    /// Direct, or the chain.
    ///
    /// ```
    /// # use oxccl::{Collectives, Communicator, ReduceOp};
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
    /// As [`broadcast`](Collectives::broadcast).
    #[inline]
    fn reduce<T: Element>(
        self,
        input: &'b (impl Input<T, Self::Access> + ?Sized),
        output: &'b mut (impl Output<T, Self::Access> + ?Sized),
        op: ReduceOp<T>,
        root: usize,
    ) -> Result<Self::Done, Error> {
        let ((input, read), (output, write)) = (input.lend(), output.lend_mut());
        // SAFETY: the holds stand for the memory.
        unsafe {
            self.submit(
                Call::of(Kind::Reduce, T::DATA_TYPE, input, output).reduce_op(op).root(root),
                [read, write],
            )
        }
    }

    /// [`reduce`](Collectives::reduce) with one buffer, which only the root's call changes.
    ///
    /// # Errors
    /// As [`reduce`](Collectives::reduce).
    #[inline]
    fn reduce_in_place<T: Element>(
        self,
        buffer: &'b mut (impl Output<T, Self::Access> + ?Sized),
        op: ReduceOp<T>,
        root: usize,
    ) -> Result<Self::Done, Error> {
        let (all, hold) = buffer.lend_mut();
        let call = Call::of(Kind::Reduce, T::DATA_TYPE, all, all).reduce_op(op).root(root);
        // SAFETY: the holds stand for the memory.
        unsafe { self.submit(call, [hold, Self::Access::unheld()]) }
    }

    /// The root's output, of `n * count` elements, is all inputs, of `count`, in rank order; the
    /// other ranks' output is not touched and may be empty. Direct.
    ///
    /// ```
    /// # use oxccl::{Collectives, Communicator};
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
    /// As [`broadcast`](Collectives::broadcast).
    #[inline]
    fn gather<T: Element>(
        self,
        input: &'b (impl Input<T, Self::Access> + ?Sized),
        output: &'b mut (impl Output<T, Self::Access> + ?Sized),
        root: usize,
    ) -> Result<Self::Done, Error> {
        let ((input, read), (output, write)) = (input.lend(), output.lend_mut());
        // SAFETY: the holds stand for the memory.
        unsafe {
            self.submit(
                Call::of(Kind::Gather, T::DATA_TYPE, input, output).root(root),
                [read, write],
            )
        }
    }

    /// [`gather`](Collectives::gather) with one buffer: on the root, of `n * count` elements, of
    /// which its own are in place already; elsewhere the input.
    ///
    /// # Errors
    /// As [`gather`](Collectives::gather); [`Error::NotDivisible`] for a root's buffer that ranks
    /// cannot share evenly.
    #[inline]
    fn gather_in_place<T: Element>(
        self,
        buffer: &'b mut (impl Output<T, Self::Access> + ?Sized),
        root: usize,
    ) -> Result<Self::Done, Error> {
        let (all, hold) = buffer.lend_mut();
        let [input, output] = if self.rank() == root {
            let part = self.own_part(Kind::Gather, T::DATA_TYPE, all)?;
            [part, all]
        } else {
            [all, Memory::NONE]
        };
        let call = Call::of(Kind::Gather, T::DATA_TYPE, input, output).root(root);
        // SAFETY: the holds stand for the memory.
        unsafe { self.submit(call, [hold, Self::Access::unheld()]) }
    }

    /// Rank r's output, of `count` elements, is chunk r of the root's input, of `n * count`; the
    /// other ranks' input is not looked at and may be empty. Direct.
    ///
    /// ```
    /// # use oxccl::{Collectives, Communicator};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut output = [0i64];
    /// let input: &[i64] = if comm.rank() == 0 { &[7, 8] } else { &[] };
    /// comm.scatter(input, &mut output, 0)?;
    /// assert_eq!(output, [[7], [8]][comm.rank()]);
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`broadcast`](Collectives::broadcast).
    #[inline]
    fn scatter<T: Element>(
        self,
        input: &'b (impl Input<T, Self::Access> + ?Sized),
        output: &'b mut (impl Output<T, Self::Access> + ?Sized),
        root: usize,
    ) -> Result<Self::Done, Error> {
        let ((input, read), (output, write)) = (input.lend(), output.lend_mut());
        // SAFETY: the holds stand for the memory.
        unsafe {
            self.submit(
                Call::of(Kind::Scatter, T::DATA_TYPE, input, output).root(root),
                [read, write],
            )
        }
    }

    /// [`scatter`](Collectives::scatter) with one buffer: on the root, of `n * count` elements,
    /// which does not change; elsewhere the output.
    ///
    /// # Errors
    /// As [`scatter`](Collectives::scatter); [`Error::NotDivisible`] for a root's buffer that ranks
    /// cannot share evenly.
    #[inline]
    fn scatter_in_place<T: Element>(
        self,
        buffer: &'b mut (impl Output<T, Self::Access> + ?Sized),
        root: usize,
    ) -> Result<Self::Done, Error> {
        let (all, hold) = buffer.lend_mut();
        let [input, output] = if self.rank() == root {
            let part = self.own_part(Kind::Scatter, T::DATA_TYPE, all)?;
            [all, part]
        } else {
            [Memory::NONE, all]
        };
        let call = Call::of(Kind::Scatter, T::DATA_TYPE, input, output).root(root);
        // SAFETY: the holds stand for the memory.
        unsafe { self.submit(call, [hold, Self::Access::unheld()]) }
    }

    /// Sends to one other rank, which calls [`recv`](Collectives::recv). Small messages leave
    /// before the receiver has called; larger ones wait for it, so of two ranks that exchange, one
    /// must receive first.
    ///
    /// ```
    /// # use oxccl::{Collectives, Communicator};
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
    #[inline]
    fn send<T: Element>(
        self,
        input: &'b (impl Input<T, Self::Access> + ?Sized),
        peer: usize,
    ) -> Result<Self::Done, Error> {
        let (input, hold) = input.lend();
        // SAFETY: the holds stand for the memory.
        unsafe {
            self.submit(Call::send(T::DATA_TYPE, input, peer), [hold, Self::Access::unheld()])
        }
    }

    /// Receives what one other rank sends with [`send`](Collectives::send): as many elements.
    ///
    /// # Errors
    /// As [`send`](Collectives::send).
    #[inline]
    fn recv<T: Element>(
        self,
        output: &'b mut (impl Output<T, Self::Access> + ?Sized),
        peer: usize,
    ) -> Result<Self::Done, Error> {
        let (output, hold) = output.lend_mut();
        // SAFETY: the holds stand for the memory.
        unsafe {
            self.submit(Call::recv(T::DATA_TYPE, output, peer), [hold, Self::Access::unheld()])
        }
    }

    /// Returns when every rank has called it. Dissemination (Hensgen, Finkel and Manber 1988).
    ///
    /// # Errors
    /// See above.
    #[inline]
    fn barrier(self) -> Result<Self::Done, Error> {
        let call = Call::of(Kind::Barrier, DataType::U8, Memory::NONE, Memory::NONE);
        // SAFETY: it has no memory.
        unsafe { self.submit(call, [Self::Access::unheld(), Self::Access::unheld()]) }
    }

    /// Carries out a [`Call`]: the same with types that are known at run time alone.
    ///
    /// # Safety
    ///
    /// The call's memory is valid for its counts, writable where it is output, and used by nobody
    /// else, from now until a blocking call returns; on a stream, until the work has ended, and of
    /// a call that is captured, whenever it is replayed. No output overlaps buffers of another call
    /// of the group.
    ///
    /// # Errors
    /// As the typed calls; [`Error::Counts`] for parts that differ, of a kind where they cannot.
    #[inline]
    unsafe fn run(self, call: Call<'_>) -> Result<Self::Done, Error> {
        // SAFETY: by this function's contract.
        unsafe { self.submit(call, [Self::Access::unheld(), Self::Access::unheld()]) }
    }
}

impl<'b, S: Submit<'b>> Collectives<'b> for S {}

/// What carries calls out.
pub trait Submit<'b>: Sized {
    /// What a call returns at once.
    type Done;
    /// How long calls need their memory.
    type Access: Access;

    /// This rank.
    #[doc(hidden)]
    fn rank(&self) -> usize;

    /// Number of ranks.
    #[doc(hidden)]
    fn world_size(&self) -> usize;

    /// Carries a call out.
    ///
    /// # Safety
    ///
    /// The call's memory is what the holds stand for, or as [`Collectives::run`] wants it.
    #[doc(hidden)]
    unsafe fn submit(
        self,
        call: Call<'_>,
        holds: [<Self::Access as Access>::Hold<'b>; 2],
    ) -> Result<Self::Done, Error>;

    /// This rank's part of a buffer.
    #[doc(hidden)]
    fn own_part(&self, kind: Kind, data_type: DataType, all: Memory) -> Result<Memory, Error> {
        all.part(kind, data_type, self.rank(), self.world_size())
    }

    /// This rank's part of a buffer whose parts differ.
    #[doc(hidden)]
    fn uneven_part(
        &self,
        kind: Kind,
        data_type: DataType,
        all: Memory,
        counts: &[usize],
    ) -> Result<Memory, Error> {
        one_count_each(kind, "counts", counts, self.world_size())?;
        all.uneven_part(kind, data_type, self.rank(), counts)
    }
}
