//! Typed memory that every rank can reach.

use super::heap::HeapBlock;
use crate::error::Error;
use oxccl_plans::element::Element;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// `count` elements of communicator memory: peers read and write it in place, without a copy. Zero at first.
///
/// In host memory it dereferences to a slice; memory of a GPU is [read](Self::read) and [written](Self::write) by copies. While a stream
/// still works on the buffer, all of these wait until it is done: a call that does not move ends by its
/// time-out. Where a call has failed because of a rank that was stopped inside it, other processes may still write to the buffer; the error
/// says so.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    storage: Arc<Storage>,
    /// The storage's, here because groups ask for the addresses of many buffers.
    address: *mut T,
    is_host: bool,
    count: usize,
    /// Whether a stream has ever used it. If not, the storage, which lies elsewhere, need not be asked.
    has_flown: AtomicBool,
}

// SAFETY: the address leads to the storage, which may be used by any thread; elements are used as those of a slice are.
unsafe impl<T: Send> Send for DeviceBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for DeviceBuffer<T> {}

#[derive(Debug)]
struct Storage {
    block: HeapBlock,
    in_flight: AtomicUsize,
    idle: Condvar,
    lock: Mutex<()>,
}

impl Storage {
    fn await_holds(&self, held: usize) {
        if self.in_flight.load(Ordering::Acquire) <= held {
            return;
        }
        assert!(
            !self.block.is_of_parent(),
            "the process that this one was forked from has a call under way over this buffer, which never ends here"
        );
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.in_flight.load(Ordering::Acquire) > held {
            guard = self.idle.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T: Element> DeviceBuffer<T> {
    pub(crate) fn new(block: HeapBlock, count: usize) -> DeviceBuffer<T> {
        let in_flight = AtomicUsize::new(0);
        let (address, is_host) = (block.as_ptr().cast(), block.is_host());
        let storage = Storage { block, in_flight, idle: Condvar::new(), lock: Mutex::new(()) };
        let has_flown = AtomicBool::new(false);
        DeviceBuffer { storage: Arc::new(storage), address, is_host, count, has_flown }
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The first element. Valid as long as the buffer; what a stream does there is not awaited.
    pub fn as_ptr(&self) -> *mut T {
        self.address
    }

    /// Whether it is host memory, which dereferences to a slice.
    pub fn is_host(&self) -> bool {
        self.is_host
    }

    /// Fails where the host cannot look at the elements.
    pub(crate) fn check_host(&self) -> Result<(), Error> {
        if self.is_host() { Ok(()) } else { Err(Error::MemoryOfGpu) }
    }

    /// Copies to `to`, which is as long.
    ///
    /// # Errors
    /// [`Error::CopyLength`]; [`Error::Transport`], the driver's.
    pub fn read(&self, to: &mut [T]) -> Result<(), Error> {
        self.same_length(to.len())?;
        self.land(0);
        // SAFETY: both are as long, and no call works on the buffer (`land`; a new one that writes needs `&mut self`).
        Ok(unsafe { self.storage.block.read(to.as_mut_ptr().cast(), size_of_val(to)) }?)
    }

    /// Copies from `from`, which is as long.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&mut self, from: &[T]) -> Result<(), Error> {
        self.same_length(from.len())?;
        self.land(0);
        // SAFETY: as in `read`.
        unsafe { self.overwrite(from) }
    }

    /// # Safety
    ///
    /// `from` is as long, and no call works on the memory.
    unsafe fn overwrite(&mut self, from: &[T]) -> Result<(), Error> {
        // SAFETY: by this function's contract.
        Ok(unsafe { self.storage.block.write(from.as_ptr().cast(), size_of_val(from)) }?)
    }

    fn same_length(&self, found: usize) -> Result<(), Error> {
        if found == self.count {
            return Ok(());
        }
        Err(Error::CopyLength { found, expected: self.count })
    }

    /// Keeps the memory alive, and host accesses waiting, until it is dropped.
    pub(crate) fn fly(&self) -> InFlight {
        self.has_flown.store(true, Ordering::Relaxed);
        self.storage.in_flight.fetch_add(1, Ordering::AcqRel);
        InFlight { storage: self.storage.clone() }
    }

    /// Waits for the calls under way, before the host looks at the elements.
    #[inline]
    fn host_access(&self) {
        self.assert_host();
        self.land(0);
    }

    #[inline]
    fn assert_host(&self) {
        assert!(
            self.is_host(),
            "memory of a GPU cannot be looked at by the host: use DeviceBuffer::read and write"
        );
    }

    /// Lends the memory, once no more than `held` holds on the buffer are left: those of whoever will use it next.
    ///
    /// # Safety
    ///
    /// Whoever has these holds does not touch the memory while it is lent.
    pub(crate) unsafe fn lend(&mut self, held: usize) -> Lent<'_, T> {
        self.land(held);
        Lent { buffer: self }
    }

    /// Waits until so many holds are left.
    #[inline]
    fn land(&self, held: usize) {
        // Whoever may look at the elements while another thread lends them has been told of that by it, and sees this, too.
        if self.has_flown.load(Ordering::Relaxed) {
            self.storage.await_holds(held);
        }
    }

    /// # Safety
    ///
    /// No call works on the memory.
    unsafe fn slice(&self) -> &[T] {
        // SAFETY: the block holds `count` elements, any bits are a value of `T`, and it lives as long as `self`; the rest is the caller's
        // promise. Peers touch it only during calls.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.count) }
    }

    /// # Safety
    ///
    /// No call works on the memory.
    unsafe fn slice_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `slice`; `&mut self` excludes other references and new calls.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.count) }
    }
}

