//! A call under way on a stream.

use crate::config::Device;
use crate::device::cuda::{self, CallEnd};
use crate::error::Error;
use crate::group::Flight;
use oxccl_transports::deadline_in;
use oxccl_transports::fork::Origin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A call that a stream carries out. Dropping it does not stop the call.
#[derive(Debug)]
pub struct Work {
    carried_out: CarriedOut,
    /// The call's end, in a stream of a GPU.
    end: Option<CallEnd>,
}

/// How a call is carried out.
#[derive(Debug)]
enum CarriedOut {
    Alone(Arc<Completion>),
    /// As a group of one.
    InGroup(Arc<Flight>),
}

/// Set once, when the call has ended.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    origin: Origin,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Running,
    Ended(Result<(), Error>),
    /// What was wrong, in words.
    Taken(Option<String>),
}

impl Work {
    pub(crate) fn new(completion: Arc<Completion>) -> Work {
        Work { carried_out: CarriedOut::Alone(completion), end: None }
    }

    /// Of a call in a stream of a GPU, which ends there.
    pub(crate) fn in_stream(completion: Arc<Completion>, end: CallEnd) -> Work {
        Work { carried_out: CarriedOut::Alone(completion), end: Some(end) }
    }

    /// Of a call that is a group.
    pub(crate) fn of_group(flight: Arc<Flight>) -> Work {
        Work { carried_out: CarriedOut::InGroup(flight), end: None }
    }

    fn completion(&self) -> &Completion {
        match &self.carried_out {
            CarriedOut::Alone(completion) => completion,
            CarriedOut::InGroup(flight) => &flight.completion,
        }
    }

    /// Has a stream of the GPU wait for the call, without the host. Whether the call ends well, [`wait`](Self::wait) tells.
    ///
    /// # Errors
    /// [`Error::OtherDevice`] for a call of the host's; [`Error::Transport`], the driver's.
    pub fn wait_on(&self, stream: &cuda::Stream) -> Result<(), Error> {
        match (&self.carried_out, &self.end) {
            (CarriedOut::InGroup(flight), _) => flight.await_end_on(stream),
            (CarriedOut::Alone(_), Some(end)) => Ok(end.hold(stream, None)?),
            (CarriedOut::Alone(_), None) => Err(Error::OtherDevice { device: Device::Host }),
        }
    }

    /// Waits for the end. It comes: a call that does not move ends by its communicator's time-out.
    ///
    /// # Errors
    /// The call's.
    pub fn wait(self) -> Result<(), Error> {
        self.completion().wait()
    }

    /// Waits for the end at most so long; the work comes back if it has not ended.
    ///
    /// # Errors
    /// The work itself, still under way.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<(), Error>, Work> {
        if self.completion().check_process().is_err() {
            return Ok(Err(Error::Forked));
        }
        let deadline = deadline_in(timeout);
        let mut state = self.completion().lock();
        while matches!(*state, State::Running) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(state);
                return Err(self);
            }
            let waited = self.completion().ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(take(&mut state))
    }

    /// Whether the call has ended, well or not.
    pub fn is_done(&self) -> bool {
        self.completion().peek().is_some()
    }
}

impl Completion {
    pub(crate) fn end(&self, result: Result<(), Error>) {
        *self.lock() = State::Ended(result);
        self.ended.notify_all();
    }

    /// Waits for the end, and takes the result.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        self.check_process()?;
        let mut state = self.lock();
        while matches!(*state, State::Running) {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        take(&mut state)
    }

    /// Waits for the end at most so long, or shorter.
    pub(crate) fn await_for(&self, timeout: Duration) {
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
        let broken = |first: String| Err(Error::Broken { first });
        match &*self.lock() {
            State::Running => None,
            State::Ended(Ok(())) | State::Taken(None) => Some(Ok(())),
            State::Ended(Err(error)) => Some(broken(error.to_string())),
            State::Taken(Some(first)) => Some(broken(first.clone())),
        }
    }

    /// Fails in a process that was forked from the one that made the call: there it never ends.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.origin.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take(state: &mut State) -> Result<(), Error> {
    let left = match state {
        State::Ended(Err(error)) => Some(error.to_string()),
        _ => None,
    };
    match std::mem::replace(state, State::Taken(left)) {
        State::Ended(result) => result,
        // `wait` takes the only handle, so the result is there.
        State::Running | State::Taken(_) => unreachable!("a work has one handle"),
    }
}
