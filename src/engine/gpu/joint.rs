//! One launch for a call of all ranks, where these are threads of one process on one GPU.
//!
//! Each rank brings its launch block (of a group, the first of its chain) and waits, on the host,
//! until all have come. The last one puts all of it into the streams: its own waits for what is in
//! the others', one kernel is launched with the blocks of all, and the other streams wait for that
//! kernel's end. The launch is a cooperative one: all its blocks run at once, whatever else is on
//! the GPU. A rank that does not come is noticed as in a call's waits.
//!
//! Nobody's kernel can be kept back by what another rank puts into a stream behind the call,
//! whatever connections the streams share: all are launched before any rank goes on. A group with a
//! bucket that is not ready needs more, since its kernel waits for marks, which may come by streams
//! of any connection. So none of the streams may wait for it: each rank's part is a kernel of its
//! own, in its own stream, and what the ranks put behind it they do only when all have come with
//! their next call, and so have marked theirs.
//!
//! The table of launch blocks that the kernel reads is pinned memory: a place in a ring, which no
//! kernel can still read when its turn comes again, since no rank has more than [`SLOTS`] calls
//! under way; of a captured call, memory of its own, for its replays.

use crate::device::cuda::{Ended, Event, Kernel, SLOTS, Stream};
use oxccl_kernels::format::Launch;
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Context, PinnedMemory, beside_captures};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How often a rank that waits for others looks whether they can still come.
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// Where the ranks of a communicator meet before each launch.
#[derive(Debug)]
pub(crate) struct Joint {
    ranks: usize,
    /// Calls must be one launch; otherwise those that each rank captures by itself are one of each.
    strict: bool,
    state: Mutex<State>,
    changed: Condvar,
    /// Those of parts, by their numbers and ranks.
    parts: Mutex<Parts>,
}

type Parts = HashMap<(u64, Vec<usize>), Weak<Joint>>;

#[derive(Debug, Default)]
struct State {
    /// By rank: those that have come.
    parts: Vec<Option<Part>>,
    /// Launches so far, and those of them that were one for all and not captured.
    launches: u64,
    eager: u64,
    /// What became of the last one.
    joined: Joined,
    /// Ranks that have come before they put anything behind the last launch, and how often all
    /// have.
    met: usize,
    meetings: u64,
    /// Parts came that cannot be one launch.
    differ: bool,
    ring: Option<PinnedMemory>,
    captured: Vec<PinnedMemory>,
}

/// What became of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Joined {
    /// One kernel for all ranks.
    #[default]
    Together,
    /// A kernel for each, which waits for marks or has messages of its own; all have been launched.
    Gated,
    /// Nothing: each rank captures by itself, and launches there.
    ByOneself,
}

/// A rank's part of a launch.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) launch: Launch,
    pub(super) kernel: Kernel,
    pub(super) channels: usize,
    pub(super) stream: Stream,
    /// What it is to follow in another stream.
    pub(super) behind: Option<Behind>,
    /// For what is in its stream before the call; of the rank that launches, for what has been
    /// launched.
    pub(super) event: Arc<Event>,
    /// The capture that the stream is in.
    pub(super) capture: Option<u64>,
    /// Whether it has a bucket that is not ready.
    pub(super) gated: bool,
}

// SAFETY: the addresses in the launch block are the GPU's; nobody follows them here.
unsafe impl Send for Part {}

/// A call in another stream that comes before.
#[derive(Clone, Debug)]
pub(super) enum Behind {
    Call(Arc<Ended>, u64),
    Captured(Arc<Event>),
}

impl Behind {
    pub(super) fn hold(&self, stream: &Stream) -> Result<(), CudaError> {
        match self {
            Behind::Call(ended, call) => ended.hold(stream, *call),
            Behind::Captured(event) => event.hold(stream),
        }
    }
}

/// Why there was no launch.
#[derive(Debug)]
pub(super) enum NotJoined {
    /// The driver refused.
    Refused(CudaError),
    /// Other ranks did not come.
    Alone,
    /// Ranks came with calls that no kernel can run together, or with one that is captured
    /// elsewhere than the others.
    Differ,
}

impl From<CudaError> for NotJoined {
    fn from(error: CudaError) -> NotJoined {
        NotJoined::Refused(error)
    }
}

impl Joint {
    /// Of so many ranks. `strict`: a call of all that cannot be one launch is an error.
    pub(crate) fn new(ranks: usize, strict: bool) -> Joint {
        let state = State { parts: (0..ranks).map(|_| None).collect(), ..State::default() };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Joint { ranks, strict, state, changed, parts: Mutex::default() }
    }

