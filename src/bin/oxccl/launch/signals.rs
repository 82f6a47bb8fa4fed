//! The signals that matter to who has started ranks.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// SIGCHLD and the signals that ask to stop, blocked in this thread and those it starts, so that
/// they come to [`Signals::wait`] only. Processes that are started get their usual handling back.
pub(super) struct Signals {
    set: libc::sigset_t,
}

/// What a wait ended with.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A child may have ended, or the time is over.
    Look,
    /// Somebody asks to stop.
    Stop {
        /// With this signal.
        signal: i32,
    },
}

impl Signals {
    /// Blocks them from here on.
    pub(super) fn take() -> io::Result<Signals> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the set that it is given; the others change it.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            let mut set = set.assume_init();
            for signal in [libc::SIGCHLD, libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            set
        };
        // SAFETY: the set is initialised; the old mask is not asked for.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } {
            0 => Ok(Signals { set }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Waits for the next one.
    pub(super) fn wait(&self, timeout: Duration) -> Event {
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos() as libc::c_long,
        };
        // SAFETY: both pointers are to initialised memory that outlives the call, and the third says
        // that no details are wanted.
        let signal = unsafe { libc::sigtimedwait(&self.set, std::ptr::null_mut(), &timeout) };
        if signal <= 0 || signal == libc::SIGCHLD { Event::Look } else { Event::Stop { signal } }
    }
}