/// A buffer's memory, lent to the host though a call that does not touch it yet has the buffer.
#[derive(Debug)]
pub(crate) struct Lent<'a, T> {
    buffer: &'a mut DeviceBuffer<T>,
}

impl<T: Element> Lent<'_, T> {
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.buffer.as_ptr()
    }

    /// As [`DeviceBuffer::check_host`].
    pub(crate) fn check_host(&self) -> Result<(), Error> {
        self.buffer.check_host()
    }

    /// As [`DeviceBuffer::write`].
    pub(crate) fn write(&mut self, from: &[T]) -> Result<(), Error> {
        self.buffer.same_length(from.len())?;
        // SAFETY: as in `deref`, and it is as long.
        unsafe { self.buffer.overwrite(from) }
    }
}

impl<T: Element> Deref for Lent<'_, T> {
    type Target = [T];

    /// # Panics
    /// If it is memory of a GPU.
    fn deref(&self) -> &[T] {
        self.buffer.assert_host();
        // SAFETY: by the contract of `lend`; new calls need the buffer, which is borrowed.
        unsafe { self.buffer.slice() }
    }
}

impl<T: Element> DerefMut for Lent<'_, T> {
    /// # Panics
    /// If it is memory of a GPU.
    fn deref_mut(&mut self) -> &mut [T] {
        self.buffer.assert_host();
        // SAFETY: as in `deref`.
        unsafe { self.buffer.slice_mut() }
    }
}

impl<T: Element> Deref for DeviceBuffer<T> {
    type Target = [T];

    /// # Panics
    /// If it is memory of a GPU.
    fn deref(&self) -> &[T] {
        self.host_access();
        // SAFETY: `land` waited, and a new call that writes needs `&mut self`.
        unsafe { self.slice() }
    }
}

impl<T: Element> DerefMut for DeviceBuffer<T> {
    /// # Panics
    /// If it is memory of a GPU.
    fn deref_mut(&mut self) -> &mut [T] {
        self.host_access();
        // SAFETY: as in `deref`.
        unsafe { self.slice_mut() }
    }
}

/// A stream's hold on a buffer.
#[derive(Debug)]
pub(crate) struct InFlight {
    storage: Arc<Storage>,
}

impl InFlight {
    /// Whether the host reaches the memory.
    pub(crate) fn is_host(&self) -> bool {
        self.storage.block.is_host()
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // One hold may be left where memory is lent.
        let left = self.storage.in_flight.fetch_sub(1, Ordering::AcqRel);
        if left <= 2 && !self.storage.block.is_of_parent() {
            let _guard = self.storage.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.storage.idle.notify_all();
        }
    }
}
