//! Symbolic values: expressions over the ranks' contributions, each stored once, so that equal expressions have equal ids.

use super::hash::Map;
use super::violation::Arithmetic;
use crate::schedule::Tree;
use std::fmt::Write;

/// Which elements a value has. Two values fit each other, and a value fits a chunk, only if their parts are equal: whatever the
/// layout, they then have the same length and mean the same elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Part(pub(super) u32, pub(super) u32);

/// An expression.
pub(super) type Id = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Node {
    /// A rank's contribution as the rank gave it (raw), or premultiplied.
    Leaf { rank: u32, part: Part, raw: bool },
    /// Two values, reduced in this order.
    Pair(Id, Id),
    /// A result.
    Finished(Id),
    /// Where a rank's buffers are.
    Tokens(u32),
}

/// What a slot or a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) id: Id,
    /// How often it has been rounded to the element type on its way from the inputs, at most.
    pub(super) roundings: u32,
}

/// All expressions of one execution.
#[derive(Debug, Default)]
pub(super) struct Values {
    nodes: Vec<(Node, Option<Part>)>,
    ids: Map<Node, Id>,
}

impl Values {
    /// A rank's contribution.
    pub(super) fn leaf(&mut self, rank: usize, part: Part) -> Value {
        let node = Node::Leaf { rank: rank as u32, part, raw: true };
        Value { id: self.intern(node, Some(part)), roundings: 0 }
    }

    /// Where a rank's buffers are.
    pub(super) fn tokens(&mut self, rank: usize) -> Value {
        Value { id: self.intern(Node::Tokens(rank as u32), None), roundings: 0 }
    }

    /// Which elements it has; none for tokens.
    pub(super) fn part(&self, value: Value) -> Option<Part> {
        self.nodes[value.id as usize].1
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
        let mut ids = Vec::with_capacity(sources.len());
        for &(value, raw) in sources {
            ids.push(self.term(value, raw)?);
        }
        let part = self.nodes[ids[0] as usize].1;
        if ids.iter().any(|&id| self.nodes[id as usize].1 != part) {
            return Err(Arithmetic::Parts);
        }
        let mut id = match tree {
            Tree::Left => self.left(&ids),
            Tree::Aligned => self.aligned(&ids),
        };
        if finish {
            id = self.intern(Node::Finished(id), part);
        }
        let roundings = sources.iter().map(|(value, _)| value.roundings).max().unwrap_or(0) + 1;
        Ok(Value { id, roundings })
    }

    /// The result of reducing all ranks' contributions to a part, in the order of the tree.
    pub(super) fn result(&mut self, ranks: usize, part: Part, tree: Tree) -> Id {
        let leaves: Vec<Id> = (0..ranks as u32)
            .map(|rank| self.intern(Node::Leaf { rank, part, raw: false }, Some(part)))
            .collect();
        let id = match tree {
            Tree::Left => self.left(&leaves),
            Tree::Aligned => self.aligned(&leaves),
        };
        self.intern(Node::Finished(id), Some(part))
    }

    /// Whether it is a result to which every rank contributed exactly once, in any order; else what is wrong.
    pub(super) fn is_result_of_all(&self, id: Id, ranks: usize) -> Result<(), String> {
        let Node::Finished(sum) = self.nodes[id as usize].0 else {
            return Err("it is not finished".into());
        };
        let mut seen = vec![false; ranks];
        let mut open = vec![sum];
        // Each leaf is met once, or the walk ends: it takes no longer than the ranks are many.
        while let Some(id) = open.pop() {
            match self.nodes[id as usize].0 {
                Node::Pair(left, right) => open.extend([right, left]),
                Node::Leaf { rank, .. } if std::mem::replace(&mut seen[rank as usize], true) => {
                    return Err(format!("rank {rank} contributes more than once"));
                }
                Node::Leaf { .. } => {}
                Node::Finished(_) | Node::Tokens(_) => return Err("a part of it is no sum".into()),
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
    fn term(&mut self, value: Value, raw: bool) -> Result<Id, Arithmetic> {
        match (self.nodes[value.id as usize].0, raw) {
            (Node::Leaf { rank, part, raw: true }, true) => {
                Ok(self.intern(Node::Leaf { rank, part, raw: false }, Some(part)))
            }
            (Node::Leaf { raw: true, .. }, false) => Err(Arithmetic::NotPremultiplied),
            (Node::Leaf { .. } | Node::Pair(..), false) => Ok(value.id),
            (Node::Leaf { .. } | Node::Pair(..), true) => Err(Arithmetic::PremultipliedTwice),
            (Node::Finished(_), _) => Err(Arithmetic::FinishedBefore),
            (Node::Tokens(_), _) => Err(Arithmetic::Tokens),
        }
    }

    fn left(&mut self, ids: &[Id]) -> Id {
        let mut sum = ids[0];
        for &id in &ids[1..] {
            sum = self.pair(sum, id);
        }
        sum
    }

    fn aligned(&mut self, ids: &[Id]) -> Id {
        if let [id] = *ids {
            return id;
        }
        let (left, right) = ids.split_at(ids.len().next_power_of_two() / 2);
        let (left, right) = (self.aligned(left), self.aligned(right));
        self.pair(left, right)
    }

    fn pair(&mut self, left: Id, right: Id) -> Id {
        let part = self.nodes[left as usize].1;
        self.intern(Node::Pair(left, right), part)
    }

    fn intern(&mut self, node: Node, part: Option<Part>) -> Id {
        *self.ids.entry(node).or_insert_with(|| {
            self.nodes.push((node, part));
            (self.nodes.len() - 1) as Id
        })
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
        let _ = match self.nodes[id as usize].0 {
            Node::Leaf { rank, part: Part(0, chunk), .. } => write!(text, "x{rank}[{chunk}]"),
            Node::Leaf { rank, part: Part(from, to), .. } => write!(text, "x{rank}[{from}->{to}]"),
            Node::Tokens(rank) => write!(text, "tokens of {rank}"),
            Node::Pair(left, right) => {
                text.push('(');
                self.write(text, left);
                text.push_str(" + ");
                self.write(text, right);
                text.push(')');
                Ok(())
            }
            Node::Finished(id) => {
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

    const PART: Part = Part(0, 0);

    fn leaves(values: &mut Values, ranks: usize) -> Vec<(Value, bool)> {
        (0..ranks).map(|rank| (values.leaf(rank, PART), true)).collect()
    }

    #[test]
    fn equal_expressions_have_equal_ids_and_order_matters() {
        let mut values = Values::default();
        let sources = leaves(&mut values, 3);
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
        let mut values = Values::default();
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
    fn every_rank_contributes_exactly_once() {
        let mut values = Values::default();
        let sources = leaves(&mut values, 3);
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
        let mut values = Values::default();
        let (a, b) = (values.leaf(0, PART), values.leaf(1, PART));
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
        let mut values = Values::default();
        let (a, b) = (values.leaf(0, PART), values.leaf(1, Part(0, 1)));
        assert_eq!(
            values.reduce(&[(a, true), (b, true)], Tree::Left, false),
            Err(Arithmetic::Parts)
        );
    }
}
