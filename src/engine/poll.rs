//! What a wait that lasts asks now and then: whether to go on.

use super::logs;
use crate::device::Control;
use oxccl_transports::Liveness;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A wait of this length looks whether the other ranks called the same.
const SUSPICIOUS: Duration = Duration::from_millis(20);

/// The longest pause before a wait asks the ranks of other nodes again how far they have come.
const ASK_PAUSE: Duration = Duration::from_secs(1);

/// Context of the machine's poll function. Not used on the fast path, but for one relaxed store a call.
#[derive(Debug)]
pub(super) struct Poll {
    liveness: Arc<Liveness>,
    control: Arc<Control>,
    rank: usize,
    timeout_ns: AtomicU64,
    /// Number of the collective under way; 0 in send/recv.
    collective: AtomicU64,
    /// Number of the call under way, from the launch, and since when each channel has waited in it.
    waits: Box<[Mutex<Option<Wait>>]>,
    /// Calls of this rank so far, as seen by a wait.
    call: AtomicU64,
}

/// A channel's wait.
#[derive(Debug)]
struct Wait {
    call: u64,
    since: Instant,
    /// How long it may last until ranks of other nodes are asked.
    ask_after: Duration,
}

impl Poll {
    pub(super) fn new(
        liveness: Arc<Liveness>,
        control: Arc<Control>,
        rank: usize,
        timeout: Duration,
    ) -> Poll {
        let channels = control.channels();
        let poll = Poll {
            liveness,
            control,
            rank,
            timeout_ns: AtomicU64::new(0),
            collective: AtomicU64::new(0),
            waits: (0..channels).map(|_| Mutex::new(None)).collect(),
            call: AtomicU64::new(0),
        };
        poll.set_timeout(timeout);
        poll
    }

    pub(super) fn set_timeout(&self, timeout: Duration) {
        let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.timeout_ns.store(ns, Ordering::Relaxed);
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout_ns.load(Ordering::Relaxed))
    }

    /// Tells of a new call.
    #[inline]
    pub(super) fn set_collective(&self, number: u64) {
        self.collective.store(number, Ordering::Relaxed);
        self.call.store(self.call.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Whether the wait has lasted too long, or waits for somebody who will not come.
    pub(super) fn stops(&self, channel: usize) -> bool {
        self.control.log(self.rank).beat();
        if self.liveness.abort_word().load(Ordering::Acquire) != 0 || self.left_before().is_some() {
            return true;
        }
        let call = self.call.load(Ordering::Relaxed);
        let mut wait = self.waits[channel].lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *wait {
            Some(wait) if wait.call == call => {
                let elapsed = wait.since.elapsed();
                if elapsed >= wait.ask_after {
                    wait.ask_after += wait.ask_after.min(ASK_PAUSE);
                    self.ask();
                }
                elapsed.as_nanos() >= u128::from(self.timeout_ns.load(Ordering::Relaxed))
                    || (elapsed >= SUSPICIOUS && logs::mismatch(&self.control, self.rank).is_some())
            }
            _ => {
                *wait = Some(Wait { call, since: Instant::now(), ask_after: SUSPICIOUS });
                false
            }
        }
    }

    /// Whether a rank that waits since then, before the launch of this collective, has waited too long or for somebody who will not come.
    pub(super) fn stops_before(&self, collective: u64, since: Instant) -> bool {
        self.control.log(self.rank).beat();
        let elapsed = since.elapsed();
        self.liveness.abort_word().load(Ordering::Acquire) != 0
            || self.left_earlier(collective).is_some()
            || elapsed >= self.timeout()
            || (elapsed >= SUSPICIOUS && logs::mismatch(&self.control, self.rank).is_some())
    }

    fn ask(&self) {
        if self.control.mirrored().next().is_some() {
            self.liveness.ask();
        }
    }

    /// A rank that closed before it made the collective under way, and how many it made.
    pub(super) fn left_before(&self) -> Option<(usize, u64)> {
        self.left_earlier(self.collective.load(Ordering::Relaxed))
    }

    fn left_earlier(&self, number: u64) -> Option<(usize, u64)> {
        let early = |rank| {
            self.liveness.left(rank).filter(|calls| *calls < number).map(|calls| (rank, calls))
        };
        (0..self.control.ranks()).find_map(early)
    }
}

/// The machine's poll function over a [`Poll`].
///
/// # Safety
///
/// `context` is a `Poll` that outlives the launch, and the channel is one of its.
pub(super) unsafe extern "C" fn poll(context: *mut c_void, channel: u32) -> u32 {
    // SAFETY: by this function's contract.
    let poll = unsafe { &*context.cast::<Poll>() };
    u32::from(poll.stops(channel as usize))
}
