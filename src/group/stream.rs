//! Groups on streams: launched without waiting, done bucket by bucket, and ready bucket by bucket where that is wanted.

use super::calls::group_calls;
use super::unready::Unready;
use crate::call::{Call, CallList, Memory};
use crate::device::{DeviceBuffer, InFlight};
use crate::error::Error;
use crate::stream::OnStream;
use crate::work::{Flight, Work};
use oxccl_plans::collective::Kind;
use oxccl_plans::element::{Element, ReduceOp};
use std::marker::PhantomData;
use std::sync::Arc;

/// The calls of a group on a stream, while it is made: see [`OnStream::group`]. As [`Group`](crate::Group), over communicator memory.
#[derive(Debug)]
pub struct StreamGroup<'a> {
    list: CallList,
    buffers: Vec<(usize, InFlight)>,
    gated: Vec<bool>,
    flight: Arc<Flight>,
    borrow: PhantomData<&'a mut ()>,
}

group_calls!(StreamGroup, DeviceBuffer<T>);

impl OnStream<'_> {
    /// As [`Communicator::group`](crate::Communicator::group), but returns at once, with what `fill` has returned and with the work, in which
    /// each bucket can be waited for by itself.
    ///
    /// Buckets need not be ready when the group is launched: [`StreamGroup::unready`] makes calls whose input may still be written, until
    /// it is marked ready. The group begins with a bucket when it is its turn, which is the same on all ranks, and it is ready here. So no
    /// order of marks can deadlock, as long as marking one does not wait for a later one or for a bucket that is done only behind it. Which buckets are unready
    /// is each rank's own affair. Small buckets of a kind are handled together, about 4 MiB at a time: they begin when all of these are ready, and
    /// are done together; so are a rank's messages. The group's buffers stay borrowed as long as any of it is unready.
    ///
    /// ```
    /// # use oxccl::{Communicator, ReduceOp, Stream};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let stream = Stream::new()?;
    /// let (mut first, mut second) = (comm.alloc::<f32>(1000)?, comm.alloc::<f32>(1000)?);
    /// let (work, unready) = comm.on(&stream).group(|group| {
    ///     let first = group.unready().all_reduce_in_place(&mut first, ReduceOp::Sum)?;
    ///     let second = group.unready().all_reduce_in_place(&mut second, ReduceOp::Sum)?;
    ///     Ok([first, second])
    /// })?;
    /// for mut bucket in unready {
    ///     bucket.fill(1.0); // … or compute something …
    ///     bucket.ready();
    /// }
    /// if let Some(bucket) = work.bucket(0) {
    ///     bucket.wait()?;
    /// }
    /// assert_eq!(first[999], 2.0); // The second may still be under way.
    /// work.wait()?;
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// On a stream of a GPU the group is one kernel, and other streams of the GPU wait for a bucket ([`Work::wait_on`]) and mark
    /// one ready ([`Unready::ready_on`]) without the host. A stream that waits keeps back what stands behind it in others that share its
    /// connection to the GPU (`CUDA_DEVICE_MAX_CONNECTIONS`). So where streams share connections, later calls, and waits of streams, are refused
    /// ([`CudaError::TooFewConnections`](oxccl_transports::CudaError)) until the marks that they need are made; put nothing of your own behind the group
    /// in its stream before that. In a capture the group is
    /// recorded; its buckets are then marked and waited for by streams that take part in the capture, whose branches must run side by side.
    ///
    /// # Errors
    /// What `fill` returns; [`Error::OtherDevice`] and [`Error::OtherMemory`] for a stream or a buffer of another device than the
    /// communicator's; the rest comes from the work. [`Error::TimedOut`] names a bucket that was not marked ready, and its rank.
    pub fn group<'a, R>(
        &self,
        fill: impl FnOnce(&mut StreamGroup<'a>) -> Result<R, Error>,
    ) -> Result<(Work, R), Error> {
        let (comm, flight) = (self.comm(), self.comm().take_flight());
        let (buffers, gated) = flight.lists();
        let list = comm.take_calls(self.channels());
        let mut group = StreamGroup { list, buffers, gated, flight, borrow: PhantomData };
        let filled = fill(&mut group);
        let StreamGroup { mut list, buffers, mut gated, flight, .. } = group;
        let launched = filled.and_then(|result| {
            list.finish();
            gated.resize(list.len(), false);
            flight.keep(buffers);
            let work = Work::of_group(flight.clone(), list.len());
            // SAFETY: `StreamGroup`'s calls were made from buffers that are borrowed and that the flight holds, outputs exclusively; what is
            // lent of an input that is not ready is given back before its mark.
            unsafe { self.submit(list.calls(), true, &gated, &flight) }?;
            Ok((work, result))
        });
        flight.keep_room(gated);
        comm.give_calls(list);
        launched
    }

    /// Carries out calls made with [`Call::new`] as one group.
    ///
    /// # Safety
    ///
    /// As for [`OnStream::run`], for each call, until its bucket is done; no call's output overlaps another call's buffers.
    ///
    /// # Errors
    /// As [`group`](OnStream::group).
    pub unsafe fn run_group(&self, calls: &[Call]) -> Result<Work, Error> {
        let flight = self.comm().take_flight();
        let limited = |call: &Call| Call { channels: self.channels(), ..call.clone() };
        let limited: Vec<Call> = calls.iter().map(limited).collect();
        // SAFETY: by this function's contract.
        unsafe { self.submit(&limited, true, &vec![false; calls.len()], &flight) }?;
        Ok(Work::of_group(flight, calls.len()))
    }
}

