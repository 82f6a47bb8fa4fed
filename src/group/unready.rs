//! Buffers of a group that is launched before they are ready.

use crate::call::Memory;
use crate::device::cuda::ReadyWord;
use crate::device::{Buffer, DeviceBuffer, HostBuffer};
use crate::error::Error;
use crate::memory::{GroupHold, Grouped, Input, Marks, Output, memory_of, sealed};
use crate::stream::AnyStream;
use oxccl_plans::element::Element;
use std::ops::{Deref, DerefMut};

/// A buffer that a [group on a stream](crate::OnStream::group) may be launched with before it is
/// ready: the group leaves the buckets that it is given to alone until it is marked ready, and
/// until then it can be written. Over a [`HostBuffer`] it dereferences to a slice; memory of a GPU
/// is [written](Self::write) by copies, or by kernels through [its address](Self::as_ptr).
///
/// One that is never marked ready, because this is dropped, ends its group by the communicator's
/// time-out.
#[derive(Debug)]
#[must_use = "its group waits until it is marked ready"]
pub struct Unready<'a, B> {
    buffer: &'a mut B,
    marks: Marks,
}

impl<'a, B: Buffer> Unready<'a, B> {
    /// The buffer, which is not ready.
    pub fn new(buffer: &'a mut B) -> Unready<'a, B> {
        Unready { buffer, marks: Marks::default() }
    }

    /// Marks it ready. Buffers may be marked in any order, on each rank in another.
    pub fn ready(self) {
        self.marks.take().for_each(|(flight, bucket)| flight.mark_ready(bucket));
    }

    /// Marks it ready when the stream has done what has been put into it so far.
    ///
    /// # Errors
    /// [`Error::System`] if the stream's thread has panicked; of a GPU's stream, the driver's, and
    /// [`Error::OtherDevice`] for a group of the host's, which then has a bucket that nobody marks.
    pub fn ready_on<'s>(self, stream: impl Into<AnyStream<'s>>) -> Result<(), Error> {
        let stream: AnyStream<'s> = stream.into();
        self.marks.take().try_for_each(|(flight, bucket)| match stream {
            AnyStream::Host(stream) => stream.mark(flight, bucket),
            AnyStream::Cuda(stream) => flight.mark_ready_on(bucket, stream),
        })
    }

    /// Leaves it to a [user's kernel](crate::Communicator::device_communicator) to mark it ready:
    /// by these words, one for each bucket that it is given to. It is that kernel's to be written
    /// from here on. Streams that share a connection to the GPU with another count the bucket as
    /// not ready until the group has ended. The group's work is kept until the kernel has ended.
    ///
    /// # Errors
    /// [`Error::OtherDevice`] for a group of the host's, which then has a bucket that nobody marks.
    pub fn ready_in_kernel(self) -> Result<Vec<ReadyWord>, Error> {
        let words = self.marks.take().map(|(flight, bucket)| flight.ready_word(bucket));
        words.filter_map(Result::transpose).collect()
    }

    /// The first element, for whoever computes on a GPU. The memory is valid as long as its buffer,
    /// and this rank's until it is marked ready.
    pub fn as_ptr(&self) -> *mut B::Element {
        self.buffer.device_buffer().as_ptr()
    }

    /// Copies from `from`, which is as long: also to memory of a GPU.
    ///
    /// # Errors
    /// [`Error::CopyLength`]; [`Error::Transport`], the driver's.
    pub fn write(&mut self, from: &[B::Element]) -> Result<(), Error> {
        self.lent().overwrite(from)
    }

    /// The buffer, once no call but those of its buckets uses it: these await the mark.
    fn lent(&mut self) -> &mut DeviceBuffer<B::Element> {
        let buffer = self.buffer.device_buffer_mut();
        buffer.await_holds(self.marks.count());
        buffer
    }
}

impl<'a, T: Element> Unready<'a, DeviceBuffer<T>> {
    /// The elements, in memory of the host.
    ///
    /// # Errors
    /// [`Error::MemoryOfGpu`].
    pub fn host_mut(&mut self) -> Result<&mut [T], Error> {
        self.buffer.check_host()?;
        // SAFETY: `lent`: no call works on it until the mark, which takes this.
        Ok(unsafe { self.lent().elements_mut() })
    }
}

impl<T: Element> Deref for Unready<'_, HostBuffer<T>> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let buffer = self.buffer.device_buffer();
        buffer.await_holds(self.marks.count());
        // SAFETY: as in `host_mut`.
        unsafe { buffer.elements() }
    }
}

impl<T: Element> DerefMut for Unready<'_, HostBuffer<T>> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `host_mut`.
        unsafe { self.lent().elements_mut() }
    }
}

impl<B> sealed::Sealed for Unready<'_, B> {}

impl<T: Element, B: Buffer<Element = T>> Input<T, Grouped> for Unready<'_, B> {
    fn lend(&self) -> (Memory, GroupHold<'_>) {
        let buffer = self.buffer.device_buffer();
        (memory_of(buffer), GroupHold { buffer: Some(buffer.fly()), marks: Some(&self.marks) })
    }
}

impl<T: Element, B: Buffer<Element = T>> Output<T, Grouped> for Unready<'_, B> {}
