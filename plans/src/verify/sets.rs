//! Connections for ranks with several lists: whatever two lists say to each other has some of its
//! own.

use super::route::{Route, Routes};
use std::collections::BTreeMap;

/// The connections that two ranks have are alike for every channel. Each two of their lists that
/// have something to say to each other use one channel's of a share: so the lists of a share are
/// spread over as many channels' connections as the two ranks with most such pairs have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionSets {
    /// By the lists at both ends. Nothing where each rank has one list.
    numbers: BTreeMap<(usize, usize), usize>,
    count: usize,
}

impl ConnectionSets {
    pub(super) fn new(routes: &Routes, lists_per_rank: usize) -> ConnectionSets {
        let mut sets = ConnectionSets { numbers: BTreeMap::new(), count: 1 };
        if lists_per_rank == 1 {
            return sets;
        }
        let mut used = BTreeMap::<(usize, usize), usize>::new();
        for (route, _) in routes.sorted() {
            let (one, other) = ends(route, lists_per_rank);
            let ranks = (one / lists_per_rank, other / lists_per_rank);
            sets.numbers.entry((one, other)).or_insert_with(|| {
                let next = used.entry(ranks).or_default();
                *next += 1;
                *next - 1
            });
        }
        sets.count = used.into_values().max().unwrap_or(1);
        sets
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The one that a route uses.
    pub(super) fn of(&self, route: Route, lists_per_rank: usize) -> usize {
        self.numbers.get(&ends(route, lists_per_rank)).copied().unwrap_or(0)
    }
}

/// Both directions between lists of two ranks use the same. Within a rank, a connection has the
/// same words at both of its ends, so each direction has its own.
fn ends(Route { from, to, .. }: Route, lists_per_rank: usize) -> (usize, usize) {
    let is_within = from / lists_per_rank == to / lists_per_rank;
    if is_within || from < to { (from, to) } else { (to, from) }
}
