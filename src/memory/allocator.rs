//! An allocator over a communicator's heap, for frameworks whose tensors are to lie there from the
//! start.

use crate::device::{Heap, HeapBlock};
use std::alloc::Layout;
use std::collections::{BTreeMap, HashMap};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pages of the heap begin at multiples of this.
const PAGE: usize = 4096;

/// Classes of lengths between a power of two and the next: at most an eighth of a block is unused.
const CLASSES: usize = 8;

/// Takes memory from the heap of a communicator on the host, and keeps what is given back for the
/// next that needs as much. Calls reach such memory in place, without copies, wherever a tensor
/// begins in it.
///
/// It is meant for large blocks: each takes whole pages. Any thread may use it, also after the
/// communicator has ended; its memory is then like any other. In a forked process, and after a
/// failure whose ranks could not be awaited, it has none.
///
/// ```
/// use oxccl::{Collectives, Communicator, Config, ReduceOp};
/// use std::alloc::Layout;
/// # let ranks = Communicator::local(2)?;
/// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
/// let allocator = comm.heap_allocator()?;
/// let layout = Layout::array::<f32>(1 << 20).expect("it is not too long");
/// let memory = allocator.allocate(layout).expect("there is memory");
/// // SAFETY: it is this rank's alone, and all of it is written before it is read.
/// let tensor = unsafe {
///     memory.write_bytes(0, layout.size());
///     std::slice::from_raw_parts_mut(memory.cast::<f32>().as_ptr(), 1 << 20)
/// };
/// comm.all_reduce_in_place(tensor, ReduceOp::Sum)?;
/// // SAFETY: nobody uses it any longer.
/// unsafe { allocator.deallocate(memory) };
/// # Ok::<(), oxccl::Error>(()) }); });
/// # Ok::<(), oxccl::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct HeapAllocator(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    heap: Arc<Heap>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Blocks that are used, by address.
    used: HashMap<usize, HeapBlock>,
    /// Blocks that are kept, by length.
    kept: BTreeMap<usize, Vec<HeapBlock>>,
    kept_bytes: usize,
}

/// Bytes that the allocator has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapAllocatorUse {
    /// Used by somebody.
    pub used_bytes: usize,
    /// Kept for the next that need as much.
    pub kept_bytes: usize,
}

impl HeapAllocator {
    pub(crate) fn new(heap: Arc<Heap>) -> HeapAllocator {
        HeapAllocator(Arc::new(Shared { heap, state: Mutex::default() }))
    }

