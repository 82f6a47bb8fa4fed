//! A group under way on a stream, as a whole and bucket by bucket.

use super::flight::Flight;
use crate::device::cuda;
use crate::error::Error;
use crate::work::Work;
use oxccl_transports::deadline_in;
use std::sync::Arc;
use std::time::Duration;

/// A group that a stream carries out. Dropping it does not stop the group.
#[derive(Debug)]
pub struct GroupWork {
    pub(super) flight: Arc<Flight>,
    pub(super) buckets: usize,
}

impl GroupWork {
    /// Waits for the end of the group. It comes: a call that does not move ends by its communicator's time-out.
    ///
    /// # Errors
    /// The group's.
    pub fn wait(self) -> Result<(), Error> {
        self.flight.completion.wait()
    }

    /// Whether the group has ended, well or not.
    pub fn is_done(&self) -> bool {
        self.flight.completion.peek().is_some()
    }

    /// Has a stream of the GPU wait for the group, without the host. Whether the group ends well, [`wait`](Self::wait) tells.
    ///
    /// # Errors
    /// [`Error::OtherDevice`] for a group of the host's; [`Error::Transport`], the driver's, and
    /// [`CudaError::TooFewConnections`](oxccl_transports::CudaError) where the stream might keep back marks that the group needs.
    pub fn wait_on(&self, stream: &cuda::Stream) -> Result<(), Error> {
        self.flight.await_end_on(stream)
    }

    /// The work of the one call that the group is.
    pub(crate) fn into_work(self) -> Work {
        Work::of_group(self.flight)
    }

    /// One bucket, by its place in the group. None if there are not so many.
    pub fn bucket(&self, bucket: usize) -> Option<BucketWork> {
        (bucket < self.buckets).then(|| BucketWork { flight: self.flight.clone(), bucket })
    }
}

/// A bucket of a group that a stream carries out.
///
/// Once it is done, its buffers can be used while the group goes on with others.
#[derive(Clone, Debug)]
pub struct BucketWork {
    flight: Arc<Flight>,
    bucket: usize,
}

impl BucketWork {
    /// Waits until the bucket is done on this rank: what was to be written is there, and no rank uses its buffers any more.
    ///
    /// # Errors
    /// [`Error::Broken`] if the group ended before.
    pub fn wait(&self) -> Result<(), Error> {
        // Without a deadline there is an answer.
        self.flight.wait(self.bucket, None).unwrap_or(Ok(()))
    }

    /// As [`wait`](BucketWork::wait), at most so long. None: the bucket is not done yet.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Result<(), Error>> {
        self.flight.wait(self.bucket, Some(deadline_in(timeout)))
    }

    /// Whether the bucket is done.
    pub fn is_done(&self) -> bool {
        self.flight.is_done(self.bucket)
    }

    /// Has a stream of the GPU wait until the bucket is done, without the host. If its group fails, the stream goes on then;
    /// [`wait`](Self::wait) tells. In a capture of the group the stream joins it.
    ///
    /// # Errors
    /// As [`GroupWork::wait_on`], of the marks that this bucket needs.
    pub fn wait_on(&self, stream: &cuda::Stream) -> Result<(), Error> {
        self.flight.await_on(self.bucket, stream)
    }
}
