//! The distributed optimizer: each rank keeps the optimizer's state for its share of each bucket
//! alone.
//!
//! A step reduces and scatters the gradients, updates each rank's share, and gathers the
//! parameters. Gradients may be reduced in one type and parameters gathered in another, such as
//! bf16 and an 8-bit float, while the optimizer works in f32: see [`narrow`](super::narrow).

use super::gradients::{GradientBuckets, GradientStep};
use super::plan::Place;
use super::{DEFAULT_CAPACITY_BYTES, Float};
use crate::collectives::Collectives;
use crate::communicator::Communicator;
use crate::device::{DeviceBuffer, cuda};
use crate::error::Error;
use crate::group::Unready;
use crate::stream::AnyStream;
use crate::work::Work;
use oxccl_plans::element::ReduceOp;
use std::ops::Range;

/// Gradients of type `G` and parameters of type `P`, in buckets of which each rank has an equal
/// share.
#[derive(Debug)]
pub struct ShardedBuckets<G, P> {
    rank: usize,
    gradients: GradientBuckets<G>,
    gradient_shards: Vec<DeviceBuffer<G>>,
    parameter_shards: Vec<DeviceBuffer<P>>,
    parameters: Vec<DeviceBuffer<P>>,
    /// The gradients that were launched last, bucket by bucket.
    reduced: Vec<Work>,
}

impl<G: Float, P: Float> ShardedBuckets<G, P> {
    /// Buckets whose gradients have [`DEFAULT_CAPACITY_BYTES`], for parameters of these sizes, in
    /// elements, in the order of the model. All ranks give the same.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Overflow`].
    pub fn new(comm: &Communicator, parameters: &[usize]) -> Result<ShardedBuckets<G, P>, Error> {
        ShardedBuckets::with_capacity(comm, parameters, DEFAULT_CAPACITY_BYTES)
    }

    /// Buckets whose gradients have so many bytes, or of one parameter if that is longer. Each is
    /// padded so that ranks' shares are equal.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Overflow`].
    pub fn with_capacity(
        comm: &Communicator,
        parameters: &[usize],
        capacity_bytes: usize,
    ) -> Result<ShardedBuckets<G, P>, Error> {
        let world = comm.world_size();
        let gradients = GradientBuckets::padded(comm, parameters, capacity_bytes, world)?;
        let counts = || gradients.buffers.iter().map(DeviceBuffer::len);
        let gradient_shards =
            counts().map(|count| comm.alloc(count / world)).collect::<Result<_, _>>()?;
        let parameter_shards =
            counts().map(|count| comm.alloc(count / world)).collect::<Result<_, _>>()?;
        let parameters = counts().map(|count| comm.alloc(count)).collect::<Result<_, _>>()?;
        let (rank, reduced) = (comm.rank(), Vec::new());
        Ok(ShardedBuckets {
            rank,
            gradients,
            gradient_shards,
            parameter_shards,
            parameters,
            reduced,
        })
    }

    /// Number of buckets. The first has the last parameters.
    pub fn buckets(&self) -> usize {
        self.parameters.len()
    }

    /// Where a parameter and its gradient lie.
    ///
    /// # Errors
    /// [`Error::Parameter`]
    pub fn place(&self, parameter: usize) -> Result<Place, Error> {
        self.gradients.place(parameter)
    }

    /// Which of a bucket's elements are this rank's share. None if there are not so many buckets.
    pub fn shard(&self, bucket: usize) -> Option<Range<usize>> {
        let count = self.parameter_shards.get(bucket)?.len();
        Some(self.rank * count..(self.rank + 1) * count)
    }

    /// A parameter, as it was gathered last, in memory of the host. Waits until its bucket is done,
    /// if it is under way.
    ///
    /// # Errors
    /// [`Error::Parameter`]; [`Error::MemoryOfGpu`].
    pub fn parameter(&self, parameter: usize) -> Result<&[P], Error> {
        let Place { bucket, offset, count } = self.place(parameter)?;
        Ok(&self.parameters[bucket].host()?[offset..][..count])
    }

    /// Where a parameter begins in memory: on a GPU for its kernels.
    ///
    /// # Errors
    /// [`Error::Parameter`]
    pub fn address(&self, parameter: usize) -> Result<*const P, Error> {
        let Place { bucket, offset, .. } = self.place(parameter)?;
        Ok(self.parameters[bucket].as_ptr().wrapping_add(offset))
    }

    /// A bucket of parameters as a whole. None if there are not so many.
    pub fn bucket(&self, bucket: usize) -> Option<&DeviceBuffer<P>> {
        self.parameters.get(bucket)
    }

