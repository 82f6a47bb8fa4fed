//! Results, bit for bit.

use crate::common::element::{TestElement, same};
use crate::common::run::Case;
use crate::common::{Rng, reference};
use crate::processes::{deadline, line_up, meet, nothing_is_left};
use crate::rank::{CHANNELS, Rank, gpu};
use oxccl::cuda::{CaptureMode, Event, Graph, copy, fill};
use oxccl::plans::algorithms::{Algorithm, Encoding, Entry, catalogue, find};
use oxccl::plans::schedule::SLOTS;
use oxccl::plans::topology::Placement;
use oxccl::{Kind, OpKind, Order, ReduceOp, bf16};
use oxccl_transports::cuda::{Context, DeviceMemory, Exports, Imports, copy_in, copy_out};
use oxccl_transports::{Bootstrap, Error, LocalBootstrap, local};
use std::sync::Barrier;

/// Where outputs are, behind inputs.
const OUTPUT: usize = 1 << 20;

/// Every algorithm for an all-reduce, launched, then captured and replayed.
pub(crate) fn all_reduces(bootstrap: &mut dyn Bootstrap) {
    let rank = Rank::start(bootstrap).unwrap();
    let (ranks, placement) = (bootstrap.world(), Placement::one_node(bootstrap.world()));
    let there_is = |entry: &&Entry| {
        entry.kind == Kind::AllReduce && entry.check(ranks, placement, SLOTS).is_ok()
    };
    for entry in catalogue().filter(there_is) {
        for count in [0, 1, 37, 5000] {
            replay::<f32>(bootstrap, &rank, entry, count);
        }
        replay::<bf16>(bootstrap, &rank, entry, 1234);
        replay::<i8>(bootstrap, &rank, entry, 301);
    }
    meet(bootstrap);
    drop(rank);
    meet(bootstrap);
    nothing_is_left();
    bootstrap.liveness().close(0);
}

fn inputs<T: TestElement>(seed: u64, ranks: usize, count: usize) -> Vec<Vec<T>> {
    let input = |rank: usize| {
        let mut rng = Rng(seed ^ (rank as u64 + 1).wrapping_mul(0x1234_5678_9abc_def1));
        (0..count).map(|_| T::from_random(rng.next())).collect()
    };
    (0..ranks).map(input).collect()
}

