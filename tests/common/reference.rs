//! What each rank's output must be, computed from all inputs in the declared order and accumulator.

use super::element::{Acc, TestElement, fold, scale};
use oxccl::algorithms::{Algorithm, Entry};
use oxccl::{Kind, Order, ReduceOp};

/// In which order a chunk's contributions meet, and whether partial results are rounded on the way.
struct Path {
    ranks: Vec<usize>,
    tree: bool,
    rounds_each: bool,
}

/// The declared order of an algorithm for chunk `chunk` of `n`.
fn path(entry: &Entry, order: Order, n: usize, chunk: usize, root: usize) -> Path {
    let around = |first: usize| (0..n).map(|step| (first + step) % n).collect();
    match entry.algorithm {
        Algorithm::Ring => Path { ranks: around(chunk + 1), tree: false, rounds_each: true },
        Algorithm::Chain => Path { ranks: around(root + 1), tree: false, rounds_each: true },
        _ => Path { ranks: (0..n).collect(), tree: order == Order::Tree, rounds_each: false },
    }
}

fn reduce_one<T: TestElement>(path: &Path, op: ReduceOp<T>, values: &[T]) -> T {
    let terms: Vec<Acc> = path.ranks.iter().map(|rank| scale(op, values[*rank])).collect();
    let result =
        if path.tree { tree::<T>(op, &terms) } else { left::<T>(op, &terms, path.rounds_each) };
    let n = values.len();
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
    entry: &Entry,
    order: Order,
    op: ReduceOp<T>,
    inputs: &[Vec<T>],
    rank: usize,
    root: usize,
    count: usize,
) -> Option<Vec<T>> {
    let n = inputs.len();
    let align = 64 / std::mem::size_of::<T>();
    let column = |index: usize| inputs.iter().map(|input| input[index]).collect::<Vec<T>>();
    let reduce = |index: usize, chunk: usize| {
        reduce_one(&path(entry, order, n, chunk, root), op, &column(index))
    };
    let part = |of: &[T], r: usize| of[r * count..(r + 1) * count].to_vec();
    let gathered = || inputs.concat();
    Some(match entry.kind {
        Kind::AllReduce => (0..count).map(|i| reduce(i, chunk_of(i, count, n, align))).collect(),
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
