//! A barrier that gives up.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::answer::lock;

/// Only a call that some rank never makes takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Meeting {
    /// Who has come, and how often all have met.
    state: Mutex<(usize, u64)>,
    changed: Condvar,
}

impl Meeting {
    /// Waits for so many, this one included; false if they do not come.
    pub(crate) fn wait(&self, ranks: usize) -> bool {
        let mut state = lock(&self.state);
        state.0 += 1;
        if state.0 == ranks {
            *state = (0, state.1 + 1);
            self.changed.notify_all();
            return true;
        }
        let (round, deadline) = (state.1, Instant::now() + PATIENCE);
        while state.1 == round {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(|broken| broken.into_inner())
                .0;
        }
        true
    }
}
