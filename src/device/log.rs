//! The call log: each rank's last calls, where all ranks can read them when something goes wrong.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Calls that are remembered: more than a stream may be ahead of its GPU.
const ENTRIES: usize = 128;
/// Words of a record.
pub(crate) const RECORD_WORDS: usize = 6;
/// The lines of a log that hold a call each.
pub(super) const ENTRY_LINES: Range<usize> = 1..1 + ENTRIES;
const _: () = assert!(size_of::<CallLog>() == 64 * ENTRY_LINES.end);
/// Words of a whole log.
pub(super) const LOG_WORDS: usize = 3 + ENTRIES * (1 + RECORD_WORDS);

/// What a rank called, as words: see `call.rs` for their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallRecord {
    /// Number of the call among this rank's collectives, from 1.
    pub(crate) number: u64,
    /// The call.
    pub(crate) words: [u64; RECORD_WORDS],
}

/// A rank's log. One writer, its rank; read by others only to explain a failure.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct CallLog {
    /// Calls entered.
    entered: AtomicU64,
    /// Calls left: while both are equal this rank touches nobody's memory.
    left: AtomicU64,
    /// Grows while the rank runs, but only where it waits long: who is inside a call, and lets this
    /// stand, is stopped.
    beats: AtomicU64,
    /// 1 once the rank has closed its communicator in order: what its process does then is its own
    /// affair.
    closed: AtomicU64,
    padding: [u64; 4],
    entries: [Entry; ENTRIES],
}

#[repr(C, align(64))]
#[derive(Debug)]
struct Entry {
    number: AtomicU64,
    words: [AtomicU64; RECORD_WORDS],
}

impl CallLog {
    /// Writes down a call and enters it.
    #[inline]
    pub(crate) fn enter(&self, number: u64, words: &[u64; RECORD_WORDS]) {
        let entry = &self.entries[number as usize % ENTRIES];
        entry.number.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, from) in entry.words.iter().zip(words) {
            to.store(*from, Ordering::Relaxed);
        }
        entry.number.store(number, Ordering::Release);
        self.entered.store(number, Ordering::Release);
    }

    /// Leaves the call.
    #[inline]
    pub(crate) fn leave(&self, number: u64) {
        self.left.store(number, Ordering::Release);
    }

    /// Leaves this call and those before it, whatever has been left already.
    pub(crate) fn leave_at_least(&self, number: u64) {
        self.left.fetch_max(number, Ordering::AcqRel);
    }

    /// The number of the last call entered.
    pub(crate) fn entered(&self) -> u64 {
        self.entered.load(Ordering::Acquire)
    }

    /// The number of the last call left.
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Acquire)
    }

    /// Whether the rank is inside a call.
    pub(crate) fn is_inside(&self) -> bool {
        self.left() != self.entered()
    }

    /// Shows the others that this rank's threads run.
    pub(crate) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the rank has shown that it runs.
    pub(crate) fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    /// Closes it: the rank makes no more calls.
    pub(crate) fn close(&self) {
        self.closed.store(1, Ordering::Release);
    }

    /// Whether the rank has closed its communicator in order.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) != 0
    }

    /// The call of this number, if it is remembered.
    pub(crate) fn record(&self, number: u64) -> Option<CallRecord> {
        if number == 0 {
            return None;
        }
        let entry = &self.entries[number as usize % ENTRIES];
        if entry.number.load(Ordering::Acquire) != number {
            return None;
        }
        let words = std::array::from_fn(|i| entry.words[i].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (entry.number.load(Ordering::Relaxed) == number).then_some(CallRecord { number, words })
    }

    /// All of it, for a rank that cannot read it here.
    pub(super) fn words(&self) -> Vec<u64> {
        let entered = self.entered();
        let (left, beats) = (self.left.load(Ordering::Acquire), self.beats());
        let first = entered.saturating_sub(ENTRIES as u64 - 1);
        let records = (first..first + ENTRIES as u64).flat_map(|number| {
            let record = self.record(number);
            let words = record.map_or([0; RECORD_WORDS], |record| record.words);
            std::iter::once(record.map_or(0, |record| record.number)).chain(words)
        });
        [entered, left, beats].into_iter().chain(records).collect()
    }

    /// Makes this log what another was when it gave these [`LOG_WORDS`] words.
    pub(super) fn mirror(&self, words: &[u64]) {
        let (state, records) = words.split_at(3);
        for record in records.chunks_exact(1 + RECORD_WORDS).filter(|record| record[0] != 0) {
            let entry = &self.entries[record[0] as usize % ENTRIES];
            entry.number.store(0, Ordering::Relaxed);
            fence(Ordering::Release);
            for (to, from) in entry.words.iter().zip(&record[1..]) {
                to.store(*from, Ordering::Relaxed);
            }
            entry.number.store(record[0], Ordering::Release);
        }
        self.left.store(state[1], Ordering::Release);
        self.beats.store(state[2], Ordering::Relaxed);
        self.entered.store(state[0], Ordering::Release);
    }

    /// The oldest call that may still be remembered.
    pub(crate) fn oldest(&self) -> u64 {
        self.entered().saturating_sub(ENTRIES as u64 - 1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Box<CallLog> {
        // SAFETY: all zeros is a valid log: plain integers and atomics.
        unsafe { Box::new(std::mem::zeroed()) }
    }

    #[test]
    fn a_mirror_shows_the_same() {
        let (own, mirror) = (log(), log());
        for calls in [0, 1, 15, 40] {
            for number in own.entered() + 1..=calls {
                own.enter(number, &[number; RECORD_WORDS]);
            }
            own.beat();
            mirror.mirror(&own.words());
            assert_eq!((mirror.entered(), mirror.beats()), (calls, own.beats()));
            assert_eq!(mirror.is_inside(), own.is_inside());
            for number in 0..=calls {
                assert_eq!(mirror.record(number), own.record(number), "{number} of {calls}");
            }
        }
        assert_eq!(own.words().len(), LOG_WORDS);
    }

    #[test]
    fn the_last_calls_are_remembered() {
        let log = log();
        let last = ENTRIES as u64 + 4;
        for number in 1..=last {
            log.enter(number, &[number; RECORD_WORDS]);
        }
        assert!(log.is_inside());
        log.leave(last);
        assert!(!log.is_inside());
        assert_eq!(log.oldest(), 5);
        assert_eq!(log.record(last).unwrap().words[3], last);
        assert_eq!(log.record(5).unwrap().words[0], 5);
        assert!(log.record(4).is_none());
        assert!(log.record(0).is_none());
    }
}
