//! Memory of other libraries that ranks reach in place.

use super::Communicator;
use crate::error::Error;

/// That memory is registered: see [`Communicator::register`]. It stays so until this is given to
/// [`Communicator::deregister`], or the communicator ends.
#[derive(Debug)]
#[must_use = "it is what deregisters the memory"]
pub struct Registration {
    /// The driver's number of the allocation; none if nothing had to be done.
    buffer: Option<u64>,
}

impl Communicator {
    /// Has all ranks reach memory of this rank's GPU that another library allocated (`cudaMalloc`,
    /// or an allocator over it), so that calls use it in place, as memory of
    /// [`alloc`](Self::alloc).
    ///
    /// All ranks call this, between the same calls, each with memory of its own, or with null and 0
    /// for none. What is registered is the whole allocation that the bytes lie in, however often
    /// parts of it are named; an allocator that takes large ones and deals out parts needs one
    /// registration for each of those. Without it calls over such memory go through slots. In a
    /// call, the buffers of all ranks must be reached by all, or of none. Ranks that are threads of
    /// one process reach such memory without; then this only checks it.
    ///
    /// Parts of this communicator ([`split`](Self::split), [`shrink`](Self::shrink)) reach it, too,
    /// also those that there are, and when this one is closed.
    ///
    /// Memory that is freed is noticed: other memory at its address is not registered.
    ///
    /// # Errors
    /// [`Error::NotRegistered`] on all ranks alike if one of them cannot register its memory (host
    /// memory, memory of a pool or of the virtual-memory API, more than 1,023 allocations) or open
    /// another's. [`Error::Unsupported`] on the host.
    pub fn register(&self, address: *const u8, len_bytes: usize) -> Result<Registration, Error> {
        // SAFETY: all issued tickets are done (`idle_engine`), and no other comes from this thread
        // meanwhile.
        let buffer = unsafe { (*self.idle_engine()?).register(address, len_bytes) }?;
        Ok(Registration { buffer })
    }

    /// Ends a registration. All ranks call this, between the same calls, each with a registration
    /// of its own; once it returns no rank has the allocation mapped, unless it was registered once
    /// more, here or in a part. No call over it may be under way in a part. Graphs that use it must
    /// not be replayed any more. Memory should be freed only after.
    ///
    /// # Errors
    /// As other calls of all ranks: one that does not come, or that has ended.
    pub fn deregister(&self, registration: Registration) -> Result<(), Error> {
        // SAFETY: as in `register`.
        unsafe { (*self.idle_engine()?).deregister(registration.buffer) }
    }

    /// Ends a registration by this rank alone, which is no call of all ranks. From here on this
    /// rank's calls do not use the memory in place. Peers have it mapped, and so its bytes are not
    /// free, until all ranks next [register](Self::register) or [deregister](Self::deregister)
    /// anything.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn deregister_alone(&self, registration: Registration) -> Result<(), Error> {
        // SAFETY: as in `register`.
        unsafe { (*self.idle_engine()?).leave(registration.buffer) };
        Ok(())
    }
}
