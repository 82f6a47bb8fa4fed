//! The end of a launch, for those who wait for it.

use crate::error::{Error, First};
use crate::waiters::Waiters;
use oxccl_transports::fork::Origin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Set once, when the launch has ended.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    origin: Origin,
    state: Mutex<State>,
    ended: Waiters,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Running,
    Ended(Result<(), Error>),
    /// What is kept of what was wrong.
    Taken(Option<First>),
}

impl Completion {
    pub(crate) fn end(&self, result: Result<(), Error>) {
        let mut state = self.lock();
        *state = State::Ended(result);
        self.ended.wake_all(state);
    }

    /// Waits for the end. The first who hears of an error is given it; others are told of it in
    /// words.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        self.check_process()?;
        let mut state = self.lock();
        while matches!(*state, State::Running) {
            state = self.ended.wait(state);
        }
        take(&mut state)
    }

    /// As [`wait`](Self::wait), until the deadline. None: it has not ended.
    pub(super) fn wait_until(&self, deadline: Instant) -> Option<Result<(), Error>> {
        if let Err(forked) = self.check_process() {
            return Some(Err(forked));
        }
        let mut state = self.lock();
        while matches!(*state, State::Running) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.ended.wait_timeout(state, left).0;
        }
        Some(take(&mut state))
    }

    /// Waits for the end at most so long, or shorter.
    pub(super) fn await_for(&self, timeout: Duration) {
        let state = self.lock();
        if matches!(*state, State::Running) {
            drop(self.ended.wait_timeout(state, timeout));
        }
    }

    /// How it ended, if it has, as those hear who do not take the result.
    pub(crate) fn peek(&self) -> Option<Result<(), Error>> {
        if let Err(forked) = self.check_process() {
            return Some(Err(forked));
        }
        match &*self.lock() {
            State::Running => None,
            State::Ended(Ok(())) | State::Taken(None) => Some(Ok(())),
            State::Ended(Err(error)) => Some(Err(First::of(error).broken())),
            State::Taken(Some(first)) => Some(Err(first.broken())),
        }
    }

    /// Fails in a process that was forked from the one that launched: there it never ends.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        if self.origin.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take(state: &mut State) -> Result<(), Error> {
    match state {
        State::Running | State::Taken(None) | State::Ended(Ok(())) => Ok(()),
        State::Taken(Some(first)) => Err(first.broken()),
        State::Ended(Err(error)) => {
            let left = State::Taken(Some(First::of(error)));
            match std::mem::replace(state, left) {
                State::Ended(result) => result,
                State::Running | State::Taken(_) => Ok(()),
            }
        }
    }
}
