//! A group under way on a stream, as a whole and bucket by bucket.

use crate::device::{InFlight, Signals};
use crate::error::Error;
use crate::work::Completion;
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The shortest and the longest nap of a wait for a bucket.
const NAPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];
/// Looks before the first nap.
const LOOKS: usize = 200;

/// A group on a stream: what its maker, its streams and its buckets' waiters share.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// Made when all buckets are known.
    signals: OnceLock<Signals>,
    pub(crate) completion: Completion,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Buffers, with their bucket, until that is done.
    buffers: Vec<(usize, InFlight)>,
    /// Buckets that were marked ready before there were signals.
    early: Vec<usize>,
}

impl Flight {
    /// All buckets are known: these are gated, the others ready.
    pub(super) fn board(
        &self,
        gated: &[bool],
        stride: usize,
        buffers: Vec<(usize, InFlight)>,
    ) -> &Signals {
        let mut held = self.held();
        held.buffers = buffers;
        let signals = Signals::new(gated.len(), stride, gated.contains(&true));
        let ready = (0..gated.len()).filter(|bucket| !gated[*bucket]);
        ready.chain(held.early.drain(..)).for_each(|bucket| signals.mark_ready(bucket));
        self.signals.get_or_init(|| signals)
    }

    /// The words; none before the group is launched.
    pub(crate) fn signals(&self) -> Option<&Signals> {
        self.signals.get()
    }

    pub(crate) fn mark_ready(&self, bucket: usize) {
        let mut held = self.held();
        match self.signals.get() {
            Some(signals) => signals.mark_ready(bucket),
            None => held.early.push(bucket),
        }
    }

    /// The group has ended: nobody uses its buffers any more.
    pub(crate) fn end(&self, result: Result<(), Error>) {
        // In this order: whoever has seen a buffer free finds the work done.
        self.completion.end(result);
        self.held().buffers.clear();
    }

    /// Whether the bucket is done. Then its buffers are the host's again.
    fn is_done(&self, bucket: usize) -> bool {
        let done = self.signals.get().is_some_and(|signals| signals.is_done(bucket));
        if done {
            self.held().buffers.retain(|(of, _)| *of != bucket);
        }
        done
    }

    /// Waits for a bucket, or the group's end, until the deadline. None: neither has come.
    pub(crate) fn wait(
        &self,
        bucket: usize,
        deadline: Option<Instant>,
    ) -> Option<Result<(), Error>> {
        let mut nap = NAPS[0];
        for look in 0.. {
            // A group that has ended well has done all its buckets.
            let ended = self.completion.peek();
            if self.is_done(bucket) {
                return Some(Ok(()));
            }
            if let Some(result) = ended {
                return Some(result);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
            if look < LOOKS {
                std::thread::yield_now();
            } else {
                self.completion.await_for(nap);
                nap = (nap * 2).min(NAPS[1]);
            }
        }
        None
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A group that a stream carries out. Dropping it does not stop the group.
#[derive(Debug)]
pub struct GroupWork {
    pub(super) flight: Arc<Flight>,
    pub(super) buckets: usize,
}

impl GroupWork {
    /// Waits for the end of the group. It comes: every call ends after its communicator's time-out at the latest.
    ///
    /// # Errors
    /// The group's.
    pub fn wait(self) -> Result<(), Error> {
        self.flight.completion.wait()
    }

    /// Whether the group has ended, well or not.
    pub fn is_done(&self) -> bool {
        self.flight.completion.peek().is_some()
    }

    /// One bucket, by its place in the group. None if there are not so many.
    pub fn bucket(&self, bucket: usize) -> Option<BucketWork> {
        (bucket < self.buckets).then(|| BucketWork { flight: self.flight.clone(), bucket })
    }
}

/// A bucket of a group that a stream carries out.
///
/// Once it is done, its buffers can be used while the group goes on with others.
#[derive(Clone, Debug)]
pub struct BucketWork {
    flight: Arc<Flight>,
    bucket: usize,
}

impl BucketWork {
    /// Waits until the bucket is done on this rank: what was to be written is there, and no rank uses its buffers any more.
    ///
    /// # Errors
    /// [`Error::Broken`] if the group ended before.
    pub fn wait(&self) -> Result<(), Error> {
        // Without a deadline there is an answer.
        self.flight.wait(self.bucket, None).unwrap_or(Ok(()))
    }

    /// As [`wait`](BucketWork::wait), at most so long. None: the bucket is not done yet.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Result<(), Error>> {
        self.flight.wait(self.bucket, Some(Instant::now() + timeout))
    }

    /// Whether the bucket is done.
    pub fn is_done(&self) -> bool {
        self.flight.is_done(self.bucket)
    }
}
