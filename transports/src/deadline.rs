//! Points in time that may be very far away.

use std::time::{Duration, Instant};

/// What stands for a deadline that is further away than the clock goes: 34 years.
const FAR: Duration = Duration::from_secs(1 << 30);

/// The end of a time-out that begins now. Any duration may be given, [`Duration::MAX`] too.
pub fn deadline_in(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or_else(|| now + FAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_timeout_is_too_long() {
        let now = Instant::now();
        for timeout in [Duration::MAX, Duration::from_secs(u64::MAX), FAR] {
            assert!(deadline_in(timeout) >= now + FAR);
        }
        let soon = deadline_in(Duration::from_secs(1));
        assert!(soon >= now + Duration::from_secs(1) && soon < now + FAR);
    }
}
