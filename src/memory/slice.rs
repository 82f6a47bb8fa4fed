//! Memory of other libraries.

use super::{Access, Input, Output, sealed};
use crate::call::Memory;
use oxccl_plans::element::Element;
use std::marker::PhantomData;

/// Elements in memory that another library allocated: on a GPU by `cudaMalloc` or an allocator over
/// it, on a host anywhere.
///
/// ```
/// use oxccl::{Collectives, Communicator, DeviceSlice, ReduceOp, Stream};
/// # let ranks = Communicator::local(2)?;
/// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
/// let mut theirs = vec![1.0f32; 1000];
/// // SAFETY: the vector lives, and nobody looks at it, until the work has ended.
/// let mut slice = unsafe { DeviceSlice::from_raw_parts(theirs.as_mut_ptr(), theirs.len()) };
/// let stream = Stream::new()?;
/// comm.on(&stream).all_reduce_in_place(&mut slice, ReduceOp::Sum)?.wait()?;
/// assert_eq!(theirs[999], 2.0);
/// # Ok::<(), oxccl::Error>(()) }); });
/// # Ok::<(), oxccl::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceSlice<T> {
    memory: Memory,
    elements: PhantomData<*mut T>,
}

impl<T: Element> DeviceSlice<T> {
    /// So many elements from this address on.
    ///
    /// # Safety
    ///
    /// The communicators that are given it compute on the device whose memory this is. It is valid,
    /// initialized, and, where it is an output, writable, and nobody else uses it, from when it is
    /// given to a call until that has returned, or its work has ended; of a call that is captured,
    /// whenever it is replayed.
    pub unsafe fn from_raw_parts(address: *mut T, len: usize) -> DeviceSlice<T> {
        let memory = Memory { address: address.cast(), count: len };
        DeviceSlice { memory, elements: PhantomData }
    }

    /// The first element.
    pub fn as_ptr(&self) -> *mut T {
        self.memory.address.cast()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.memory.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Element> sealed::Sealed for DeviceSlice<T> {}

impl<T: Element, A: Access> Input<T, A> for DeviceSlice<T> {
    #[inline]
    fn lend(&self) -> (Memory, A::Hold<'_>) {
        (self.memory, A::unheld())
    }
}

impl<T: Element, A: Access> Output<T, A> for DeviceSlice<T> {}
