//! What each rank's output must be, computed from all inputs in the declared order and accumulator.

use super::element::{Acc, TestElement, fold, scale};
use super::expression::{Expression, Expressions, expressions};
use super::run::Case;
use oxccl::plans::algorithms::{Algorithm, Orders};
use oxccl::plans::schedule::{SLOTS, Schedule};
use oxccl::{Collective, Kind, Order, ReduceOp};
use std::ops::Range;

/// In which order a chunk's contributions meet, and whether partial results are rounded on the way.
struct Path {
    ranks: Vec<usize>,
    tree: bool,
    rounds_each: bool,
}

/// The declared order of an algorithm for chunk `chunk` of `n`.
fn path(case: &Case, n: usize, chunk: usize) -> Path {
    let around = |first: usize| (0..n).map(|step| (first + step) % n).collect();
    match (case.entry.algorithm, case.entry.kind) {
        (Algorithm::Ring, _) => Path { ranks: around(chunk + 1), tree: false, rounds_each: true },
        (Algorithm::Chain, Kind::Reduce) => {
            Path { ranks: around(case.root + 1), tree: false, rounds_each: true }
        }
        _ => Path { ranks: (0..n).collect(), tree: case.order == Order::Tree, rounds_each: false },
    }
}

/// The case's schedule.
pub fn schedule(case: &Case, n: usize) -> Schedule {
    let collective = match case.entry.kind {
        Kind::Reduce => Collective::rooted(Kind::Reduce, n, case.root),
        kind => Collective::new(kind, n),
    };
    case.entry.schedule(collective, case.placement, case.order, SLOTS).unwrap()
}

/// How the elements of a case are reduced: the same for all ranks, whatever the elements are.
pub struct Reduction {
    /// By chunk.
    paths: Vec<Path>,
    /// Where an order is neither promised nor declared above: partial results are rounded wherever
    /// they are stored.
    undeclared: Option<Expressions>,
    /// Into how many parts a whole buffer is divided.
    parts: usize,
}

impl Reduction {
    pub fn of(case: &Case, n: usize) -> Reduction {
        let paths = (0..n).map(|chunk| path(case, n, chunk)).collect();
        let declared = matches!(
            (case.entry.algorithm, case.entry.kind),
            (Algorithm::Ring, _) | (Algorithm::Chain, Kind::Reduce)
        );
        let promised = case.entry.orders == Orders::All || case.order != Order::Any;
        if declared || promised || !case.entry.kind.reduces() {
            return Reduction { paths, undeclared: None, parts: n };
        }
        let schedule = schedule(case, n);
        let parts = schedule.output.chunks(n);
        Reduction { paths, undeclared: Some(expressions(&schedule)), parts }
    }

    /// Whether all ranks get the same bits of an AllReduce.
    pub fn is_common(&self) -> bool {
        self.undeclared.is_none()
    }

    fn reduce<T: TestElement>(
        &self,
        op: ReduceOp<T>,
        inputs: &[Vec<T>],
        index: usize,
        (rank, chunk): (usize, usize),
    ) -> T {
        let Some(expressions) = &self.undeclared else {
            return reduce_one(&self.paths[chunk], op, inputs, index);
        };
        let result = evaluate(&expressions[&(rank, chunk)], op, inputs, index);
        let n = inputs.len();
        T::round(if matches!(op, ReduceOp::Avg) { T::divide(result, n) } else { result })
    }
}

fn evaluate<T: TestElement>(
    expression: &Expression,
    op: ReduceOp<T>,
    inputs: &[Vec<T>],
    index: usize,
) -> Acc {
    match expression {
        Expression::Leaf(rank) => scale(op, inputs[*rank][index]),
        Expression::Fold { terms, aligned } => {
            let term = |at: usize| match &*terms[at] {
                Expression::Leaf(rank) => scale(op, inputs[*rank][index]),
                term => T::round(evaluate(term, op, inputs, index)).widen(),
            };
            match aligned {
                true => tree::<T>(op, 0..terms.len(), &term),
                false => left::<T>(op, terms.len(), false, term),
            }
        }
    }
}

fn reduce_one<T: TestElement>(path: &Path, op: ReduceOp<T>, inputs: &[Vec<T>], index: usize) -> T {
    let term = |at: usize| scale(op, inputs[path.ranks[at]][index]);
    let n = inputs.len();
    let result = match path.tree {
        true => tree::<T>(op, 0..n, &term),
        false => left::<T>(op, n, path.rounds_each, term),
    };
    T::round(if matches!(op, ReduceOp::Avg) { T::divide(result, n) } else { result })
}

fn left<T: TestElement>(
    op: ReduceOp<T>,
    terms: usize,
    rounds_each: bool,
    term: impl Fn(usize) -> Acc,
) -> Acc {
    let mut result = term(0);
    for at in 1..terms {
        result = fold::<T>(op.kind(), result, term(at));
        if rounds_each && at + 1 < terms {
            result = T::round(result).widen();
        }
    }
    result
}

fn tree<T: TestElement>(op: ReduceOp<T>, of: Range<usize>, term: &impl Fn(usize) -> Acc) -> Acc {
    if of.len() == 1 {
        return term(of.start);
    }
    let middle = of.start + of.len().next_power_of_two() / 2;
    let (first, second) = (of.start..middle, middle..of.end);
    fold::<T>(op.kind(), tree::<T>(op, first, term), tree::<T>(op, second, term))
}

/// Where the elements of a whole buffer of `count` belong when it is divided by rank, as the
/// library documents it.
fn chunk_of(index: usize, count: usize, n: usize, align: usize) -> usize {
    let even = count.div_ceil(n);
    let size = if even >= align { even.next_multiple_of(align) } else { even };
    index / size.max(1)
}

/// The output of `rank`, or `None` where it has none. `count` as in `Layout::even`.
pub fn expected<T: TestElement>(
    case: &Case,
    op: ReduceOp<T>,
    inputs: &[Vec<T>],
    rank: usize,
) -> Option<Vec<T>> {
    expected_by(&Reduction::of(case, inputs.len()), (case, op), inputs, rank)
}

/// The same, with what does not depend on the rank.
pub fn expected_by<T: TestElement>(
    reduction: &Reduction,
    (case, op): (&Case, ReduceOp<T>),
    inputs: &[Vec<T>],
    rank: usize,
) -> Option<Vec<T>> {
    let Case { entry, root, count, .. } = *case;
    let align = 64 / std::mem::size_of::<T>();
    let reduce = |index, chunk| reduction.reduce(op, inputs, index, (rank, chunk));
    let part = |of: &[T], r: usize| of[r * count..(r + 1) * count].to_vec();
    let gathered = || inputs.concat();
    let chunk = |index: usize| chunk_of(index, count, reduction.parts, align);
    Some(match entry.kind {
        Kind::AllReduce => (0..count).map(|i| reduce(i, chunk(i))).collect(),
        Kind::Reduce if rank == root => (0..count).map(|i| reduce(i, chunk(i))).collect(),
        Kind::ReduceScatter => {
            // Where the order is declared, it is that of the rank's part.
            let own = |i| if reduction.is_common() { rank } else { chunk(i) };
            (0..count).map(|i| reduce(rank * count + i, own(i))).collect()
        }
        Kind::AllGather => gathered(),
        Kind::Gather if rank == root => gathered(),
        Kind::AllToAll => inputs.iter().flat_map(|input| part(input, rank)).collect(),
        Kind::Broadcast => inputs[root].clone(),
        Kind::Scatter => part(&inputs[root], rank),
        _ => return None,
    })
}
