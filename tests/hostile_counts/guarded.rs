//! Memory that tells whoever leaves it.

use oxccl::{Communicator, Element, HostBuffer};
use std::ops::{Deref, DerefMut};

const PAGE: usize = 4096;
/// What the bytes are that nobody may write.
const CANARY: u8 = 0xa5;

/// Elements that end where a page begins that nobody may touch, with another before their first
/// page.
pub struct Guarded<T> {
    start: *mut u8,
    len_bytes: usize,
    first: *mut T,
    count: usize,
}

impl<T: Element> Guarded<T> {
    /// So many zeros.
    pub fn new(count: usize) -> Guarded<T> {
        let bytes = count * size_of::<T>();
        let inside = bytes.max(1).next_multiple_of(PAGE);
        let len_bytes = inside + 2 * PAGE;
        // SAFETY: new pages, which this object has alone.
        let start = unsafe {
            let (none, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let start = libc::mmap(std::ptr::null_mut(), len_bytes, none, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
            let (inner, open) = (start.add(PAGE), libc::PROT_READ | libc::PROT_WRITE);
            assert_eq!(libc::mprotect(inner, inside, open), 0);
            inner.cast::<u8>().write_bytes(CANARY, inside - bytes);
            start.cast::<u8>()
        };
        let first = start.wrapping_add(PAGE + inside - bytes).cast();
        Guarded { start, len_bytes, first, count }
    }

    /// # Panics
    /// If anybody has written before the first element.
    pub fn check(&self) {
        let before = self.start.wrapping_add(PAGE);
        let len = self.first as usize - before as usize;
        // SAFETY: the open pages' bytes before the first element, which nobody writes now.
        let canary = unsafe { std::slice::from_raw_parts(before, len) };
        assert!(canary.iter().all(|byte| *byte == CANARY), "a call has written before its buffer");
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        // SAFETY: this object's pages.
        unsafe { libc::munmap(self.start.cast(), self.len_bytes) };
    }
}

impl<T> Deref for Guarded<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `count` elements lie between the first one, which is aligned as the end of the
        // pages is, and that end.
        unsafe { std::slice::from_raw_parts(self.first, self.count) }
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.count) }
    }
}

/// Buffers of `comm.alloc`, with others between them that nobody may write.
pub struct Fenced<T> {
    fences: Vec<HostBuffer<u8>>,
    /// An input and an output.
    pub from: HostBuffer<T>,
    pub to: HostBuffer<T>,
}

impl<T: Element> Fenced<T> {
    /// An input and an output of these lengths, both small.
    pub fn new(comm: &Communicator, from: usize, to: usize) -> Fenced<T> {
        let fence = || {
            let mut fence = comm.alloc_host::<u8>(PAGE).expect("the heap has room");
            fence.fill(CANARY);
            fence
        };
        let small = |count| comm.alloc_host::<T>(count).expect("the heap has room");
        let first = fence();
        let from = small(from);
        let second = fence();
        let to = small(to);
        Fenced { fences: vec![first, second, fence()], from, to }
    }

    /// # Panics
    /// If anybody has written between the buffers.
    pub fn check(&self) {
        for fence in &self.fences {
            assert!(fence.iter().all(|byte| *byte == CANARY), "a call has written beside a buffer");
        }
    }
}
