//! Buckets of a group that has been launched before they are ready.

use crate::device::Lent;
use crate::error::Error;
use crate::stream::AnyStream;
use crate::work::Flight;
use oxccl_plans::element::Element;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The input of a bucket that is not ready: it can be written, though its group may have been launched. On a host
/// it dereferences to a slice; on a GPU it is [written](Self::write) by copies, or by kernels through [its address](Self::as_ptr).
///
/// A bucket that is never marked ready, because this is dropped, ends the group by its communicator's time-out.
#[derive(Debug)]
#[must_use = "its group waits until it is marked ready"]
pub struct Unready<'a, T> {
    pub(super) flight: Arc<Flight>,
    pub(super) bucket: usize,
    pub(crate) memory: Lent<'a, T>,
}

impl<T: Element> Unready<'_, T> {
    /// The bucket's place in the group.
    pub fn bucket(&self) -> usize {
        self.bucket
    }

    /// Marks the bucket ready. Buckets may be marked in any order, on each rank in another.
    pub fn ready(self) {
        self.flight.mark_ready(self.bucket);
    }

    /// Marks the bucket ready when the stream has done what has been put into it so far.
    ///
    /// # Errors
    /// [`Error::System`] if the stream's thread has panicked; of a GPU's stream, the driver's, and [`Error::OtherDevice`] for a group of the
    /// host's, which then has a bucket that nobody marks.
    pub fn ready_on<'s>(self, stream: impl Into<AnyStream<'s>>) -> Result<(), Error> {
        match stream.into() {
            AnyStream::Host(stream) => stream.mark(self.flight, self.bucket),
            AnyStream::Cuda(stream) => self.flight.mark_ready_on(self.bucket, stream),
        }
    }

    /// The first element, for whoever computes on a GPU. The memory is valid as long as its buffer, and this rank's until the bucket is
    /// marked ready.
    pub fn as_ptr(&self) -> *mut T {
        self.memory.as_ptr()
    }

    /// Copies from `from`, which is as long: also to memory of a GPU.
    ///
    /// # Errors
    /// [`Error::CopyLength`]; [`Error::Transport`], the driver's.
    pub fn write(&mut self, from: &[T]) -> Result<(), Error> {
        self.memory.write(from)
    }
}

impl<T: Element> Deref for Unready<'_, T> {
    type Target = [T];

    /// # Panics
    /// If it is memory of a GPU.
    fn deref(&self) -> &[T] {
        &self.memory
    }
}

impl<T: Element> DerefMut for Unready<'_, T> {
    /// # Panics
    /// If it is memory of a GPU.
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.memory
    }
}
