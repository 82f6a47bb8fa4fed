//! Words by which ranks whose calls copy engines carry out tell each other that they have entered
//! and that they are done ([`Notice`]): in host memory, which all ranks of the node map and their
//! GPUs reach.
//!
//! A rank's stream writes into its peers' words, and waits for its own to have the value that this
//! very call has on all ranks. Then it clears them. Before each wait it writes into the rank's
//! progress words what it waits for, by which a hang explains itself. A wait cannot be stopped
//! otherwise than by what it waits for, so that is what [`Cells::release`] writes.

use super::stream::{MemoryOp, Stream};
use crate::device::Control;
use oxccl_kernels::format as f;
use oxccl_plans::lower::Notice;
use oxccl_transports::cuda::{Context, RegisteredRegion};
use oxccl_transports::{CudaError, Region};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The name of a rank's region, which other processes see.
pub(super) const CELLS: &str = "oxccl-cells";
/// A cache line, which each word has to itself.
const LINE: usize = 64;
/// Words of a pair: one for each notice.
const NOTICES: usize = 2;
/// [`f::Progress::lane`] of a wait for a word: no lane of connections.
pub(crate) const LANE_CELLS: u32 = 8;
/// No call.
const NONE: u64 = u64::MAX;

/// All ranks' words, as one of them and its GPU reach them.
#[derive(Debug)]
pub(crate) struct Cells {
    rank: usize,
    /// By rank whose words they are.
    all: Vec<RegisteredRegion>,
    /// Where this rank's progress words are for its GPU.
    progress: usize,
    /// The first call whose waits were ended from outside.
    released: AtomicU64,
    /// Calls under way in the stream that was taken last.
    calls: Mutex<usize>,
}

impl Cells {
    /// A region for a rank's words, all cleared.
    pub(super) fn region(ranks: usize) -> Result<Arc<Region>, oxccl_transports::Error> {
        Region::create(CELLS, (ranks * NOTICES + 1) * LINE).map(Arc::new)
    }

