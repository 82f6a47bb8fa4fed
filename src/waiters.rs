//! Threads that wait for a change of what a mutex guards.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

/// As a [`Condvar`], of one mutex, but for this: the system is asked to wake somebody only if
/// somebody waits. A condition variable asks whenever it is notified.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    condition: Condvar,
    /// Changes while the mutex is held.
    count: AtomicU32,
}

impl Waiters {
    /// Waits until it is woken, maybe earlier.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let guard = self.condition.wait(guard).unwrap_or_else(PoisonError::into_inner);
        self.count.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// As [`wait`](Self::wait), at most so long; and whether it was that long.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let waited = self.condition.wait_timeout(guard, timeout);
        let (guard, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        self.count.fetch_sub(1, Ordering::Relaxed);
        (guard, waited.timed_out())
    }

    /// Wakes all, once the change has been made under this guard.
    pub(crate) fn wake_all<T>(&self, guard: MutexGuard<'_, T>) {
        let waiting = self.count.load(Ordering::Relaxed);
        drop(guard);
        if waiting > 0 {
            self.condition.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn whoever_waits_is_woken() {
        let (turn, changed) = (Mutex::new(0), Waiters::default());
        std::thread::scope(|scope| {
            for own in 0..3 {
                let (turn, changed) = (&turn, &changed);
                scope.spawn(move || {
                    for round in 0..1000 {
                        let mut now = turn.lock().unwrap();
                        while *now % 3 != own {
                            let (guard, late) = changed.wait_timeout(now, LONG);
                            assert!(!late, "nobody woke {own} in round {round}");
                            now = guard;
                        }
                        *now += 1;
                        changed.wake_all(now);
                    }
                });
            }
        });
        assert_eq!(turn.into_inner().unwrap(), 3000);
        assert_eq!(changed.count.into_inner(), 0);
    }

    #[test]
    fn nobody_waits_longer_than_told() {
        let (lock, changed) = (Mutex::new(()), Waiters::default());
        let (begin, short) = (Instant::now(), Duration::from_millis(2));
        let (guard, late) = changed.wait_timeout(lock.lock().unwrap(), short);
        assert!(late && begin.elapsed() >= short);
        changed.wake_all(guard);
    }
}
