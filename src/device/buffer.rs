//! Typed memory that every rank can reach.

use super::heap::HeapBlock;
use crate::element::Element;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// `count` elements of communicator memory: peers read and write it in place, without a copy. Zero at first.
///
/// Dereferences to a slice. While a stream still works on the buffer, that waits until it is done: every call ends, with an error at
/// the latest after its time-out.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    storage: Arc<Storage>,
    count: usize,
    element: PhantomData<T>,
}

#[derive(Debug)]
struct Storage {
    block: HeapBlock,
    in_flight: AtomicUsize,
    idle: Condvar,
    lock: Mutex<()>,
}

impl<T: Element> DeviceBuffer<T> {
    pub(crate) fn new(block: HeapBlock, count: usize) -> DeviceBuffer<T> {
        let in_flight = AtomicUsize::new(0);
        let storage = Storage { block, in_flight, idle: Condvar::new(), lock: Mutex::new(()) };
        DeviceBuffer { storage: Arc::new(storage), count, element: PhantomData }
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The first element. Valid as long as the buffer; what a stream does there is not awaited.
    pub fn as_ptr(&self) -> *mut T {
        self.storage.block.as_ptr().cast()
    }

    /// Keeps the memory alive, and host accesses waiting, until it is dropped.
    pub(crate) fn fly(&self) -> InFlight {
        self.storage.in_flight.fetch_add(1, Ordering::AcqRel);
        InFlight { storage: self.storage.clone() }
    }

    fn land(&self) {
        if self.storage.in_flight.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut guard = self.storage.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.storage.in_flight.load(Ordering::Acquire) != 0 {
            guard = self.storage.idle.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T: Element> Deref for DeviceBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.land();
        // SAFETY: the block holds `count` elements, any bits are a value of `T`, it lives as long as `self`, and no call of this
        // rank works on it: `land` waited, and a new one that writes needs `&mut self`. Peers touch it only during such calls.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.count) }
    }
}

impl<T: Element> DerefMut for DeviceBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.land();
        // SAFETY: as in `deref`; `&mut self` excludes other references and new calls.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.count) }
    }
}

/// A stream's hold on a buffer.
#[derive(Debug)]
pub(crate) struct InFlight {
    storage: Arc<Storage>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.storage.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _guard = self.storage.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.storage.idle.notify_all();
        }
    }
}
