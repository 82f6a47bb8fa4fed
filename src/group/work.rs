//! A group under way on a stream, as a whole and bucket by bucket.

use crate::config::Device;
use crate::device::{InFlight, Signals, cuda};
use crate::error::Error;
use crate::work::Completion;
use oxccl_transports::CudaError;
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
    /// There when all buckets are known.
    signals: OnceLock<Arc<Signals>>,
    pub(crate) completion: Completion,
    held: Mutex<Held>,
    /// The group's end, in a stream of a GPU.
    end: OnceLock<Arc<cuda::Event>>,
    /// In a capture, from where on the words are this replay's.
    cleared: OnceLock<Arc<cuda::Event>>,
}

#[derive(Debug, Default)]
struct Held {
    /// Buffers, with their bucket, until that is done.
    buffers: Vec<(usize, InFlight)>,
    /// Buckets that were marked ready before there were signals, and what they wait for in streams of a GPU.
    early: Vec<usize>,
    behind: Vec<cuda::Event>,
}

impl Flight {
    /// Keeps the buffers, each until its bucket is done.
    pub(super) fn keep(&self, buffers: Vec<(usize, InFlight)>) {
        self.held().buffers = buffers;
    }

    /// All buckets are known: those that are not `gated` are ready.
    pub(crate) fn board(&self, signals: Arc<Signals>, gated: &[bool]) {
        let mut held = self.held();
        let ready = (0..gated.len()).filter(|bucket| !gated[*bucket]);
        ready.chain(held.early.drain(..)).for_each(|bucket| signals.mark_ready(bucket));
        // Only one launch boards it.
        let _ = self.signals.set(signals);
    }

    /// Has the stream wait for what buckets that were marked early wait for.
    pub(crate) fn hold(&self, stream: &cuda::Stream) -> Result<(), CudaError> {
        self.held().behind.drain(..).try_for_each(|event| event.hold(stream))
    }

    /// The event behind the group.
    pub(crate) fn launched(&self, end: Arc<cuda::Event>) {
        let _ = self.end.set(end);
    }

    /// In a capture: behind the event the words are those of the replay at hand.
    pub(crate) fn cleared(&self, event: Arc<cuda::Event>) {
        let _ = self.cleared.set(event);
    }

    /// The words; none before the group is launched.
    pub(crate) fn signals(&self) -> Option<&Signals> {
        self.signals.get().map(|signals| &**signals)
    }

    pub(crate) fn mark_ready(&self, bucket: usize) {
        let mut held = self.held();
        match self.signals.get() {
            Some(signals) => signals.mark_ready(bucket),
            None => held.early.push(bucket),
        }
    }

    /// Marks a bucket ready when the stream has come that far.
    pub(crate) fn mark_ready_on(&self, bucket: usize, stream: &cuda::Stream) -> Result<(), Error> {
        let mut held = self.held();
        if let Some(signals) = self.signals.get() {
            return Ok(signals.mark_ready_on(stream, bucket)?);
        }
        let event = cuda::Event::new(stream.context())?;
        event.record(stream)?;
        held.behind.push(event);
        held.early.push(bucket);
        Ok(())
    }

    /// Has a stream wait until the bucket is done.
    fn await_on(&self, bucket: usize, stream: &cuda::Stream) -> Result<(), Error> {
        let Some(signals) = self.signals.get() else {
            return Err(Error::OtherDevice { device: Device::Host });
        };
        if let Some(cleared) = self.cleared.get() {
            cleared.hold(stream)?;
        }
        Ok(signals.await_done_on(stream, bucket)?)
    }

    /// The group has ended: nobody uses its buffers any more.
    pub(crate) fn end(&self, result: Result<(), Error>) {
        if let (Err(_), Some(signals)) = (&result, self.signals.get()) {
            signals.release();
        }
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

    /// Has a stream of the GPU wait for the group, without the host. Whether the group ends well, [`wait`](Self::wait) tells.
    ///
    /// # Errors
    /// [`Error::OtherDevice`] for a group of the host's; [`Error::Transport`], the driver's.
    pub fn wait_on(&self, stream: &cuda::Stream) -> Result<(), Error> {
        let Some(end) = self.flight.end.get() else {
            return Err(Error::OtherDevice { device: Device::Host });
        };
        Ok(end.hold(stream)?)
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

    /// Has a stream of the GPU wait until the bucket is done, without the host. If its group fails, the stream goes on then;
    /// [`wait`](Self::wait) tells. In a capture of the group the stream joins it.
    ///
    /// # Errors
    /// [`Error::OtherDevice`] for a group of the host's; [`Error::Transport`], the driver's.
    pub fn wait_on(&self, stream: &cuda::Stream) -> Result<(), Error> {
        self.flight.await_on(self.bucket, stream)
    }
}
