//! The launchers that listen to the rendezvous: they hold no rank, tell how theirs end, and are told how others do.

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
}

impl Launchers {
    /// One more. What it has missed.
    pub(super) fn add(&mut self, conn: Conn, ranks: Range<usize>) -> Vec<Cause> {
        let missed = self.told.iter().filter(|cause| is_news(cause, &ranks)).cloned().collect();
        self.listening.insert(conn, ranks);
        missed
    }

    /// One less. Its ranks, if it listened.
    pub(super) fn remove(&mut self, conn: Conn) -> Option<Range<usize>> {
        self.listening.remove(&conn)
    }

    /// All that listen.
    pub(super) fn conns(&self) -> Vec<Conn> {
        self.listening.keys().copied().collect()
    }

    /// Something has happened: who is to be told. Told are the first cause and the first ends of ranks.
    pub(super) fn hear(&mut self, cause: &Cause) -> Vec<Conn> {
        let is_end = |cause: &Cause| matches!(cause, Cause::Ended { .. });
        let limit = if is_end(cause) { ENDS_LIMIT } else { 1 };
        let alike = self.told.iter().filter(|told| is_end(told) == is_end(cause)).count();
        if alike >= limit || self.told.contains(cause) {
            return Vec::new();
        }
        self.told.push(cause.clone());
        let hears = self.listening.iter().filter(|(_, ranks)| is_news(cause, ranks));
        hears.map(|(&conn, _)| conn).collect()
    }
}

/// Whether the launcher of these ranks does not know it first.
fn is_news(cause: &Cause, ranks: &Range<usize>) -> bool {
    !matches!(cause, Cause::Ended { rank, .. } if ranks.contains(rank))
}
