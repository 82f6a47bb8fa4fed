//! Which ranks share a node.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Which ranks share a node: so many consecutive ranks each, or a number for each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Placement {
    /// Of nodes that differ, the most.
    ranks_per_node: usize,
    /// By node, where they differ.
    sizes: Option<&'static [usize]>,
}

impl Placement {
    /// All of this many ranks on one node.
    pub fn one_node(ranks: usize) -> Placement {
        Placement::uniform(ranks)
    }

    /// This many on each node, at least one.
    pub fn uniform(ranks_per_node: usize) -> Placement {
        Placement { ranks_per_node: ranks_per_node.max(1), sizes: None }
    }

    /// This many on each node but the last, which has the rest of so many ranks. As
    /// [`Placement::of_sizes`].
    pub fn filled(ranks: usize, ranks_per_node: usize) -> Placement {
        let per_node = ranks_per_node.clamp(1, ranks.max(1));
        let rest = ranks % per_node;
        let sizes = vec![per_node; ranks / per_node];
        Placement::of_sizes(
            &sizes.into_iter().chain((rest > 0).then_some(rest)).collect::<Vec<_>>(),
        )
    }

    /// So many consecutive ranks on each node, by node. Nodes whose numbers of ranks have a divisor
    /// are taken for several nodes of that many ranks: there are more algorithms for those.
    pub fn of_sizes(sizes: &[usize]) -> Placement {
        let most = sizes.iter().copied().max().unwrap_or(1);
        let divisor = sizes.iter().copied().fold(0, greatest_common_divisor);
        if sizes.len() <= 1 || divisor > 1 || most <= 1 {
            return Placement::uniform(divisor);
        }
        // Placements are copied everywhere, and a process has few that are like this.
        static KNOWN: Mutex<BTreeSet<&'static [usize]>> = Mutex::new(BTreeSet::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.get(sizes).copied();
        let sizes = found.unwrap_or_else(|| {
            let leaked: &'static [usize] = Box::leak(sizes.into());
            known.insert(leaked);
            leaked
        });
        Placement { ranks_per_node: most, sizes: Some(sizes) }
    }

    /// Ranks of a node; of nodes that differ, the most.
    pub fn ranks_per_node(self) -> usize {
        self.ranks_per_node
    }

    /// The number of nodes that so many ranks fill, if they are alike and all filled.
    pub fn nodes(self, ranks: usize) -> Option<usize> {
        let are_alike = self.sizes.is_none() && ranks.is_multiple_of(self.ranks_per_node);
        are_alike.then_some(ranks / self.ranks_per_node)
    }

    /// The number of nodes of so many ranks; each rank by itself where they fill none.
    pub fn count(self, ranks: usize) -> usize {
        self.uneven(ranks).map_or_else(|| self.nodes(ranks).unwrap_or(ranks), <[usize]>::len)
    }

    /// Whether all nodes have as many ranks.
    pub fn are_alike(self) -> bool {
        self.sizes.is_none()
    }

    /// The numbers of ranks of nodes that differ, by node, if so many ranks are on them.
    pub fn uneven(self, ranks: usize) -> Option<&'static [usize]> {
        self.sizes.filter(|sizes| sizes.iter().sum::<usize>() == ranks)
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_differ_are_divided_where_they_can_be() {
        assert_eq!(Placement::of_sizes(&[4, 4]), Placement::uniform(4));
        assert_eq!(Placement::of_sizes(&[8, 4]), Placement::uniform(4));
        assert_eq!(Placement::of_sizes(&[7]), Placement::uniform(7));
        assert_eq!(Placement::of_sizes(&[1, 1, 1]), Placement::uniform(1));
        let uneven = Placement::of_sizes(&[8, 7, 3]);
        assert_eq!((uneven.ranks_per_node(), uneven.nodes(18)), (8, None));
        assert_eq!(uneven.uneven(18), Some(&[8, 7, 3][..]));
        assert_eq!(uneven.uneven(17), None);
        assert_eq!(uneven, Placement::of_sizes(&[8, 7, 3]));
        assert_eq!(Placement::filled(17, 8), Placement::of_sizes(&[8, 8, 1]));
        assert_eq!(Placement::filled(12, 8), Placement::uniform(4));
        assert_eq!(Placement::filled(5, 8), Placement::uniform(5));
    }
}
