//! Waiting, in which signals are seen.

use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A wait asks so often whether there is a signal, such as Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(100);

/// Waits without the interpreter, at most so many seconds, for what `poll` waits for as long as it
/// is told to. None: it has not come. It raises what the handler of a signal has raised.
pub(crate) fn wait<R: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    poll: impl Fn(Duration) -> Option<R> + Sync,
) -> PyResult<Option<R>> {
    let deadline = timeout
        .and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok())
        .and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map_or(SIGNALS, |deadline| {
            deadline.saturating_duration_since(Instant::now()).min(SIGNALS)
        });
        if let Some(result) = py.detach(|| poll(left)) {
            return Ok(Some(result));
        }
        py.check_signals()?;
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(None);
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
