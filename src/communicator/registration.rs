//! Memory of others that ranks reach in place.

use super::Communicator;
use crate::device::Lent;
use crate::error::Error;
use crate::memory::HostRegistration;
use crate::target::Device;
use oxccl_plans::element::Element;

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

    /// Has peers reach a slice of the host in place until what this returns is dropped, as they
    /// reach memory of [`alloc_host`](Self::alloc_host). It is no call of all ranks; but in a call,
    /// the buffers of all ranks must be reached by all, or of none. So all ranks register what they
    /// use in the same calls, or none does.
    ///
    /// Its whole pages move into this rank's heap, and stay at their addresses. What it has on its
    /// first page and its last one is copied there for each call, and back, 8 KiB at most. While
    /// they move there are twice as many. In a process that is forked from this one the pages are
    /// shared, not copied. Parts of this communicator reach the slice, too. Of memory that is the
    /// communicator's nothing has to be done.
    ///
    /// ```
    /// use oxccl::{Collectives, Communicator, ReduceOp};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut gradients = vec![1.0f32; 1 << 20];
    /// let mut gradients = comm.register_host(&mut gradients)?;
    /// for _step in 0..10 {
    ///     comm.all_reduce_in_place(&mut gradients, ReduceOp::Avg)?;
    /// }
    /// assert_eq!(gradients[9], 1.0);
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotLent`] for memory that is not private: shared, mapped from a file, of the main
    /// thread's stack, or registered already; [`Error::OutOfMemory`]; [`Error::MemoryOfGpu`] of a
    /// communicator on a GPU; [`Error::Forked`].
    pub fn register_host<'a, T: Element>(
        &self,
        memory: &'a mut [T],
    ) -> Result<HostRegistration<'a, T>, Error> {
        // SAFETY: as in `register`.
        let needs_heap = unsafe { (*self.idle_engine()?).needs_heap() };
        let (at, len_bytes) = (memory.as_mut_ptr().cast::<u8>(), size_of_val(memory));
        let is_there = || self.heap.offset(at.addr(), len_bytes).is_some();
        let lent = match self.device {
            Device::Cuda(_) => return Err(Error::MemoryOfGpu),
            Device::Host if !needs_heap || memory.is_empty() || is_there() => None,
            Device::Host => {
                // SAFETY: it is borrowed for as long as it is lent.
                let lent = unsafe { Lent::new(&self.heap, at, len_bytes) };
                Some(lent.map_err(|error| match error {
                    Error::Transport(why) => Error::NotLent { reason: why.to_string() },
                    other => other,
                })?)
            }
        };
        Ok(HostRegistration::new(memory, lent))
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
