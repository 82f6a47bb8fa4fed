//! Which ranks share a node.

/// Which ranks share a node: so many consecutive ranks each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Placement {
    ranks_per_node: usize,
}

impl Placement {
    /// All of this many ranks on one node.
    pub fn one_node(ranks: usize) -> Placement {
        Placement::uniform(ranks)
    }

    /// This many on each node, at least one.
    pub fn uniform(ranks_per_node: usize) -> Placement {
        Placement { ranks_per_node: ranks_per_node.max(1) }
    }

    /// Ranks of a node.
    pub fn ranks_per_node(self) -> usize {
        self.ranks_per_node
    }

    /// The number of nodes that so many ranks fill, if they fill them all.
    pub fn nodes(self, ranks: usize) -> Option<usize> {
        ranks.is_multiple_of(self.ranks_per_node).then_some(ranks / self.ranks_per_node)
    }
}
