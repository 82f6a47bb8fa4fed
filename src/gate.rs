//! The order of a communicator's calls: each has a ticket, and runs when all earlier ones are done.

#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicU64};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicU64};

/// Tickets that are done. Whoever sees ticket t done has exclusive use of what ticket t used, until
/// it issues t + 1.
#[derive(Debug)]
pub(crate) struct Gate {
    done: AtomicU64,
    /// How many wait. The system is asked to wake them only if there are any.
    waiting: Mutex<u32>,
    passed: Condvar,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate { done: AtomicU64::new(0), waiting: Mutex::new(0), passed: Condvar::new() }
    }

    /// Whether this ticket is done (acquire).
    #[inline]
    pub(crate) fn is_done(&self, ticket: u64) -> bool {
        self.done.load(Ordering::Acquire) >= ticket
    }

    /// Waits until this ticket is done. Every ticket's holder passes it, since every call ends.
    pub(crate) fn wait(&self, ticket: u64) {
        let mut guard = self.guard();
        while !self.is_done(ticket) {
            *guard += 1;
            guard = self.passed.wait(guard).unwrap_or_else(PoisonError::into_inner);
            *guard -= 1;
        }
    }

    /// Marks this ticket done (release).
    pub(crate) fn pass(&self, ticket: u64) {
        self.done.store(ticket, Ordering::Release);
        if *self.guard() > 0 {
            self.passed.notify_all();
        }
    }

    fn guard(&self) -> MutexGuard<'_, u32> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    struct Guarded {
        gate: Gate,
        value: UnsafeCell<u64>,
    }
    // SAFETY: the gate gives exclusive use in ticket order; loom checks that.
    unsafe impl Sync for Guarded {}

    /// Two workers run tickets 1 and 2 in that order, and the issuer sees both, with exclusive use
    /// each time.
    #[test]
    fn tickets_run_in_order() {
        loom::model(|| {
            let shared = Arc::new(Guarded { gate: Gate::new(), value: UnsafeCell::new(0) });
            let workers: Vec<_> = [1u64, 2]
                .map(|ticket| {
                    let shared = shared.clone();
                    loom::thread::spawn(move || {
                        shared.gate.wait(ticket - 1);
                        shared.value.with_mut(|value| {
                            // SAFETY: the gate lets one ticket at a time pass.
                            let value = unsafe { &mut *value };
                            assert_eq!(*value, ticket - 1);
                            *value = ticket;
                        });
                        shared.gate.pass(ticket);
                    })
                })
                .into();
            shared.gate.wait(2);
            // SAFETY: both tickets are done and no third is issued.
            shared.value.with(|value| assert_eq!(unsafe { *value }, 2));
            for worker in workers {
                worker.join().unwrap();
            }
        });
    }
}
