//! What the end of a process makes of what it has not dropped: a static, or what a program in
//! another language holds, leaves in order if the process ends with status 0.
//!
//! Each kind is asked in turn ([`Stage`]), all of a process together. A process that ends
//! otherwise (another status, a signal, `_exit`) is a death to others, as is one that ends inside a
//! call. It hangs on glibc's `on_exit`; with another C library nothing leaves by itself.

use crate::fork::Origin;
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, TryLockError, Weak};

/// What is done, for all that is alive, before the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The others are told.
    Tell,
    /// What has been sent arrives.
    Deliver,
    /// Those that others still need wait for them.
    Serve,
}

/// Something that can leave in order, whatever thread uses it meanwhile.
pub trait Leave: Send + Sync {
    /// Does what belongs to a stage, in bounded time. It may have been done before.
    fn leave(&self, stage: Stage);
}

/// What is alive, and in which process it is.
static LIVE: Mutex<Vec<(Origin, Weak<dyn Leave>)>> = Mutex::new(Vec::new());

/// What has left, kept until the process is gone.
static LEFT: OnceLock<Vec<Arc<dyn Leave>>> = OnceLock::new();

/// Asks it to leave if it lives when the process ends.
pub fn leaves_at_exit(who: &Arc<impl Leave + 'static>) {
    static NOTICED: Once = Once::new();
    NOTICED.call_once(notice_exit);
    let who: Weak<dyn Leave> = Arc::downgrade(who) as Weak<dyn Leave>;
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    live.retain(|(_, other)| other.strong_count() > 0);
    live.push((Origin::here(), who));
}

/// What is left of this process' own.
fn leave_all() {
    // Not locked while they leave: others may come and go meanwhile.
    let live = match LIVE.try_lock() {
        Ok(mut live) => std::mem::take(&mut *live),
        Err(TryLockError::Poisoned(live)) => std::mem::take(&mut *live.into_inner()),
        // In a forked process it may stay so: the thread that has it is the parent's.
        Err(TryLockError::WouldBlock) => return,
    };
    let own = live.into_iter().filter(|(origin, _)| origin.is_here());
    let own: Vec<_> = own.filter_map(|(_, who)| who.upgrade()).collect();
    for stage in [Stage::Tell, Stage::Deliver, Stage::Serve] {
        own.iter().for_each(|who| who.leave(stage));
    }
    // What goes with the last handle would be dropped in the middle of the process' end.
    let _ = LEFT.set(own);
}

#[cfg(target_env = "gnu")]
fn notice_exit() {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        fn on_exit(
            handler: extern "C" fn(status: c_int, argument: *mut c_void),
            argument: *mut c_void,
        ) -> c_int;
    }

    extern "C" fn at_exit(status: c_int, _: *mut c_void) {
        if status == 0 && std::panic::catch_unwind(leave_all).is_err() {
            tracing::error!("leaving at the end of the process panicked");
        }
    }

    // SAFETY: the handler may run at any exit, and needs no argument.
    if unsafe { on_exit(at_exit, std::ptr::null_mut()) } != 0 {
        tracing::warn!("the process' end is not noticed: the system has no memory for that");
    }
}

#[cfg(not(target_env = "gnu"))]
fn notice_exit() {}
