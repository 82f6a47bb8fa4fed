//! Starts that do not block the thread that asks for them.

use super::Communicator;
use super::start::{Place, join};
use crate::config::Config;
use crate::error::Error;
use oxccl_transports::fork::Origin;
use oxccl_transports::{Cancel, Cause, UniqueId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Why a start ends that nobody waits for any more.
const GIVEN_UP: &str = "its start was given up";

/// A communicator that starts, in a thread of its own: see [`Communicator::starting`]. Any thread
/// may ask after it and give it up; dropping it gives it up, too.
#[derive(Debug)]
pub struct Starting {
    rank: usize,
    shared: Arc<Shared>,
    cancel: Cancel,
    origin: Origin,
}

#[derive(Debug, Default)]
struct Shared {
    /// Once it is done.
    outcome: Mutex<Option<Result<Communicator, Error>>>,
    done: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Result<Communicator, Error>>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first outcome counts.
    fn end(&self, outcome: Result<Communicator, Error>) {
        let mut place = self.lock();
        let late = match &*place {
            None => place.replace(outcome),
            Some(_) => Some(outcome),
        };
        drop(place);
        self.done.notify_all();
        if let Some(Ok(unwanted)) = late {
            // It fails in a forked process alone.
            let _ = unwanted.handle().abort(GIVEN_UP);
        }
    }
}

impl Communicator {
    /// As [`connect`](Communicator::connect), but returns at once. The start goes on in a thread of
    /// its own, and can be given up. One thread can so start several communicators, or several
    /// ranks of one:
    ///
    /// ```
    /// use oxccl::{Communicator, Config, UniqueId};
    ///
    /// let (id, _server) = UniqueId::create()?;
    /// let starting = [0, 1].map(|rank| Communicator::starting(&id, rank, 2, &Config::default()));
    /// let ranks: Result<Vec<_>, _> = starting.into_iter().map(|rank| rank?.wait()).collect();
    /// assert_eq!(ranks?.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] for a configuration that cannot be; [`Error::System`] without a thread.
    /// The rest comes from [`Starting::wait`].
    pub fn starting(
        id: &UniqueId,
        rank: usize,
        world: usize,
        config: &Config,
    ) -> Result<Starting, Error> {
        Starting::begin(Place { id: id.clone(), rank, world, server: None }, config)
    }

    /// As [`from_env_with`](Communicator::from_env_with), but returns at once, as
    /// [`starting`](Communicator::starting) does.
    ///
    /// # Errors
    /// As those two, for what is seen before ranks meet.
    pub fn starting_from_env(config: &Config) -> Result<Starting, Error> {
        Starting::begin(Place::from_env(config)?, config)
    }
}

impl Starting {
    fn begin(place: Place, config: &Config) -> Result<Starting, Error> {
        config.check()?;
        let (rank, config) = (place.rank, config.clone());
        let (shared, cancel) = (Arc::<Shared>::default(), Cancel::default());
        let (sharing, canceling) = (shared.clone(), cancel.clone());
        let thread = std::thread::Builder::new().name(format!("oxccl-start-{rank}"));
        let started = thread.spawn(move || {
            // Whoever waits hears of a panic, too.
            let joined = catch_unwind(AssertUnwindSafe(|| join(place, &config, &canceling)));
            sharing.end(joined.unwrap_or_else(|_| {
                let source = std::io::Error::other("its thread panicked");
                Err(Error::System { doing: "starting a communicator", source })
            }));
        });
        started.map_err(|source| Error::System { doing: "starting a thread", source })?;
        Ok(Starting { rank, shared, cancel, origin: Origin::here() })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Whether [`wait`](Starting::wait) returns at once: the start has ended, well or not, or this
    /// is a forked process.
    pub fn is_done(&self) -> bool {
        !self.origin.is_here() || self.shared.lock().is_some()
    }

    /// Waits for that, at most for this time; whether it is so.
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        if !self.origin.is_here() {
            return true;
        }
        let (begin, mut outcome) = (Instant::now(), self.shared.lock());
        while outcome.is_none() {
            let Some(left) = timeout.checked_sub(begin.elapsed()).filter(|left| !left.is_zero())
            else {
                return false;
            };
            let waited = self.shared.done.wait_timeout(outcome, left);
            outcome = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// The communicator, once all ranks have started.
    ///
    /// # Errors
    /// As [`Communicator::connect`]; [`Error::Transport`] names this rank and the reason where it
    /// was given up, [`Error::Forked`] in a forked process.
    pub fn wait(self) -> Result<Communicator, Error> {
        if !self.origin.is_here() {
            return Err(Error::Forked);
        }
        let mut outcome = self.shared.lock();
        loop {
            match outcome.take() {
                Some(outcome) => return outcome,
                None => {
                    let waited = self.shared.done.wait(outcome);
                    outcome = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Gives the start up, from any thread. Whoever waits for it here gets an error at once, and so
    /// do all other ranks that have met; the error names this rank and the reason. A communicator
    /// that has started is aborted ([`Handle::abort`](crate::Handle::abort)).
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn abort(&self, reason: &str) -> Result<(), Error> {
        if !self.origin.is_here() {
            return Err(Error::Forked);
        }
        self.cancel.cancel(reason);
        let (rank, reason_of) = (self.rank, reason.to_owned());
        let cause = Cause::Aborted { rank, reason: reason_of };
        let mut outcome = self.shared.lock();
        match &*outcome {
            Some(Ok(comm)) => return comm.handle().abort(reason),
            Some(Err(_)) => {}
            None => *outcome = Some(Err(oxccl_transports::Error::Stopped(cause).into())),
        }
        drop(outcome);
        self.shared.done.notify_all();
        Ok(())
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        // Of one that is done this changes nothing.
        if self.origin.is_here() {
            self.cancel.cancel(GIVEN_UP);
        }
    }
}
