//! What a fork makes of a rank: its child has copies of handles that are its parent's, and holds
//! its parent's sockets open.
//!
//! So what belongs to one process has an [`Origin`], which tells a child from its parent at the
//! price of one relaxed load. And sockets whose end others take for this process' end are
//! `Unshared`: in a child something that leads nowhere takes their places.
//!
//! Both hang on a handler of `pthread_atfork`. A child that was made past the C library, by the
//! system call itself, is not noticed here; that its parent has ended, ranks of its node still see
//! (`src/process.rs`).

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// Forks between this process and the first that asked.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process in which something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    generation: u32,
}

impl Origin {
    /// This process.
    pub fn here() -> Origin {
        notice_forks();
        Origin { generation: GENERATION.load(Ordering::Relaxed) }
    }

    /// Whether it is this process, and not one that this was forked from.
    #[inline]
    pub fn is_here(self) -> bool {
        GENERATION.load(Ordering::Relaxed) == self.generation
    }
}

impl Default for Origin {
    fn default() -> Origin {
        Origin::here()
    }
}

fn notice_forks() {
    static NOTICED: Once = Once::new();
    NOTICED.call_once(|| {
        // SAFETY: the handler is a function that does what may be done after a fork.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if failed != 0 {
            tracing::warn!("forks are not noticed: the system has no memory for that");
        }
    });
}

/// Runs in a new child, which has one thread: nothing here locks or allocates.
unsafe extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY: makes a descriptor, and copies it over or closes those that this module was given,
    // which nobody else in this process uses: their owners belong to the parent.
    unsafe {
        let nowhere = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        for place in places() {
            let descriptor = place.load(Ordering::Relaxed);
            if descriptor != FREE
                && (nowhere < 0 || libc::dup3(nowhere, descriptor, libc::O_CLOEXEC) < 0)
            {
                libc::close(descriptor);
            }
        }
        if nowhere >= 0 {
            libc::close(nowhere);
        }
    }
}

/// A descriptor that forked processes do not keep open.
#[derive(Debug)]
pub(crate) struct Unshared<T> {
    /// First: the number is taken back before it can mean something else.
    _place: Place,
    inner: T,
}

impl<T: AsRawFd> Unshared<T> {
    pub(crate) fn new(inner: T) -> Unshared<T> {
        notice_forks();
        Unshared { _place: Place::take(inner.as_raw_fd()), inner }
    }
}

impl<T> Deref for Unshared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Unshared<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// No descriptor.
const FREE: RawFd = -1;

/// Descriptors, in blocks that are never given back, so that a child can go through them whatever
/// other threads were doing.
struct Block {
    places: [AtomicI32; 64],
    next: AtomicPtr<Block>,
}

static FIRST: Block = Block::new();

impl Block {
    const fn new() -> Block {
        Block {
            places: [const { AtomicI32::new(FREE) }; 64],
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The next, if there is one.
    fn next(&self) -> Option<&'static Block> {
        // SAFETY: blocks are leaked, and written before they are reachable.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    /// Appends an empty one, unless another thread does.
    fn grow(&self) {
        let new = Box::into_raw(Box::new(Block::new()));
        let grown =
            self.next.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Relaxed);
        if grown.is_err() {
            // SAFETY: it was just made, and nobody has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

fn blocks() -> impl Iterator<Item = &'static Block> {
    std::iter::successors(Some(&FIRST), |block| block.next())
}

fn places() -> impl Iterator<Item = &'static AtomicI32> {
    blocks().flat_map(|block| &block.places)
}

/// A descriptor's place among them.
#[derive(Debug)]
struct Place(&'static AtomicI32);

impl Place {
    fn take(descriptor: RawFd) -> Place {
        let taken = |place: &&AtomicI32| {
            place.compare_exchange(FREE, descriptor, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        loop {
            if let Some(place) = places().find(taken) {
                return Place(place);
            }
            blocks().last().unwrap_or(&FIRST).grow();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.store(FREE, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Runs something in a forked child; whether it came out true.
    fn in_fork(act: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child does what `act` does, which takes no locks, and ends.
        match unsafe { libc::fork() } {
            0 => {
                let status = if act() { 0 } else { 1 };
                // SAFETY: ends the child, without what its parent has to be done at its end.
                unsafe { libc::_exit(status) }
            }
            child => {
                assert!(child > 0);
                let mut status = -1;
                // SAFETY: waits for the child, and writes its status.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                status == 0
            }
        }
    }

    #[test]
    fn a_child_is_another_process() {
        let origin = Origin::here();
        assert!(origin.is_here());
        assert!(in_fork(|| !origin.is_here() && Origin::here().is_here()));
        assert!(origin.is_here());
    }

    #[test]
    fn a_child_does_not_hold_its_parents_sockets() {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let mine = Unshared::new(mine);
        // SAFETY: the child sleeps until it is killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::sleep(600);
                libc::_exit(0)
            }
        }
        (&*mine).write_all(b"x").unwrap();
        drop(mine);
        let mut all = Vec::new();
        (&theirs).read_to_end(&mut all).unwrap();
        assert_eq!(all, b"x", "the end came while the child lives");
        // SAFETY: ends the child that this test has made, and waits for it.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, ptr::null_mut(), 0);
        }
    }

    #[test]
    fn there_is_room_for_any_number() {
        let taken: Vec<Place> = (0..200).map(|_| Place::take(i32::MAX)).collect();
        let held = || places().filter(|place| place.load(Ordering::Relaxed) == i32::MAX).count();
        assert_eq!(held(), 200);
        drop(taken);
        assert_eq!(held(), 0);
    }
}
