//! All-reduces by a switch that reduces and multicasts.

use crate::calls::{check, pin, stream};
use crate::common::Rng;
use crate::common::element::TestElement;
use crate::common::run::Case;
use crate::processes::{line_up, on_hardware};
use oxccl::cuda::{CaptureMode, Graph, Stream};
use oxccl::plans::algorithms::{Algorithm, Encoding, Entry, Inner, catalogue, find};
use oxccl::plans::topology::Placement;
use oxccl::{
    Collectives, Communicator, DeviceBuffer, Error, Kind, OpKind, Order, Pin, ReduceOp, bf16, f16,
};
use oxccl_cuda_stand_in::control::Control;

fn entry() -> &'static Entry {
    find(Kind::AllReduce, Algorithm::Nvls, Encoding::Windows).unwrap()
}

fn nvls() -> Pin {
    Pin { algorithm: Some(Algorithm::Nvls), ..Pin::default() }
}

/// All types and reductions that the switch has, in and out of place, from places of the heap that
/// are alike and that are not.
pub(crate) fn all(mut comm: Communicator) {
    let stream = stream(&comm);
    if on_hardware() && !has_switch(&mut comm) {
        return;
    }
    let before = switched();
    let one_node = (entry(), Placement::one_node(comm.world_size()));
    if !on_hardware() {
        // Which bits a switch gives of sums of floats, nobody says.
        every_op::<f32>(&mut comm, &stream, one_node);
        every_op::<f64>(&mut comm, &stream, one_node);
        every_op::<f16>(&mut comm, &stream, one_node);
        every_op::<bf16>(&mut comm, &stream, one_node);
    }
    every_op::<i32>(&mut comm, &stream, one_node);
    every_op::<u32>(&mut comm, &stream, one_node);
    every_op::<i64>(&mut comm, &stream, one_node);
    every_op::<u64>(&mut comm, &stream, one_node);
    if let (Some(before), Some(now)) = (before, switched()) {
        assert!(now - before >= 64, "{} launches have had a switch", now - before);
    }
    replayed(&comm, &stream);
    // From here on this rank's buffers are elsewhere in its heap than the others'.
    let odd = (comm.rank() == 0).then(|| comm.alloc::<u8>(1).unwrap());
    every_op::<i32>(&mut comm, &stream, one_node);
    drop(odd);
    refused(&mut comm, &stream);
    chosen(&mut comm, &stream);
    comm.barrier().unwrap();
}

/// Whether a switch joins the ranks' GPUs; says so where none does.
fn has_switch(comm: &mut Communicator) -> bool {
    comm.set_pin(nvls()).unwrap();
    let plan = comm.plan::<f32>(Kind::AllReduce, OpKind::Sum, 1 << 20, 0, true, true);
    if let Err(error) = &plan {
        use std::io::Write;
        // Past the harness, which would keep it to itself.
        let _ = writeln!(std::io::stderr(), "skipped: a switch of {}: {error}", comm.world_size());
    }
    plan.is_ok()
}

/// Launches that have had a multicast address.
fn switched() -> Option<u64> {
    Control::attach().ok().map(|control| control.switched())
}

