//! The monotonic clock of this machine as time since 1970, which files of several machines share.

use crate::device::now_ns;
use std::time::{SystemTime, UNIX_EPOCH};

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) monotonic_ns: u64,
    pub(super) unix_ns: u64,
}

impl Clock {
    pub(super) fn now() -> Clock {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock {
            monotonic_ns: now_ns(),
            unix_ns: u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// A time of the monotonic clock.
    pub(super) fn unix_ns_of(&self, monotonic_ns: u64) -> u64 {
        self.unix_ns.wrapping_sub(self.monotonic_ns.wrapping_sub(monotonic_ns))
    }

    /// Seconds since a time of the monotonic clock.
    pub(super) fn seconds_since(&self, monotonic_ns: u64) -> f64 {
        self.monotonic_ns.saturating_sub(monotonic_ns) as f64 / 1e9
    }
}
