//! The heap: memory of this rank that every rank can reach. First fit over a sorted list of free
//! ranges.

use super::cuda::{Stream, copy, fill};
use super::lent::LentMemory;
use crate::error::Error;
use oxccl_plans::length::Length;
use oxccl_transports::cuda::{DeviceRegion, beside_captures};
use oxccl_transports::fork::Origin;
use oxccl_transports::{Claims, CudaError, HUGE_PAGE, Region};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Allocations start at multiples of this: a page, so that a freed one's pages can be given back.
const GRAIN: usize = 4096;

/// A rank's heap.
#[derive(Debug)]
pub(crate) struct Heap {
    memory: Memory,
    /// Free ranges (offset, length), sorted, never adjacent.
    free: Mutex<Vec<(usize, usize)>>,
    /// What comes back is not given out again: another rank may still write to it.
    /// For how many communicators.
    retired: AtomicUsize,
    /// What others lend to it.
    pub(super) lent: LentMemory,
    origin: Origin,
}

/// What a heap is made of.
#[derive(Debug)]
enum Memory {
    /// Pages exist once allocated.
    Host(Arc<Region>, Option<Claims>),
    /// A GPU's, and the stream that fills and copies it.
    Device(Arc<DeviceRegion>, Arc<Stream>),
}

impl Heap {
    /// A heap over this rank's own memory of a GPU, cleared and copied through this stream.
    pub(crate) fn on_gpu(region: Arc<DeviceRegion>, stream: Arc<Stream>) -> Heap {
        let whole = (0, region.len_bytes());
        Heap::of(Memory::Device(region, stream), whole)
    }

    /// A heap over this rank's own region, whose pages are reserved with an eye to what other ranks
    /// of the node are about to.
    pub(crate) fn new(region: Arc<Region>, claims: Option<Claims>) -> Heap {
        let whole = (0, region.len_bytes());
        Heap::of(Memory::Host(region, claims), whole)
    }

    /// The region that all of it is, on a host.
    pub(crate) fn region(&self) -> Option<&Arc<Region>> {
        match &self.memory {
            Memory::Host(region, _) => Some(region),
            Memory::Device(..) => None,
        }
    }

    /// The memory that all of it is, on a GPU.
    pub(crate) fn device_region(&self) -> Option<&Arc<DeviceRegion>> {
        match &self.memory {
            Memory::Host(..) => None,
            Memory::Device(region, _) => Some(region),
        }
    }

    /// A heap over a range of a region, for little that takes no large part of the machine's
    /// memory.
    pub(crate) fn part(region: Arc<Region>, range: Range<usize>) -> Heap {
        Heap::of(Memory::Host(region, None), (range.start, range.len()))
    }

    fn of(memory: Memory, whole: (usize, usize)) -> Heap {
        Heap {
            memory,
            free: Mutex::new(vec![whole]),
            retired: AtomicUsize::new(0),
            lent: LentMemory::default(),
            origin: Origin::here(),
        }
    }

