//! What a wait that lasts asks now and then: whether to go on.
//!
//! The time-out counts waiting without progress. A call that moves, however slowly, does not time
//! out: the clock begins anew whenever this rank, or another in the same call, waits for something
//! else than before.

use super::logs;
use crate::call::Record;
use crate::device::Control;
use oxccl_transports::{Cause, Liveness};
use std::ffi::c_void;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A wait of this length looks whether the other ranks called the same, live, and move.
const SUSPICIOUS: Duration = Duration::from_millis(20);

/// The longest pause between two such looks. A process that has ended is named by the second, so
/// within twice as long.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// Looks within a time-out, at least.
const LOOKS: u32 = 8;

/// Context of the machine's poll function. Not used on the fast path, but for one relaxed store a
/// call.
#[derive(Debug)]
pub(in crate::engine) struct Poll {
    liveness: Arc<Liveness>,
    control: Arc<Control>,
    rank: usize,
    timeout_ns: AtomicU64,
    /// Of a call with a time-out of its own: its number from the launch, and that time-out.
    limited: AtomicU64,
    limit_ns: AtomicU64,
    /// Number of the collective under way; 0 in send/recv.
    collective: AtomicU64,
    /// Number of the call under way, from the launch, and since when each channel has waited in it.
    waits: Box<[Mutex<Option<Wait>>]>,
    /// Calls of this rank so far, as seen by a wait.
    call: AtomicU64,
    interrupt: OnceLock<Interrupt>,
}

/// Asks the caller of a call whether to give up.
struct Interrupt(Box<dyn Fn() -> bool + Send + Sync>);

impl std::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interrupt")
    }
}

/// A channel's wait.
#[derive(Debug)]
struct Wait {
    call: u64,
    since: Instant,
    /// When the call has last been seen to move, at first its beginning.
    moved: Instant,
    /// What it waited for then.
    place: Option<u64>,
    /// The next look, and the pause before it.
    look_at: Instant,
    pause: Duration,
    /// A rank whose process has ended; its last words may be under way.
    ended: Option<usize>,
}

impl Wait {
    fn begin(call: u64) -> Wait {
        let (since, pause) = (Instant::now(), SUSPICIOUS);
        Wait { call, since, moved: since, place: None, look_at: since + pause, pause, ended: None }
    }
}

