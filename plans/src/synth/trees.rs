//! Along which ranks a chunk goes: a tree from its owner to all others.

use super::matching::{Matching, matched};
use super::ways::{Time, Ways};

/// A tree for each chunk. Chunks `r * k` to `r * k + k - 1` are rank r's, as in
/// [`Chunking::PerRank`](crate::schedule::Chunking::PerRank).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trees(pub(super) Vec<Tree>);

/// From whom every rank has a chunk, and to whom it passes it on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tree {
    /// By rank; the owner has none.
    pub(super) parent: Vec<Option<usize>>,
    /// By rank, in the order in which they are served.
    pub(super) children: Vec<Vec<usize>>,
    /// About when each rank has it. Only what is earlier matters.
    pub(super) when: Vec<Time>,
}

/// How trees are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    /// By matching chunks with idle links, step by step.
    Matched(Matching),
    /// As the catalogue's algorithms do: inside of nodes in one way, between them in another.
    Fixed { inner: Line, outer: Line },
    /// Around all ranks, every other chunk the other way.
    Around,
}

/// How a team's first member tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Line {
    /// All of them itself.
    Star,
    /// One tells the next; every other chunk goes the other way.
    Chain,
}

impl Tree {
    fn new(ranks: usize) -> Tree {
        Tree { parent: vec![None; ranks], children: vec![Vec::new(); ranks], when: vec![0; ranks] }
    }

    pub(super) fn join(&mut self, parent: usize, child: usize, when: Time) {
        self.parent[child] = Some(parent);
        self.children[parent].push(child);
        self.when[child] = when;
    }

    /// Joins a team behind its member `first`, which has the chunk.
    fn spread(&mut self, team: &[usize], first: usize, line: Line, turned: bool) {
        let count = team.len();
        let mut last = team[first];
        for step in 1..count {
            let at = if turned { count - step } else { step };
            let next = team[(first + at) % count];
            let from = if line == Line::Star { team[first] } else { last };
            // A star serves one after the other, too.
            self.join(from, next, self.when[team[first]] + step as Time);
            last = next;
        }
    }
}

impl Trees {
    /// The trees of a shape, with so many chunks for each rank; none if the shape reaches not
    /// everybody.
    pub(super) fn new(
        ways: &Ways,
        shape: Shape,
        chunks: usize,
        chunk_bytes: usize,
    ) -> Option<Trees> {
        let ranks = ways.ranks();
        let each = |tree: &dyn Fn(usize, bool) -> Tree| {
            let all = (0..ranks * chunks).map(|chunk| tree(chunk / chunks, chunk % 2 == 1));
            Some(Trees(all.collect()))
        };
        match shape {
            Shape::Matched(matching) => matched(ways, &matching, chunks, chunk_bytes),
            Shape::Around => each(&|owner, turned| {
                let mut tree = Tree::new(ranks);
                let all: Vec<usize> = (0..ranks).collect();
                tree.spread(&all, owner, Line::Chain, turned);
                tree
            }),
            Shape::Fixed { inner, outer } => {
                each(&|owner, turned| fixed(ways, owner, (inner, outer), turned))
            }
        }
    }

    /// An empty tree for each chunk, to be joined.
    pub(super) fn empty(ranks: usize, chunks: usize) -> Trees {
        Trees(vec![Tree::new(ranks); ranks * chunks])
    }
}

/// From the owner along its rail, and from each rank there to its node.
fn fixed(ways: &Ways, owner: usize, (inner, outer): (Line, Line), turned: bool) -> Tree {
    let mut tree = Tree::new(ways.ranks());
    let place = owner - ways.members(ways.node(owner)).start;
    let rail: Vec<usize> = (0..ways.nodes())
        .map(|node| ways.members(node).start + place.min(ways.members(node).len() - 1))
        .collect();
    tree.spread(&rail, ways.node(owner), outer, turned);
    for (node, head) in rail.iter().enumerate() {
        let members: Vec<usize> = ways.members(node).collect();
        tree.spread(&members, head - members[0], inner, turned);
    }
    tree
}
