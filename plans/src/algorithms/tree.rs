//! The double binary tree: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth
//! broadcast, reduction and scan" (2009).
//!
//! A binary tree leaves half of the bandwidth unused: a leaf sends and does not receive, and then
//! receives and does not send. Two trees, each for half of the data, in which no rank is an inner
//! node twice, use all of it. In-order numbering makes every even place a leaf; the second tree is
//! the first, shifted by one place.

use super::team::{Held, Team};
use super::{Algorithm, Entries, IN_SLOTS, Orders, Request, entries};
use crate::collective::Kind::AllReduce;
use crate::schedule::{Chunking, Operand, RankBuilder, Read, Schedule, Write};

pub(super) const ENTRIES: &[Entries] =
    &[entries(AllReduce, Algorithm::Tree, IN_SLOTS, true, Orders::None, tree)];

/// Chunks of a tree that are on their way at once.
const PIPELINE: usize = 4;

fn tree(request: &Request) -> Schedule {
    let parts = request.pipelined(PIPELINE);
    request.schedule(Chunking::Parts(2 * parts), Chunking::Parts(2 * parts), |b| {
        let team = request.world(b.rank());
        double_tree(b, &team, [0, parts], parts, Held::Raw);
    })
}

/// All-reduces the chunks from these two on, `parts` of each tree.
pub(super) fn double_tree(
    b: &mut RankBuilder,
    team: &Team,
    first: [usize; 2],
    parts: usize,
    held: Held,
) {
    let trees = [0, 1].map(|shift| Node::of(team, shift));
    // What is sent at one time is received at the next. A chunk follows the one before it two times
    // later, so that this one has been received by then: two ranks may be each other's parent, and
    // must not wait for each other's slots.
    let mut steps = Vec::new();
    for (tree, node) in trees.iter().enumerate() {
        for part in 0..parts {
            let at_root = 2 * part + node.height;
            steps.push((at_root - node.depth, tree, false, part));
            if node.parent.is_some() {
                steps.push((at_root + node.depth, tree, true, part));
            }
        }
    }
    steps.sort_unstable();
    for (_, tree, down, part) in steps {
        let chunk = first[tree] + part;
        if down { trees[tree].down(b, team, chunk) } else { trees[tree].up(b, team, chunk, held) }
    }
}

/// A rank's place in a tree. Others are places in the team.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    depth: usize,
    /// Of the tree: the largest depth.
    height: usize,
    pub(super) parent: Option<usize>,
    pub(super) left: Option<Child>,
    pub(super) right: Option<Child>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) place: usize,
    pub(super) is_leaf: bool,
}

impl Node {
    /// This rank's node, where the member at place p is in the tree at p + shift.
    pub(super) fn of(team: &Team, shift: usize) -> Node {
        let n = team.len();
        let mut node = Node::at((team.me + shift) % n, n);
        let unshift = |place: usize| (place + n - shift) % n;
        node.parent = node.parent.map(unshift);
        for child in [&mut node.left, &mut node.right].into_iter().flatten() {
            child.place = unshift(child.place);
        }
        node
    }

    /// The node at a place of the in-order tree: of m places, the root is the last but all behind
    /// the largest power of two up to m.
    fn at(place: usize, n: usize) -> Node {
        let mut node = Node { height: n.ilog2() as usize, ..Node::default() };
        let (mut low, mut high) = (0, n);
        loop {
            let root = root(low, high);
            if root == place {
                let child = |low: usize, high: usize| {
                    (high > low)
                        .then(|| Child { place: self::root(low, high), is_leaf: high - low == 1 })
                };
                (node.left, node.right) = (child(low, root), child(root + 1, high));
                return node;
            }
            (node.parent, node.depth) = (Some(root), node.depth + 1);
            (low, high) = if place < root { (low, root) } else { (root + 1, high) };
        }
    }

    fn up(&self, b: &mut RankBuilder, team: &Team, chunk: usize, held: Held) {
        let child = |child: Child| {
            let link = team.link(child.place);
            if child.is_leaf { held.recv(link) } else { Read::Recv(link) }
        };
        let reads: Vec<Read> = self
            .left
            .map(child)
            .into_iter()
            .chain([held.read(chunk)])
            .chain(self.right.map(child))
            .collect();
        match self.parent {
            Some(parent) if reads.len() == 1 => b.send(held.operand(chunk), team.link(parent)),
            Some(parent) => b.transfer(&reads, &[Write::Send(team.link(parent))], false),
            None => b.transfer(&reads, &self.results(team, chunk), true),
        }
    }

    fn down(&self, b: &mut RankBuilder, team: &Team, chunk: usize) {
        let Some(parent) = self.parent else { return };
        b.transfer(&[Read::Recv(team.link(parent))], &self.results(team, chunk), false);
    }

    /// Where a result goes.
    fn results(&self, team: &Team, chunk: usize) -> Vec<Write> {
        let children = [self.left, self.right].into_iter().flatten();
        let sends = children.map(|child| Write::Send(team.link(child.place)));
        [Write::To(Operand::Output(chunk))].into_iter().chain(sends).collect()
    }
}

fn root(low: usize, high: usize) -> usize {
    low + (1 << (high - low).ilog2()) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::Encoding;
    use crate::schedule::{SLOTS, Tree};
    use std::cell::Cell;
    use std::rc::Rc;

    /// However many ranks there are, one's part is made by asking for its few peers alone.
    #[test]
    fn a_rank_of_very_many_asks_for_its_peers_alone() {
        let n = 65_536;
        for rank in [0, 1, n / 2 - 1, n - 1] {
            let asked = Rc::new(Cell::new(0));
            let counts = Rc::clone(&asked);
            let team = Team::new(n, rank, Encoding::Slots, move |place| {
                counts.set(counts.get() + 1);
                place
            });
            let mut b = RankBuilder::new(rank, SLOTS, Tree::Left);
            double_tree(&mut b, &team, [0, PIPELINE], PIPELINE, Held::Raw);
            let instructions = b.finish().len();
            assert!(asked.get() <= instructions, "{rank}: {} for {instructions}", asked.get());
        }
    }

    #[test]
    fn no_rank_has_children_twice() {
        for n in 1..200 {
            for rank in 0..n {
                let team = Team::new(n, rank, Encoding::Ll, |place| place);
                let nodes = [0, 1].map(|shift| Node::of(&team, shift));
                assert!(nodes.iter().any(|node| node.left.is_none()), "{rank} of {n}: {nodes:?}");
                assert!(nodes.iter().all(|node| node.depth <= node.height), "{rank} of {n}");
            }
        }
    }
}
