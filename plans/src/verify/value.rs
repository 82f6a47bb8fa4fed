//! Symbolic values: expressions over the ranks' contributions, each stored once, so that equal
//! expressions have equal ids. Where first ranks stand for all, expressions that are turned into
//! each other are stored once: as the one whose first contribution is a first rank's. No other
//! distance turns an expression into itself, so that an id and a distance say exactly which it is.

use super::expect::Expectation;
use super::violation::Arithmetic;
use crate::collective::Kind;
use crate::hash::Map;
use crate::schedule::{Buffer, Distance, Symmetry, Tree, Turning};
use std::fmt::Write;

/// Which elements a value has. Two values fit each other, and a value fits a chunk, only if their
/// parts are equal: whatever the layout, they then have the same length and mean the same elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Part(pub(super) u32, pub(super) u32);

/// An expression.
pub(super) type Id = u32;

/// What an expression is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// A chunk of a rank's input as the rank gave it (raw), or premultiplied.
    Leaf { rank: usize, chunk: usize, raw: bool },
    /// Where a rank's buffers are.
    Tokens(usize),
    /// What is made of others.
    Made(Node),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Node {
    /// Two values, reduced in this order; the second is turned so far.
    Pair(Id, Id, Distance),
    /// A reduction whose order and brackets nobody promises: a switch's.
    Unordered(Id),
    /// A result.
    Finished(Id),
}

/// What a slot or a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) id: Id,
    /// How far the expression is turned.
    pub(super) by: Distance,
    /// How often it has been rounded to the element type on its way from the inputs, at most.
    pub(super) roundings: u32,
}

impl Value {
    /// What it is seen from elsewhere.
    pub(super) fn turned(self, symmetry: &Symmetry, by: Distance) -> Value {
        Value { by: symmetry.sum(self.by, by), ..self }
    }
}

/// Ranks that are all of an aligned block, with a power of two of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) first: usize,
    pub(super) len: usize,
}

/// All expressions of one execution. The ids of leaves and tokens follow from what they are; those
/// of what is made of them are given.
#[derive(Debug)]
pub(super) struct Values {
    expectation: Expectation,
    symmetry: Symmetry,
    /// Input chunks of a rank, and of all first ranks.
    inputs: usize,
    leaves: usize,
    /// What is made, from id `first` on, and its part.
    first: usize,
    nodes: Vec<(Node, Part)>,
    ids: Map<Node, Id>,
    /// The terms of the reduction at hand; here so that their memory is used again.
    terms: Vec<(Id, Distance)>,
}

impl Values {
    /// Those of a collective.
    pub(super) fn new(expectation: Expectation, symmetry: Symmetry) -> Values {
        let (firsts, inputs) = (symmetry.firsts(), expectation.chunks(Buffer::Input));
        let (leaves, terms) = (firsts * inputs, Vec::new());
        let (nodes, ids, first) = (Vec::new(), Map::default(), 2 * leaves + firsts);
        Values { expectation, symmetry, inputs, leaves, first, nodes, ids, terms }
    }

    /// A chunk of a rank's input.
    pub(super) fn leaf(&self, rank: usize, chunk: usize) -> Value {
        let (id, by) = self.leaf_id(rank, chunk, true);
        Value { id, by, roundings: 0 }
    }

    /// Where a rank's buffers are.
    pub(super) fn tokens(&self, rank: usize) -> Value {
        let (first, by) = self.symmetry.home(rank);
        Value { id: (2 * self.leaves + first) as Id, by, roundings: 0 }
    }

    /// Which elements it has; none for tokens.
    pub(super) fn part(&self, value: Value) -> Option<Part> {
        Some(self.turned_part(self.part_of(value.id)?, value.by))
    }