/// Each operation that the switch has of a type, and each length and place of buffers.
fn every_op<T: TestElement>(
    comm: &mut Communicator,
    stream: &Stream,
    (entry, placement): (&'static Entry, Placement),
) {
    let (n, mut rng) = (comm.world_size(), Rng(T::DATA_TYPE as u64));
    let has = |op: &OpKind| op.applies_to(T::DATA_TYPE) && entry.reduces(T::DATA_TYPE, *op);
    let ops: Vec<OpKind> = OpKind::ALL.into_iter().filter(has).collect();
    // Whole packs, packs that do not begin at their boundaries, and less than one.
    let places = [0, 3, 64 * n, 1237].map(|count| [false, true].map(|place| (count, place)));
    let places = places.as_flattened();
    assert!(!ops.is_empty() && ops.len() <= places.len());
    for (at, &(count, in_place)) in places.iter().enumerate() {
        let case = Case {
            entry,
            placement,
            order: Order::Any,
            op: ops[at % ops.len()],
            in_place,
            root: 0,
            count,
            channels: 1 + rng.next() as usize % 2,
            seed: rng.next(),
        };
        comm.set_pin(pin(&case)).unwrap();
        check::<T>(comm, stream, &case);
    }
    comm.set_pin(nvls()).unwrap();
}

/// Whatever a length ends with, the switch moves all but less than 16 bytes: the kernels' source,
/// thread by thread, says how many bytes it has read of all ranks at once.
pub(crate) fn odd_ends(mut comm: Communicator) {
    let (stream, control) = (stream(&comm), Control::attach().unwrap());
    comm.set_pin(nvls()).unwrap();
    odd_end(&comm, &stream, &control, 1237, |value| value as f32);
    odd_end(&comm, &stream, &control, 4099, |value| bf16::from_f32(value as f32));
    odd_end(&comm, &stream, &control, 4099, i64::from);
    odd_end(&comm, &stream, &control, 3, |value| value);
    odd_end(&comm, &stream, &control, 4096, |value| value);
    comm.barrier().unwrap();
}

fn odd_end<T: TestElement + PartialEq>(
    comm: &Communicator,
    on: &Stream,
    control: &Control,
    count: usize,
    of: fn(i32) -> T,
) {
    let n = comm.world_size();
    let term = |rank: usize, at: usize| (rank + 3 * at) as i32 % 7;
    let mut input = comm.alloc::<T>(count).unwrap();
    let mut output = comm.alloc::<T>(count).unwrap();
    let own: Vec<T> = (0..count).map(|at| of(term(comm.rank(), at))).collect();
    input.write(&own).unwrap();
    output.write(&vec![of(-3); count]).unwrap();
    line_up();
    let before = control.switched_bytes();
    line_up();
    comm.on(on).all_reduce(&input, &mut output, ReduceOp::Sum).unwrap().wait().unwrap();
    line_up();
    let moved = control.switched_bytes() - before;
    assert_eq!(moved as usize, count * size_of::<T>() / 16 * 16, "{count} {:?}", T::DATA_TYPE);
    let mut found = vec![of(0); count];
    output.read(&mut found).unwrap();
    let expected = (0..count).map(|at| (0..n).map(|rank| term(rank, at)).sum());
    assert!(found.iter().zip(expected).all(|(found, sum)| *found == of(sum)));
}

fn replayed(comm: &Communicator, stream: &Stream) {
    const COUNT: usize = 4096;
    let mut buffer = comm.alloc::<f32>(COUNT).unwrap();
    let graph = Graph::capture(stream, CaptureMode::ThreadLocal, || {
        comm.on(stream).all_reduce_in_place(&mut buffer, ReduceOp::Sum).map(drop)
    });
    let graph = graph.unwrap();
    line_up();
    for round in 1..4 {
        buffer.write(&[round as f32; COUNT]).unwrap();
        // SAFETY: buffer and communicator live.
        unsafe { graph.launch(stream) }.unwrap();
        stream.synchronize().unwrap();
        let mut found = vec![0.0; COUNT];
        buffer.read(&mut found).unwrap();
        assert!(found.iter().all(|found| *found == (round * comm.world_size()) as f32));
        comm.barrier().unwrap();
    }
}

/// What no switch does is an error that says so, and groups have none.
fn refused(comm: &mut Communicator, stream: &Stream) {
    comm.set_pin(nvls()).unwrap();
    let mut floats = comm.alloc::<f32>(64).unwrap();
    let mut bytes = comm.alloc::<i8>(64).unwrap();
    let errors = [
        comm.on(stream).all_reduce_in_place(&mut floats, ReduceOp::Avg).unwrap_err(),
        comm.on(stream).all_reduce_in_place(&mut floats, ReduceOp::PreMulSum(2.0)).unwrap_err(),
        comm.on(stream).all_reduce_in_place(&mut floats, ReduceOp::Max).unwrap_err(),
        comm.on(stream).all_reduce_in_place(&mut bytes, ReduceOp::Sum).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::NoAlgorithm { .. }), "{error}");
        assert!(error.to_string().contains("of which a switch knows"), "{error}");
    }
    comm.on(stream).all_reduce_in_place(&mut floats, ReduceOp::Sum).unwrap().wait().unwrap();
}