    /// Launches the reduce-scatter of all buckets, of which none is ready.
    ///
    /// # Errors
    /// Those that this rank can see; the rest come from the step's work.
    pub fn launch_gradients<'s>(
        &mut self,
        comm: &Communicator,
        stream: impl Into<AnyStream<'s>>,
        op: ReduceOp<G>,
    ) -> Result<GradientStep<'_, G>, Error> {
        let GradientBuckets { plan, buffers } = &mut self.gradients;
        let shards = &mut self.gradient_shards;
        let unready = buffers.iter_mut().map(Unready::new).collect();
        let step = GradientStep::launch(&*plan, comm, stream, unready, |group, unready| {
            let mut pairs = unready.iter().zip(shards);
            pairs.try_for_each(|(all, own)| group.reduce_scatter(all, own, op).map(drop))
        })?;
        self.reduced.clear();
        self.reduced.extend((0..self.parameters.len()).filter_map(|at| step.work.bucket(at)));
        Ok(step)
    }

    /// Launches the all-gather of all buckets, of which none is ready: the optimizer has them to
    /// update. The gradients must be under way or done.
    ///
    /// # Errors
    /// Those that this rank can see; the rest come from the step's work.
    pub fn launch_parameters<'s>(
        &mut self,
        comm: &Communicator,
        stream: impl Into<AnyStream<'s>>,
    ) -> Result<ParameterStep<'_, G, P>, Error> {
        let stream: AnyStream<'s> = stream.into();
        let unready: Vec<_> = self.parameter_shards.iter_mut().map(Unready::new).collect();
        let (work, ()) = comm.on(stream).group(|group| {
            let mut pairs = unready.iter().zip(&mut self.parameters);
            pairs.try_for_each(|(own, all)| group.all_gather(own, all).map(drop))
        })?;
        let unready = unready.into_iter().map(Some).collect();
        let (gradients, reduced) = (&self.gradient_shards[..], &self.reduced[..]);
        Ok(ParameterStep { gradients, reduced, unready, work })
    }
}

/// A launched gathering of parameters that are still to be updated.
///
/// If not all buckets are updated, it ends by the communicator's time-out.
#[derive(Debug)]
pub struct ParameterStep<'a, G, P> {
    gradients: &'a [DeviceBuffer<G>],
    reduced: &'a [Work],
    unready: Vec<Option<Unready<'a, DeviceBuffer<P>>>>,
    work: Work,
}

/// A rank's share of a bucket, in memory of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct DeviceShard<G, P> {
    /// The reduced gradients.
    pub gradients: *const G,
    /// The parameters to be made of them.
    pub parameters: *mut P,
    /// How many there are of both.
    pub count: usize,
}

impl<'a, G: Float, P: Float> ParameterStep<'a, G, P> {
    /// Lets `update` make this rank's share of a bucket's parameters from that of its gradients,
    /// and marks the bucket ready. Waits until the gradients are there. For memory of the host.
    ///
    /// # Errors
    /// [`Error::Bucket`] if there are not so many buckets, or this one has been updated before;
    /// [`Error::MemoryOfGpu`].
    pub fn update(
        &mut self,
        bucket: usize,
        update: impl FnOnce(&[G], &mut [P]),
    ) -> Result<(), Error> {
        self.gradients.get(bucket).map_or(Ok(()), DeviceBuffer::check_host)?;
        let mut parameters = self.take(bucket)?;
        update(self.gradients[bucket].host()?, parameters.host_mut()?);
        parameters.ready();
        Ok(())
    }

    /// The same on a GPU, without the host: has the stream wait for the gradients, lets `update`
    /// put kernels into it that make the parameters, and marks the bucket ready behind them. If the
    /// gradients' group fails, the stream goes on; its work tells.
    ///
    /// # Errors
    /// As [`update`](Self::update); those of `update`, whose bucket is then never ready; the
    /// driver's; [`Error::OtherDevice`] on a host.
    pub fn update_on(
        &mut self,
        bucket: usize,
        stream: &cuda::Stream,
        update: impl FnOnce(DeviceShard<G, P>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let parameters = self.take(bucket)?;
        if let Some(reduced) = self.reduced.get(bucket) {
            reduced.wait_on(stream)?;
        }
        let gradients = &self.gradients[bucket];
        let count = gradients.len();
        let (from, to) = (gradients.as_ptr().cast_const(), parameters.as_ptr());
        update(DeviceShard { gradients: from, parameters: to, count })?;
        parameters.ready_on(stream)
    }

    fn take(&mut self, bucket: usize) -> Result<Unready<'a, DeviceBuffer<P>>, Error> {
        let buckets = self.unready.len();
        let unready = self.unready.get_mut(bucket).and_then(Option::take);
        unready.ok_or(Error::Bucket { bucket, buckets })
    }

    /// All buckets have been updated: gives the work, in which each bucket can be waited for by
    /// itself.
    pub fn finish(self) -> Work {
        self.work
    }
}
