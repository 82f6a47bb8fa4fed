//! Data-parallel training: gradients are reduced in buckets, while earlier ones are still being
//! computed.

use super::DEFAULT_CAPACITY_BYTES;
use super::plan::{Pending, Place, Plan};
use crate::collectives::Collectives;
use crate::communicator::Communicator;
use crate::device::DeviceBuffer;
use crate::device::cuda;
use crate::error::Error;
use crate::group::{StreamGroup, Unready};
use crate::stream::AnyStream;
use crate::work::Work;
use oxccl_plans::element::{Element, ReduceOp};
use oxccl_plans::length::Length;

/// The gradients of a model's parameters, in buckets.
#[derive(Debug)]
pub struct GradientBuckets<T> {
    pub(super) plan: Plan,
    pub(super) buffers: Vec<DeviceBuffer<T>>,
}

impl<T: Element> GradientBuckets<T> {
    /// Buckets of [`DEFAULT_CAPACITY_BYTES`] for parameters of these sizes, in elements, in the
    /// order of the model. All ranks give the same.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Overflow`].
    pub fn new(comm: &Communicator, parameters: &[usize]) -> Result<GradientBuckets<T>, Error> {
        GradientBuckets::with_capacity(comm, parameters, DEFAULT_CAPACITY_BYTES)
    }

    /// Buckets of so many bytes, or of one parameter if that is longer.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Overflow`].
    pub fn with_capacity(
        comm: &Communicator,
        parameters: &[usize],
        capacity_bytes: usize,
    ) -> Result<GradientBuckets<T>, Error> {
        GradientBuckets::padded(comm, parameters, capacity_bytes, 1)
    }

    /// Buckets whose lengths are multiples of `unit`.
    pub(super) fn padded(
        comm: &Communicator,
        parameters: &[usize],
        capacity_bytes: usize,
        unit: usize,
    ) -> Result<GradientBuckets<T>, Error> {
        let size_bytes = size_of::<T>();
        let too_long = Error::too_long("buckets", "parameters");
        let plan =
            Plan::new(parameters, capacity_bytes / size_bytes, size_bytes).map_err(too_long)?;
        let padded = |count: &usize| Length::new(*count, size_bytes)?.padded(unit);
        let alloc = |count| comm.alloc(padded(count).map_err(too_long)?.count());
        let buffers = plan.counts.iter().map(alloc).collect::<Result<_, _>>()?;
        Ok(GradientBuckets { plan, buffers })
    }

    /// Number of buckets. The first has the last parameters.
    pub fn buckets(&self) -> usize {
        self.buffers.len()
    }

    /// Where a parameter's gradient lies.
    ///
    /// # Errors
    /// [`Error::Parameter`]
    pub fn place(&self, parameter: usize) -> Result<Place, Error> {
        self.plan.place(parameter)
    }

    /// Where a parameter's gradient begins in memory: on a GPU for its kernels.
    ///
    /// # Errors
    /// [`Error::Parameter`]
    pub fn address(&self, parameter: usize) -> Result<*mut T, Error> {
        let Place { bucket, offset, .. } = self.plan.place(parameter)?;
        Ok(self.buffers[bucket].as_ptr().wrapping_add(offset))
    }

    /// A parameter's gradient, in memory of the host. Waits until its bucket is done, if it is
    /// under way.
    ///
    /// # Errors
    /// [`Error::Parameter`]; [`Error::MemoryOfGpu`].
    pub fn gradient(&self, parameter: usize) -> Result<&[T], Error> {
        let Place { bucket, offset, count } = self.plan.place(parameter)?;
        Ok(&self.buffers[bucket].host()?[offset..][..count])
    }

    /// As [`gradient`](GradientBuckets::gradient).
    ///
    /// # Errors
    /// As [`gradient`](GradientBuckets::gradient).
    pub fn gradient_mut(&mut self, parameter: usize) -> Result<&mut [T], Error> {
        let Place { bucket, offset, count } = self.plan.place(parameter)?;
        Ok(&mut self.buffers[bucket].host_mut()?[offset..][..count])
    }

    /// A bucket as a whole, for other calls. None if there are not so many.
    pub fn bucket_mut(&mut self, bucket: usize) -> Option<&mut DeviceBuffer<T>> {
        self.buffers.get_mut(bucket)
    }

    /// Launches the all-reduce of all buckets, of which none is ready. All ranks do so in their
    /// place among the communicator's calls.
    ///
    /// # Errors
    /// Those that this rank can see; the rest come from the step's work.
    pub fn launch<'s>(
        &mut self,
        comm: &Communicator,
        stream: impl Into<AnyStream<'s>>,
        op: ReduceOp<T>,
    ) -> Result<GradientStep<'_, T>, Error> {
        let unready = self.buffers.iter_mut().map(Unready::new).collect();
        GradientStep::launch(&self.plan, comm, stream, unready, |group, unready| {
            unready.iter_mut().try_for_each(|all| group.all_reduce_in_place(all, op).map(drop))
        })
    }
}

