//! Communicators without their memory, for as long as nobody needs them.

use super::Communicator;
use crate::error::Error;

impl Communicator {
    /// Gives back the memory of its GPU that messages go through
    /// ([`MemoryUse::staging_bytes`](crate::MemoryUse::staging_bytes)), until it is
    /// [resumed](Self::resume). Its content goes to memory of the host, and its addresses stay
    /// reserved, so that captured calls are as they were. The heap of [`alloc`](Self::alloc)
    /// stays, and what is registered. All ranks call this, between the same calls.
    ///
    /// Until then calls are errors. Captured calls must not be replayed: the GPU would find
    /// nothing there. Memory is given back by the driver when no kernel of the process uses the
    /// GPU, so let no call of another communicator wait for this thread.
    ///
    /// # Errors
    /// [`Error::Suspended`] of one that is suspended; [`Error::Unsupported`] on the host, where
    /// there is no memory of a GPU; otherwise as other calls of all ranks.
    pub fn suspend(&self) -> Result<(), Error> {
        // SAFETY: all issued tickets are done (`idle_engine`), and no other comes from this thread
        // meanwhile.
        unsafe { (*self.idle_engine()?).suspend() }
    }

    /// Has its memory again, on all ranks, which all call this. One that is not suspended stays as
    /// it is.
    ///
    /// # Errors
    /// As [`suspend`](Self::suspend). [`Error::Transport`] without memory ends the communicator on
    /// all ranks.
    pub fn resume(&self) -> Result<(), Error> {
        // SAFETY: as in `suspend`.
        unsafe { (*self.idle_engine()?).resume() }
    }

    /// Whether it is suspended.
    pub fn is_suspended(&self) -> bool {
        self.idle().is_suspended()
    }
}
