//! What each rank's output must be, computed from all inputs in the declared order and accumulator.

use super::element::{Acc, TestElement, fold, scale};
use super::expression::{Expression, expressions};
use super::run::Case;
use oxccl::plans::algorithms::{Algorithm, Orders};
use oxccl::plans::schedule::{SLOTS, Schedule};
use oxccl::{Collective, Kind, Order, ReduceOp};
use std::sync::Arc;

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

/// By rank and chunk, where an order is neither promised nor declared above: partial results are rounded wherever they are stored.
fn undeclared(case: &Case, n: usize) -> Option<impl Fn(usize, usize) -> Arc<Expression> + use<>> {
    let declared = matches!(
        (case.entry.algorithm, case.entry.kind),
        (Algorithm::Ring, _) | (Algorithm::Chain, Kind::Reduce)
    );
    let promised = case.entry.orders == Orders::All || case.order != Order::Any;
    if declared || promised || !case.entry.kind.reduces() {
        return None;
    }
    let expressions = expressions(&schedule(case, n));
    Some(move |rank, chunk| expressions[&(rank, chunk)].clone())
}

fn evaluate<T: TestElement>(expression: &Expression, op: ReduceOp<T>, values: &[T]) -> Acc {
    match expression {
        Expression::Leaf(rank) => scale(op, values[*rank]),
        Expression::Fold { terms, aligned } => {
            let terms = terms.iter().map(|term| match &**term {
                Expression::Leaf(_) => evaluate(term, op, values),
                _ => T::round(evaluate(term, op, values)).widen(),
            });
            let terms: Vec<Acc> = terms.collect();
            if *aligned { tree::<T>(op, &terms) } else { left::<T>(op, &terms, false) }
        }
    }
}

fn reduce_one<T: TestElement>(path: &Path, op: ReduceOp<T>, inputs: &[Vec<T>], index: usize) -> T {
    let terms = path.ranks.iter().map(|rank| scale(op, inputs[*rank][index]));
    let terms: Vec<Acc> = terms.collect();
    let result =
        if path.tree { tree::<T>(op, &terms) } else { left::<T>(op, &terms, path.rounds_each) };
    let n = inputs.len();
    T::round(if matches!(op, ReduceOp::Avg) { T::divide(result, n) } else { result })
}

fn left<T: TestElement>(op: ReduceOp<T>, terms: &[Acc], rounds_each: bool) -> Acc {
    let mut result = terms[0];
    for (at, term) in terms.iter().enumerate().skip(1) {
        result = fold::<T>(op.kind(), result, *term);
        if rounds_each && at + 1 < terms.len() {
            result = T::round(result).widen();
        }
    }
    result
}

fn tree<T: TestElement>(op: ReduceOp<T>, terms: &[Acc]) -> Acc {
    if terms.len() == 1 {
        return terms[0];
    }
    let (a, b) = terms.split_at(terms.len().next_power_of_two() / 2);
    fold::<T>(op.kind(), tree::<T>(op, a), tree::<T>(op, b))
}

/// Where the elements of a whole buffer of `count` belong when it is divided by rank, as the library documents it.
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
    let Case { entry, root, count, .. } = *case;
    let n = inputs.len();
    let undeclared = undeclared(case, n);
    // Into how many parts a whole buffer is divided.
    let parts = match undeclared {
        Some(_) => schedule(case, n).output.chunks(n),
        None => n,
    };
    let align = 64 / std::mem::size_of::<T>();
    let column = |index: usize| inputs.iter().map(|input| input[index]).collect::<Vec<T>>();
    let paths: Vec<Path> = (0..n).map(|chunk| path(case, n, chunk)).collect();
    let reduce = |index: usize, chunk: usize| match &undeclared {
        None => reduce_one(&paths[chunk], op, inputs, index),
        Some(expressions) => {
            let chunk = if entry.kind == Kind::AllReduce { chunk } else { 0 };
            let result = evaluate(&expressions(rank, chunk), op, &column(index));
            T::round(if matches!(op, ReduceOp::Avg) { T::divide(result, n) } else { result })
        }
    };
    let part = |of: &[T], r: usize| of[r * count..(r + 1) * count].to_vec();
    let gathered = || inputs.concat();
    Some(match entry.kind {
        Kind::AllReduce => {
            (0..count).map(|i| reduce(i, chunk_of(i, count, parts, align))).collect()
        }
        Kind::Reduce if rank == root => (0..count).map(|i| reduce(i, 0)).collect(),
        Kind::ReduceScatter => (0..count).map(|i| reduce(rank * count + i, rank)).collect(),
        Kind::AllGather => gathered(),
        Kind::Gather if rank == root => gathered(),
        Kind::AllToAll => inputs.iter().flat_map(|input| part(input, rank)).collect(),
        Kind::Broadcast => inputs[root].clone(),
        Kind::Scatter => part(&inputs[root], rank),
        _ => return None,
    })
}