    /// Over the regions of all ranks, in rank order.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn new(
        context: &Context,
        rank: usize,
        regions: Vec<Arc<Region>>,
        progress: *mut f::Progress,
    ) -> Result<Cells, CudaError> {
        let register = |region: Arc<Region>| {
            let len_bytes = region.len_bytes();
            RegisteredRegion::register(context, region, len_bytes)
        };
        let all = regions.into_iter().map(register).collect::<Result<_, _>>()?;
        let (progress, released) = (progress as usize, AtomicU64::new(NONE));
        Ok(Cells { rank, all, progress, released, calls: Mutex::default() })
    }

    fn offset(writer: usize, notice: Notice) -> usize {
        (writer * NOTICES + notice as usize) * LINE
    }

    /// What a call's word says; `agreed` is what all ranks must agree on, hashed.
    fn value(agreed: u64, notice: Notice) -> u64 {
        // Never 0, which is what a cleared word says.
        (agreed | 1 << 63) & !1 | notice as u64
    }

    /// This rank's own word, for the host.
    fn own(&self, writer: usize, notice: Notice) -> &AtomicU64 {
        let at = self.all[self.rank].region().as_ptr().wrapping_add(Cells::offset(writer, notice));
        // SAFETY: within the region, aligned to a line; all use it as an atomic, or by operations
        // of streams, which are as whole.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    /// Says that a call comes into this stream, until [`leave_stream`](Self::leave_stream); or into
    /// the capture of this number. Fails where calls of another rank of this process are under way:
    /// what waits would keep back what it waits for.
    ///
    /// # Errors
    /// [`CudaError::SharedStream`].
    pub(crate) fn take_stream(
        &self,
        stream: &Stream,
        capture: Option<u64>,
    ) -> Result<(), CudaError> {
        let (at, name) = match capture {
            None => (0, stream.raw() as u64),
            Some(number) => (1, number),
        };
        let ours = [process(), name];
        {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            *calls += usize::from(capture.is_none());
            self.used(self.rank, at).iter().zip(ours).for_each(|(word, ours)| {
                word.store(ours, Ordering::SeqCst);
            });
        }
        let is_theirs = |rank: &usize| {
            let theirs = self.used(*rank, at);
            theirs.iter().zip(ours).all(|(word, ours)| word.load(Ordering::SeqCst) == ours)
        };
        let mut others = (0..self.all.len()).filter(|rank| *rank != self.rank).filter(is_theirs);
        others.try_for_each(|rank| Err(CudaError::SharedStream { rank })).inspect_err(|_| {
            if capture.is_none() {
                self.leave_stream();
            }
        })
    }

    /// A call has ended. Behind the last one the stream may be another rank's.
    pub(crate) fn leave_stream(&self) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls = calls.saturating_sub(1);
        if *calls == 0 {
            self.used(self.rank, 0).iter().for_each(|word| word.store(0, Ordering::SeqCst));
        }
    }

    /// The words that say which process' stream a rank's calls are in (0), or which capture (1).
    fn used(&self, rank: usize, at: usize) -> [&AtomicU64; 2] {
        let behind = self.all.len() * NOTICES * LINE + at * 2 * size_of::<u64>();
        let first = self.all[rank].region().as_ptr().wrapping_add(behind).cast::<u64>();
        // SAFETY: within the region, behind the words of notices, aligned; all use them as atomics.
        std::array::from_fn(|word| unsafe { AtomicU64::from_ptr(first.wrapping_add(word)) })
    }

    /// Tells a peer, in a stream.
    pub(crate) fn tell(&self, peer: usize, notice: Notice, agreed: u64) -> MemoryOp {
        let at = self.all[peer].device_ptr().wrapping_add(Cells::offset(self.rank, notice));
        MemoryOp::Write(at.cast(), Cells::value(agreed, notice))
    }

    /// Waits in a stream until these peers, each for this step, have told, and clears what they
    /// have written; `call` is the one that the rank is in then.
    pub(crate) fn wait(
        &self,
        peers: impl IntoIterator<Item = (usize, u32)>,
        notice: Notice,
        agreed: u64,
        call: u64,
    ) -> Vec<MemoryOp> {
        let value = Cells::value(agreed, notice);
        let of = |offset: usize| (self.progress + offset) as *mut u64;
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let (step_word, call_word) =
            (of(offset_of!(f::Progress, step)), of(offset_of!(f::Progress, call)));
        let mut ops = vec![
            MemoryOp::Write(of(offset_of!(f::Progress, awaited)), value),
            MemoryOp::Write(of(offset_of!(f::Progress, lane)), pair(LANE_CELLS, 0)),
        ];
        for (at, (peer, step)) in peers.into_iter().enumerate() {
            let word = self.all[self.rank].device_ptr().wrapping_add(Cells::offset(peer, notice));
            ops.push(MemoryOp::Write(step_word, pair(step, peer as u32)));
            ops.extend((at == 0).then_some(MemoryOp::Write(call_word, call)));
            ops.push(MemoryOp::WaitEqual(word.cast(), value));
            ops.push(MemoryOp::Write(word.cast(), 0));
        }
        ops.push(MemoryOp::Write(call_word, 0));
        ops
    }

    /// What this rank's stream waits for, if it is a word.
    fn waited(&self, control: &Control) -> Option<(f::Progress, &AtomicU64)> {
        let wait = control.progress(self.rank, 0);
        let notice = if wait.awaited & 1 == 0 { Notice::Entered } else { Notice::Done };
        let is_one = wait.call != 0 && wait.lane == LANE_CELLS;
        let is_rank = (wait.peer as usize) < self.all.len();
        (is_one && is_rank).then(|| (wait, self.own(wait.peer as usize, notice)))
    }

    /// Ends the wait at hand, of a rank that has given up: others may come behind it. Whether there
    /// was one.
    pub(crate) fn release(&self, control: &Control) -> bool {
        let Some((wait, word)) = self.waited(control) else { return false };
        self.released.fetch_min(wait.call, Ordering::AcqRel);
        word.store(wait.awaited, Ordering::Release);
        true
    }

    /// How a call has ended whose stream has come to its end, of this number.
    pub(crate) fn outcome(&self, call: u64) -> f::Outcome {
        match call >= self.released.load(Ordering::Acquire) {
            true => f::Outcome::Aborted,
            false => f::Outcome::Done,
        }
    }

    /// A peer has written what another call has in its place.
    pub(crate) fn odd(&self, control: &Control) -> Option<f::Status> {
        let (wait, word) = self.waited(control)?;
        let found = word.load(Ordering::Acquire);
        // The stream may have gone on meanwhile.
        let again = control.progress(self.rank, 0);
        let same = |of: &f::Progress| (of.call, of.awaited, of.step, of.peer, of.lane);
        let is_odd = found != 0 && found != wait.awaited && same(&wait) == same(&again);
        let (outcome, found) = (f::Outcome::Mismatch as u32, (found >> 32) as u32);
        is_odd.then_some(f::Status { outcome, step: wait.step, peer: wait.peer, found })
    }
}

/// What tells this process from others.
fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| RandomState::new().build_hasher().finish() | 1)
}

// The fields that are written two at a time.
const _: () = assert!(offset_of!(f::Progress, peer) == offset_of!(f::Progress, step) + 4);
const _: () = assert!(offset_of!(f::Progress, head) == offset_of!(f::Progress, lane) + 4);
const _: () = assert!(offset_of!(f::Progress, step) % 8 == 0);