    /// Keeps from here on what is given back: a rank that could not be awaited may still write to
    /// it. Each communicator over this heap may say so.
    pub(crate) fn retire(&self) {
        self.retired.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes back one [`retire`](Self::retire): whoever could not be awaited then is over.
    pub(crate) fn revive(&self) {
        self.retired.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether this is the process that made it.
    pub(crate) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// Whether what is given out is this rank's alone.
    pub(crate) fn is_usable(&self) -> bool {
        self.is_here() && self.retired.load(Ordering::Acquire) == 0
    }

    /// The offset of an address in the heap, if all `len_bytes` from there lie in it.
    #[inline]
    pub(crate) fn offset(&self, address: usize, len_bytes: usize) -> Option<usize> {
        let offset = address.wrapping_sub(self.base());
        let whole = self.len_bytes();
        (offset < whole && len_bytes <= whole - offset).then_some(offset)
    }

    /// Grows whenever other addresses are in the heap than before.
    pub(crate) fn changes(&self) -> Arc<AtomicU64> {
        self.lent.changes()
    }

    /// Where it begins in this process.
    #[inline]
    pub(crate) fn base(&self) -> usize {
        match &self.memory {
            Memory::Host(region, _) => region.as_ptr() as usize,
            Memory::Device(region, _) => region.as_ptr() as usize,
        }
    }

    /// How long it is.
    #[inline]
    pub(crate) fn len_bytes(&self) -> usize {
        match &self.memory {
            Memory::Host(region, _) => region.len_bytes(),
            Memory::Device(region, _) => region.len_bytes(),
        }
    }

    /// Bytes that are not free, and the length of the largest free range.
    pub(crate) fn usage(&self) -> (usize, usize) {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let unused: usize = free.iter().map(|range| range.1).sum();
        let largest = free.iter().map(|range| range.1).max();
        (self.len_bytes() - unused, largest.unwrap_or(0))
    }

    /// Takes zeroed memory.
    pub(crate) fn alloc(self: &Arc<Heap>, len_bytes: usize) -> Result<HeapBlock, Error> {
        self.alloc_like(len_bytes, 0)
    }

    /// The same, so far behind a multiple of a huge page if it has room for one.
    pub(super) fn alloc_like(
        self: &Arc<Heap>,
        len_bytes: usize,
        behind: usize,
    ) -> Result<HeapBlock, Error> {
        let padded = Length::of_bytes(len_bytes.max(1)).and_then(|length| length.padded(GRAIN));
        let len = padded.map_err(Error::too_long("alloc", "count"))?.bytes();
        let offset = self.take(len, behind).ok_or_else(|| Error::OutOfMemory {
            bytes: len_bytes,
            detail: format!(
                "the heap has {} bytes and no free range of that size; raise heap_bytes (OXCCL_HEAP_BYTES)",
                self.len_bytes()
            ),
        })?;
        let block = HeapBlock { heap: self.clone(), offset, len };
        self.clear(&block)?;
        Ok(block)
    }

    /// Makes a new block's pages exist, all zeros.
    fn clear(&self, block: &HeapBlock) -> Result<(), Error> {
        match &self.memory {
            Memory::Host(region, claims) => {
                let no_room = |error: oxccl_transports::Error| Error::OutOfMemory {
                    bytes: block.len,
                    detail: error.to_string(),
                };
                region.reserve(block.offset, block.len, claims.as_ref()).map_err(no_room)
            }
            Memory::Device(_, stream) => {
                // SAFETY: the block is nobody's yet.
                Ok(waited(stream, || unsafe { fill(stream, block.as_ptr(), 0, block.len) })?)
            }
        }
    }

    fn take(&self, len: usize, behind: usize) -> Option<usize> {
        // What has room for huge pages begins with one.
        let (align, behind) = if len >= HUGE_PAGE { (HUGE_PAGE, behind) } else { (GRAIN, 0) };
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, start) = free.iter().enumerate().find_map(|(at, &(offset, size))| {
            let start = offset.checked_next_multiple_of(align)?.checked_add(behind)?;
            let room = size.checked_sub(start - offset)?;
            (len <= room).then_some((at, start))
        })?;
        let (offset, size) = free.remove(at);
        let behind = (start + len, offset + size - start - len);
        let before = (offset, start - offset);
        for range in [behind, before] {
            if range.1 > 0 {
                free.insert(at, range);
            }
        }
        Some(start)
    }

    fn give_back(&self, offset: usize, len: usize) {
        // In a forked process it is the parent's.
        if self.retired.load(Ordering::Acquire) > 0 || !self.origin.is_here() {
            return;
        }
        if let Memory::Host(region, _) = &self.memory
            && let Err(error) = region.release(offset, len)
        {
            tracing::warn!(%error, "the pages of a freed buffer stay in use");
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free.partition_point(|range| range.0 < offset);
        free.insert(at, (offset, len));
        if at + 1 < free.len() && free[at].0 + free[at].1 == free[at + 1].0 {
            free[at].1 += free[at + 1].1;
            free.remove(at + 1);
        }
        if at > 0 && free[at - 1].0 + free[at - 1].1 == free[at].0 {
            free[at - 1].1 += free[at].1;
            free.remove(at);
        }
    }
}

/// Puts something into a stream that nobody captures, and waits for it, whatever is captured
/// elsewhere.
fn waited(stream: &Stream, put: impl FnOnce() -> Result<(), CudaError>) -> Result<(), CudaError> {
    beside_captures(stream.context().device().driver(), || {
        put()?;
        // Whatever went wrong: what was put in must not be under way when the memory goes.
        stream.synchronize().inspect_err(|_| drop(stream.synchronize()))
    })
}

/// Memory taken from a heap, given back on drop.
#[derive(Debug)]
pub(crate) struct HeapBlock {
    heap: Arc<Heap>,
    offset: usize,
    len: usize,
}

impl HeapBlock {
    /// Where it begins in the heap.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// How long it is.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Its first byte, aligned to a page.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        (self.heap.base() + self.offset) as *mut u8
    }

    /// Whether this process was forked from the one that took it.
    pub(crate) fn is_of_parent(&self) -> bool {
        !self.heap.origin.is_here()
    }

    /// Whether the host reaches it.
    pub(crate) fn is_host(&self) -> bool {
        matches!(self.heap.memory, Memory::Host(..))
    }

    /// Copies from host memory to its beginning.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// It has `len_bytes`, as many are to be read, and nobody uses them otherwise.
    pub(crate) unsafe fn write(&self, from: *const u8, len_bytes: usize) -> Result<(), CudaError> {
        match &self.heap.memory {
            // SAFETY: by this function's contract.
            Memory::Host(..) => unsafe { self.as_ptr().copy_from(from, len_bytes) },
            // SAFETY: as above.
            Memory::Device(_, stream) => {
                // SAFETY: as above, and it is waited for.
                waited(stream, || unsafe { copy(stream, self.as_ptr(), from, len_bytes) })?
            }
        }
        Ok(())
    }

    /// Copies its beginning to host memory.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    pub(crate) unsafe fn read(&self, to: *mut u8, len_bytes: usize) -> Result<(), CudaError> {
        match &self.heap.memory {
            // SAFETY: by this function's contract.
            Memory::Host(..) => unsafe { to.copy_from(self.as_ptr(), len_bytes) },
            // SAFETY: as above.
            Memory::Device(_, stream) => {
                // SAFETY: as above, and it is waited for.
                waited(stream, || unsafe { copy(stream, to, self.as_ptr(), len_bytes) })?
            }
        }
        Ok(())
    }
}