fn bytes<T: TestElement>(elements: &[T]) -> &[u8] {
    // SAFETY: elements are plain data.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

fn replay<T: TestElement>(
    bootstrap: &mut dyn Bootstrap,
    rank: &Rank,
    entry: &'static Entry,
    count: usize,
) {
    let (me, ranks) = (bootstrap.rank(), bootstrap.world());
    let prepared = rank.all_reduce(entry, T::DATA_TYPE, count).unwrap();
    let base = rank.heap;
    let check = |seed: u64, run: &dyn Fn()| {
        let inputs = inputs::<T>(seed, ranks, count);
        let input = bytes(&inputs[me]);
        // SAFETY: the heap is longer than both, and no kernel runs: the last one's end covers all
        // accesses to it.
        unsafe {
            copy(&rank.stream, base, input.as_ptr(), input.len()).unwrap();
            fill(&rank.stream, base.add(OUTPUT), 0xee, input.len() + 8).unwrap();
        }
        run();
        rank.stream.synchronize().unwrap();
        if let Err(ended) = rank.outcome() {
            panic!("{entry:?} {count}: {ended:?}");
        }
        let mut found = vec![0u8; input.len() + 8];
        // SAFETY: the heap is longer, and what wrote to it is done.
        unsafe { copy_out(&rank.context, &mut found, base.add(OUTPUT)) }.unwrap();
        let (found, behind) = found.split_at(input.len());
        assert_eq!(behind, [0xee; 8], "nothing behind the output is touched");
        let expected = expected(entry, &inputs, me, count);
        for (at, expected) in expected.iter().enumerate() {
            // SAFETY: within the elements copied, of which any bits are a value.
            let found = unsafe { found.as_ptr().cast::<T>().add(at).read_unaligned() };
            assert!(
                same(found, *expected),
                "{entry:?} {count}: {at} is {found:?}, not {expected:?}"
            );
        }
    };
    let put = || rank.put(&rank.stream, &prepared, base, [0, OUTPUT]);
    line_up();
    check(1, &|| put().unwrap());
    // Other ranks may be threads of this process, and wait for their streams meanwhile.
    let graph = Graph::capture(&rank.stream, CaptureMode::ThreadLocal, put).unwrap();
    line_up();
    for seed in 2..5 {
        // SAFETY: as above.
        check(seed, &|| unsafe { graph.launch(&rank.stream) }.unwrap());
    }
}

/// Windows on memory that somebody else allocated: two allocations of each rank, in one block.
pub(crate) fn foreign_buffers(bootstrap: &mut dyn Bootstrap) {
    const COUNT: usize = 10_000;
    let (me, ranks) = (bootstrap.rank(), bootstrap.world());
    let context = gpu(me).unwrap();
    let in_front = DeviceMemory::allocate(&context, 1000 * (me + 1)).unwrap();
    let memory = DeviceMemory::allocate(&context, 8 * COUNT).unwrap();
    let mut imports = Imports::default();
    let bases = exchange(bootstrap, &context, &memory, &mut imports);
    let rank = Rank::start_with(bootstrap, CHANNELS, Some(bases)).unwrap();
    for algorithm in [Algorithm::TwoShot, Algorithm::TwoShotPush] {
        let entry = find(Kind::AllReduce, algorithm, Encoding::Windows).unwrap();
        let prepared = rank.all_reduce(entry, oxccl::DataType::F32, COUNT).unwrap();
        let inputs = inputs::<f32>(7, ranks, COUNT);
        let mut found = vec![0f32; COUNT];
        // SAFETY: the memory is as long as both buffers; the tables are this rank's; floats are
        // plain data.
        unsafe {
            copy_in(&context, memory.as_ptr(), bytes(&inputs[me])).unwrap();
            rank.put(&rank.stream, &prepared, memory.as_ptr(), [0, 4 * COUNT]).unwrap();
            rank.stream.synchronize().unwrap();
            let to = std::slice::from_raw_parts_mut(found.as_mut_ptr().cast(), 4 * COUNT);
            copy_out(&context, to, memory.as_ptr().add(4 * COUNT)).unwrap();
        }
        rank.outcome().unwrap();
        let expected = expected(entry, &inputs, me, COUNT);
        assert!(found.iter().zip(&expected).all(|(found, expected)| same(*found, *expected)));
        meet(bootstrap);
    }
    drop((rank, imports));
    meet(bootstrap);
    drop((memory, in_front, context));
    nothing_is_left();
    bootstrap.liveness().close(0);
}

/// Where every rank's allocation is in this process.
fn exchange(
    bootstrap: &mut dyn Bootstrap,
    context: &Context,
    memory: &DeviceMemory,
    imports: &mut Imports,
) -> Vec<*mut u8> {
    let len_bytes = memory.len_bytes();
    let handle = Exports::default().handle(context, memory.as_ptr(), len_bytes).unwrap();
    let handle = serde_json::to_vec(&handle).unwrap();
    let all = bootstrap.all_gather(&handle, deadline()).unwrap();
    let address = |bytes: &Vec<u8>| {
        imports.address(context, &serde_json::from_slice(bytes).unwrap()).unwrap()
    };
    all.iter().map(address).collect()
}

/// The ranks of one process in one graph, as branches that nothing orders: all must run at once.
pub(crate) fn one_graph(bootstrap: &mut dyn Bootstrap) {
    const RANKS: usize = 3;
    const COUNT: usize = 100;
    let started = Barrier::new(RANKS);
    let ranks: Vec<Rank> = std::thread::scope(|scope| {
        let start = |mut bootstrap: LocalBootstrap| {
            let started = &started;
            scope.spawn(move || {
                let rank = Rank::start(&mut bootstrap).unwrap();
                started.wait();
                bootstrap.liveness().close(0);
                Moved(rank)
            })
        };
        let threads: Vec<_> = local(RANKS).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().0).collect()
    });
    let entry = find(Kind::AllReduce, Algorithm::Ring, Encoding::Ll).unwrap();
    let programs: Vec<_> = ranks
        .iter()
        .map(|rank| rank.all_reduce(entry, oxccl::DataType::F32, COUNT).unwrap())
        .collect();
    let first = &ranks[0];
    let (fork, join) = (Event::new(&first.context).unwrap(), Event::new(&first.context).unwrap());
    let graph = Graph::capture::<Error>(&first.stream, CaptureMode::ThreadLocal, || {
        fork.record(&first.stream)?;
        for (rank, prepared) in ranks.iter().zip(&programs) {
            if !std::ptr::eq(rank, first) {
                fork.hold(&rank.stream)?;
            }
            rank.put(&rank.stream, prepared, rank.heap, [0, OUTPUT])?;
        }
        for rank in &ranks[1..] {
            join.record(&rank.stream)?;
            join.hold(&first.stream)?;
        }
        Ok(())
    });
    let graph = graph.unwrap();
    for seed in 0..3 {
        let inputs = inputs::<f32>(seed, RANKS, COUNT);
        for (rank, input) in ranks.iter().zip(&inputs) {
            // SAFETY: the heap is longer, and nothing runs.
            unsafe { copy_in(&rank.context, rank.heap, bytes(input)) }.unwrap();
        }
        // SAFETY: all that it was captured with lives.
        unsafe { graph.launch(&first.stream) }.unwrap();
        first.stream.synchronize().unwrap();
        for (me, rank) in ranks.iter().enumerate() {
            let mut found = vec![0u8; 4 * COUNT];
            // SAFETY: the heap is longer, and nothing runs.
            unsafe { copy_out(&rank.context, &mut found, rank.heap.add(OUTPUT)) }.unwrap();
            let expected: Vec<f32> = expected(entry, &inputs, me, COUNT);
            assert!(expected.iter().zip(found.chunks(4)).all(|(expected, found)| {
                same(f32::from_ne_bytes(found.try_into().unwrap()), *expected)
            }));
        }
    }
    bootstrap.liveness().close(0);
}

/// A rank that changes its thread: it is used by one at a time.
struct Moved(Rank);
// SAFETY: its parts are handles and shared tables; the counter of calls goes with it.
unsafe impl Send for Moved {}

/// The output of a rank, as the reference has it.
fn expected<T: TestElement>(
    entry: &'static Entry,
    inputs: &[Vec<T>],
    rank: usize,
    count: usize,
) -> Vec<T> {
    let case = Case {
        entry,
        placement: Placement::one_node(inputs.len()),
        order: Order::Any,
        op: OpKind::Sum,
        in_place: false,
        root: 0,
        count,
        channels: CHANNELS,
        seed: 0,
    };
    reference::expected(&case, ReduceOp::Sum, inputs, rank).unwrap()
}