impl<'a> StreamGroup<'a> {
    /// Makes the next call with an input that is not ready.
    pub fn unready(&mut self) -> UnreadyCalls<'_, 'a> {
        UnreadyCalls { group: self }
    }

    fn read<T: Element>(&mut self, input: &'a DeviceBuffer<T>) -> Memory {
        self.hold(input)
    }

    fn write<T: Element>(&mut self, output: &'a mut DeviceBuffer<T>) -> Memory {
        self.hold(output)
    }

    /// Keeps the buffer until the next call's bucket is done.
    fn hold<T: Element>(&mut self, buffer: &DeviceBuffer<T>) -> Memory {
        self.buffers.push((self.list.len(), buffer.fly()));
        Memory { address: buffer.as_ptr().cast(), count: buffer.count() }
    }
}

/// Calls whose input is not ready: see [`StreamGroup::unready`].
#[derive(Debug)]
pub struct UnreadyCalls<'g, 'a> {
    group: &'g mut StreamGroup<'a>,
}

impl<'a> UnreadyCalls<'_, 'a> {
    /// [`Communicator::all_reduce_in_place`](crate::Communicator::all_reduce_in_place).
    ///
    /// # Errors
    /// Those that this rank can see; the rest come when the group runs.
    pub fn all_reduce_in_place<T: Element>(
        self,
        buffer: &'a mut DeviceBuffer<T>,
        op: ReduceOp<T>,
    ) -> Result<Unready<'a, T>, Error> {
        self.call(buffer, |list, all| list.push(list.collective(Kind::AllReduce), all, all, op))
    }

    /// [`Communicator::all_reduce`](crate::Communicator::all_reduce).
    ///
    /// # Errors
    /// See above.
    pub fn all_reduce<T: Element>(
        self,
        input: &'a mut DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
        op: ReduceOp<T>,
    ) -> Result<Unready<'a, T>, Error> {
        let output = self.group.write(output);
        self.call(input, |list, input| {
            list.push(list.collective(Kind::AllReduce), input, output, op)
        })
    }

    /// [`Communicator::reduce_scatter`](crate::Communicator::reduce_scatter).
    ///
    /// # Errors
    /// See above.
    pub fn reduce_scatter<T: Element>(
        self,
        input: &'a mut DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
        op: ReduceOp<T>,
    ) -> Result<Unready<'a, T>, Error> {
        let output = self.group.write(output);
        self.call(input, |list, input| {
            list.push(list.collective(Kind::ReduceScatter), input, output, op)
        })
    }

    /// [`Communicator::all_gather`](crate::Communicator::all_gather).
    ///
    /// # Errors
    /// See above.
    pub fn all_gather<T: Element>(
        self,
        input: &'a mut DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
    ) -> Result<Unready<'a, T>, Error> {
        let (output, op) = (self.group.write(output), ReduceOp::<T>::Sum);
        self.call(input, |list, input| {
            list.push(list.collective(Kind::AllGather), input, output, op)
        })
    }

    /// [`Communicator::all_to_all`](crate::Communicator::all_to_all).
    ///
    /// # Errors
    /// See above.
    pub fn all_to_all<T: Element>(
        self,
        input: &'a mut DeviceBuffer<T>,
        output: &'a mut DeviceBuffer<T>,
    ) -> Result<Unready<'a, T>, Error> {
        let (output, op) = (self.group.write(output), ReduceOp::<T>::Sum);
        self.call(input, |list, input| {
            list.push(list.collective(Kind::AllToAll), input, output, op)
        })
    }

    /// A message: see [`StreamGroup::send`].
    ///
    /// # Errors
    /// See above.
    pub fn send<T: Element>(
        self,
        input: &'a mut DeviceBuffer<T>,
        peer: usize,
    ) -> Result<Unready<'a, T>, Error> {
        let op = ReduceOp::<T>::Sum;
        self.call(input, |list, input| list.push(list.send_to(peer), input, Memory::NONE, op))
    }

    fn call<T: Element>(
        self,
        input: &'a mut DeviceBuffer<T>,
        push: impl FnOnce(&mut CallList, Memory) -> Result<usize, Error>,
    ) -> Result<Unready<'a, T>, Error> {
        let group = self.group;
        let memory = group.hold(input);
        let bucket = push(&mut group.list, memory)?;
        group.gated.resize(bucket, false);
        group.gated.push(true);
        // SAFETY: the group awaits the bucket's mark before it touches its input, and the mark takes what is lent.
        let lent = unsafe { input.lend(1) };
        Ok(Unready { flight: group.flight.clone(), bucket, memory: lent })
    }
}