    /// What a reduce-copy of these sources, some of them raw, makes.
    pub(super) fn reduce(
        &mut self,
        sources: &[(Value, bool)],
        tree: Tree,
        finish: bool,
    ) -> Result<Value, Arithmetic> {
        if let [(value, false)] = *sources {
            // A copy. Only a reduction has a result to finish.
            return if finish { Err(Arithmetic::FinishedCopy) } else { Ok(value) };
        }
        let mut ids = std::mem::take(&mut self.terms);
        ids.clear();
        for (value, raw) in sources {
            ids.push(self.term(*value, *raw)?);
        }
        let part_of = |(id, by)| Some(self.turned_part(self.part_of(id)?, by));
        let part = part_of(ids[0]).ok_or(Arithmetic::Tokens)?;
        if ids.iter().any(|&id| part_of(id) != Some(part)) {
            return Err(Arithmetic::Parts);
        }
        let (mut id, by) = self.sum(&ids, tree);
        self.terms = ids;
        if finish {
            id = self.intern(Node::Finished(id), id);
        }
        let roundings = sources.iter().map(|(value, _)| value.roundings).max().unwrap_or(0) + 1;
        Ok(Value { id, by, roundings })
    }

    /// What a switch makes of all ranks' values, some of them raw.
    pub(super) fn reduce_unordered(
        &mut self,
        sources: &[(Value, bool)],
        finish: bool,
    ) -> Result<Value, Arithmetic> {
        // One value alone would be a copy.
        let sum = match sources {
            [(value, false)] => *value,
            _ => self.reduce(sources, Tree::Left, false)?,
        };
        self.part(sum).ok_or(Arithmetic::Tokens)?;
        let mut id = self.intern(Node::Unordered(sum.id), sum.id);
        if finish {
            id = self.intern(Node::Finished(id), id);
        }
        Ok(Value { id, ..sum })
    }

    /// The result of reducing all ranks' contributions to a part, in the order of the tree.
    pub(super) fn result(&mut self, ranks: usize, part: Part, tree: Tree) -> (Id, Distance) {
        let (_, _, chunk) = self.expectation.origin_of(part);
        let leaves: Vec<_> = (0..ranks).map(|rank| self.leaf_id(rank, chunk, false)).collect();
        let (id, by) = self.sum(&leaves, tree);
        (self.intern(Node::Finished(id), id), by)
    }

    /// Whether it is a rank's contribution as the rank gave it.
    pub(super) fn is_unscaled(&self, value: Value) -> bool {
        matches!(self.shape(value.id), Shape::Leaf { raw: true, .. })
    }

    /// Whether it is final.
    pub(super) fn is_finished(&self, id: Id) -> bool {
        matches!(self.shape(id), Shape::Made(Node::Finished(_)))
    }

    /// Whether it is a result to which every rank contributed exactly once, in any order; else what
    /// is wrong.
    pub(super) fn is_result_of_all(&self, id: Id, ranks: usize) -> Result<(), String> {
        let Shape::Made(Node::Finished(sum)) = self.shape(id) else {
            return Err("it is not finished".into());
        };
        let mut seen = vec![false; ranks];
        let mut open = vec![(sum, 0)];
        // Each leaf is met once, or the walk ends: it takes no longer than the ranks are many.
        while let Some((id, by)) = open.pop() {
            match self.shape(id) {
                Shape::Made(Node::Unordered(sum)) => open.push((sum, by)),
                Shape::Made(Node::Pair(left, right, further)) => {
                    open.extend([(right, self.symmetry.sum(by, further)), (left, by)]);
                }
                Shape::Leaf { rank, .. } => {
                    let rank = self.symmetry.rank(rank, by);
                    if std::mem::replace(&mut seen[rank], true) {
                        return Err(format!("rank {rank} contributes more than once"));
                    }
                }
                Shape::Made(Node::Finished(_)) | Shape::Tokens(_) => {
                    return Err("a part of it is no sum".into());
                }
            }
        }
        match seen.iter().position(|&seen| !seen) {
            Some(rank) => Err(format!("rank {rank} does not contribute")),
            None => Ok(()),
        }
    }

