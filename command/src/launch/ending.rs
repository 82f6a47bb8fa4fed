//! How far the ending of the ranks has come.

use std::time::{Duration, Instant};

/// How long ranks may take to end after SIGTERM.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// A second request to stop within this time is the first one, come twice: `timeout`, for one,
/// signals a process and then its group.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// How far the ending of the ranks has come.
pub(super) enum Ending {
    /// Nothing has happened.
    None,
    /// They may end by themselves until then.
    Grace(Instant),
    /// They were told to, and have until then.
    Told(Instant),
    /// They were made to.
    Forced,
}

impl Ending {
    /// Gives the ranks the grace period, if they have none yet.
    pub(super) fn begin(&mut self, grace: Duration) {
        if matches!(self, Ending::None) {
            *self = Ending::Grace(Instant::now() + grace);
        }
    }

    /// The ranks get a signal by which somebody asks for the end. They have the grace period for
    /// what they do then.
    pub(super) fn ask(&mut self, signal: i32, grace: Duration) {
        match self {
            // It need not be said twice.
            Ending::None | Ending::Grace(_) if signal == libc::SIGTERM => {
                *self = Ending::Told(Instant::now() + grace);
            }
            _ => self.begin(grace),
        }
    }

    /// The signal that is due now, once.
    pub(super) fn due(&mut self) -> Option<i32> {
        let now = Instant::now();
        match *self {
            Ending::Grace(until) if now >= until => {
                *self = Ending::Told(now + TERM_GRACE);
                Some(libc::SIGTERM)
            }
            Ending::Told(until) if now >= until => {
                *self = Ending::Forced;
                Some(libc::SIGKILL)
            }
            _ => None,
        }
    }

    /// Whether ranks that end now were told to.
    pub(super) fn has_told(&self) -> bool {
        matches!(self, Ending::Told(_) | Ending::Forced)
    }

    /// How long until something is due.
    pub(super) fn remaining(&self) -> Option<Duration> {
        match self {
            Ending::Grace(until) | Ending::Told(until) => {
                Some(until.saturating_duration_since(Instant::now()))
            }
            Ending::None | Ending::Forced => None,
        }
    }
}

/// What this process was asked for by a signal.
#[derive(Clone, Copy)]
pub(super) struct Request {
    /// The first signal.
    pub(super) signal: i32,
    at: Instant,
}

impl Request {
    /// The first signal has come.
    pub(super) fn new(signal: i32) -> Request {
        Request { signal, at: Instant::now() }
    }

    /// Whether another signal now says that somebody does not want to wait.
    pub(super) fn is_repeated(&self) -> bool {
        self.at.elapsed() >= SAME_REQUEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_first_and_forced_then() {
        let mut ending = Ending::None;
        assert_eq!(ending.due(), None);
        ending.begin(Duration::ZERO);
        assert!(!ending.has_told());
        assert_eq!(ending.due(), Some(libc::SIGTERM));
        ending.begin(Duration::ZERO);
        assert_eq!(ending.due(), None, "told once, and not yet forced");
        ending = Ending::Told(Instant::now());
        assert_eq!(ending.due(), Some(libc::SIGKILL));
        assert_eq!(ending.due(), None);
        assert!(ending.has_told());
    }

    #[test]
    fn who_was_asked_by_sigterm_is_not_told_again() {
        let mut ending = Ending::None;
        ending.ask(libc::SIGTERM, Duration::ZERO);
        assert_eq!(ending.due(), Some(libc::SIGKILL));
        let mut ending = Ending::None;
        ending.ask(libc::SIGINT, Duration::ZERO);
        assert_eq!(ending.due(), Some(libc::SIGTERM));
    }
}
