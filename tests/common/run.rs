//! Runs one call of a matrix on one rank and compares.

use super::element::{TestElement, reduce_op, same};
use super::{Rng, reference};
use oxccl::plans::algorithms::Entry;
use oxccl::plans::topology::Placement;
use oxccl::{Collectives, Communicator, Kind, OpKind, Order, Pin};

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

/// Runs the case on this rank, with fresh input and poisoned output, and panics where an element differs.
pub fn check<T: TestElement>(comm: &mut Communicator, case: &Case) {
    let (n, rank, kind) = (comm.world_size(), comm.rank(), case.entry.kind);
    let (input_len, output_len) = lengths(kind, case.count, n);
    let mut rng = Rng(case.seed);
    let op = reduce_op::<T>(case.op, &mut rng);
    let inputs: Vec<Vec<T>> = (0..n)
        .map(|r| {
            let mut rng = Rng(case.seed ^ (r as u64 + 1).wrapping_mul(0x1234_5678_9abc_def1));
            (0..input_len).map(|_| T::from_random(rng.next())).collect()
        })
        .collect();
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
    let expected = reference::expected(case, op, &inputs, rank);
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