    /// For everything that is made, in the order in which it was made: the block whose
    /// contributions it has, if it is that block's aligned tree but for the order of halves.
    pub(super) fn blocks(&self) -> Vec<Option<Block>> {
        let mut blocks = Vec::with_capacity(self.nodes.len());
        for (node, _) in &self.nodes {
            blocks.push(match *node {
                Node::Pair(left, right, by) => {
                    let halves = (self.block(&blocks, left, 0), self.block(&blocks, right, by));
                    match halves {
                        (Some(a), Some(b)) if a.len == b.len && a.first ^ b.first == a.len => {
                            Some(Block { first: a.first.min(b.first), len: 2 * a.len })
                        }
                        _ => None,
                    }
                }
                Node::Unordered(_) => None,
                Node::Finished(id) => self.block(&blocks, id, 0),
            });
        }
        blocks
    }

    /// The block of an expression, by those of all that are made.
    pub(super) fn block(&self, blocks: &[Option<Block>], id: Id, by: Distance) -> Option<Block> {
        let block = match self.shape(id) {
            Shape::Leaf { rank, .. } => Some(Block { first: rank, len: 1 }),
            Shape::Tokens(_) => None,
            Shape::Made(_) => *blocks.get(id as usize - self.first)?,
        };
        block?.turned(&self.symmetry, by)
    }

    /// As text, not longer than a line or two.
    pub(super) fn text(&self, value: Value) -> String {
        self.text_of((value.id, value.by))
    }

    /// The same of an expression that nobody holds.
    pub(super) fn text_of(&self, expression: (Id, Distance)) -> String {
        let mut text = String::new();
        self.write(&mut text, expression);
        text
    }

    /// A source as the reduction takes it.
    fn term(&self, value: Value, raw: bool) -> Result<(Id, Distance), Arithmetic> {
        match (self.shape(value.id), raw) {
            (Shape::Leaf { raw: true, .. }, true) => Ok((value.id + self.leaves as Id, value.by)),
            (Shape::Leaf { raw: true, .. }, false) => Err(Arithmetic::NotPremultiplied),
            (Shape::Made(Node::Finished(_)), _) => Err(Arithmetic::FinishedBefore),
            (Shape::Tokens(_), _) => Err(Arithmetic::Tokens),
            (Shape::Leaf { .. } | Shape::Made(_), false) => Ok((value.id, value.by)),
            (Shape::Leaf { .. } | Shape::Made(_), true) => Err(Arithmetic::PremultipliedTwice),
        }
    }

    fn sum(&mut self, ids: &[(Id, Distance)], tree: Tree) -> (Id, Distance) {
        match (tree, ids) {
            (_, [id]) => *id,
            (Tree::Left, ids) => {
                let rest = ids[1..].iter();
                rest.fold(ids[0], |sum, id| self.pair(sum, *id))
            }
            (Tree::Aligned, ids) => {
                let (left, right) = ids.split_at(ids.len().next_power_of_two() / 2);
                let (left, right) = (self.sum(left, tree), self.sum(right, tree));
                self.pair(left, right)
            }
        }
    }

    /// A pair is turned as its left half is.
    fn pair(
        &mut self,
        (left, by): (Id, Distance),
        (right, by_right): (Id, Distance),
    ) -> (Id, Distance) {
        let further = self.symmetry.sum(self.symmetry.back(by), by_right);
        (self.intern(Node::Pair(left, right, further), left), by)
    }

    /// What is made of others, of which `like` has the same part.
    fn intern(&mut self, node: Node, like: Id) -> Id {
        if let Some(id) = self.ids.get(&node) {
            return *id;
        }
        // Only tokens have no part, and they are not reduced.
        let part = self.part_of(like).unwrap_or(Part(0, 0));
        self.nodes.push((node, part));
        let id = (self.first + self.nodes.len() - 1) as Id;
        self.ids.insert(node, id);
        id
    }

    fn leaf_id(&self, rank: usize, chunk: usize, raw: bool) -> (Id, Distance) {
        let (first, by) = self.symmetry.home(rank);
        let chunk = self.symmetry.chunk(Buffer::Input, chunk, self.symmetry.back(by));
        let number = first * self.inputs + chunk;
        ((if raw { number } else { self.leaves + number }) as Id, by)
    }

