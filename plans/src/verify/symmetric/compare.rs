//! Whether a rank does what a first rank does, turned.

use crate::collective::{Kind, Order};
use crate::schedule::{Distance, Instruction, Operand, Schedule, Source, Symmetry, Tree};
use crate::verify::value::Block;
use thiserror::Error;

/// Ranks that stand for all.
#[derive(Debug)]
pub(super) struct Firsts {
    /// With their lists alone.
    pub(super) schedule: Schedule,
    pub(super) symmetry: Symmetry,
    /// Where the order of the tree is promised.
    pub(super) reductions: Option<Reductions>,
}

/// By first rank: steps that reduce several values, and of which blocks these are.
pub(in crate::verify) type Reductions = Vec<Vec<(usize, Vec<Option<Block>>)>>;

/// A rank that is not what it was taken for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("rank {rank} does not do what rank {first} does, turned: {difference}")]
pub struct Unlike {
    /// The rank.
    pub rank: usize,
    /// The first rank that should stand for it.
    pub first: usize,
    /// Where they differ.
    pub difference: Difference,
}

impl Unlike {
    /// How many steps they have in common.
    pub(super) fn step(&self) -> usize {
        match self.difference {
            Difference::Instruction { step, .. } | Difference::Order { step } => step,
            Difference::Steps { .. } | Difference::Nature { .. } => 0,
        }
    }
}

/// Where two ranks differ.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Difference {
    /// In the length of their lists.
    #[error("it has {found} steps, not {expected}")]
    Steps {
        /// The first rank's.
        expected: usize,
        /// The rank's.
        found: usize,
    },
    /// In an instruction.
    #[error("its step {step} is `{found}`, not `{expected}`")]
    Instruction {
        /// The step.
        step: usize,
        /// The first rank's instruction, turned.
        expected: String,
        /// The rank's.
        found: String,
    },
    /// The sources of a reduction are not neighbouring blocks in the order of ranks.
    #[error("what its step {step} reduces are not neighbouring blocks of ranks from left to right")]
    Order {
        /// The step.
        step: usize,
    },
    /// In everything, by the nature of the collective or of the order that is promised.
    #[error("{kind} with order {order} is not the same seen from everywhere")]
    Nature {
        /// The kind.
        kind: Kind,
        /// The promise.
        order: Order,
    },
}

/// Whether a rank does what the first rank that stands for it does, turned.
pub(super) fn compare(firsts: &Firsts, rank: usize, list: &[Instruction]) -> Result<(), Unlike> {
    let Firsts { schedule, symmetry, reductions } = firsts;
    let (home, by) = symmetry.home(rank);
    let unlike = |difference| Unlike { rank, first: home, difference };
    let expected = &schedule.lists[home];
    if expected.len() != list.len() {
        let (expected, found) = (expected.len(), list.len());
        return Err(unlike(Difference::Steps { expected, found }));
    }
    for (step, (expected, found)) in expected.iter().zip(list).enumerate() {
        if !is_alike(symmetry, by, expected, found) {
            let expected = symmetry.instruction(expected, by).to_string();
            let found = found.to_string();
            return Err(unlike(Difference::Instruction { step, expected, found }));
        }
    }
    for (step, blocks) in reductions.iter().flat_map(|of_rank| &of_rank[home]) {
        if !is_in_order(symmetry, by, &expected[*step], &list[*step], blocks) {
            return Err(unlike(Difference::Order { step: *step }));
        }
    }
    Ok(())
}

/// Whether an instruction is the other, turned, but for the order of its sources.
fn is_alike(
    symmetry: &Symmetry,
    by: Distance,
    expected: &Instruction,
    found: &Instruction,
) -> bool {
    use Instruction::{ReduceCopy, Signal, Wait};
    match (expected, found) {
        (Wait { flag, value }, Wait { flag: other, value: found })
        | (Signal { flag, value }, Signal { flag: other, value: found }) => {
            value == found && symmetry.flag(*flag, by) == *other
        }
        (
            ReduceCopy { sources, destinations, tree, finish },
            ReduceCopy {
                sources: their_sources,
                destinations: theirs,
                tree: their_tree,
                finish: they_finish,
            },
        ) => {
            (tree, finish) == (their_tree, they_finish)
                && destinations.len() == theirs.len()
                && destinations.iter().zip(theirs).all(|(a, b)| is_turned(symmetry, by, *a, *b))
                && are_alike(symmetry, by, sources, their_sources)
        }
        _ => false,
    }
}

fn is_turned(symmetry: &Symmetry, by: Distance, expected: Operand, found: Operand) -> bool {
    symmetry.turns(expected) && symmetry.operand(expected, by) == found
}

fn are_alike(symmetry: &Symmetry, by: Distance, expected: &[Source], found: &[Source]) -> bool {
    if expected.len() != found.len() {
        return false;
    }
    let in_order = |(a, b): (&Source, &Source)| {
        a.raw == b.raw && is_turned(symmetry, by, a.operand, b.operand)
    };
    if expected.iter().zip(found).all(in_order) {
        return true;
    }
    links_differ(found) && places(symmetry, by, expected, found).is_some()
}

/// Whether the messages among the sources are of different links, so that nobody cares which is
/// read first.
fn links_differ(sources: &[Source]) -> bool {
    let link = |source: &Source| match source.operand {
        Operand::Slot { link, .. } => Some(link),
        _ => None,
    };
    let mut links: Vec<_> = sources.iter().filter_map(link).collect();
    links.sort_unstable();
    links.windows(2).all(|pair| pair[0] != pair[1])
}

/// For each source that was found, its place among those that were expected. Mostly it is the next
/// one, or one begins anew.
fn places(
    symmetry: &Symmetry,
    by: Distance,
    expected: &[Source],
    found: &[Source],
) -> Option<Vec<usize>> {
    let turned: Vec<Source> = expected.iter().map(|one| symmetry.source(*one, by)).collect();
    let (len, mut next) = (turned.len(), 0);
    let mut taken = vec![false; len];
    let mut place = |source: &Source| {
        let from_next = (0..len).map(|offset| (next + offset) % len);
        let place = { from_next }.find(|at| !taken[*at] && turned[*at] == *source)?;
        taken[place] = true;
        next = place + 1;
        Some(place)
    };
    found.iter().map(&mut place).collect()
}

/// Whether a reduction's sources are the aligned trees of neighbouring blocks, from left to right,
/// and its result is that of all of them.
fn is_in_order(
    symmetry: &Symmetry,
    by: Distance,
    expected: &Instruction,
    found: &Instruction,
    blocks: &[Option<Block>],
) -> bool {
    let (
        Instruction::ReduceCopy { sources: expected, .. },
        Instruction::ReduceCopy { sources: found, tree, .. },
    ) = (expected, found)
    else {
        return false;
    };
    let Some(places) = places(symmetry, by, expected, found) else { return false };
    let block = |place: &usize| blocks[*place]?.turned(symmetry, by);
    let Some(blocks) = places.iter().map(block).collect::<Option<Vec<Block>>>() else {
        return false;
    };
    let neighbours =
        |pair: &[Block]| pair[0].len == pair[1].len && pair[0].first + pair[0].len == pair[1].first;
    let is_block = blocks[0].first.is_multiple_of(blocks[0].len * blocks.len());
    let halves = blocks.len() == 2 || (*tree == Tree::Aligned && blocks.len().is_power_of_two());
    halves && is_block && blocks.windows(2).all(neighbours)
}
