//! As few ranks as stand for all: the turns under which ranks are alike.
//!
//! Nodes (with a spine: pods) turn into each other, and the places of a node turn inside of it, in
//! all nodes at once. Either turn keeps to itself what the other changes, so both together are a
//! group. Of the ranks that it turns into each other one is simulated, its *home*. A pair of ranks
//! is turned so that the first of them comes home: what all pairs have in common that are turned
//! into one is known by that one.

use crate::schedule::{Rail, Turning};

/// A group of turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turns {
    pub(super) ranks: usize,
    per_node: usize,
    /// So many first ranks stand for those of other nodes.
    pub(super) firsts: usize,
    /// How nodes turn.
    pub(super) turning: Turning,
    /// So many first places of a node stand for its others.
    pub(super) places: usize,
}

impl Turns {
    /// Every rank stands for itself.
    pub(super) fn none(ranks: usize, per_node: usize) -> Turns {
        Turns { ranks, per_node, firsts: ranks, turning: Turning::Add, places: per_node }
    }

    /// The same where so many first ranks, of full nodes, stand for those of other nodes.
    pub(super) fn of_nodes(self, firsts: usize, turning: Turning) -> Turns {
        Turns { firsts, turning, ..self }
    }

    /// The same where so many first places of each node, all of them full, stand for its others.
    pub(super) fn of_places(self, places: usize) -> Turns {
        Turns { places, ..self }
    }

    /// Whether every rank stands for itself.
    pub(super) fn is_none(&self) -> bool {
        !self.turns_nodes() && !self.turns_places()
    }

    /// Whether ranks stand for those of other nodes.
    pub(super) fn turns_nodes(&self) -> bool {
        self.firsts < self.ranks
    }

    /// Whether ranks stand for others of their node.
    pub(super) fn turns_places(&self) -> bool {
        self.places < self.per_node
    }

    /// Whether it takes rails to rails, of which one stands for the others.
    pub(super) fn turns(&self, rail: Rail) -> bool {
        !self.turns_places() || rail.0.is_multiple_of(self.per_node)
    }

    /// How many ranks stand for all.
    pub(super) fn simulated(&self) -> usize {
        match self.turns_places() {
            true => self.firsts / self.per_node * self.places,
            false => self.firsts,
        }
    }

    /// Of those, the one of this number.
    pub(super) fn rank(&self, number: usize) -> usize {
        number / self.places * self.per_node + number % self.places
    }

    /// The number of the one that stands for this rank.
    pub(super) fn number(&self, rank: usize) -> usize {
        let first = rank % self.firsts;
        first / self.per_node * self.places + first % self.per_node % self.places
    }

    /// The one that stands for this rank.
    pub(super) fn home(&self, rank: usize) -> usize {
        self.rank(self.number(rank))
    }

    /// Who sends, and to whom, turned so that the sender is home.
    pub(super) fn pair(&self, from: usize, to: usize) -> (usize, usize) {
        let first = from % self.firsts;
        let to = match self.turning {
            Turning::Add => (to + self.ranks + first - from) % self.ranks,
            Turning::Xor => to ^ from ^ first,
        };
        if !self.turns_places() {
            return (first, to);
        }
        let (node, place) = (to - to % self.per_node, to % self.per_node);
        let by = first % self.per_node / self.places * self.places;
        (first - by, node + (place + self.per_node - by) % self.per_node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn pairs_are_one_if_and_only_if_a_turn_leads_from_one_to_the_other() {
        let (ranks, per_node) = (32, 4);
        let none = Turns::none(ranks, per_node);
        let nodes = [(32, Turning::Add), (4, Turning::Add), (8, Turning::Add), (8, Turning::Xor)];
        for (firsts, turning) in nodes {
            for places in [1, 2, 4] {
                let turns = none.of_nodes(firsts, turning).of_places(places);
                let homes: Vec<usize> =
                    (0..ranks).filter(|rank| turns.home(*rank) == *rank).collect();
                assert_eq!(
                    homes,
                    (0..turns.simulated()).map(|one| turns.rank(one)).collect::<Vec<_>>()
                );
                // The turns themselves: by so many ranks, and then by so many places.
                let turned = |rank: usize, by: usize, inside: usize| {
                    let rank = match turning {
                        Turning::Add => (rank + by) % ranks,
                        Turning::Xor => rank ^ by,
                    };
                    rank / per_node * per_node + (rank % per_node + inside) % per_node
                };
                let mut sizes: HashMap<(usize, usize), usize> = HashMap::new();
                for from in 0..ranks {
                    for to in 0..ranks {
                        let one = turns.pair(from, to);
                        assert_eq!(turns.home(from), one.0);
                        *sizes.entry(one).or_default() += 1;
                        for by in (0..ranks).step_by(firsts) {
                            for inside in (0..per_node).step_by(places) {
                                let [from, to] = [from, to].map(|rank| turned(rank, by, inside));
                                assert_eq!(turns.pair(from, to), one, "{turns:?}");
                            }
                        }
                    }
                }
                let each = ranks / turns.simulated();
                assert!(sizes.values().all(|size| *size == each), "{turns:?}");
            }
        }
    }
}