impl Poll {
    pub(in crate::engine) fn new(
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
            limited: AtomicU64::new(u64::MAX),
            limit_ns: AtomicU64::new(0),
            collective: AtomicU64::new(0),
            waits: (0..channels).map(|_| Mutex::new(None)).collect(),
            call: AtomicU64::new(0),
            interrupt: OnceLock::new(),
        };
        poll.set_timeout(timeout);
        poll
    }

    pub(in crate::engine) fn set_timeout(&self, timeout: Duration) {
        self.timeout_ns.store(ns(timeout), Ordering::Relaxed);
    }

    /// The next call has this time-out of its own.
    #[cold]
    pub(in crate::engine) fn limit_next(&self, timeout: Duration) {
        self.limit_ns.store(ns(timeout), Ordering::Relaxed);
        self.limited.store(self.call.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// What comes now is no call: it has the communicator's time-out.
    pub(in crate::engine) fn limit_none(&self) {
        self.limited.store(u64::MAX, Ordering::Relaxed);
    }

    /// The time-out of the call under way.
    pub(in crate::engine) fn call_timeout(&self) -> Duration {
        if self.limited.load(Ordering::Relaxed) != self.call.load(Ordering::Relaxed) {
            return self.timeout();
        }
        Duration::from_nanos(self.limit_ns.load(Ordering::Relaxed))
    }

    /// Has waits ask this now and then whether to give up. False if they ask something already.
    pub(in crate::engine) fn set_interrupt(
        &self,
        interrupt: Box<dyn Fn() -> bool + Send + Sync>,
    ) -> bool {
        self.interrupt.set(Interrupt(interrupt)).is_ok()
    }

    /// The communicator's.
    pub(in crate::engine) fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout_ns.load(Ordering::Relaxed))
    }

    /// Tells of a new call.
    #[inline]
    pub(in crate::engine) fn set_collective(&self, number: u64) {
        self.collective.store(number, Ordering::Relaxed);
        self.call.store(self.call.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Whether the wait has lasted too long, or waits for somebody who will not come.
    pub(in crate::engine) fn stops(&self, channel: usize) -> bool {
        let log = self.control.own_log();
        log.beat();
        // Calls are left in turn.
        self.control.own_badge().wait(log.left() + 1);
        if self.liveness.abort_word().load(Ordering::Acquire) != 0 || self.left_before().is_some() {
            return true;
        }
        let call = self.call.load(Ordering::Relaxed);
        let mut wait = self.waits[channel].lock().unwrap_or_else(PoisonError::into_inner);
        let wait = match &mut *wait {
            Some(wait) if wait.call == call => wait,
            other => {
                *other = Some(Wait::begin(call));
                return false;
            }
        };
        let (now, timeout) = (Instant::now(), self.call_timeout());
        // What has moved since the last look counts, too.
        if now >= wait.look_at || now - wait.moved >= timeout {
            self.look(wait, now);
        }
        now - wait.moved >= timeout
            || (now - wait.since >= SUSPICIOUS
                && logs::mismatch(&self.control, self.rank).is_some())
    }

    /// Looks whether the call moves and its ranks live, and asks those of other nodes.
    fn look(&self, wait: &mut Wait, now: Instant) {
        let place = Some(self.place());
        if wait.place != place {
            // The first look knows of no other place.
            if wait.place.is_some() {
                wait.moved = now;
            }
            wait.place = place;
        }
        self.find_dead(&mut wait.ended);
        self.ask();
        if self.interrupt.get().is_some_and(|Interrupt(asks)| asks()) {
            let reason = "interrupted".to_owned();
            self.liveness.abort(Cause::Aborted { rank: self.rank, reason });
        }
        let longest = LOOK_PAUSE.min(self.call_timeout() / LOOKS);
        wait.pause = (wait.pause * 2).min(longest);
        wait.look_at = now + wait.pause;
    }

    /// Where this rank and others in the same collective wait: another number once one of them has
    /// moved.
    fn place(&self) -> u64 {
        let collective = self.collective.load(Ordering::Relaxed);
        let mut hasher = DefaultHasher::new();
        for rank in 0..self.control.ranks() {
            let beside = collective != 0 && self.collective_of(rank) == Some(collective);
            if rank != self.rank && !beside {
                continue;
            }
            for channel in 0..self.control.channels() {
                let at = self.control.progress(rank, channel);
                (rank, at.call, at.awaited, at.step, at.peer, at.lane, at.head).hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    /// The number of the collective that a rank has entered last.
    fn collective_of(&self, rank: usize) -> Option<u64> {
        let log = self.control.log(rank);
        log.record(log.entered())
            .and_then(|record| Record::decode(&record))
            .map(|call| call.collective)
    }

    /// Tells all ranks of one of this node whose process has ended without a goodbye, at the second
    /// look: until then its own words, if there are any, arrive. Its sockets do not say it where a
    /// process that it has forked keeps them open.
    fn find_dead(&self, before: &mut Option<usize>) {
        let silent = |rank: &usize| {
            self.liveness.left(*rank).is_none() && !self.control.log(*rank).is_closed()
        };
        let ended = self.liveness.ended().into_iter().find(silent);
        if let Some(rank) = ended.filter(|_| ended == *before) {
            self.liveness.abort(Cause::Died { rank });
        }
        *before = ended;
    }

    /// How much longer than now this rank's call may take: what its waits have left of the
    /// time-out.
    pub(in crate::engine) fn time_left(&self) -> Duration {
        let call = self.call.load(Ordering::Relaxed);
        let waited = |wait: &Mutex<Option<Wait>>| {
            let wait = wait.lock().unwrap_or_else(PoisonError::into_inner);
            wait.as_ref().filter(|wait| wait.call == call).map(|wait| wait.moved.elapsed())
        };
        let longest = self.waits.iter().filter_map(waited).max();
        self.call_timeout().saturating_sub(longest.unwrap_or(Duration::ZERO))
    }

    /// Whether a rank that waits since then, before the launch of this collective, has waited too
    /// long or for somebody who will not come. The call may have a time-out of its own.
    pub(in crate::engine) fn stops_before(
        &self,
        collective: u64,
        since: Instant,
        timeout: Option<Duration>,
    ) -> bool {
        self.control.own_log().beat();
        let elapsed = since.elapsed();
        self.liveness.abort_word().load(Ordering::Acquire) != 0
            || self.left_earlier(collective).is_some()
            || elapsed >= timeout.unwrap_or_else(|| self.timeout())
            || (elapsed >= SUSPICIOUS && logs::mismatch(&self.control, self.rank).is_some())
    }

    /// Asks the ranks of other nodes how far they have come.
    pub(in crate::engine) fn ask(&self) {
        if self.control.mirrored().next().is_some() {
            self.control.asked();
            self.liveness.ask();
        }
    }

    /// A rank that closed before it made the collective under way, and how many it made.
    pub(in crate::engine) fn left_before(&self) -> Option<(usize, u64)> {
        self.left_earlier(self.collective.load(Ordering::Relaxed))
    }

    fn left_earlier(&self, number: u64) -> Option<(usize, u64)> {
        let early = |rank| {
            self.liveness.left(rank).filter(|calls| *calls < number).map(|calls| (rank, calls))
        };
        (0..self.control.ranks()).find_map(early)
    }
}

fn ns(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)
}

/// The machine's poll function over a [`Poll`].
///
/// # Safety
///
/// `context` is a `Poll` that outlives the launch, and the channel is one of its.
pub(in crate::engine) unsafe extern "C" fn poll(context: *mut c_void, channel: u32) -> u32 {
    // SAFETY: by this function's contract.
    let poll = unsafe { &*context.cast::<Poll>() };
    u32::from(poll.stops(channel as usize))
}
