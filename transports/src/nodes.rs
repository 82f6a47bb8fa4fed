//! Which ranks share a machine, and with it memory.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Error, identity};

/// What tells one node from another: equal for two ranks that can hand each other memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId([u8; 16]);

impl NodeId {
    /// This machine: the same boot of it, and the same network namespace.
    pub fn this_machine() -> NodeId {
        NodeId(identity::node())
    }

    /// A part of a machine that stands for a node of its own: no memory is shared with other parts.
    pub fn part(self, number: usize) -> NodeId {
        NodeId(identity::part(&self.0, number))
    }

    #[cfg(test)]
    pub(crate) fn of_bytes(bytes: [u8; 16]) -> NodeId {
        NodeId(bytes)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeId(")?;
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// Which rank joins, of how many, and where it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The rank.
    pub rank: usize,
    /// How many ranks there are.
    pub world: usize,
    /// Where it runs.
    pub node: NodeId,
}

impl Seat {
    /// On this machine.
    pub fn here(rank: usize, world: usize) -> Seat {
        Seat { rank, world, node: NodeId::this_machine() }
    }

    /// On this machine, parts of which stand for so many nodes: ranks are dealt to them in blocks,
    /// as [`Nodes::blocks`] does.
    pub fn on_part(rank: usize, world: usize, nodes: usize) -> Seat {
        let node = NodeId::this_machine().part(block(rank, world, nodes));
        Seat { rank, world, node }
    }
}

/// Which ranks share memory. Nodes are numbered in the order of their first ranks. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Nodes {
    /// By rank.
    node_of: Arc<[u32]>,
    count: usize,
}

impl Nodes {
    /// All ranks on one.
    pub fn one(world: usize) -> Nodes {
        Nodes::of((0..world).map(|_| ()))
    }

    /// So many nodes with as equal numbers of consecutive ranks as can be: 5 ranks on 2 nodes are 3
    /// and 2.
    pub fn blocks(world: usize, nodes: usize) -> Nodes {
        Nodes::of((0..world).map(|rank| block(rank, world, nodes)))
    }

    /// From what tells nodes apart, by rank.
    pub fn of<T: Eq + Hash>(nodes: impl IntoIterator<Item = T>) -> Nodes {
        let mut known = HashMap::new();
        let mut number = |node| {
            let next = known.len() as u32;
            *known.entry(node).or_insert(next)
        };
        let node_of = nodes.into_iter().map(&mut number).collect();
        Nodes { node_of, count: known.len() }
    }

    /// Those of some of the ranks, which are numbered anew in this order.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn of_ranks(&self, ranks: &[usize]) -> Nodes {
        Nodes::of(ranks.iter().map(|rank| self.node_of[*rank]))
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.node_of.len()
    }

    /// How many nodes there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The node of a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn node(&self, rank: usize) -> usize {
        self.node_of[rank] as usize
    }

    /// Whether two ranks reach each other's memory.
    ///
    /// # Panics
    /// If there are no such ranks.
    pub fn share(&self, a: usize, b: usize) -> bool {
        self.node_of[a] == self.node_of[b]
    }

    /// The ranks that share a rank's node, itself among them, in order.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn beside(&self, rank: usize) -> impl Iterator<Item = usize> + Clone + use<'_> {
        (0..self.world()).filter(move |&other| self.share(rank, other))
    }

    /// The most consecutive ranks, counted off from rank 0, that are always on one node: 4 for two
    /// nodes of 4 and for nodes of 4 and 8, 1 for nodes of 3 and 2, and where neighbours are on
    /// different nodes. For schedules that want nodes of equal size.
    pub fn ranks_per_block(&self) -> usize {
        let runs = self.node_of.chunk_by(|a, b| a == b).map(<[u32]>::len);
        runs.reduce(greatest_common_divisor).unwrap_or(1)
    }

    /// How many ranks each node has, by node, if each node's are consecutive.
    pub fn sizes_of_runs(&self) -> Option<Vec<usize>> {
        let sizes: Vec<usize> = self.node_of.chunk_by(|a, b| a == b).map(<[u32]>::len).collect();
        (sizes.len() == self.count).then_some(sizes)
    }

    /// Fails if not all ranks are on one node.
    ///
    /// # Errors
    /// [`Error::NotOneNode`] with the first rank that is not on rank 0's.
    pub fn require_one(&self) -> Result<(), Error> {
        match self.node_of.iter().position(|&node| node != 0) {
            Some(rank) => Err(Error::NotOneNode { rank }),
            None => Ok(()),
        }
    }

    /// The numbers, by rank, as they are told to others.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.node_of.to_vec()
    }
}

/// The block of a rank, where ranks are dealt to so many blocks.
fn block(rank: usize, world: usize, blocks: usize) -> usize {
    rank * blocks / world.max(1)
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_dealt_in_blocks() {
        let numbers = |world, nodes| Nodes::blocks(world, nodes).numbers();
        assert_eq!(numbers(4, 2), [0, 0, 1, 1]);
        assert_eq!(numbers(5, 2), [0, 0, 0, 1, 1]);
        assert_eq!(numbers(3, 3), [0, 1, 2]);
        assert_eq!(Nodes::blocks(5, 2), Nodes::of([7, 7, 7, 3, 3]));
        assert_eq!(Nodes::one(3), Nodes::blocks(3, 1));
        for rank in 0..5 {
            let same = Seat::on_part(rank, 5, 2).node == Seat::on_part(0, 5, 2).node;
            assert_eq!(same, rank < 3);
        }
    }

    #[test]
    fn nodes_are_found_wherever_their_ranks_are() {
        let nodes = Nodes::of(["b", "a", "b", "c", "a"]);
        assert_eq!((nodes.count(), nodes.world()), (3, 5));
        assert_eq!(nodes.numbers(), [0, 1, 0, 2, 1]);
        assert_eq!(nodes.beside(4).collect::<Vec<_>>(), [1, 4]);
        assert!(nodes.share(0, 2) && !nodes.share(0, 1));
        assert!(matches!(nodes.require_one(), Err(Error::NotOneNode { rank: 1 })));
        assert!(Nodes::one(5).require_one().is_ok());
    }

    #[test]
    fn blocks_lie_within_nodes() {
        let block = |sizes: &[usize]| {
            let ranks = sizes.iter().enumerate().flat_map(|(node, &size)| vec![node; size]);
            Nodes::of(ranks).ranks_per_block()
        };
        assert_eq!(block(&[4, 4]), 4);
        assert_eq!(block(&[4, 8, 2]), 2);
        assert_eq!(block(&[3, 2]), 1);
        assert_eq!(block(&[6]), 6);
        assert_eq!(Nodes::of([0, 1, 0, 1]).ranks_per_block(), 1);
        assert_eq!(Nodes::of([0, 0, 1, 1, 0, 0]).ranks_per_block(), 2);
    }
}
