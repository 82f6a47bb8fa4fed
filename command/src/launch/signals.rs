//! The signals that matter to who has started ranks.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// SIGCHLD and the signals that ask to stop, blocked in this thread and those it starts, so that
/// they come to [`Signals::wait`] only. Processes that are started need [`fresh`] ones.
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
    /// Blocks them from here on. SIGHUP stays ignored where it is (`nohup`).
    pub(super) fn take() -> io::Result<Signals> {
        let mut set = empty();
        for signal in [libc::SIGCHLD, libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            if signal != libc::SIGHUP || !is_ignored(signal)? {
                // SAFETY: the set is initialised.
                unsafe { libc::sigaddset(&mut set, signal) };
            }
        }
        change_mask(libc::SIG_BLOCK, &set)?;
        Ok(Signals { set })
    }

    /// Waits for the next one.
    pub(super) fn wait(&self, timeout: Duration) -> Event {
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos() as libc::c_long,
        };
        // SAFETY: both pointers are to initialised memory that outlives the call, and the third
        // says that no details are wanted.
        let signal = unsafe { libc::sigtimedwait(&self.set, std::ptr::null_mut(), &timeout) };
        if signal <= 0 || signal == libc::SIGCHLD { Event::Look } else { Event::Stop { signal } }
    }
}

/// Gives this process, which is about to become a rank's program, the signals of a fresh one: none
/// is blocked, and none ignored but SIGHUP where it is. It makes system calls only.
pub(super) fn fresh() -> io::Result<()> {
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| *signal != libc::SIGHUP) {
        // SAFETY: the default action calls no code of this process. The call fails for signals
        // whose action cannot be changed.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    change_mask(libc::SIG_SETMASK, &empty())
}

/// The signal's number and name.
pub(crate) fn name(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(name) => format!("{signal} ({name})"),
        Err(_) => signal.to_string(),
    }
}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set that it is given.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn change_mask(how: i32, set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set is initialised; the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(how, set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn is_ignored(signal: i32) -> io::Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no new action is given; the old one is written to memory of its size.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, and all zeros were a valid value before.
    Ok(unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN)
}
