//! Who is late: in one barrier, and in all calls.

use super::Engine;
use crate::call::Meeting;
use crate::error::Error;
use crate::status::CallTimes;
use oxccl_transports::deadline_in;
use std::time::{Duration, Instant};

impl Engine {
    /// Waits for all ranks, at most for this time. How much later than the first each has come.
    pub(crate) fn monitored_barrier(&mut self, timeout: Duration) -> Result<Vec<Duration>, Error> {
        let (number, record) = self.meet(Meeting::Barrier)?;
        // What is said of a rank that does not come is said with this time-out.
        let usual = self.ranks.poll.timeout();
        self.ranks.poll.set_timeout(timeout);
        let began = Instant::now();
        let waited = self.told(&record, &[], deadline_in(timeout)).and_then(|_| {
            let waited = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            // All are here.
            self.told(&record, &waited.to_le_bytes(), deadline_in(timeout))
        });
        self.ranks.poll.set_timeout(usual);
        let waited = waited.inspect_err(|error| {
            self.ranks.end(error, number);
        })?;
        self.ranks.control.log(self.ranks.rank).leave(number);
        let ns = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes);
        let longest = waited.iter().map(ns).max().unwrap_or(0);
        Ok(waited.iter().map(|bytes| Duration::from_nanos(longest - ns(bytes))).collect())
    }
    /// By rank, how long calls have taken that none leaves before all have come. All ranks call it.
    pub(crate) fn call_times(&mut self) -> Result<Vec<CallTimes>, Error> {
        if !self.config.call_times {
            let detail = "is off, so no times are kept (OXCCL_CALL_TIMES=1 keeps them)".into();
            return Err(Error::Config { variable: "call_times", detail });
        }
        let (number, record) = self.meet(Meeting::Times)?;
        let own = self.ranks.control.own_badge().took();
        let words = [own.calls, own.total_ns].map(u64::to_le_bytes);
        let told = self.told(&record, words.as_flattened(), deadline_in(self.ranks.poll.timeout()));
        let told = told.inspect_err(|error| {
            self.ranks.end(error, number);
        })?;
        self.ranks.control.own_log().leave(number);
        let word = |bytes: &[u8], at: usize| {
            let word = bytes.as_chunks().0.get(at);
            word.map_or(0, |word| u64::from_le_bytes(*word))
        };
        let times = told.iter().map(|bytes| CallTimes::of(word(bytes, 0), word(bytes, 1)));
        Ok(times.collect())
    }
}
