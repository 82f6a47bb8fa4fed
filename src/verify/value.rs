//! Symbolic values: expressions over the ranks' contributions, each stored once, so that equal expressions have equal ids.

use super::expect::Expectation;
use super::hash::Map;
use super::violation::Arithmetic;
use crate::schedule::{Buffer, Tree};
use std::fmt::Write;

/// Which elements a value has. Two values fit each other, and a value fits a chunk, only if their parts are equal: whatever the
/// layout, they then have the same length and mean the same elements.
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
    /// Two values, reduced in this order.
    Pair(Id, Id),
    /// A reduction whose order and brackets nobody promises: a switch's.
    Unordered(Id),
    /// A result.
    Finished(Id),
}

/// What a slot or a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) id: Id,
    /// How often it has been rounded to the element type on its way from the inputs, at most.
    pub(super) roundings: u32,
}

/// All expressions of one execution. The ids of leaves and tokens follow from what they are; those of what is made of them are given.
#[derive(Debug)]
pub(super) struct Values {
    expectation: Expectation,
    /// Input chunks of a rank, and of all ranks.
    inputs: usize,
    leaves: usize,
    /// What is made, from id `first` on, and its part.
    first: usize,
    nodes: Vec<(Node, Part)>,
    ids: Map<Node, Id>,
    /// The terms of the reduction at hand; here so that their memory is used again.
    terms: Vec<Id>,
}

impl Values {
    /// Those of a collective.
    pub(super) fn new(expectation: Expectation) -> Values {
        let (ranks, inputs) = (expectation.collective.ranks, expectation.chunks(Buffer::Input));
        let leaves = ranks * inputs;
        let (nodes, ids, terms) = (Vec::new(), Map::default(), Vec::new());
        Values { expectation, inputs, leaves, first: 2 * leaves + ranks, nodes, ids, terms }
    }

    /// A chunk of a rank's input.
    pub(super) fn leaf(&self, rank: usize, chunk: usize) -> Value {
        Value { id: self.leaf_id(rank, chunk, true), roundings: 0 }
    }

    /// Where a rank's buffers are.
    pub(super) fn tokens(&self, rank: usize) -> Value {
        Value { id: (2 * self.leaves + rank) as Id, roundings: 0 }
    }

    /// Which elements it has; none for tokens.
    pub(super) fn part(&self, value: Value) -> Option<Part> {
        self.part_of(value.id)
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
        let part = self.part_of(ids[0]).ok_or(Arithmetic::Tokens)?;
        if ids.iter().any(|&id| self.part_of(id) != Some(part)) {
            return Err(Arithmetic::Parts);
        }
        let mut id = self.sum(&ids, part, tree);
        self.terms = ids;
        if finish {
            id = self.intern(Node::Finished(id), part);
        }
        let roundings = sources.iter().map(|(value, _)| value.roundings).max().unwrap_or(0) + 1;
        Ok(Value { id, roundings })
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
        let part = self.part(sum).ok_or(Arithmetic::Tokens)?;
        let mut id = self.intern(Node::Unordered(sum.id), part);
        if finish {
            id = self.intern(Node::Finished(id), part);
        }
        Ok(Value { id, roundings: sum.roundings })
    }

    /// The result of reducing all ranks' contributions to a part, in the order of the tree.
    pub(super) fn result(&mut self, ranks: usize, part: Part, tree: Tree) -> Id {
        let (_, _, chunk) = self.expectation.origin_of(part);
        let leaves: Vec<Id> = (0..ranks).map(|rank| self.leaf_id(rank, chunk, false)).collect();
        let id = self.sum(&leaves, part, tree);
        self.intern(Node::Finished(id), part)
    }