/// What the tuner picks: the switch for long calls of some ranks, and nothing else of it.
fn chosen(comm: &mut Communicator, stream: &Stream) {
    comm.set_pin(Pin::default()).unwrap();
    let plan = |op, count| comm.plan::<f32>(Kind::AllReduce, op, count, 0, true, true).unwrap();
    let is_nvls = |op, count| plan(op, count).algorithm == Algorithm::Nvls;
    assert_eq!(
        is_nvls(OpKind::Sum, 1 << 20),
        comm.world_size() >= 4,
        "{:?}",
        plan(OpKind::Sum, 1 << 20)
    );
    assert!(!is_nvls(OpKind::Sum, 64) && !is_nvls(OpKind::Avg, 1 << 20));
    let mut buffer = comm.alloc::<f32>(1 << 17).unwrap();
    buffer.write(&vec![comm.rank() as f32; 1 << 17]).unwrap();
    reduce(comm, stream, &mut buffer).unwrap();
    let mut found = vec![0.0; 1 << 17];
    buffer.read(&mut found).unwrap();
    let sum = (comm.world_size() * (comm.world_size() - 1) / 2) as f32;
    assert!(found.iter().all(|found| *found == sum));
}

fn reduce(comm: &Communicator, on: &Stream, buffer: &mut DeviceBuffer<f32>) -> Result<(), Error> {
    comm.on(on).all_reduce_in_place(buffer, ReduceOp::Sum).and_then(|work| work.wait())
}

/// A switch on each of two nodes, and slots between them.
pub(crate) fn of_nodes(mut comm: Communicator) {
    let (stream, placement) = (stream(&comm), Placement::uniform(comm.world_size() / 2));
    let of_nodes = || catalogue().filter(|entry| by_switches_of_nodes(entry.algorithm));
    assert_eq!(of_nodes().count(), 4);
    let control = Control::attach().unwrap();
    let (before, bytes_before) = (switched().unwrap(), control.switched_bytes());
    for entry in of_nodes() {
        every_op::<f32>(&mut comm, &stream, (entry, placement));
        every_op::<i64>(&mut comm, &stream, (entry, placement));
    }
    let launches = switched().unwrap() - before;
    assert!(launches >= 32, "{launches} launches have had a switch");
    // The kernels' source says how much of that a switch has read.
    let emulated = std::env::var_os("OXCCL_STAND_IN_EMULATE").is_some();
    assert_eq!(control.switched_bytes() > bytes_before, emulated);
    // No switch joins the nodes.
    let mut buffer = comm.alloc::<f32>(64).unwrap();
    comm.set_pin(nvls()).unwrap();
    let error = reduce(&comm, &stream, &mut buffer).unwrap_err().to_string();
    assert!(error.contains("without an NVSwitch that reduces"), "{error}");
    comm.barrier().unwrap();
}

fn by_switches_of_nodes(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::Hierarchical(Inner::Nvls, _)) && !algorithm.is_in_fabric()
}

/// Where one of the nodes has no switch.
pub(crate) fn none_of_nodes(mut comm: Communicator) {
    let stream = stream(&comm);
    let mut buffer = comm.alloc::<f32>(64).unwrap();
    for algorithm in Algorithm::ALL.into_iter().filter(|one| by_switches_of_nodes(*one)) {
        comm.set_pin(Pin { algorithm: Some(algorithm), ..Pin::default() }).unwrap();
        let error = reduce(&comm, &stream, &mut buffer).unwrap_err().to_string();
        assert!(error.contains("without an NVSwitch that reduces"), "{error}");
    }
    comm.set_pin(Pin::default()).unwrap();
    reduce(&comm, &stream, &mut buffer).unwrap();
    assert_eq!(switched(), Some(0));
}

/// Where a GPU cannot, or a step of one rank has failed: no rank has it, and all say so.
pub(crate) fn none(mut comm: Communicator) {
    let stream = stream(&comm);
    let mut buffer = comm.alloc::<f32>(1 << 16).unwrap();
    let plan = comm.plan::<f32>(Kind::AllReduce, OpKind::Sum, 1 << 20, 0, true, true).unwrap();
    assert_ne!(plan.algorithm, Algorithm::Nvls);
    reduce(&comm, &stream, &mut buffer).unwrap();
    comm.set_pin(nvls()).unwrap();
    let error = reduce(&comm, &stream, &mut buffer).unwrap_err();
    assert!(matches!(error, Error::NoAlgorithm { .. }), "{error}");
    assert!(error.to_string().contains("without an NVSwitch that reduces"), "{error}");
    comm.set_pin(Pin::default()).unwrap();
    reduce(&comm, &stream, &mut buffer).unwrap();
    assert_eq!(switched().unwrap_or(0), 0);
}
