//! A barrier that tells who was late.

use super::Engine;
use crate::call::Meeting;
use crate::error::Error;
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
}
