//! One launch for a call of all ranks, where these are threads of one process on one GPU.
//!
//! Each rank brings its launch block (of a group, the first of its chain) and waits, on the host, until all have come. The last one makes its stream wait for what is in the
//! others' streams, launches one kernel with the blocks of all, and the others make their streams wait for it. That launch is a
//! cooperative one: all its blocks run at once, whatever else is on the GPU. A rank that does not come is noticed as in a call's waits.
//!
//! The table of launch blocks that the kernel reads is pinned memory: a place in a ring, which no kernel can still read when its turn comes
//! again, since no rank has more than [`SLOTS`] calls under way; of a captured call, memory of its own, for its replays.

use crate::device::cuda::{Event, Kernel, SLOTS, Stream};
use oxccl_kernels::format::Launch;
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Context, PinnedMemory, beside_captures};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a rank that waits for others looks whether they can still come.
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// Where the ranks of a communicator meet before each launch.
#[derive(Debug)]
pub(crate) struct Joint {
    ranks: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// By rank: those that have come.
    parts: Vec<Option<Part>>,
    /// Launches so far, and those of them that were not captured.
    launches: u64,
    eager: u64,
    /// The end of the last launch, which those wait for that did not make it.
    after: Option<Arc<Event>>,
    /// Parts came that cannot be one launch.
    differ: bool,
    ring: Option<PinnedMemory>,
    captured: Vec<PinnedMemory>,
}

/// A rank's part of a launch.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) launch: Launch,
    pub(super) kernel: Kernel,
    pub(super) channels: usize,
    /// What is in its stream before the call.
    pub(super) before: Arc<Event>,
    /// The capture that the stream is in.
    pub(super) capture: Option<u64>,
}

// SAFETY: the addresses in the launch block are the GPU's; nobody follows them here.
unsafe impl Send for Part {}

/// Why there was no launch.
#[derive(Debug)]
pub(super) enum NotJoined {
    /// The driver refused.
    Refused(CudaError),
    /// Other ranks did not come.
    Alone,
    /// Ranks came with calls that no kernel can run together, or with one that is captured elsewhere than the others.
    Differ,
}

impl From<CudaError> for NotJoined {
    fn from(error: CudaError) -> NotJoined {
        NotJoined::Refused(error)
    }
}

impl Joint {
    /// Of so many ranks.
    pub(crate) fn new(ranks: usize) -> Joint {
        let state = State { parts: (0..ranks).map(|_| None).collect(), ..State::default() };
        Joint { ranks, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Brings a rank's part, and returns once all have been launched and the stream waits for their end. `stops` says now and then
    /// whether to go on waiting.
    ///
    /// # Safety
    /// As for [`Kernel::launch`]; no rank has more than [`SLOTS`] calls under way.
    pub(super) unsafe fn launch(
        &self,
        rank: usize,
        part: Part,
        stream: &Stream,
        stops: impl Fn() -> bool,
    ) -> Result<(), NotJoined> {
        part.before.record(stream)?;
        let mut state = self.lock();
        state.parts[rank] = Some(part);
        if let Some(parts) = state.all() {
            // SAFETY: by this function's contract, each rank's part.
            let made = unsafe { self.launch_all(&mut state, &parts, stream) };
            state.differ = matches!(made, Err(NotJoined::Differ));
            self.changed.notify_all();
            return made;
        }
        let launches = state.launches;
        while state.launches == launches {
            if state.differ {
                return Err(NotJoined::Differ);
            }
            let waited = self.changed.wait_timeout(state, LOOK_PAUSE);
            let timed_out;
            (state, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
            if timed_out.timed_out() && state.launches == launches && stops() {
                state.parts[rank] = None;
                return Err(NotJoined::Alone);
            }
        }
        // The next launch needs this rank, so it is still this one's.
        match &state.after {
            Some(after) => Ok(after.hold(stream)?),
            None => Ok(()),
        }
    }

    /// # Safety
    /// As for [`launch`](Self::launch).
    unsafe fn launch_all(
        &self,
        state: &mut State,
        parts: &[Part],
        stream: &Stream,
    ) -> Result<(), NotJoined> {
        let first = &parts[0];
        let is_alike = |part: &Part| {
            part.kernel.is_same(&first.kernel)
                && (part.channels, part.capture) == (first.channels, first.capture)
        };
        if !parts.iter().all(is_alike) {
            return Err(NotJoined::Differ);
        }
        let context = stream.context();
        let next = beside_captures(context.device().driver(), || {
            state.place(context, self.ranks, first.capture.is_some())
        })?;
        for (rank, part) in parts.iter().enumerate() {
            // SAFETY: a place for the ranks' blocks, which no kernel reads.
            unsafe { next.host.add(rank).write(part.launch) };
            part.before.hold(stream)?;
        }
        let (ranks, joined_channels) = (self.ranks as u32, first.channels as u32);
        let launch = Launch { next: next.device, ranks, joined_channels, ..Launch::EMPTY };
        // SAFETY: the table has a block for each rank, each as its rank promises.
        unsafe { first.kernel.launch_joined(stream, &launch, self.ranks * first.channels) }?;
        let after = match state.after.take() {
            Some(after) if Arc::strong_count(&after) == 1 => after,
            _ => Arc::new(beside_captures(context.device().driver(), || Event::new(context))?),
        };
        after.record(stream)?;
        state.after = Some(after);
        state.launches += 1;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a launch's blocks lie.
struct Place {
    host: *mut Launch,
    device: *const Launch,
}

impl State {
    /// The parts, once all have come.
    fn all(&mut self) -> Option<Vec<Part>> {
        self.parts
            .iter()
            .all(Option::is_some)
            .then(|| self.parts.iter_mut().filter_map(Option::take).collect())
    }

    /// A place for the blocks of so many ranks.
    fn place(
        &mut self,
        context: &Context,
        ranks: usize,
        is_captured: bool,
    ) -> Result<Place, CudaError> {
        let len_bytes = ranks * size_of::<Launch>();
        if is_captured {
            self.captured.push(PinnedMemory::allocate(context, len_bytes)?);
            return Ok(Place::in_memory(&self.captured[self.captured.len() - 1], 0));
        }
        let ring = match self.ring.take() {
            Some(ring) => ring,
            None => PinnedMemory::allocate(context, SLOTS * len_bytes)?,
        };
        let place = Place::in_memory(&ring, (self.eager % SLOTS as u64) as usize * len_bytes);
        self.ring = Some(ring);
        self.eager += 1;
        Ok(place)
    }
}

impl Place {
    fn in_memory(memory: &PinnedMemory, offset_bytes: usize) -> Place {
        Place {
            host: memory.as_ptr().wrapping_add(offset_bytes).cast(),
            device: memory.device_ptr().wrapping_add(offset_bytes).cast_const().cast(),
        }
    }
}
