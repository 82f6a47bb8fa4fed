//! A launch under way on a stream: what its maker, its streams and its waiters share.

use super::Completion;
use crate::device::cuda::CallEnd;
use crate::device::{InFlight, Signals, cuda};
use crate::error::Error;
use crate::target::Device;
use oxccl_transports::CudaError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The shortest and the longest nap of a wait for a bucket.
const NAPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];
/// Looks before the first nap.
const LOOKS: usize = 200;

/// Flights that a communicator keeps for the groups to come.
const KEPT: usize = 64;

/// Flights of a communicator's groups, each of which is used again once nobody holds it, so that a
/// group that comes again allocates none.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    all: Vec<Arc<Flight>>,
}

impl Flights {
    /// One for the next group.
    pub(crate) fn take(&mut self) -> Arc<Flight> {
        let mut unused = None;
        // All: what a flight keeps, such as its event, the next group may need.
        for (at, flight) in self.all.iter_mut().enumerate() {
            if let Some(flight) = Arc::get_mut(flight) {
                flight.clear();
                unused = Some(at);
            }
        }
        if let Some(at) = unused {
            return self.all[at].clone();
        }
        let flight = Arc::<Flight>::default();
        if self.all.len() < KEPT {
            self.all.push(flight.clone());
        }
        flight
    }
}

/// A launch on a stream.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// There when all buckets are known.
    signals: OnceLock<Arc<Signals>>,
    pub(crate) completion: Completion,
    held: Mutex<Held>,
    /// The group's end, in a stream of a GPU; and whether other ranks of the process may have to
    /// mark buckets first, too.
    end: OnceLock<(CallEnd, bool)>,
    /// In a capture, from where on the words are this replay's.
    cleared: OnceLock<Arc<cuda::Event>>,
}

/// What streams of a GPU that wait for a group have to know.
#[derive(Debug)]
pub(crate) struct Marks {
    /// By bucket: buckets are done in this order.
    pub(crate) turns: Arc<[usize]>,
    /// By how many connections streams reach the GPU.
    pub(crate) connections: usize,
    /// Counts the rank's buckets that are not marked ready; none of a group that is captured.
    pub(crate) unready: Option<Arc<AtomicUsize>>,
    /// The group's number among the rank's calls, and that of the last call before which all ranks
    /// of the process had marked all of theirs.
    pub(crate) call: u64,
    pub(crate) marked: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Held {
    /// Buffers, with their bucket, until that is done.
    buffers: Vec<(usize, InFlight)>,
    /// Of each bucket, whether it is unready: only while the group is made, but its room stays.
    gated: Vec<bool>,
    /// Buckets that are not marked ready, from the launch on.
    unready: Vec<usize>,
    marks: Option<Marks>,
}

impl Held {
    fn mark(&mut self, bucket: usize) {
        if let Some(at) = self.unready.iter().position(|unready| *unready == bucket) {
            self.unready.swap_remove(at);
            self.count_marks(1);
        }
    }

    fn count_marks(&self, count: usize) {
        if let Some(all) = self.marks.as_ref().and_then(|marks| marks.unready.as_ref()) {
            all.fetch_sub(count, Ordering::Relaxed);
        }
    }
}

impl Flight {
    fn clear(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        held.buffers.clear();
        held.unready.clear();
        held.marks = None;
        self.completion = Completion::default();
        self.signals.take();
        self.end.take();
        self.cleared.take();
    }

    /// Empty lists of buffers and of which buckets are unready, to be filled and given to
    /// [`keep`](Self::keep).
    pub(crate) fn lists(&self) -> (Vec<(usize, InFlight)>, Vec<bool>) {
        let mut held = self.held();
        (std::mem::take(&mut held.buffers), std::mem::take(&mut held.gated))
    }

    /// Keeps the buffers, each until its bucket is done.
    pub(crate) fn keep(&self, buffers: Vec<(usize, InFlight)>) {
        self.held().buffers = buffers;
    }

    /// Keeps the room of a list.
    pub(crate) fn keep_room(&self, mut gated: Vec<bool>) {
        gated.clear();
        self.held().gated = gated;
    }

    /// The group does not come: its buffers are free.
    pub(crate) fn cancel(&self) {
        self.held().buffers.clear();
    }

    /// All buckets are known: those that are not `gated` are ready.
    pub(crate) fn board(&self, signals: Arc<Signals>, gated: &[bool], marks: Option<Marks>) {
        let mut held = self.held();
        let unready = &mut held.unready;
        unready.extend((0..gated.len()).filter(|bucket| gated[*bucket]));
        if let Some(all) = marks.as_ref().and_then(|marks| marks.unready.as_ref()) {
            all.fetch_add(unready.len(), Ordering::Relaxed);
        }
        held.marks = marks;
        let ready = (0..gated.len()).filter(|bucket| !gated[*bucket]);
        ready.for_each(|bucket| signals.mark_ready(bucket));
        // Only one launch boards it.
        let _ = self.signals.set(signals);
    }

    /// Fails unless the host reaches the buffers.
    pub(crate) fn check_host(&self) -> Result<(), Error> {
        let device = Device::Host;
        let all_are = self.held().buffers.iter().all(|(_, buffer)| buffer.is_host());
        if all_are { Ok(()) } else { Err(Error::OtherMemory { device }) }
    }

    /// Where the group ends. `gated`: so that it may have to wait for marks of other ranks of the
    /// process.
    pub(crate) fn launched(&self, end: CallEnd, gated: bool) {
        let _ = self.end.set((end, gated));
    }