    fn turned_part(&self, Part(from, to): Part, by: Distance) -> Part {
        if by == 0 {
            return Part(from, to);
        }
        let chunk = |buffer| self.symmetry.chunk(buffer, to as usize, by) as u32;
        match self.expectation.collective.kind {
            Kind::AllToAll => {
                Part(self.symmetry.rank(from as usize, by) as u32, chunk(Buffer::Input))
            }
            // Whose parts are those of the output.
            Kind::AllGather | Kind::Gather => Part(from, chunk(Buffer::Output)),
            _ => Part(from, chunk(Buffer::Input)),
        }
    }

    fn shape(&self, id: Id) -> Shape {
        let id = id as usize;
        let leaf = |number: usize, raw| Shape::Leaf {
            rank: number / self.inputs,
            chunk: number % self.inputs,
            raw,
        };
        match id {
            _ if id < self.leaves => leaf(id, true),
            _ if id < 2 * self.leaves => leaf(id - self.leaves, false),
            _ if id < self.first => Shape::Tokens(id - 2 * self.leaves),
            _ => Shape::Made(self.nodes[id - self.first].0),
        }
    }

    fn part_of(&self, id: Id) -> Option<Part> {
        match self.shape(id) {
            Shape::Leaf { rank, chunk, .. } => {
                Some(self.expectation.part(rank, Buffer::Input, chunk))
            }
            Shape::Tokens(_) => None,
            Shape::Made(_) => Some(self.nodes[id as usize - self.first].1),
        }
    }

    fn write(&self, text: &mut String, (id, by): (Id, Distance)) {
        const LEN_MAX: usize = 160;
        if text.len() > LEN_MAX {
            if !text.ends_with('…') {
                text.push('…');
            }
            return;
        }
        // Writing to a string cannot fail.
        let _ = match self.shape(id) {
            Shape::Leaf { rank, chunk, .. } => {
                let part = self.expectation.part(rank, Buffer::Input, chunk);
                let rank = self.symmetry.rank(rank, by);
                match self.turned_part(part, by) {
                    Part(0, chunk) => write!(text, "x{rank}[{chunk}]"),
                    Part(from, to) => write!(text, "x{rank}[{from}->{to}]"),
                }
            }
            Shape::Tokens(rank) => write!(text, "tokens of {}", self.symmetry.rank(rank, by)),
            Shape::Made(Node::Pair(left, right, further)) => {
                text.push('(');
                self.write(text, (left, by));
                text.push_str(" + ");
                self.write(text, (right, self.symmetry.sum(by, further)));
                text.push(')');
                Ok(())
            }
            Shape::Made(Node::Unordered(sum)) => {
                text.push_str("any order of ");
                self.write(text, (sum, by));
                Ok(())
            }
            Shape::Made(Node::Finished(id)) => {
                text.push_str("final ");
                self.write(text, (id, by));
                Ok(())
            }
        };
    }
}

