//! Who a rank is, since when it waits, and how long its calls take: beside its log, for whoever
//! looks at it from outside of its communicator.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a badge of this layout begins with: a reader of another release says so.
pub(crate) const LAYOUT: u64 = u64::from_le_bytes(*b"oxccl\0\0\x01");
/// Calls whose times are kept.
const MARKS: usize = 128;

/// A communicator among all: that by which the job started, and itself, the same where it is that
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Label {
    pub(crate) job: u32,
    pub(crate) communicator: u32,
}

/// What never changes of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) label: Label,
    pub(crate) rank: usize,
    pub(crate) world: usize,
    pub(crate) channels: usize,
    pub(crate) process: u32,
    /// When the process was started, in the system's ticks: its number may be another's later.
    pub(crate) process_started: u64,
    /// Whether the times of calls are kept.
    pub(crate) has_times: bool,
}

/// A rank's badge. One writer, its rank; all zeros until it has started, and in mirrors.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Badge {
    layout: AtomicU64,
    label: AtomicU64,
    rank: AtomicU64,
    world: AtomicU64,
    channels: AtomicU64,
    process: AtomicU64,
    process_started: AtomicU64,
    has_times: AtomicU64,
    /// 1 once the communicator has failed on this rank.
    failed: AtomicU64,
    /// Of the wait under way, if it lasts: its call, and when that was first noticed.
    waiting_call: AtomicU64,
    waiting_since_ns: AtomicU64,
    /// Calls of all ranks that none leaves before all have come: how many have ended, and how long
    /// they took together.
    ended: AtomicU64,
    ended_ns: AtomicU64,
    /// 1 once the communicator is gone on this rank: its memory may be there for parts of it.
    left: AtomicU64,
    padding: [u64; 2],
    /// The last calls, by their numbers.
    marks: [Mark; MARKS],
}

/// When a call began and ended; 0: it has not. Times are those of the system's monotonic clock.
#[repr(C)]
#[derive(Debug)]
struct Mark {
    began_ns: AtomicU64,
    ended_ns: AtomicU64,
}

/// How long calls of all ranks took that none leaves before all have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Took {
    pub(crate) calls: u64,
    pub(crate) total_ns: u64,
}

impl Badge {
    /// Says who the rank is.
    pub(crate) fn fill(&self, facts: Facts) {
        let Facts { label, rank, world, channels, process, process_started, has_times } = facts;
        let label = u64::from(label.job) | u64::from(label.communicator) << 32;
        for (to, from) in [
            (&self.label, label),
            (&self.rank, rank as u64),
            (&self.world, world as u64),
            (&self.channels, channels as u64),
            (&self.process, process.into()),
            (&self.process_started, process_started),
            (&self.has_times, has_times.into()),
        ] {
            to.store(from, Ordering::Relaxed);
        }
        self.layout.store(LAYOUT, Ordering::Release);
    }

    /// The communicator is gone on this rank.
    pub(crate) fn leave(&self) {
        self.left.store(1, Ordering::Release);
    }

    /// Whether it is.
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire) != 0
    }

    /// The layout of what it says; 0 while it says nothing.
    pub(crate) fn layout(&self) -> u64 {
        self.layout.load(Ordering::Acquire)
    }

    /// Who the rank is, where it says so.
    pub(crate) fn facts(&self) -> Option<Facts> {
        if self.layout() != LAYOUT {
            return None;
        }
        let word = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let label = word(&self.label);
        Some(Facts {
            label: Label { job: label as u32, communicator: (label >> 32) as u32 },
            rank: word(&self.rank) as usize,
            world: word(&self.world) as usize,
            channels: word(&self.channels) as usize,
            process: word(&self.process) as u32,
            process_started: word(&self.process_started),
            has_times: word(&self.has_times) != 0,
        })
    }

    /// The communicator has failed.
    pub(crate) fn fail(&self) {
        self.failed.store(1, Ordering::Release);
    }

    /// Whether the communicator has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire) != 0
    }

    /// A wait of this call lasts.
    pub(crate) fn wait(&self, call: u64) {
        if self.waiting_call.load(Ordering::Relaxed) != call {
            self.waiting_since_ns.store(now_ns(), Ordering::Relaxed);
            self.waiting_call.store(call, Ordering::Release);
        }
    }

    /// Since when a wait of this call has lasted.
    pub(crate) fn waiting_since_ns(&self, call: u64) -> Option<u64> {
        let is_it = self.waiting_call.load(Ordering::Acquire) == call;
        is_it.then(|| self.waiting_since_ns.load(Ordering::Relaxed))
    }

    /// A call begins.
    pub(crate) fn begin(&self, call: u64) {
        let mark = &self.marks[call as usize % MARKS];
        mark.ended_ns.store(0, Ordering::Relaxed);
        mark.began_ns.store(now_ns(), Ordering::Release);
    }

    /// The last call that began has ended; whether none leaves it before all have come.
    pub(crate) fn end(&self, call: u64, meets_all: bool) {
        let (mark, now) = (&self.marks[call as usize % MARKS], now_ns());
        mark.ended_ns.store(now, Ordering::Release);
        if meets_all {
            let took = now.saturating_sub(mark.began_ns.load(Ordering::Relaxed));
            let Took { calls, total_ns } = self.took();
            self.ended_ns.store(total_ns + took, Ordering::Relaxed);
            self.ended.store(calls + 1, Ordering::Release);
        }
    }

    /// When a call, one of the last, began and ended.
    pub(crate) fn times(&self, call: u64) -> (Option<u64>, Option<u64>) {
        let mark = &self.marks[call as usize % MARKS];
        let known = |ns: &AtomicU64| Some(ns.load(Ordering::Acquire)).filter(|ns| *ns > 0);
        (known(&mark.began_ns), known(&mark.ended_ns))
    }

    /// How long calls took together.
    pub(crate) fn took(&self) -> Took {
        let calls = self.ended.load(Ordering::Acquire);
        Took { calls, total_ns: self.ended_ns.load(Ordering::Relaxed) }
    }
}

/// The system's monotonic clock, which all processes of a machine share.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to the memory that it is given. It cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_badge_says_what_it_was_told() {
        // SAFETY: all zeros is a valid badge: plain integers and atomics.
        let badge: Box<Badge> = unsafe { Box::new(std::mem::zeroed()) };
        assert_eq!((badge.layout(), badge.facts()), (0, None));
        let facts = Facts {
            label: Label { job: u32::MAX, communicator: 7 },
            rank: 3,
            world: 5,
            channels: 4,
            process: 123,
            process_started: 456,
            has_times: true,
        };
        badge.fill(facts);
        assert_eq!(badge.facts(), Some(facts));
        assert!(!badge.has_failed());
        badge.fail();
        assert!(badge.has_failed());
        assert_eq!(badge.waiting_since_ns(9), None);
        badge.wait(9);
        let since = badge.waiting_since_ns(9);
        badge.wait(9);
        assert_eq!(badge.waiting_since_ns(9), since, "since the first time");
        for (call, meets_all) in [(1, true), (2, false), (3, true)] {
            badge.begin(call);
            assert!(matches!(badge.times(call), (Some(_), None)));
            badge.end(call, meets_all);
        }
        assert_eq!(badge.took().calls, 2);
        let took = |call| match badge.times(call) {
            (Some(began), Some(ended)) => ended - began,
            other => panic!("{other:?}"),
        };
        assert_eq!(badge.took().total_ns, took(1) + took(3));
    }
}