/// A launched reduction of gradients that are still to be computed.
///
/// If not all of them are marked ready, it ends by the communicator's time-out.
#[derive(Debug)]
pub struct GradientStep<'a, T> {
    plan: &'a Plan,
    pending: Pending,
    unready: Vec<Option<Unready<'a, DeviceBuffer<T>>>>,
    pub(super) work: Work,
}

impl<'a, T: Element> GradientStep<'a, T> {
    pub(super) fn launch<'s>(
        plan: &'a Plan,
        comm: &Communicator,
        stream: impl Into<AnyStream<'s>>,
        mut unready: Vec<Unready<'a, DeviceBuffer<T>>>,
        fill: impl for<'g> FnOnce(
            &mut StreamGroup<'g>,
            &'g mut [Unready<'a, DeviceBuffer<T>>],
        ) -> Result<(), Error>,
    ) -> Result<GradientStep<'a, T>, Error> {
        let stream: AnyStream<'s> = stream.into();
        let (work, ()) = comm.on(stream).group(|group| fill(group, &mut unready))?;
        let unready = unready.into_iter().map(Some).collect();
        Ok(GradientStep { plan, pending: Pending::new(plan), unready, work })
    }

    /// A parameter's gradient, to be computed, in memory of the host.
    ///
    /// # Errors
    /// [`Error::Parameter`] if it has been marked ready before; [`Error::MemoryOfGpu`].
    pub fn gradient(&mut self, parameter: usize) -> Result<&mut [T], Error> {
        let Place { bucket, offset, count } = self.pending.place(self.plan, parameter)?;
        // A bucket with a parameter that is not ready is not.
        match &mut self.unready[bucket] {
            Some(memory) => Ok(&mut memory.host_mut()?[offset..][..count]),
            None => unreachable!("bucket {bucket} has been marked ready too early"),
        }
    }

    /// Says that a gradient has been computed. With its last one a bucket is ready.
    ///
    /// # Errors
    /// [`Error::Parameter`] if it has been marked ready before.
    pub fn ready(&mut self, parameter: usize) -> Result<(), Error> {
        if let Some(bucket) = self.pending.mark(self.plan, parameter)?
            && let Some(memory) = self.unready[bucket].take()
        {
            memory.ready();
        }
        Ok(())
    }

    /// As [`ready`](GradientStep::ready), when a stream of the GPU has come that far. The gradients
    /// of a bucket are computed in one stream, or in streams that this one has waited for.
    ///
    /// # Errors
    /// As [`ready`](GradientStep::ready); the driver's.
    pub fn ready_on(&mut self, parameter: usize, stream: &cuda::Stream) -> Result<(), Error> {
        if let Some(bucket) = self.pending.mark(self.plan, parameter)?
            && let Some(memory) = self.unready[bucket].take()
        {
            memory.ready_on(stream)?;
        }
        Ok(())
    }

    /// As [`ready`](GradientStep::ready), by a [user's
    /// kernel](crate::Communicator::device_communicator): behind a bucket's last gradient these are
    /// the words that it is to mark, as of [`Unready::ready_in_kernel`]; behind others there are
    /// none.
    ///
    /// # Errors
    /// As [`ready`](GradientStep::ready); [`Error::OtherDevice`] for a group of the host's, which
    /// then has a bucket that nobody marks.
    pub fn ready_in_kernel(&mut self, parameter: usize) -> Result<Vec<cuda::ReadyWord>, Error> {
        let marked = self.pending.mark(self.plan, parameter)?;
        match marked.and_then(|bucket| self.unready[bucket].take()) {
            Some(memory) => memory.ready_in_kernel(),
            None => Ok(Vec::new()),
        }
    }

    /// Where the gradient of a parameter that is not ready begins in memory: on a GPU for its
    /// kernels.
    ///
    /// # Errors
    /// [`Error::Parameter`] if it has been marked ready before.
    pub fn address(&self, parameter: usize) -> Result<*mut T, Error> {
        let Place { bucket, offset, .. } = self.pending.place(self.plan, parameter)?;
        match &self.unready[bucket] {
            Some(memory) => Ok(memory.as_ptr().wrapping_add(offset)),
            None => unreachable!("bucket {bucket} has been marked ready too early"),
        }
    }

    /// All gradients have been marked: gives the work, in which each bucket can be waited for by
    /// itself.
    pub fn finish(self) -> Work {
        self.work
    }
}
