//! Memory of this process that somebody lends to the heap: calls then reach it as the heap's.
//!
//! ```text
//! lent      [ beside | head ][ whole pages ... ][ tail | beside ]
//! a block   [        | copy ][ the same pages  ][ copy |        ]
//! ```
//!
//! Its whole pages become those of the block ([`Alias`]). Of its first and last page, which it may
//! share with other memory, the block has copies. What a call uses of these (its [`Edge`]s) is
//! copied there before it begins, and back once it has ended.

use super::{Heap, HeapBlock};
use crate::error::Error;
use oxccl_transports::{Alias, HUGE_PAGE};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

const PAGE: usize = 4096;

/// What is lent to a heap.
#[derive(Debug, Default)]
pub(super) struct LentMemory {
    /// By where it begins.
    all: RwLock<BTreeMap<usize, Place>>,
    changes: Arc<AtomicU64>,
}

/// Where something is that is lent.
#[derive(Clone, Debug)]
struct Place {
    bytes: Range<usize>,
    /// The pages that it shares with no other memory.
    pages: Range<usize>,
    /// Where its first byte is in the heap.
    offset: usize,
}

/// Bytes that a call's buffer has beside whole pages: there, and in the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    lent: *mut u8,
    in_heap: *mut u8,
    len_bytes: usize,
}

impl Edge {
    /// # Safety
    /// Its memory is there, and nobody writes to it.
    pub(crate) unsafe fn copy_in(&self) {
        // SAFETY: by this function's contract; the heap's bytes are this call's.
        unsafe { self.in_heap.copy_from_nonoverlapping(self.lent, self.len_bytes) }
    }

    /// # Safety
    /// Its memory is there, and nobody uses it.
    pub(crate) unsafe fn copy_out(&self) {
        // SAFETY: as above.
        unsafe { self.lent.copy_from_nonoverlapping(self.in_heap, self.len_bytes) }
    }
}

/// Where a buffer is in the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) offset: usize,
    /// Where the machine uses it.
    pub(crate) at: *mut u8,
    /// What of it has to be copied there, and back.
    pub(crate) edges: [Option<Edge>; 2],
}

impl LentMemory {
    /// Changes whenever something is lent, or not any more.
    pub(super) fn changes(&self) -> Arc<AtomicU64> {
        self.changes.clone()
    }

    /// Whether there never was anything.
    fn is_empty(&self) -> bool {
        self.changes.load(Ordering::Acquire) == 0
    }

    fn find(&self, address: usize, len_bytes: usize) -> Option<Place> {
        if self.is_empty() {
            return None;
        }
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let place = all.range(..=address).next_back()?.1;
        let is_in_it = place.bytes.contains(&address) && len_bytes <= place.bytes.end - address;
        is_in_it.then(|| place.clone())
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<usize, Place>) -> Option<Place>) {
        change(&mut self.all.write().unwrap_or_else(PoisonError::into_inner));
        self.changes.fetch_add(1, Ordering::Release);
    }
}

impl Heap {
    /// Whether anything has ever been lent to it.
    pub(crate) fn has_lent(&self) -> bool {
        !self.lent.is_empty()
    }

    /// How many pieces of memory are.
    pub(crate) fn lent_count(&self) -> usize {
        self.lent.all.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Where these bytes are in the heap, if all are there, or lent to it.
    #[inline]
    pub(crate) fn reach(&self, at: *mut u8, len_bytes: usize) -> Option<Reached> {
        match self.offset(at.addr(), len_bytes) {
            Some(offset) => Some(Reached { offset, at, edges: [None; 2] }),
            None => self.reach_lent(at, len_bytes),
        }
    }

    #[cold]
    fn reach_lent(&self, at: *mut u8, len_bytes: usize) -> Option<Reached> {
        let address = at.addr();
        let place = self.lent.find(address, len_bytes)?;
        let offset = |address: usize| place.offset + (address - place.bytes.start);
        let to = |address| std::ptr::with_exposed_provenance_mut(self.base() + offset(address));
        let end = address + len_bytes;
        let edge = |edge: Range<usize>| {
            (!edge.is_empty()).then(|| Edge {
                lent: at.wrapping_add(edge.start - address),
                in_heap: to(edge.start),
                len_bytes: edge.len(),
            })
        };
        let head = edge(address..end.min(place.pages.start));
        let tail = edge(address.max(place.pages.end)..end);
        Some(Reached { offset: offset(address), at: to(address), edges: [head, tail] })
    }
}

/// Memory that is lent to a heap until this is dropped.
#[derive(Debug)]
pub(crate) struct Lent {
    heap: Arc<Heap>,
    start: usize,
    alias: Option<Alias>,
    block: Option<HeapBlock>,
}

impl Lent {
    /// Lends memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Transport`] if it is no private memory.
    ///
    /// # Safety
    /// Nobody uses it meanwhile, nor when this is dropped, when it must still be there. No device
    /// has its physical pages.
    pub(crate) unsafe fn new(
        heap: &Arc<Heap>,
        at: *mut u8,
        len_bytes: usize,
    ) -> Result<Lent, Error> {
        let start = at.expose_provenance();
        let (bytes, first) = (start..start + len_bytes, start / PAGE * PAGE);
        let pages = whole_pages(&bytes);
        let block = heap.alloc_like(bytes.end - first, first % HUGE_PAGE)?;
        let region = heap.region().ok_or(Error::MemoryOfGpu)?;
        let alias = match pages.is_empty() {
            true => None,
            false => {
                let offset = block.offset() + (pages.start - first);
                // SAFETY: by this function's contract; the block is new, and as long.
                Some(unsafe { Alias::put(region, offset, pages.clone()) }?)
            }
        };
        let place = Place { bytes, pages, offset: block.offset() + (start - first) };
        heap.lent.change(|all| all.insert(start, place));
        Ok(Lent { heap: heap.clone(), start, alias, block: Some(block) })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.heap.lent.change(|all| all.remove(&self.start));
        // Pages that cannot be given back stay the block's, which then nobody else may get.
        if let Some(Err(error)) = self.alias.as_mut().map(Alias::give_back) {
            tracing::warn!(%error, "memory that was registered stays in the heap");
            std::mem::forget((self.alias.take(), self.block.take()));
        }
    }
}

/// The whole pages of a range. What is in front of them and behind them is all the rest.
fn whole_pages(bytes: &Range<usize>) -> Range<usize> {
    let start = bytes.start.next_multiple_of(PAGE).min(bytes.end);
    let end = (bytes.end / PAGE * PAGE).max(start);
    start..end
}
