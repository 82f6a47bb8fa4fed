//! The heap: memory of this rank that every rank can reach. First fit over a sorted list of free ranges.

use crate::error::Error;
use oxccl_transports::Region;
use std::sync::{Arc, Mutex, PoisonError};

/// Allocations start at multiples of this: a page, so that a freed one's pages can be given back.
const GRAIN: usize = 4096;
/// Allocations of at least this size start at multiples of it, so that huge pages can hold them.
const HUGE: usize = 2 << 20;

/// A rank's heap.
#[derive(Debug)]
pub(crate) struct Heap {
    region: Arc<Region>,
    /// Free ranges (offset, length), sorted, never adjacent.
    free: Mutex<Vec<(usize, usize)>>,
}

impl Heap {
    /// A heap over this rank's own region.
    pub(crate) fn new(region: Arc<Region>) -> Heap {
        Heap::part(region, 0)
    }

    /// A heap over what follows the first bytes of a region.
    pub(crate) fn part(region: Arc<Region>, start: usize) -> Heap {
        let whole = (start, region.len_bytes() - start);
        Heap { region, free: Mutex::new(vec![whole]) }
    }

    /// The offset of an address in the heap, if all `len_bytes` from there lie in it.
    #[inline]
    pub(crate) fn offset(&self, address: usize, len_bytes: usize) -> Option<usize> {
        let offset = address.wrapping_sub(self.region.as_ptr() as usize);
        (offset < self.region.len_bytes() && len_bytes <= self.region.len_bytes() - offset)
            .then_some(offset)
    }

    /// Where it begins in this process.
    pub(crate) fn base(&self) -> usize {
        self.region.as_ptr() as usize
    }

    /// Takes zeroed memory.
    pub(crate) fn alloc(self: &Arc<Heap>, len_bytes: usize) -> Result<HeapBlock, Error> {
        let len = len_bytes.max(1).next_multiple_of(GRAIN);
        let offset = self.take(len).ok_or_else(|| Error::OutOfMemory {
            bytes: len_bytes,
            detail: format!(
                "the heap has {} bytes and no free range of that size; raise heap_bytes (OXCCL_HEAP_BYTES)",
                self.region.len_bytes()
            ),
        })?;
        let block = HeapBlock { heap: self.clone(), offset, len };
        self.region.advise_huge(offset, len);
        self.region
            .reserve(offset, len)
            .map_err(|error| Error::OutOfMemory { bytes: len_bytes, detail: error.to_string() })?;
        Ok(block)
    }

    fn take(&self, len: usize) -> Option<usize> {
        let align = if len >= HUGE { HUGE } else { GRAIN };
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, start) = free.iter().enumerate().find_map(|(at, &(offset, size))| {
            let start = offset.next_multiple_of(align);
            (start + len <= offset + size).then_some((at, start))
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
        if let Err(error) = self.region.release(offset, len) {
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

    /// Its first byte, aligned to a page.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the offset lies in the region, which the heap keeps mapped.
        unsafe { self.heap.region.as_ptr().add(self.offset) }
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
        let heap = Arc::new(Heap::new(Arc::new(Region::create("test", 16 << 20).unwrap())));
        let whole = heap.free.lock().unwrap().clone();
        let blocks: Vec<_> =
            [1, 5000, 3 << 20, 4096, 2 << 20].map(|len| heap.alloc(len).unwrap()).into();
        for (i, a) in blocks.iter().enumerate() {
            for b in &blocks[i + 1..] {
                assert!(a.offset + a.len <= b.offset || b.offset + b.len <= a.offset);
            }
        }
        assert_eq!(blocks[2].offset % HUGE, 0);
        drop(blocks);
        assert_eq!(*heap.free.lock().unwrap(), whole);
    }

    #[test]
    fn a_full_heap_says_so() {
        let heap = Arc::new(Heap::new(Arc::new(Region::create("test", 1 << 20).unwrap())));
        let error = heap.alloc(2 << 20).unwrap_err();
        assert!(error.to_string().contains("OXCCL_HEAP_BYTES"), "{error}");
    }

    #[test]
    fn only_addresses_inside_have_an_offset() {
        let heap = Arc::new(Heap::new(Arc::new(Region::create("test", 1 << 20).unwrap())));
        let block = heap.alloc(4096).unwrap();
        assert_eq!(heap.offset(block.as_ptr() as usize + 8, 8), Some(block.offset + 8));
        let end = heap.region.as_ptr() as usize + (1 << 20);
        assert_eq!(heap.offset(end - 8, 16), None);
        assert_eq!(heap.offset(heap.region.as_ptr() as usize - 1, 1), None);
    }
}
