//! What wakes a proxy that sleeps.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering, fence};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::Error;

/// A descriptor that is readable once somebody has called [`Wakeup::wake`].
#[derive(Debug)]
pub(super) struct Wakeup(EventFd);

impl Wakeup {
    pub(super) fn new() -> Result<Wakeup, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let made = EventFd::from_value_and_flags(0, flags);
        Ok(Wakeup(made.map_err(Error::os("making an event descriptor"))?))
    }

    pub(super) fn wake(&self) {
        // A full counter is readable already.
        let _ = self.0.write(1);
    }

    /// Makes it unreadable again.
    pub(super) fn clear(&self) {
        while self.0.read() == Err(Errno::EINTR) {}
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What executors ring when they have written for another node: laid out as their own doorbells
/// are, with a descriptor in place of the futex, since the proxy sleeps on sockets.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Bell {
    /// Not used here.
    pub rings: AtomicU32,
    /// Nonzero while the proxy sleeps or is about to.
    pub sleeping: AtomicU32,
    /// The event descriptor that wakes it, plus one; 0 would be none.
    pub event: AtomicI32,
}

impl Bell {
    pub(super) fn new(wakeup: &Wakeup) -> Bell {
        let event = AtomicI32::new(wakeup.descriptor().as_raw_fd() + 1);
        Bell { rings: AtomicU32::new(0), sleeping: AtomicU32::new(0), event }
    }

    /// Whoever writes from here on rings. What was written before has to be looked for after this.
    pub(super) fn announce_sleep(&self) {
        self.sleeping.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(super) fn end_sleep(&self) {
        self.sleeping.store(0, Ordering::Relaxed);
    }

    pub(super) fn is_sleeping(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed) != 0
    }
}
