//! Ctrl-C asks a command to end with what it has; a second time it ends the process.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};

use crate::failure::Failure;

static ASKED: AtomicBool = AtomicBool::new(false);

/// From here on Ctrl-C does so.
///
/// # Errors
/// The system does not let signals be taken.
pub(crate) fn take() -> Result<(), Failure> {
    let action = SigAction::new(SigHandler::Handler(ask), SaFlags::SA_RESETHAND, SigSet::empty());
    // SAFETY: the handler does nothing but store into an atomic word.
    let taken = unsafe { sigaction(Signal::SIGINT, &action) };
    taken.map(|_| ()).map_err(|error| Failure::system("taking SIGINT")(error.into()))
}

/// Whether somebody has.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Ends the process as Ctrl-C does, for whoever waits for it: what it was asked for is not all
/// there.
pub(crate) fn end() -> ! {
    let _ = raise(Signal::SIGINT);
    // It is blocked.
    std::process::exit(128 + libc::SIGINT);
}

extern "C" fn ask(_: i32) {
    ASKED.store(true, Ordering::Relaxed);
}
