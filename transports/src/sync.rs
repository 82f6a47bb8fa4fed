//! The primitives that threads share state through: std's, or loom's when its models are run
//! (`RUSTFLAGS="--cfg loom" cargo test -p oxccl-transports --test loom`).

#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic};

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, atomic};

/// Locks, also after a holder panicked: every critical section here leaves its state consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