    /// Where these ranks meet, which have come to a part of their own of this number.
    pub(crate) fn part(&self, number: u64, ranks: &[usize]) -> Arc<Joint> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.retain(|_, part| part.strong_count() > 0);
        let known = parts.get(&(number, ranks.to_vec())).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let part = Arc::new(Joint::new(ranks.len(), self.strict));
            parts.insert((number, ranks.to_vec()), Arc::downgrade(&part));
            part
        })
    }

    /// Returns once anything may be put into a stream behind the last launch; whether it had to be
    /// waited for that. `stops` says now and then whether to go on waiting.
    pub(super) fn meet(&self, stops: impl Fn() -> bool) -> Result<bool, NotJoined> {
        let mut state = self.lock();
        if state.joined != Joined::Gated {
            return Ok(false);
        }
        state.met += 1;
        if state.met == self.ranks {
            state.met = 0;
            state.meetings += 1;
            self.changed.notify_all();
            return Ok(true);
        }
        let meetings = state.meetings;
        let (mut state, all) = self.wait(state, &stops, |state| state.meetings > meetings);
        if !all {
            state.met -= 1;
            return Err(NotJoined::Alone);
        }
        Ok(true)
    }

    /// Brings a rank's part, and returns once all have been launched and the stream waits for their
    /// end, where it may. `stops` says now and then whether to go on waiting.
    ///
    /// # Safety
    /// As for [`Kernel::launch`]; no rank has more than [`SLOTS`] calls under way. The parts'
    /// streams live until this returns.
    pub(super) unsafe fn launch(
        &self,
        rank: usize,
        part: Part,
        stops: impl Fn() -> bool,
    ) -> Result<Joined, NotJoined> {
        let mut state = self.lock();
        state.parts[rank] = Some(part);
        if state.parts.iter().all(Option::is_some) {
            let mut parts = std::mem::take(&mut state.parts);
            // SAFETY: by this function's contract, each rank's part.
            let made = unsafe { self.launch_all(&mut state, &parts, rank) };
            parts.iter_mut().for_each(|part| *part = None);
            state.parts = parts;
            state.differ = matches!(made, Err(NotJoined::Differ));
            self.changed.notify_all();
            return made;
        }
        let launches = state.launches;
        let is_over = |state: &State| state.launches > launches || state.differ;
        let (mut state, over) = self.wait(state, &stops, is_over);
        // The next launch needs this rank, so it is still this one's.
        if state.launches > launches {
            return Ok(state.joined);
        }
        if over {
            return Err(NotJoined::Differ);
        }
        state.parts[rank] = None;
        Err(NotJoined::Alone)
    }

    /// Waits until something holds, or until it can not any more; whether it does.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        stops: impl Fn() -> bool,
        holds: impl Fn(&State) -> bool,
    ) -> (MutexGuard<'a, State>, bool) {
        while !holds(&state) {
            let waited = self.changed.wait_timeout(state, LOOK_PAUSE);
            let timed_out;
            (state, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
            if timed_out.timed_out() && !holds(&state) && stops() {
                return (state, false);
            }
        }
        (state, true)
    }

    /// # Safety
    /// As for [`launch`](Self::launch).
    unsafe fn launch_all(
        &self,
        state: &mut State,
        parts: &[Option<Part>],
        rank: usize,
    ) -> Result<Joined, NotJoined> {
        let parts = || parts.iter().flatten();
        let (Some(first), Some(own)) = (parts().next(), parts().nth(rank)) else {
            return Err(NotJoined::Alone);
        };
        let alike = parts()
            .all(|part| part.kernel.is_same(&first.kernel) && part.channels == first.channels);
        let apart = parts().any(|part| part.capture != first.capture);
        // Of a group some ranks may have messages, and more channels or another kernel for these.
        let of_groups = parts().all(Part::is_of_group) && parts().all(|p| p.capture.is_none());
        let captured = parts().filter(|part| part.capture.is_some()).count();
        let fit = (alike || of_groups) && (captured == 0 || captured == self.ranks);
        if !fit || apart && self.strict {
            return Err(NotJoined::Differ);
        }
        let joined = match first.capture {
            Some(_) if apart => Joined::ByOneself,
            None if !alike || parts().any(|part| part.gated) => Joined::Gated,
            _ => Joined::Together,
        };
        match joined {
            // SAFETY: by this function's contract.
            Joined::Together => unsafe { self.launch_one(state, parts, own) }?,
            // SAFETY: as above.
            Joined::Gated => parts().try_for_each(|part| unsafe { part.launch() })?,
            Joined::ByOneself => {}
        }
        state.joined = joined;
        state.launches += 1;
        Ok(joined)
    }

    /// # Safety
    /// As for [`launch`](Self::launch).
    unsafe fn launch_one<'a, Parts: Iterator<Item = &'a Part>>(
        &self,
        state: &mut State,
        parts: impl Fn() -> Parts,
        own: &Part,
    ) -> Result<(), CudaError> {
        let (stream, is_captured) = (&own.stream, own.capture.is_some());
        let context = stream.context();
        let driver = context.device().driver();
        let next = beside_captures(driver, || state.place(context, self.ranks, is_captured))?;
        let is_other = |part: &&Part| !std::ptr::eq(*part, own);
        for (at, part) in parts().enumerate() {
            // SAFETY: a place for the ranks' blocks, which no kernel reads.
            unsafe { next.host.add(at).write(part.launch) };
            if is_other(&part) {
                part.event.record(&part.stream)?;
                part.event.hold(stream)?;
            }
            part.behind.iter().try_for_each(|behind| behind.hold(stream))?;
        }
        let (ranks, joined_channels) = (self.ranks as u32, own.channels as u32);
        let launch = Launch { next: next.device, ranks, joined_channels, ..Launch::EMPTY };
        // SAFETY: the table has a block for each rank, each as its rank promises.
        unsafe { own.kernel.launch_joined(stream, &launch, self.ranks * own.channels) }?;
        own.event.record(stream)?;
        parts().filter(is_other).try_for_each(|part| own.event.hold(&part.stream))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    fn is_of_group(&self) -> bool {
        !self.launch.next.is_null() || !self.launch.segments.is_null()
    }

    /// # Safety
    /// As for [`Kernel::launch`].
    pub(super) unsafe fn launch(&self) -> Result<(), CudaError> {
        self.behind.iter().try_for_each(|behind| behind.hold(&self.stream))?;
        // SAFETY: by this function's contract.
        unsafe { self.kernel.launch(&self.stream, &self.launch, self.channels) }
    }
}

/// Where a launch's blocks lie.
struct Place {
    host: *mut Launch,
    device: *const Launch,
}

impl State {
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
