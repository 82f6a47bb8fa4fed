//! Connections for ranks with several lists: whatever two lists say to each other has some of its
//! own.

use super::route::{Route, Routes};
use crate::schedule::Lane;
use std::collections::{BTreeMap, BTreeSet};

/// The connections that two ranks have are alike for every channel: a set of all lanes. Each two of
/// their lists that have something to say to each other use one set of a share. So the lists of a
/// share are spread over as many channels' sets as the two ranks with most such pairs have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionSets {
    /// By the lists at both ends. Nothing where each rank has one list.
    places: BTreeMap<(usize, usize), Place>,
    count: usize,
}

/// The set, and the lane if it is another than the schedule says.
type Place = (usize, Option<Lane>);

/// What lists of one rank signal each other on, of each set: both have counters.
const OWN: [Lane; 2] = [Lane::Sync, Lane::Slots];

impl ConnectionSets {
    pub(super) fn new(routes: &Routes, lists_per_rank: usize) -> ConnectionSets {
        let mut sets = ConnectionSets { places: BTreeMap::new(), count: 1 };
        if lists_per_rank == 1 {
            return sets;
        }
        let mut taken = BTreeMap::<(usize, usize), BTreeSet<usize>>::new();
        for (route, _) in routes.sorted() {
            let (one, other) = ends(route, lists_per_rank);
            if sets.places.contains_key(&(one, other)) {
                continue;
            }
            let ranks = (one / lists_per_rank, other / lists_per_rank);
            let taken = taken.entry(ranks).or_default();
            let place = if ranks.0 == ranks.1 {
                let number = taken.len();
                taken.insert(number);
                (number / OWN.len(), Some(OWN[number % OWN.len()]))
            } else {
                // Its receiver's channel, if that is free: so a waiting thread's own bell is rung.
                let wished = [route.to, route.from].map(|list| list % lists_per_rank);
                let mut free = wished.into_iter().chain(0..).filter(|set| !taken.contains(set));
                let set = free.next().unwrap_or(0);
                taken.insert(set);
                (set, None)
            };
            sets.places.insert((one, other), place);
            sets.count = sets.count.max(place.0 + 1);
        }
        sets
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The one that a route uses, and on which lane.
    pub(super) fn of(&self, route: Route, lists_per_rank: usize) -> (usize, Lane) {
        let place = self.places.get(&ends(route, lists_per_rank));
        let (set, lane) = place.copied().unwrap_or((0, None));
        (set, lane.unwrap_or(route.lane))
    }
}

/// Both directions between lists of two ranks use the same. Within a rank, a connection has the
/// same words at both of its ends, so each direction has its own.
fn ends(Route { from, to, .. }: Route, lists_per_rank: usize) -> (usize, usize) {
    let is_within = from / lists_per_rank == to / lists_per_rank;
    if is_within || from < to { (from, to) } else { (to, from) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Chunking, Symmetry};

    /// No connection has more than two lists, one of each rank, or of one rank a sender and a
    /// receiver.
    #[test]
    fn no_two_pairs_of_lists_share_a_connection() {
        const LISTS: usize = 5;
        for ranks in [1, 2, 3] {
            let all = ranks * LISTS;
            let mut routes = Routes::new(Symmetry::none(all, Chunking::Whole, Chunking::Whole));
            for (from, to) in (0..all).flat_map(|from| (0..all).map(move |to| (from, to))) {
                let within = from / LISTS == to / LISTS;
                if from != to && (within || (from * 7 + to * 3) % 4 != 0) {
                    let lane = if within { Lane::Sync } else { Lane::Slots };
                    routes.add(Route { from, to, lane });
                }
            }
            let sets = ConnectionSets::new(&routes, LISTS);
            let mut used = BTreeMap::new();
            for (route, _) in routes.sorted() {
                let (set, lane) = sets.of(route, LISTS);
                assert!(set < sets.count());
                let ranks = ends(route, LISTS);
                let ranks = (ranks.0 / LISTS, ranks.1 / LISTS);
                let lists = ends(route, LISTS);
                let lane = (ranks.0 == ranks.1).then_some(lane);
                assert_eq!(*used.entry((ranks, set, lane)).or_insert(lists), lists, "{route:?}");
            }
            assert!(sets.count() <= LISTS * LISTS);
        }
    }
}