    /// Whether it is a result to which every rank contributed exactly once, in any order; else what is wrong.
    pub(super) fn is_result_of_all(&self, id: Id, ranks: usize) -> Result<(), String> {
        let Shape::Made(Node::Finished(sum)) = self.shape(id) else {
            return Err("it is not finished".into());
        };
        let mut seen = vec![false; ranks];
        let mut open = vec![sum];
        // Each leaf is met once, or the walk ends: it takes no longer than the ranks are many.
        while let Some(id) = open.pop() {
            match self.shape(id) {
                Shape::Made(Node::Pair(left, right)) => open.extend([right, left]),
                Shape::Made(Node::Unordered(sum)) => open.push(sum),
                Shape::Leaf { rank, .. } if std::mem::replace(&mut seen[rank], true) => {
                    return Err(format!("rank {rank} contributes more than once"));
                }
                Shape::Leaf { .. } => {}
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

    /// As text, not longer than a line or two.
    pub(super) fn text(&self, id: Id) -> String {
        let mut text = String::new();
        self.write(&mut text, id);
        text
    }

    /// A source as the reduction takes it.
    fn term(&self, value: Value, raw: bool) -> Result<Id, Arithmetic> {
        match (self.shape(value.id), raw) {
            (Shape::Leaf { rank, chunk, raw: true }, true) => Ok(self.leaf_id(rank, chunk, false)),
            (Shape::Leaf { raw: true, .. }, false) => Err(Arithmetic::NotPremultiplied),
            (Shape::Made(Node::Finished(_)), _) => Err(Arithmetic::FinishedBefore),
            (Shape::Tokens(_), _) => Err(Arithmetic::Tokens),
            (Shape::Leaf { .. } | Shape::Made(_), false) => Ok(value.id),
            (Shape::Leaf { .. } | Shape::Made(_), true) => Err(Arithmetic::PremultipliedTwice),
        }
    }

    fn sum(&mut self, ids: &[Id], part: Part, tree: Tree) -> Id {
        match (tree, ids) {
            (_, [id]) => *id,
            (Tree::Left, ids) => {
                let rest = ids[1..].iter();
                rest.fold(ids[0], |sum, id| self.intern(Node::Pair(sum, *id), part))
            }
            (Tree::Aligned, ids) => {
                let (left, right) = ids.split_at(ids.len().next_power_of_two() / 2);
                let (left, right) = (self.sum(left, part, tree), self.sum(right, part, tree));
                self.intern(Node::Pair(left, right), part)
            }
        }
    }

    fn intern(&mut self, node: Node, part: Part) -> Id {
        *self.ids.entry(node).or_insert_with(|| {
            self.nodes.push((node, part));
            (self.first + self.nodes.len() - 1) as Id
        })
    }

    fn leaf_id(&self, rank: usize, chunk: usize, raw: bool) -> Id {
        let number = rank * self.inputs + chunk;
        (if raw { number } else { self.leaves + number }) as Id
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

    fn write(&self, text: &mut String, id: Id) {
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
                match self.expectation.part(rank, Buffer::Input, chunk) {
                    Part(0, chunk) => write!(text, "x{rank}[{chunk}]"),
                    Part(from, to) => write!(text, "x{rank}[{from}->{to}]"),
                }
            }
            Shape::Tokens(rank) => write!(text, "tokens of {rank}"),
            Shape::Made(Node::Pair(left, right)) => {
                text.push('(');
                self.write(text, left);
                text.push_str(" + ");
                self.write(text, right);
                text.push(')');
                Ok(())
            }
            Shape::Made(Node::Unordered(sum)) => {
                text.push_str("any order of ");
                self.write(text, sum);
                Ok(())
            }
            Shape::Made(Node::Finished(id)) => {
                text.push_str("final ");
                self.write(text, id);
                Ok(())
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::collective::{Collective, Kind};
    use crate::schedule::{Chunking, SLOTS, Schedule};

    const PART: Part = Part(0, 0);

    /// Those of an all-reduce with two chunks.
    fn values() -> Values {
        let (collective, chunking) = (Collective::new(Kind::AllReduce, 5), Chunking::Parts(2));
        let ranks = vec![Vec::new(); 5];
        let (input, output) = (chunking, chunking);
        let schedule = Schedule { collective, input, output, slots: SLOTS, ranks };
        Values::new(Expectation::new(&schedule, false))
    }

    fn leaves(values: &Values, ranks: usize) -> Vec<(Value, bool)> {
        (0..ranks).map(|rank| (values.leaf(rank, 0), true)).collect()
    }

    #[test]
    fn equal_expressions_have_equal_ids_and_order_matters() {
        let mut values = values();
        let sources = leaves(&values, 3);
        let left = values.reduce(&sources, Tree::Left, true);
        assert_eq!(left.map(|value| value.id), Ok(values.result(3, PART, Tree::Left)));
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
            let id = values.result(ranks, PART, Tree::Aligned);
            assert_eq!(values.text(id), text);
        }
    }

    #[test]
    fn what_a_switch_reduces_has_no_order() {
        let mut values = values();
        let sources = leaves(&values, 3);
        let value = values.reduce_unordered(&sources, true).unwrap();
        assert_eq!(values.text(value.id), "final any order of ((x0[0] + x1[0]) + x2[0])");
        assert_eq!(values.is_result_of_all(value.id, 3), Ok(()));
        assert_eq!(value.roundings, 1);
        for tree in [Tree::Left, Tree::Aligned] {
            assert_ne!(values.result(3, PART, tree), value.id);
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