    /// Has the stream wait for the group's end.
    pub(crate) fn await_end_on(&self, stream: &cuda::Stream) -> Result<(), Error> {
        let Some((end, _)) = self.end.get() else {
            return Err(Error::OtherDevice { device: Device::Host });
        };
        Ok(end.hold(stream, self.keeps_back(None))?)
    }

    /// Connections, if a stream that waits for this bucket, or for the group's end, may keep back
    /// the marks that these need.
    fn keeps_back(&self, bucket: Option<usize>) -> Option<usize> {
        let held = self.held();
        let marks = held.marks.as_ref().filter(|marks| marks.unready.is_some())?;
        let turn = |bucket: usize| marks.turns.get(bucket).copied();
        let is_awaited = |unready: &usize| bucket.is_none_or(|last| turn(*unready) <= turn(last));
        let gated = self.end.get().is_some_and(|(_, gated)| *gated)
            && marks.marked.load(Ordering::Relaxed) <= marks.call;
        (gated || held.unready.iter().any(is_awaited)).then_some(marks.connections)
    }

    /// In a capture: behind the event the words are those of the replay at hand.
    pub(crate) fn cleared(&self, event: Arc<cuda::Event>) {
        let _ = self.cleared.set(event);
    }

    /// The words; none before the group is launched.
    pub(crate) fn signals(&self) -> Option<&Signals> {
        self.signals.get().map(|signals| &**signals)
    }

    /// Marks a bucket ready. Of a group that was not launched none waits for it.
    pub(crate) fn mark_ready(&self, bucket: usize) {
        if let Some(signals) = self.signals.get() {
            let mut held = self.held();
            signals.mark_ready(bucket);
            held.mark(bucket);
        }
    }

    /// Marks a bucket ready when the stream has come that far.
    pub(crate) fn mark_ready_on(&self, bucket: usize, stream: &cuda::Stream) -> Result<(), Error> {
        if let Some(signals) = self.signals.get() {
            let mut held = self.held();
            on_gpu(signals)?.mark_ready_on(stream, bucket)?;
            held.mark(bucket);
        }
        Ok(())
    }

    /// Has a kernel mark a bucket ready, by this word. Until the group's end it counts as unready.
    pub(crate) fn ready_word(&self, bucket: usize) -> Result<Option<cuda::ReadyWord>, Error> {
        let Some(signals) = self.signals.get() else { return Ok(None) };
        Ok(on_gpu(signals)?.ready_word(bucket))
    }

    /// The group's end in a capture, where single buckets are not told of.
    fn captured_whole(&self) -> Option<&CallEnd> {
        let tells = self.signals.get().is_some_and(|signals| signals.tells());
        let end = self.end.get().map(|(end, _)| end);
        end.filter(|end| !tells && matches!(end, CallEnd::Captured(_)))
    }

    /// By what a kernel knows that a bucket is done.
    pub(crate) fn done_words(&self, bucket: usize) -> Result<cuda::DoneWords, Error> {
        if let Some(CallEnd::Captured(event)) = self.captured_whole() {
            let ordinal = event.context().device().ordinal();
            let what = "done words in a capture, of a group of one part, whose buckets are done when its kernel is";
            return Err(CudaError::NotSupported { ordinal, what }.into());
        }
        let no_bucket = || Error::OtherDevice { device: Device::Host };
        let signals = on_gpu(self.signals.get().ok_or_else(no_bucket)?)?;
        signals.done_words_of(bucket).ok_or_else(no_bucket)
    }

    /// Has a stream wait until the bucket is done.
    pub(crate) fn await_on(&self, bucket: usize, stream: &cuda::Stream) -> Result<(), Error> {
        if let Some(end) = self.captured_whole() {
            return Ok(end.hold(stream, None)?);
        }
        let Some(signals) = self.signals.get() else {
            return Err(Error::OtherDevice { device: Device::Host });
        };
        let signals = on_gpu(signals)?;
        if signals.is_done(bucket) && self.cleared.get().is_none() {
            return Ok(());
        }
        if let Some(connections) = self.keeps_back(Some(bucket)) {
            stream.check_connections(connections)?;
        }
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
        let mut held = self.held();
        held.count_marks(held.unready.len());
        held.unready.clear();
        held.buffers.clear();
    }

    /// Waits for the end.
    pub(crate) fn wait_end(&self) -> Result<(), Error> {
        let result = self.completion.wait();
        self.free();
        result
    }

    /// As [`wait_end`](Self::wait_end), until the deadline. None: it has not come.
    pub(crate) fn wait_end_until(&self, deadline: Instant) -> Option<Result<(), Error>> {
        let result = self.completion.wait_until(deadline)?;
        self.free();
        Some(result)
    }

    /// Whether the end has come.
    pub(crate) fn has_ended(&self) -> bool {
        let ended = self.completion.peek().is_some();
        if ended {
            self.free();
        }
        ended
    }

    /// Whoever has heard of the end finds the buffers free: what ranks allocate behind it lies
    /// alike then, as switches want it.
    fn free(&self) {
        if self.completion.check_process().is_ok() {
            self.held().buffers.clear();
        }
    }

    /// Whether the bucket is done. Then its buffers are the host's again.
    pub(crate) fn is_done(&self, bucket: usize) -> bool {
        if self.completion.check_process().is_err() {
            return false;
        }
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
                self.free();
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

/// The words, if streams of a GPU reach them.
fn on_gpu(signals: &Signals) -> Result<&Signals, Error> {
    let pinned = signals.is_pinned().then_some(signals);
    pinned.ok_or(Error::OtherDevice { device: Device::Host })
}