impl Block {
    /// Where it comes to lie, if that is an aligned block.
    pub(super) fn turned(self, symmetry: &Symmetry, by: Distance) -> Option<Block> {
        let Block { first, len } = self;
        if len == symmetry.ranks() {
            return Some(self);
        }
        let first = match symmetry.turning() {
            Turning::Add => symmetry.rank(first, by),
            Turning::Xor => symmetry.rank(first, by) & !(len - 1),
        };
        let is_whole = first + len <= symmetry.ranks();
        (is_whole && first.is_multiple_of(len)).then_some(Block { first, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::collective::Collective;
    use crate::schedule::{Chunking, SLOTS, Schedule};

    const PART: Part = Part(0, 0);

    /// Those of an all-reduce with two chunks.
    fn values() -> Values {
        let (collective, chunking) = (Collective::new(Kind::AllReduce, 5), Chunking::Parts(2));
        let lists = vec![Vec::new(); 5];
        let (input, output) = (chunking, chunking);
        let schedule = Schedule {
            collective,
            input,
            output,
            scratch: 0,
            slots: SLOTS,
            lists_per_rank: 1,
            lists,
        };
        Values::new(Expectation::new(&schedule, false), Symmetry::none(5, input, output))
    }

    fn leaves(values: &Values, ranks: usize) -> Vec<(Value, bool)> {
        (0..ranks).map(|rank| (values.leaf(rank, 0), true)).collect()
    }

    #[test]
    fn equal_expressions_have_equal_ids_and_order_matters() {
        let mut values = values();
        let sources = leaves(&values, 3);
        let left = values.reduce(&sources, Tree::Left, true);
        assert_eq!(left.map(|value| value.id), Ok(values.result(3, PART, Tree::Left).0));
        let swapped = [sources[1], sources[0], sources[2]];
        assert_ne!(values.reduce(&swapped, Tree::Left, true), left);
        let two = values.reduce(&sources[..2], Tree::Left, false).unwrap();
        let again = values.reduce(&[(two, false), sources[2]], Tree::Left, true).unwrap();
        assert_eq!((again.id, again.roundings), (left.unwrap().id, 2));
    }

    #[test]
    fn the_left_subtree_has_the_largest_power_of_two_below() {
        let mut values = values();
        for (ranks, text) in [
            (2, "final (x0[0] + x1[0])"),
            (3, "final ((x0[0] + x1[0]) + x2[0])"),
            (4, "final ((x0[0] + x1[0]) + (x2[0] + x3[0]))"),
            (5, "final (((x0[0] + x1[0]) + (x2[0] + x3[0])) + x4[0])"),
        ] {
            let result = values.result(ranks, PART, Tree::Aligned);
            assert_eq!(values.text_of(result), text);
        }
    }

    #[test]
    fn what_a_switch_reduces_has_no_order() {
        let mut values = values();
        let sources = leaves(&values, 3);
        let value = values.reduce_unordered(&sources, true).unwrap();
        assert_eq!(values.text(value), "final any order of ((x0[0] + x1[0]) + x2[0])");
        assert_eq!(values.is_result_of_all(value.id, 3), Ok(()));
        assert_eq!(value.roundings, 1);
        for tree in [Tree::Left, Tree::Aligned] {
            assert_ne!(values.result(3, PART, tree), (value.id, value.by));
        }
        let apart = [sources[0], (values.leaf(1, 1), true)];
        assert_eq!(values.reduce_unordered(&apart, true), Err(Arithmetic::Parts));
        let twice = values.reduce_unordered(&[(value, false), sources[0]], true);
        assert_eq!(twice, Err(Arithmetic::FinishedBefore));
    }

    #[test]
    fn every_rank_contributes_exactly_once() {
        let mut values = values();
        let sources = leaves(&values, 3);
        let check = |values: &mut Values, sources: &[(Value, bool)]| {
            let value = values.reduce(sources, Tree::Left, true).unwrap();
            values.is_result_of_all(value.id, 3)
        };
        assert_eq!(check(&mut values, &sources), Ok(()));
        assert_eq!(check(&mut values, &sources[1..]), Err("rank 0 does not contribute".into()));
        let doubled = [sources.clone(), vec![sources[1]]].concat();
        assert_eq!(check(&mut values, &doubled), Err("rank 1 contributes more than once".into()));
    }

    #[test]
    fn scaling_and_finishing_happen_once() {
        let mut values = values();
        let (a, b) = (values.leaf(0, 0), values.leaf(1, 0));
        let scaled = values.reduce(&[(a, true)], Tree::Left, false).unwrap();
        let mut pair =
            |sources: &[(Value, bool)], finish| values.reduce(sources, Tree::Left, finish);
        assert_eq!(pair(&[(scaled, true), (b, true)], false), Err(Arithmetic::PremultipliedTwice));
        assert_eq!(pair(&[(scaled, false), (b, false)], false), Err(Arithmetic::NotPremultiplied));
        let result = pair(&[(scaled, false), (b, true)], true).unwrap();
        assert_eq!(pair(&[(result, false), (b, true)], true), Err(Arithmetic::FinishedBefore));
        assert_eq!(pair(&[(result, false)], true), Err(Arithmetic::FinishedCopy));
        assert_eq!(pair(&[(result, false)], false), Ok(result));
    }

    #[test]
    fn parts_do_not_mix() {
        let mut values = values();
        let (a, b) = (values.leaf(0, 0), values.leaf(1, 1));
        assert_eq!(
            values.reduce(&[(a, true), (b, true)], Tree::Left, false),
            Err(Arithmetic::Parts)
        );
    }
}
