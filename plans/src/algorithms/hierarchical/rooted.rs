//! Trees of nodes, along which what a root has for all goes out, or what all have for it comes in:
//! on every rail the same one. A node is known by how far it is behind the root's.

use super::{Encoding, Outer, Place, Request};
use crate::schedule::{Link, RankBuilder, SEGMENTS};
use std::ops::Range;

/// A rank in its rail's tree. What goes between it and the root passes the root's node on its rail.
pub(super) struct Rooted {
    pub(super) place: Place,
    outer: Outer,
    root: usize,
    rank: usize,
    windows: bool,
}

impl Rooted {
    pub(super) fn of(request: &Request, rank: usize, outer: Outer) -> Rooted {
        Rooted {
            place: Place::of(request, rank),
            outer,
            root: request.collective.root,
            rank,
            windows: request.encoding == Encoding::Windows,
        }
    }

    pub(super) fn is_root(&self) -> bool {
        self.rank == self.root
    }

    /// Whether this rank uses the root's buffer in place, or is the root whose buffer is used so.
    pub(super) fn is_in_place(&self) -> bool {
        self.windows && self.away() == 0
    }

    /// Comes before all else.
    pub(super) fn enter(&self, b: &mut RankBuilder) {
        if self.is_in_place() {
            b.enter(&self.beside());
        }
    }

    /// Comes behind all else.
    pub(super) fn leave(&self, b: &mut RankBuilder) {
        if self.is_in_place() {
            b.barrier(&self.beside());
        }
    }

    /// The ranks beside the root, if this is the root; otherwise the root.
    fn beside(&self) -> Vec<usize> {
        let node = &self.place.node;
        match self.is_root() {
            true => node.others().map(|place| node.member(place)).collect(),
            false => vec![self.root],
        }
    }

    /// The places whose ranks pass on what goes through slots between the root and their rails, if
    /// this is the root.
    pub(super) fn passing_on(&self) -> Vec<usize> {
        let others = self.place.node.others();
        if self.is_root() && !self.windows { others.collect() } else { Vec::new() }
    }

    /// The rank on the node so far behind the root's, at this place of it.
    pub(super) fn at(&self, away: usize, place: usize) -> usize {
        self.place.rank((self.root_node() + away) % self.place.nodes(), place)
    }

    /// How far this rank's node is behind the root's.
    fn away(&self) -> usize {
        let nodes = self.place.nodes();
        (self.place.rail.me + nodes - self.root_node()) % nodes
    }

    fn root_node(&self) -> usize {
        self.root / self.place.local()
    }

    /// The connection towards the root.
    pub(super) fn up(&self) -> Link {
        match parent(self.outer, self.away()) {
            Some(parent) => self.place.rail.link(self.root_node() + parent),
            None => self.place.node.link(self.root % self.place.local()),
        }
    }

    /// The connections away from the root on this rail, with how many nodes are behind each; those
    /// with the most first.
    pub(super) fn down(&self) -> Vec<(Link, usize)> {
        let nodes = self.place.nodes();
        let child = |child: usize| {
            let link = self.place.rail.link(self.root_node() + child);
            (link, behind(self.outer, child, nodes).len())
        };
        children(self.outer, self.away(), nodes).into_iter().map(child).collect()
    }

    /// The nodes whose parts pass this rank, its own first.
    pub(super) fn behind(&self) -> Vec<usize> {
        behind(self.outer, self.away(), self.place.nodes()).collect()
    }

    /// The most parts of a message. A message to each node has one part: parts of long ones are as
    /// long as slots then.
    pub(super) fn most(&self) -> usize {
        if self.outer == Outer::Direct { 1 } else { SEGMENTS as usize }
    }
}

/// From which node comes what goes to this one; none at the root's.
pub(super) fn parent(outer: Outer, away: usize) -> Option<usize> {
    match outer {
        _ if away == 0 => None,
        Outer::Direct => Some(0),
        Outer::Ring => Some(away - 1),
        _ => Some(away & (away - 1)),
    }
}

/// To which nodes it goes from there, those with the most nodes behind them first.
pub(super) fn children(outer: Outer, away: usize, nodes: usize) -> Vec<usize> {
    let bits = match outer {
        Outer::Direct if away == 0 => return (1..nodes).rev().collect(),
        Outer::Direct => 0,
        Outer::Ring => 1,
        _ if away == 0 => nodes.next_power_of_two().trailing_zeros(),
        _ => away.trailing_zeros(),
    };
    (0..bits).rev().map(|bit| away + (1 << bit)).filter(|child| *child < nodes).collect()
}

/// A node and all behind it.
fn behind(outer: Outer, away: usize, nodes: usize) -> Range<usize> {
    let end = match outer {
        _ if away == 0 => nodes,
        Outer::Direct => away + 1,
        Outer::Ring => nodes,
        _ => nodes.min(away + (1 << away.trailing_zeros())),
    };
    away..end
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So a message with the parts of all of them takes them as they come.
    #[test]
    fn what_is_behind_a_node_is_behind_its_children_one_after_the_other() {
        for outer in [Outer::Direct, Outer::Ring, Outer::Doubling] {
            for nodes in 1..=70 {
                for away in 0..nodes {
                    let children = children(outer, away, nodes);
                    let of_children = children.iter().rev().flat_map(|c| behind(outer, *c, nodes));
                    let all: Vec<usize> = [away].into_iter().chain(of_children).collect();
                    assert_eq!(all, behind(outer, away, nodes).collect::<Vec<_>>(), "{outer:?}");
                    for child in children {
                        assert_eq!(parent(outer, child), Some(away), "{outer:?} {nodes}");
                    }
                }
                assert_eq!((parent(outer, 0), behind(outer, 0, nodes)), (None, 0..nodes));
            }
        }
    }
}
