//! Typed memory that every rank can reach.

use super::heap::HeapBlock;
use crate::error::Error;
use crate::waiters::Waiters;
use oxccl_plans::element::Element;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Elements in memory of a communicator's device, which peers read and write in place, without a
/// copy. Zero at first.
///
/// It is [read](Self::read) and [written](Self::write) by copies; on a host it can become a
/// [`HostBuffer`], which is a slice. While a stream still works on the buffer, all of these wait
/// until it is done: a call that does not move ends by its time-out. Where a call has failed
/// because of a rank that was stopped inside it, other processes may still write to the buffer; the
/// error says so.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    storage: Arc<Storage>,
    /// The storage's, here because groups ask for the addresses of many buffers.
    address: *mut T,
    is_host: bool,
    len: usize,
    /// Whether a stream has ever used it. If not, the storage, which lies elsewhere, need not be
    /// asked.
    has_flown: AtomicBool,
}

// SAFETY: the address leads to the storage, which may be used by any thread; elements are used as
// those of a slice are.
unsafe impl<T: Send> Send for DeviceBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for DeviceBuffer<T> {}

#[derive(Debug)]
struct Storage {
    block: HeapBlock,
    in_flight: AtomicUsize,
    idle: Waiters,
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
            guard = self.idle.wait(guard);
        }
    }
}

impl<T: Element> DeviceBuffer<T> {
    pub(crate) fn new(block: HeapBlock, len: usize) -> DeviceBuffer<T> {
        let in_flight = AtomicUsize::new(0);
        let (address, is_host) = (block.as_ptr().cast(), block.is_host());
        let storage = Storage { block, in_flight, idle: Waiters::default(), lock: Mutex::new(()) };
        let has_flown = AtomicBool::new(false);
        DeviceBuffer { storage: Arc::new(storage), address, is_host, len, has_flown }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first element. Valid as long as the buffer; what a stream does there is not awaited.
    pub fn as_ptr(&self) -> *mut T {
        self.address
    }

    /// Whether it is host memory.
    pub fn is_host(&self) -> bool {
        self.is_host
    }

    /// The same memory as a slice of the host.
    ///
    /// # Errors
    /// [`Error::MemoryOfGpu`].
    pub fn into_host(self) -> Result<HostBuffer<T>, Error> {
        self.check_host()?;
        Ok(HostBuffer(self))
    }

    /// The elements, in memory of the host.
    ///
    /// # Errors
    /// [`Error::MemoryOfGpu`].
    pub fn host(&self) -> Result<&[T], Error> {
        self.check_host()?;
        self.land();
        // SAFETY: it is the host's; `land` waited, and a new call that writes needs `&mut self`.
        Ok(unsafe { self.elements() })
    }

    /// As [`host`](DeviceBuffer::host), to be written.
    ///
    /// # Errors
    /// As [`host`](DeviceBuffer::host).
    pub fn host_mut(&mut self) -> Result<&mut [T], Error> {
        self.check_host()?;
        self.land();
        // SAFETY: as in `host`; `&mut self` excludes other references.
        Ok(unsafe { self.elements_mut() })
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
        self.land();
        // SAFETY: both are as long, and no call works on the buffer (`land`; a new one that writes
        // needs `&mut self`).
        Ok(unsafe { self.storage.block.read(to.as_mut_ptr().cast(), size_of_val(to)) }?)
    }

    /// Copies from `from`, which is as long.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&mut self, from: &[T]) -> Result<(), Error> {
        self.land();
        self.overwrite(from)
    }

    /// As [`write`](Self::write), when no call works on the memory.
    pub(crate) fn overwrite(&mut self, from: &[T]) -> Result<(), Error> {
        self.same_length(from.len())?;
        // SAFETY: both are as long.
        Ok(unsafe { self.storage.block.write(from.as_ptr().cast(), size_of_val(from)) }?)
    }

    fn same_length(&self, found: usize) -> Result<(), Error> {
        if found == self.len {
            return Ok(());
        }
        Err(Error::CopyLength { found, expected: self.len })
    }

    /// Keeps the memory alive, and host accesses waiting, until it is dropped.
    pub(crate) fn fly(&self) -> InFlight {
        self.has_flown.store(true, Ordering::Relaxed);
        self.storage.in_flight.fetch_add(1, Ordering::AcqRel);
        InFlight { storage: self.storage.clone() }
    }

    /// Waits until no call works on the memory.
    #[inline]
    pub(crate) fn land(&self) {
        self.await_holds(0);
    }

    /// Waits until no more than so many holds are left: those of whoever does not touch the memory
    /// yet.
    #[inline]
    pub(crate) fn await_holds(&self, held: usize) {
        // Whoever may look at the elements while another thread lends them has been told of that by
        // it, and sees this, too.
        if self.has_flown.load(Ordering::Relaxed) {
            self.storage.await_holds(held);
        }
    }

    /// # Safety
    ///
    /// It is memory of the host, and no call works on it.
    pub(crate) unsafe fn elements(&self) -> &[T] {
        // SAFETY: the block holds `len` elements, any bits are a value of `T`, and it lives as long
        // as `self`; the rest is the caller's promise. Peers touch it only during calls.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }

    /// # Safety
    ///
    /// As for [`elements`](Self::elements).
    pub(crate) unsafe fn elements_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `elements`; `&mut self` excludes other references and new calls.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len) }
    }
}

/// A [`DeviceBuffer`] in memory of the host: a slice. Looking at it waits until no stream works on
/// it.
#[derive(Debug)]
pub struct HostBuffer<T>(DeviceBuffer<T>);

impl<T: Element> Deref for HostBuffer<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        self.0.land();
        // SAFETY: it is the host's (`into_host`); `land` waited, and a new call that writes needs
        // `&mut self`.
        unsafe { self.0.elements() }
    }
}

impl<T: Element> DerefMut for HostBuffer<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        self.0.land();
        // SAFETY: as in `deref`.
        unsafe { self.0.elements_mut() }
    }
}

/// A buffer of a communicator. Sealed.
pub trait Buffer: sealed::Sealed {
    /// What it holds.
    type Element: Element;

    /// Its memory.
    #[doc(hidden)]
    fn device_buffer(&self) -> &DeviceBuffer<Self::Element>;

    /// As [`device_buffer`](Buffer::device_buffer).
    #[doc(hidden)]
    fn device_buffer_mut(&mut self) -> &mut DeviceBuffer<Self::Element>;
}

mod sealed {
    pub trait Sealed {}
}

impl<T: Element> sealed::Sealed for DeviceBuffer<T> {}
impl<T: Element> sealed::Sealed for HostBuffer<T> {}

impl<T: Element> Buffer for DeviceBuffer<T> {
    type Element = T;

    #[inline]
    fn device_buffer(&self) -> &DeviceBuffer<T> {
        self
    }

    #[inline]
    fn device_buffer_mut(&mut self) -> &mut DeviceBuffer<T> {
        self
    }
}

impl<T: Element> Buffer for HostBuffer<T> {
    type Element = T;

    #[inline]
    fn device_buffer(&self) -> &DeviceBuffer<T> {
        &self.0
    }

    #[inline]
    fn device_buffer_mut(&mut self) -> &mut DeviceBuffer<T> {
        &mut self.0
    }
}

/// A stream's hold on a buffer.
#[derive(Debug)]
pub struct InFlight {
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
            let guard = self.storage.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.storage.idle.wake_all(guard);
        }
    }
}
