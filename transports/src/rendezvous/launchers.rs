//! The launchers that listen to the rendezvous: they hold no rank, tell how theirs end, and are
//! told how others do.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::Cause;
use crate::rendezvous::state::Conn;

/// Of how many ranks' ends launchers are told: what follows are the consequences.
const ENDS_LIMIT: usize = 8;

/// Those that listen, and what they have been told.
#[derive(Debug, Default)]
pub(super) struct Launchers {
    /// With the ranks that each has started.
    listening: BTreeMap<Conn, Range<usize>>,
    /// Why the ranks were stopped, and which failed.
    told: Vec<Cause>,
    /// How many have come, be they here or not.
    come: usize,
}

impl Launchers {
    /// One more. What it has missed.
    pub(super) fn add(&mut self, conn: Conn, ranks: Range<usize>) -> Vec<Cause> {
        let told = self.told.iter().enumerate();
        let missed = told.filter(|(place, cause)| *place == 0 || is_news(cause, &ranks));
        let missed = missed.map(|(_, cause)| cause.clone()).collect();
        self.listening.insert(conn, ranks);
        self.come += 1;
        missed
    }

    /// One less. Its ranks, if it listened.
    pub(super) fn remove(&mut self, conn: Conn) -> Option<Range<usize>> {
        self.listening.remove(&conn)
    }

    /// Whether a rank has failed, and not all of so many have come and gone: they and their ranks
    /// need to hear of it.
    pub(super) fn are_awaited(&self, launchers: usize) -> bool {
        let remain = self.come < launchers || !self.listening.is_empty();
        launchers > 0 && remain && self.told.iter().any(is_end)
    }

    /// All that listen.
    pub(super) fn conns(&self) -> Vec<Conn> {
        self.listening.keys().copied().collect()
    }

    /// Something has happened: who is to be told. All are told what happened first; what follows
    /// from it are the ends of ranks.
    pub(super) fn hear(&mut self, cause: &Cause) -> Vec<Conn> {
        let ends = self.told.iter().filter(|told| is_end(told)).count();
        let is_first = self.told.is_empty();
        if !is_first && (!is_end(cause) || ends >= ENDS_LIMIT || self.told.contains(cause)) {
            return Vec::new();
        }
        self.told.push(cause.clone());
        let hears = self.listening.iter().filter(|(_, ranks)| is_first || is_news(cause, ranks));
        hears.map(|(&conn, _)| conn).collect()
    }
}

fn is_end(cause: &Cause) -> bool {
    matches!(cause, Cause::Ended { .. })
}

/// Whether the launcher of these ranks does not know it first.
fn is_news(cause: &Cause, ranks: &Range<usize>) -> bool {
    !matches!(cause, Cause::Ended { rank, .. } if ranks.contains(rank))
}
