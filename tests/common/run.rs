//! Runs one call of a matrix on one rank and compares.

use super::Rng;
use super::element::{TestElement, reduce_op, same};
use super::reference::{self, Reduction};
use oxccl::plans::algorithms::Entry;
use oxccl::plans::topology::Placement;
use oxccl::{Collectives, Communicator, Kind, OpKind, Order, Pin, ReduceOp};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock};

/// One point of the matrix.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub entry: &'static Entry,
    pub placement: Placement,
    pub order: Order,
    pub op: OpKind,
    pub in_place: bool,
    pub root: usize,
    pub count: usize,
    pub channels: usize,
    pub seed: u64,
}

/// Lengths of input and output for `count`.
fn lengths(kind: Kind, count: usize, n: usize) -> (usize, usize) {
    match kind {
        Kind::AllGather | Kind::Gather => (count, count * n),
        Kind::ReduceScatter | Kind::Scatter => (count * n, count),
        Kind::AllToAll => (count * n, count * n),
        _ => (count, count),
    }
}

/// What the ranks of a case bring, and what comes of it.
pub struct Solution<T> {
    op: ReduceOp<T>,
    inputs: Vec<Vec<T>>,
    reduction: Reduction,
    /// The result of an AllReduce that all ranks have alike.
    common: OnceLock<Vec<T>>,
}

impl<T: TestElement> Solution<T> {
    pub fn of(case: &Case, n: usize) -> Solution<T> {
        let (input_len, _) = lengths(case.entry.kind, case.count, n);
        let input = |r: usize| {
            let mut rng = Rng(case.seed ^ (r as u64 + 1).wrapping_mul(0x1234_5678_9abc_def1));
            (0..input_len).map(|_| T::from_random(rng.next())).collect()
        };
        let op = reduce_op::<T>(case.op, &mut Rng(case.seed));
        let inputs = (0..n).map(input).collect();
        Solution { op, inputs, reduction: Reduction::of(case, n), common: OnceLock::new() }
    }

    fn expected(&self, case: &Case, rank: usize) -> Option<Cow<'_, [T]>> {
        let found = || reference::expected_by(&self.reduction, (case, self.op), &self.inputs, rank);
        if case.entry.kind == Kind::AllReduce && self.reduction.is_common() {
            let common = self.common.get_or_init(|| found().unwrap_or_default());
            return Some(Cow::Borrowed(common));
        }
        found().map(Cow::Owned)
    }
}

/// The solution of a case whose ranks are threads: the first that asks makes it, and with the last
/// it goes.
pub struct Shared<T>(Mutex<(usize, Option<Arc<Solution<T>>>)>);

impl<T: TestElement> Shared<T> {
    pub fn new() -> Shared<T> {
        Shared(Mutex::new((0, None)))
    }

    pub fn take(&self, case: &Case, n: usize) -> Arc<Solution<T>> {
        let mut place = self.0.lock().unwrap();
        let (taken, solution) = &mut *place;
        let found = solution.get_or_insert_with(|| Arc::new(Solution::of(case, n))).clone();
        *taken += 1;
        if *taken == n {
            *solution = None;
        }
        found
    }
}

/// Runs the case on this rank, with fresh input and poisoned output, and panics where an element
/// differs.
pub fn check<T: TestElement>(comm: &mut Communicator, case: &Case, solution: &Solution<T>) {
    let (n, rank, kind) = (comm.world_size(), comm.rank(), case.entry.kind);
    let (_, output_len) = lengths(kind, case.count, n);
    let Solution { op, inputs, .. } = solution;
    let op = *op;
    comm.set_order(case.order).unwrap();
    let (algorithm, encoding) = (Some(case.entry.algorithm), Some(case.entry.encoding));
    comm.set_pin(Pin { algorithm, encoding, channels: Some(case.channels) }).unwrap();
    let poison = T::from_random(0xdead_beef_dead_beef);
    let input = &inputs[rank];
    let mut output = vec![poison; output_len];
    let root = case.root;
    if case.in_place {
        match kind {
            Kind::AllReduce | Kind::AllToAll | Kind::Broadcast | Kind::Reduce => {
                output.copy_from_slice(input)
            }
            Kind::AllGather => output[rank * case.count..][..case.count].copy_from_slice(input),
            Kind::ReduceScatter => output = input.clone(),
            _ => return,
        }
        match kind {
            Kind::AllReduce => comm.all_reduce_in_place(&mut output, op),
            Kind::AllToAll => comm.all_to_all_in_place(&mut output),
            Kind::Broadcast => comm.broadcast_in_place(&mut output, root),
            Kind::Reduce => comm.reduce_in_place(&mut output, op, root),
            Kind::AllGather => comm.all_gather_in_place(&mut output),
            _ => comm.reduce_scatter_in_place(&mut output, op),
        }
    } else {
        match kind {
            Kind::AllReduce => comm.all_reduce(input, &mut output, op),
            Kind::ReduceScatter => comm.reduce_scatter(input, &mut output, op),
            Kind::AllGather => comm.all_gather(input, &mut output),
            Kind::AllToAll => comm.all_to_all(input, &mut output),
            Kind::Broadcast => comm.broadcast(input, &mut output, root),
            Kind::Reduce => comm.reduce(input, &mut output, op, root),
            Kind::Gather => comm.gather(input, &mut output, root),
            Kind::Scatter => comm.scatter(input, &mut output, root),
            Kind::SendRecv | Kind::Barrier => return,
        }
    }
    .unwrap_or_else(|error| panic!("{case:?} on rank {rank} of {n}: {error}"));
    let expected = solution.expected(case, rank);
    let found = if case.in_place && kind == Kind::ReduceScatter {
        &output[rank * case.count..][..case.count]
    } else {
        &output[..]
    };
    match expected {
        Some(expected) => {
            let wrong = (0..expected.len()).find(|i| !same(expected[*i], found[*i]));
            if let Some(i) = wrong {
                panic!(
                    "{case:?} on rank {rank} of {n}: element {i} is {:?}, not {:?}",
                    found[i], expected[i]
                );
            }
        }
        None if !case.in_place => {
            assert!(found.iter().all(|value| same(*value, poison)), "{case:?} wrote on rank {rank}")
        }
        None => {}
    }
}
