//! Memory of the host that others have allocated, and that peers reach in place.

use super::{Borrowed, Input, Output, Where, sealed};
use crate::call::Memory;
use crate::device::Lent;
use oxccl_plans::element::Element;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A slice of the host that is [registered](crate::Communicator::register_host), which calls take
/// in its place. It is no longer once this is dropped: the slice is then as it was before, with
/// what was written meanwhile.
///
/// It may outlive the communicator. If it is forgotten instead of dropped, the memory can be used
/// and freed as any other, but calls must not be given other memory at its address.
#[derive(Debug)]
pub struct HostRegistration<'a, T> {
    address: NonNull<T>,
    len: usize,
    // None where all ranks reach all memory.
    _lent: Option<Lent>,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: as `&mut [T]`; what is lent is not tied to a thread.
unsafe impl<T: Send> Send for HostRegistration<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for HostRegistration<'_, T> {}

impl<'a, T: Element> HostRegistration<'a, T> {
    pub(crate) fn new(slice: &'a mut [T], lent: Option<Lent>) -> HostRegistration<'a, T> {
        let (len, address) = (slice.len(), NonNull::from(slice).cast());
        HostRegistration { address, len, _lent: lent, slice: PhantomData }
    }
}

impl<T> Deref for HostRegistration<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: it is the slice that is borrowed for as long as this lives.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for HostRegistration<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and this is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }
}

impl<T: Element> sealed::Sealed for HostRegistration<'_, T> {}

impl<T: Element> Input<T, Borrowed> for HostRegistration<'_, T> {
    #[inline]
    fn lend(&self) -> (Memory, Where) {
        (Memory { address: self.address.as_ptr().cast(), count: self.len }, Where::Host)
    }
}

impl<T: Element> Output<T, Borrowed> for HostRegistration<'_, T> {}
