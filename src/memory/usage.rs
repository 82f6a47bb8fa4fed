//! How memory is used.

/// How a rank's memory is used: see [`Communicator::memory`](crate::Communicator::memory).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUse {
    /// What `comm.alloc` may take: address space, which parts share with the whole.
    pub heap_bytes: usize,
    /// What it has taken, in whole pages, with what the runtime keeps there for groups.
    pub allocated_bytes: usize,
    /// The longest allocation that still fits. Where much more is free, the heap is fragmented.
    pub largest_free_bytes: usize,
    /// What messages go through: on a host address space, of which pages are memory once they are
    /// used.
    pub staging_bytes: usize,
    /// Allocations of other libraries that are [registered](crate::Communicator::register), and
    /// [slices](crate::Communicator::register_host).
    pub registrations: usize,
}