    /// Memory that nobody else uses, with whatever it holds. `None` if the heap has no more
    /// ([`Config::heap_bytes`](crate::Config::heap_bytes)), or the machine.
    pub fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        if layout.align() > PAGE || !self.0.heap.is_usable() {
            return None;
        }
        let len = class(layout.size())?;
        let kept = {
            let mut state = self.state();
            let kept = state.kept.get_mut(&len).and_then(Vec::pop);
            if kept.is_some() {
                state.kept_bytes -= len;
            }
            kept
        };
        let block = match kept {
            Some(block) => block,
            None => self.fresh(len)?,
        };
        let at = NonNull::new(block.as_ptr())?;
        self.state().used.insert(at.as_ptr().addr(), block);
        Some(at)
    }

    /// A block of the heap; what is kept goes before there is none.
    fn fresh(&self, len: usize) -> Option<HeapBlock> {
        self.0.heap.alloc(len).ok().or_else(|| {
            self.trim();
            self.0.heap.alloc(len).ok()
        })
    }

    /// Gives memory back.
    ///
    /// # Safety
    /// It has come from [`allocate`](Self::allocate), and nobody uses it any longer.
    pub unsafe fn deallocate(&self, at: NonNull<u8>) {
        // A forked process has a copy of the list, and the memory is its parent's.
        if !self.0.heap.is_here() {
            return;
        }
        let mut state = self.state();
        let Some(block) = state.used.remove(&at.as_ptr().addr()) else { return };
        if self.0.heap.is_usable() {
            state.kept_bytes += block.len();
            state.kept.entry(block.len()).or_default().push(block);
        } else {
            drop(state);
            drop(block);
        }
    }

    /// Whether memory that is used begins here.
    pub fn owns(&self, at: *const u8) -> bool {
        // Another process' lock may be held for ever.
        match self.0.heap.is_here() {
            true => self.state().used.contains_key(&at.addr()),
            false => self.0.heap.offset(at.addr(), 1).is_some(),
        }
    }

    /// Gives the machine what is kept.
    pub fn trim(&self) {
        if !self.0.heap.is_here() {
            return;
        }
        let mut state = self.state();
        state.kept_bytes = 0;
        let kept = std::mem::take(&mut state.kept);
        drop(state);
        drop(kept);
    }

    /// How much there is.
    pub fn usage(&self) -> HeapAllocatorUse {
        if !self.0.heap.is_here() {
            return HeapAllocatorUse::default();
        }
        let state = self.state();
        HeapAllocatorUse {
            used_bytes: state.used.values().map(HeapBlock::len).sum(),
            kept_bytes: state.kept_bytes,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The length of the block that so many bytes get: whole pages, of few lengths.
fn class(bytes: usize) -> Option<usize> {
    let least = bytes.max(1);
    let grain = (least.checked_next_power_of_two()? / (2 * CLASSES)).max(PAGE);
    let len = least.checked_next_multiple_of(grain)?;
    (len <= isize::MAX as usize).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_transports::Region;

    fn allocator(bytes: usize) -> HeapAllocator {
        HeapAllocator::new(Arc::new(Heap::new(
            Arc::new(Region::create("test", bytes).unwrap()),
            None,
        )))
    }

    fn of(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 64).unwrap()
    }

    #[test]
    fn classes_waste_little() {
        for bytes in (0..100_000).step_by(37).chain((1..40).map(|bit| (1 << bit) + 1)) {
            let len = class(bytes).unwrap();
            assert!(len >= bytes && len.is_multiple_of(PAGE), "{bytes}");
            assert!(len - bytes <= (bytes / CLASSES).max(PAGE), "{bytes} get {len}");
        }
        assert_eq!(class(usize::MAX), None);
        assert_eq!(class(isize::MAX as usize), None);
    }

    #[test]
    fn memory_is_kept_and_used_again() {
        let allocator = allocator(64 << 20);
        let first = allocator.allocate(of(1 << 20)).unwrap();
        assert!(allocator.owns(first.as_ptr()) && first.as_ptr().addr().is_multiple_of(PAGE));
        let second = allocator.allocate(of(1 << 20)).unwrap();
        assert_ne!(first, second);
        // SAFETY: they have come from it, and nobody uses them.
        unsafe {
            second.write_bytes(7, 1 << 20);
            allocator.deallocate(first);
        }
        let usage = HeapAllocatorUse { used_bytes: 1 << 20, kept_bytes: 1 << 20 };
        assert_eq!(allocator.usage(), usage);
        assert!(!allocator.owns(first.as_ptr()));
        assert_eq!(allocator.allocate(of((1 << 20) - 5)), Some(first));
        // SAFETY: as above.
        unsafe {
            allocator.deallocate(first);
            // Twice is a mistake that changes nothing.
            allocator.deallocate(first);
            allocator.deallocate(second);
        }
        allocator.trim();
        assert_eq!(allocator.usage(), HeapAllocatorUse::default());
    }

    #[test]
    fn what_is_kept_goes_before_there_is_none() {
        let allocator = allocator(8 << 20);
        let small: Vec<_> = (0..7).map(|_| allocator.allocate(of(1 << 20)).unwrap()).collect();
        for at in small {
            // SAFETY: it has come from it, and nobody uses it.
            unsafe { allocator.deallocate(at) };
        }
        assert!(allocator.allocate(of(6 << 20)).is_some());
        assert!(allocator.allocate(of(6 << 20)).is_none());
        assert!(allocator.allocate(of(isize::MAX as usize & !63)).is_none());
        assert!(allocator.allocate(Layout::from_size_align(64, 8192).unwrap()).is_none());
    }

    #[test]
    fn a_heap_that_others_may_still_write_to_gives_nothing() {
        let allocator = allocator(8 << 20);
        let (first, second) = (allocator.allocate(of(99)), allocator.allocate(of(99)));
        // SAFETY: it has come from it, and nobody uses it.
        unsafe { allocator.deallocate(first.unwrap()) };
        allocator.0.heap.retire();
        assert_eq!(allocator.allocate(of(99)), None);
        // SAFETY: as above.
        unsafe { allocator.deallocate(second.unwrap()) };
        allocator.0.heap.revive();
        assert!(allocator.allocate(of(99)).is_some());
    }

    #[test]
    fn threads_never_get_the_same() {
        let allocator = allocator(64 << 20);
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let allocator = allocator.clone();
                scope.spawn(move || {
                    for round in 0..300usize {
                        let bytes = 1 + (round * 7919 + usize::from(thread) * 104_729) % 300_000;
                        let at = allocator.allocate(of(bytes)).unwrap();
                        // SAFETY: it has so many bytes, and is this thread's.
                        unsafe {
                            at.write_bytes(thread, bytes);
                            std::thread::yield_now();
                            let all = std::slice::from_raw_parts(at.as_ptr(), bytes);
                            assert!(all.iter().all(|byte| *byte == thread));
                            allocator.deallocate(at);
                        }
                    }
                });
            }
        });
        assert_eq!(allocator.usage().used_bytes, 0);
    }
}
