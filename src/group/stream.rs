//! Groups on streams: launched without waiting, done bucket by bucket, and ready bucket by bucket
//! where that is wanted.

use crate::call::{Call, CallList};
use crate::collectives::Submit;
use crate::device::InFlight;
use crate::error::Error;
use crate::memory::{GroupHold, Grouped};
use crate::stream::OnStream;
use crate::work::{Flight, Work};
use std::marker::PhantomData;
use std::sync::Arc;

/// The calls of a group on a stream, while it is made: see [`OnStream::group`]. As
/// [`Group`](crate::Group), over memory that stays alive.
#[derive(Debug)]
pub struct StreamGroup<'a> {
    list: Box<CallList>,
    buffers: Vec<(usize, InFlight)>,
    gated: Vec<bool>,
    flight: Arc<Flight>,
    borrow: PhantomData<&'a mut ()>,
}

impl OnStream<'_> {
    /// As [`Communicator::group`](crate::Communicator::group), but returns at once, with what
    /// `fill` has returned and with the work, in which each bucket can be waited for by itself.
    ///
    /// Buckets need not be ready when the group is launched: a buffer that is
    /// [`Unready`](crate::Unready) may still be written, until it is marked ready. The group begins
    /// with a bucket when it is its turn, which is the same on all ranks, and it is ready here. So
    /// no order of marks can deadlock, as long as marking one does not wait for a later one or for
    /// a bucket that is done only behind it. Which buckets are unready is each rank's own affair.
    /// Small buckets of a kind are handled together, about 4 MiB at a time, on GPUs 16: they begin
    /// when all of these are ready, and are done together; so are a rank's messages. The group's
    /// buffers stay borrowed as long as any of it is unready.
    ///
    /// ```
    /// # use oxccl::{Collectives, Communicator, ReduceOp, Stream, Unready};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let stream = Stream::new()?;
    /// let mut gradients = [comm.alloc_host::<f32>(1000)?, comm.alloc_host::<f32>(1000)?];
    /// let mut unready = gradients.each_mut().map(Unready::new);
    /// let (work, ()) = comm.on(&stream).group(|group| {
    ///     for gradient in &mut unready {
    ///         group.all_reduce_in_place(gradient, ReduceOp::Sum)?;
    ///     }
    ///     Ok(())
    /// })?;
    /// for mut gradient in unready {
    ///     gradient.fill(1.0); // … or compute something …
    ///     gradient.ready();
    /// }
    /// if let Some(bucket) = work.bucket(0) {
    ///     bucket.wait()?;
    /// }
    /// assert_eq!(gradients[0][999], 2.0); // The second may still be under way.
    /// work.wait()?;
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// On a stream of a GPU the group is one kernel, and other streams of the GPU wait for a bucket
    /// ([`Work::wait_on`]) and mark one ready ([`Unready::ready_on`](crate::Unready::ready_on))
    /// without the host. A stream that waits keeps back what stands behind it in others that share
    /// its connection to the GPU (`CUDA_DEVICE_MAX_CONNECTIONS`). So where streams share
    /// connections, later calls, and waits of streams, are refused
    /// ([`CudaError::TooFewConnections`](oxccl_transports::CudaError)) until the marks that they
    /// need are made; put nothing of your own behind the group in its stream before that. In a
    /// capture the group is recorded; its buckets are then marked and waited for by streams that
    /// take part in the capture, whose branches must run side by side.
    ///
    /// # Errors
    /// What `fill` returns; [`Error::OtherDevice`] and [`Error::OtherMemory`] for a stream or a
    /// buffer of another device than the communicator's; the rest comes from the work.
    /// [`Error::TimedOut`] names a bucket that was not marked ready, and its rank.
    pub fn group<'a, R>(
        &self,
        fill: impl FnOnce(&mut StreamGroup<'a>) -> Result<R, Error>,
    ) -> Result<(Work, R), Error> {
        let (comm, flight) = (self.comm(), self.comm().take_flight());
        let (buffers, gated) = flight.lists();
        let list = comm.take_calls(self.terms().options);
        let mut group = StreamGroup { list, buffers, gated, flight, borrow: PhantomData };
        let filled = fill(&mut group);
        let StreamGroup { mut list, buffers, mut gated, flight, .. } = group;
        let launched = filled.and_then(|result| {
            let (calls, _) = list.finish();
            gated.resize(calls.len(), false);
            flight.keep(buffers);
            let work = Work::of_group(flight.clone(), calls.len());
            // SAFETY: `StreamGroup`'s calls were made from buffers that are borrowed and that the
            // flight holds, outputs exclusively; what is lent of an input that is not ready is
            // given back before its mark.
            unsafe { self.launch(calls, true, &gated, &flight) }?;
            Ok((work, result))
        });
        flight.keep_room(gated);
        comm.give_calls(list);
        launched
    }
}

impl<'a> Submit<'a> for &mut StreamGroup<'a> {
    type Done = usize;
    type Access = Grouped;

    fn rank(&self) -> usize {
        self.list.rank()
    }

    fn world_size(&self) -> usize {
        self.list.world_size()
    }

    unsafe fn submit(self, call: Call<'_>, holds: [GroupHold<'a>; 2]) -> Result<usize, Error> {
        let bucket = self.list.push(&call)?;
        for GroupHold { buffer, marks } in holds {
            // Until the bucket is done.
            self.buffers.extend(buffer.map(|buffer| (bucket, buffer)));
            if let Some(marks) = marks {
                marks.add(&self.flight, bucket);
                self.gated.resize(bucket + 1, false);
                self.gated[bucket] = true;
            }
        }
        Ok(bucket)
    }
}
