//! What is under way on a stream: calls, groups and their buckets.

mod completion;
mod flight;

pub(crate) use completion::Completion;
pub(crate) use flight::{Flight, Flights, Marks};

use crate::device::cuda;
use crate::error::Error;
use oxccl_transports::deadline_in;
use std::sync::Arc;
use std::time::Duration;

/// A call, a group or a bucket of a group that a stream carries out. Dropping it does not stop it.
///
/// A bucket is done once all that was to be written is there and no rank uses its buffers any more,
/// while its group may go on with others.
#[derive(Clone, Debug)]
#[must_use = "whether it ends well, and when its buffers can be used, is told by waiting for it"]
pub struct Work {
    flight: Arc<Flight>,
    part: Part,
}

/// Of which part of a launch.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// All of it; a group with so many buckets that can be waited for.
    All {
        buckets: usize,
    },
    Bucket(usize),
}

impl Work {
    /// Of all that is launched, whose buckets cannot be waited for.
    pub(crate) fn new(flight: Arc<Flight>) -> Work {
        Work::of_group(flight, 0)
    }

    /// Of a group of so many buckets.
    pub(crate) fn of_group(flight: Arc<Flight>, buckets: usize) -> Work {
        Work { flight, part: Part::All { buckets } }
    }

    /// Waits for the end. It comes: a launch that does not move ends by its communicator's
    /// time-out.
    ///
    /// # Errors
    /// That of the launch. Of several who wait the first is given it, and the others
    /// [`Error::Broken`].
    pub fn wait(&self) -> Result<(), Error> {
        match self.part {
            Part::All { .. } => self.flight.wait_end(),
            // Without a deadline there is an answer.
            Part::Bucket(bucket) => self.flight.wait(bucket, None).unwrap_or(Ok(())),
        }
    }

    /// As [`wait`](Work::wait), at most so long. None: it is still under way.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Result<(), Error>> {
        let deadline = deadline_in(timeout);
        match self.part {
            Part::All { .. } => self.flight.wait_end_until(deadline),
            Part::Bucket(bucket) => self.flight.wait(bucket, Some(deadline)),
        }
    }

    /// Whether it has ended, well or not; of a bucket, whether it is done.
    pub fn is_done(&self) -> bool {
        match self.part {
            Part::All { .. } => self.flight.has_ended(),
            Part::Bucket(bucket) => self.flight.is_done(bucket),
        }
    }

    /// Has a stream of the GPU wait for it, without the host. Whether it ends well,
    /// [`wait`](Self::wait) tells; if it fails the stream goes on. In a capture of the group a
    /// stream that waits for a bucket joins it.
    ///
    /// # Errors
    /// [`Error::OtherDevice`] for what the host carries out; [`Error::Transport`], the driver's,
    /// and [`CudaError::TooFewConnections`](oxccl_transports::CudaError) where the stream might
    /// keep back marks that it needs.
    pub fn wait_on(&self, stream: &cuda::Stream) -> Result<(), Error> {
        match self.part {
            Part::All { .. } => self.flight.await_end_on(stream),
            Part::Bucket(bucket) => self.flight.await_on(bucket, stream),
        }
    }

    /// By what a [user's kernel](crate::Communicator::device_communicator) knows that this bucket
    /// of a group is done. The group's work has to be kept until the kernel has ended, and the
    /// communicator. In a capture of the group the kernel belongs into the capture, too, behind it.
    ///
    /// # Errors
    /// [`Error::OtherDevice`] for what the host carries out, and for what is no bucket;
    /// [`CudaError::NotSupported`](oxccl_transports::CudaError) in a capture of a group that is one
    /// part, whose buckets are all done when its kernel is.
    pub fn done_words(&self) -> Result<cuda::DoneWords, Error> {
        match self.part {
            Part::Bucket(bucket) => self.flight.done_words(bucket),
            Part::All { .. } => Err(Error::OtherDevice { device: crate::Device::Host }),
        }
    }

    /// One bucket of a group, by its place there. None if there are not so many, and of a call,
    /// which is no group.
    pub fn bucket(&self, bucket: usize) -> Option<Work> {
        match self.part {
            Part::All { buckets } if bucket < buckets => {
                Some(Work { flight: self.flight.clone(), part: Part::Bucket(bucket) })
            }
            _ => None,
        }
    }
}