impl Drop for HeapBlock {
    fn drop(&mut self) {
        self.heap.give_back(self.offset, self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_distinct_and_come_back() {
        let heap = Arc::new(Heap::new(Arc::new(Region::create("test", 16 << 20).unwrap()), None));
        let whole = heap.free.lock().unwrap().clone();
        let blocks: Vec<_> =
            [1, 5000, 3 << 20, 4096, 2 << 20].map(|len| heap.alloc(len).unwrap()).into();
        for (i, a) in blocks.iter().enumerate() {
            for b in &blocks[i + 1..] {
                assert!(a.offset + a.len <= b.offset || b.offset + b.len <= a.offset);
            }
        }
        assert_eq!(blocks[2].offset % HUGE_PAGE, 0);
        drop(blocks);
        assert_eq!(*heap.free.lock().unwrap(), whole);
    }

    #[test]
    fn a_retired_heap_gives_nothing_out_again() {
        let heap = Arc::new(Heap::new(Arc::new(Region::create("test", 1 << 20).unwrap()), None));
        let first = heap.alloc(4096).unwrap();
        // SAFETY: the block is this test's.
        unsafe { first.as_ptr().write(7) };
        let (at, offset) = (first.as_ptr(), first.offset);
        heap.retire();
        drop(first);
        assert_ne!(heap.alloc(4096).unwrap().offset, offset);
        // SAFETY: the heap's memory is mapped as long as the heap, and nobody else uses it.
        assert_eq!(unsafe { at.read() }, 7, "its pages stay, too");
        // Two communicators have had it kept; what one takes back is not the other's.
        heap.retire();
        for is_kept in [true, false] {
            heap.revive();
            let block = heap.alloc(4096).unwrap();
            let at = block.offset;
            drop(block);
            assert_eq!(heap.alloc(4096).unwrap().offset != at, is_kept);
        }
    }

    #[test]
    fn a_full_heap_says_so() {
        let heap = Arc::new(Heap::new(Arc::new(Region::create("test", 1 << 20).unwrap()), None));
        let error = heap.alloc(2 << 20).unwrap_err();
        assert!(error.to_string().contains("OXCCL_HEAP_BYTES"), "{error}");
    }

    #[test]
    fn only_addresses_inside_have_an_offset() {
        let heap = Arc::new(Heap::new(Arc::new(Region::create("test", 1 << 20).unwrap()), None));
        let block = heap.alloc(4096).unwrap();
        assert_eq!(heap.offset(block.as_ptr() as usize + 8, 8), Some(block.offset + 8));
        let end = heap.base() + (1 << 20);
        assert_eq!(heap.offset(end - 8, 16), None);
        assert_eq!(heap.offset(heap.base() - 1, 1), None);
    }
}
