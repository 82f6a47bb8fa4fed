//! Communicators on GPUs, through the public calls: every algorithm, bit for bit; streams, graphs.

use crate::common::element::{TestElement, reduce_op, same};
use crate::common::run::Case;
use crate::common::{Rng, reference};
use crate::processes::{line_up, on_hardware};
use crate::rank::stand_in_image;
use oxccl::cuda::{CaptureMode, Graph, Stream};
use oxccl::plans::algorithms::{Algorithm, Encoding, Entry, Outer, catalogue, find};
use oxccl::plans::schedule::SLOTS;
use oxccl::plans::topology::Placement;
use oxccl::{
    Advanced, Call, Collectives, Communicator, Config, DataType, DeviceBuffer, Error, F8E4M3,
    F8E5M2, Kind, Memory, OpKind, Order, Pin, ReduceOp, Work, bf16, f16,
};
use oxccl_cuda_stand_in::control::Control;
use oxccl_transports::Bootstrap;
use std::ffi::OsString;
use std::time::{Duration, Instant};

pub(crate) const CHANNELS: usize = 2;

/// Small slots, so that a few thousand elements are several rounds. On hardware the kernels that
/// are built in.
pub(crate) fn config() -> Config {
    let from_environment = Config::from_lookup(environment).unwrap();
    Config {
        timeout: Duration::from_secs(300),
        max_channels: CHANNELS,
        heap_bytes: 96 << 20,
        advanced: Advanced {
            image: (!on_hardware()).then(stand_in_image),
            slot_bytes: Some(576),
            link_slot_bytes: Some(576),
            ll_slot_bytes: 256,
            ..from_environment.advanced
        },
        ..from_environment
    }
}

/// What the process is told of its connections, of nodes and what joins them, and that it is on
/// GPUs.
fn environment(name: &str) -> Option<OsString> {
    match name {
        "OXCCL_DEVICE" => Some("cuda".into()),
        "CUDA_DEVICE_MAX_CONNECTIONS"
        | "OXCCL_NODES"
        | "OXCCL_SINGLE_LAUNCH"
        | "OXCCL_BULK_COPIES"
        | "OXCCL_HOT_KERNELS"
        | "OXCCL_ZERO_SM"
        | "OXCCL_TRACE_STEPS"
        | "OXCCL_FABRIC"
        | "OXCCL_RDMA_DEVICES"
        | "OXCCL_GPU_DIRECT" => std::env::var_os(name),
        _ => None,
    }
}

pub(crate) fn stream(comm: &Communicator) -> Stream {
    Stream::new(&comm.context().unwrap()).unwrap()
}

/// Every algorithm of every kind; then what the tuner picks.
pub(crate) fn all(mut comm: Communicator) {
    let stream = stream(&comm);
    by_algorithms(&mut comm, &stream, |_| true);
    comm.set_pin(Pin::default()).unwrap();
    for count in [1, 5_000, 40_000] {
        typed(&comm, &stream, count);
    }
    send_around(&comm, &stream);
    comm.set_pin(Pin { encoding: Some(Encoding::Slots), ..Pin::default() }).unwrap();
    send_around(&comm, &stream);
    comm.barrier().unwrap();
}

/// All-reduces over three levels, which need several groups of nodes.
pub(crate) fn by_groups_of_nodes(mut comm: Communicator) {
    let stream = stream(&comm);
    by_algorithms(&mut comm, &stream, |algorithm| {
        matches!(algorithm, Algorithm::Hierarchical(_, Outer::Grid))
    });
    comm.barrier().unwrap();
}

/// Calls by each of these algorithms that there is.
fn by_algorithms(comm: &mut Communicator, stream: &Stream, wanted: impl Fn(Algorithm) -> bool) {
    let (n, nodes) = (comm.world_size(), config().nodes.unwrap_or(1));
    let placement = Placement::uniform(n / nodes);
    let there_is = |entry: &&Entry| {
        wanted(entry.algorithm)
            && entry.kind != Kind::SendRecv
            && !entry.is_in_network()
            && !entry.is_in_fabric()
            && entry.check(n, placement, SLOTS).is_ok()
            && (nodes == 1 || entry.crosses_nodes())
    };
    assert!(catalogue().any(|entry| there_is(&entry)));
    let mut rng = Rng(1);
    for entry in catalogue().filter(there_is) {
        for in_place in [false, true].into_iter().take(1 + usize::from(entry.in_place)) {
            for count in [0, 3, 700 + (rng.next() % 800) as usize] {
                let (root, seed) = (rng.next() as usize % n, rng.next());
                let op = if entry.kind.reduces() { OpKind::Avg } else { OpKind::Sum };
                let channels = 1 + rng.next() as usize % CHANNELS;
                let order = Order::Any;
                let case =
                    Case { entry, placement, order, op, in_place, root, count, channels, seed };
                comm.set_pin(pin(&case)).unwrap();
                check::<f32>(comm, stream, &case);
                if count == 3 {
                    check::<bf16>(comm, stream, &case);
                    check::<i8>(comm, stream, &Case { op: OpKind::Sum, ..case });
                }
            }
        }
    }
}

/// A rank prepares its calls while another one's kernel waits for them already: nothing of that may
/// wait for kernels.
pub(crate) fn prepared_late(mut comm: Communicator) {
    comm.set_timeout(Duration::from_secs(20)).unwrap();
    let stream = stream(&comm);
    line_up();
    for count in [3, 5_000, 70_000] {
        if comm.rank() > 0 {
            std::thread::sleep(Duration::from_millis(30));
        }
        let mut all = comm.alloc::<f32>(count).unwrap();
        let mut buckets = [comm.alloc::<i8>(count).unwrap(), comm.alloc(count + 1).unwrap()];
        let _ = comm.on(&stream).all_reduce_in_place(&mut all, ReduceOp::Sum).unwrap();
        let grouped = comm.on(&stream).group(|group| {
            for bucket in &mut buckets {
                group.all_reduce_in_place(bucket, ReduceOp::Max)?;
            }
            Ok(())
        });
        grouped.unwrap().0.wait().unwrap();
    }
    comm.barrier().unwrap();
}

/// Uneven calls, those of a root, and calls in place, on a stream.
pub(crate) fn with_parts(comm: Communicator) {
    let stream = stream(&comm);
    crate::common::on_streams::check(&comm, &stream);
    crate::common::typed::check(&comm, &stream);
    comm.barrier().unwrap();
}

/// In parts of the ranks, of which each has an end of its own: the ranks by pairs, one by one, and
/// all once more; memory of the whole is reached in place. What a part takes or gives back may wait
/// for another's kernels, so that they line up there.
pub(crate) fn of_parts(comm: Communicator) {
    let (rank, n) = (comm.rank(), comm.world_size());
    let partner = (rank ^ 1).min(n - 1);
    for (color, sum) in
        [(rank / 2, if partner == rank { rank } else { rank + partner }), (rank, rank)]
    {
        let part = comm.split(Some(color as u32), 0).unwrap().unwrap();
        let stream = stream(&part);
        let mut of_whole = comm.alloc::<i32>(1000).unwrap();
        of_whole.write(&[rank as i32; 1000]).unwrap();
        line_up();
        part.all_reduce_in_place(&mut of_whole, ReduceOp::Sum).unwrap();
        let mut found = [0; 1000];
        of_whole.read(&mut found).unwrap();
        assert_eq!(found, [sum as i32; 1000]);
        line_up();
        crate::common::typed::check_beside(&part, &stream, line_up);
        part.close().unwrap();
        line_up();
    }
    let all = comm.split(Some(0), -(rank as i64)).unwrap().unwrap();
    assert_eq!(all.rank(), n - 1 - rank);
    crate::common::typed::check(&all, &stream(&all));
    assert!(all.split(None, 0).unwrap().is_none());
    // What the last thread frees waits for kernels: none may wait for it then.
    all.close().unwrap();
    comm.close().unwrap();
}

/// The last rank joins the others, which keep their memory.
pub(crate) fn joined_later(comm: Communicator) {
    let (rank, n) = (comm.rank(), comm.world_size());
    let joins = rank == n - 1;
    let part = comm.split(Some(u32::from(joins)), 0).unwrap().unwrap();
    let mut buffer = part.alloc::<i32>(1000).unwrap();
    let sums = |of: &Communicator, buffer: &mut DeviceBuffer<i32>, sum: usize| {
        buffer.write(&[rank as i32; 1000]).unwrap();
        of.all_reduce_in_place(buffer, ReduceOp::Sum).unwrap();
        let mut found = [0; 1000];
        buffer.read(&mut found).unwrap();
        assert_eq!(found, [sum as i32; 1000]);
    };
    sums(&part, &mut buffer, if joins { rank } else { (0..n - 1).sum() });
    // The id goes the way that the communicator of all is.
    let id = (rank == 0).then(|| part.invite().unwrap());
    let mut told = comm.alloc::<u8>(1024).unwrap();
    let text = id.as_ref().map(|id| format!("{id} ")).unwrap_or_default();
    told.write(&[text.as_bytes(), &vec![0; 1024 - text.len()]].concat()).unwrap();
    comm.broadcast_in_place(&mut told, 0).unwrap();
    let mut text = vec![0; 1024];
    told.read(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let all = match joins {
        true => {
            let id = text.split(' ').next().unwrap().parse().unwrap();
            Communicator::connect(&id, rank, n, &config()).unwrap()
        }
        false => part.grow(n, id.as_ref()).unwrap(),
    };
    assert_eq!((all.rank(), all.world_size(), all.device()), (rank, n, comm.device()));
    if !joins {
        sums(&all, &mut buffer, (0..n).sum());
    } else {
        let mut own = all.alloc::<i32>(1000).unwrap();
        sums(&all, &mut own, (0..n).sum());
    }
    crate::common::typed::check(&all, &stream(&all));
    // What the last thread frees waits for kernels: none may wait for it then.
    all.close().unwrap();
    part.close().unwrap();
    comm.close().unwrap();
}

/// Every kernel: all types and operations, folded from the left and as a tree; packs, words, lines
/// of both kinds. Of many ranks the folds whose trees have more levels than registers.
pub(crate) fn every_kernel(mut comm: Communicator) {
    let stream = stream(&comm);
    fn each<T: TestElement>(comm: &mut Communicator, stream: &Stream) {
        let n = comm.world_size();
        let placement = Placement::one_node(n);
        let mut rng = Rng(n as u64);
        let ways = [
            (Algorithm::TwoShot, Encoding::Windows),
            (Algorithm::OneShot, Encoding::Ll),
            (Algorithm::OneShot, Encoding::Ll128),
        ];
        for op in OpKind::ALL.into_iter().filter(|op| op.applies_to(T::DATA_TYPE)) {
            let orders = |way| [Order::Rank, Order::Tree].map(|order| (order, way));
            for (order, (algorithm, encoding)) in ways.into_iter().flat_map(orders) {
                let entry = find(Kind::AllReduce, algorithm, encoding).unwrap();
                assert!(entry.keeps(order, placement, T::DATA_TYPE), "{entry:?}");
                comm.set_order(order).unwrap();
                let count = 1 + rng.next() as usize % 300;
                let (root, seed, in_place) = (0, rng.next(), rng.next().is_multiple_of(2));
                let channels = CHANNELS;
                let case =
                    Case { entry, placement, order, op, in_place, root, count, channels, seed };
                comm.set_pin(pin(&case)).unwrap();
                check::<T>(comm, stream, &case);
            }
        }
    }
    each::<f32>(&mut comm, &stream);
    each::<bf16>(&mut comm, &stream);
    if comm.world_size() < 8 {
        each::<f64>(&mut comm, &stream);
        each::<i8>(&mut comm, &stream);
        each::<u8>(&mut comm, &stream);
        each::<i32>(&mut comm, &stream);
        each::<u32>(&mut comm, &stream);
        each::<i64>(&mut comm, &stream);
        each::<u64>(&mut comm, &stream);
        each::<f16>(&mut comm, &stream);
        each::<F8E4M3>(&mut comm, &stream);
        each::<F8E5M2>(&mut comm, &stream);
    }
    comm.barrier().unwrap();
}

/// Copies so long that the engine for them is asked, where there is one, at odd places.
pub(crate) fn long_copies(comm: Communicator) {
    some_long_copies(comm, 1);
}

/// Those by every so many algorithms.
pub(crate) fn some_long_copies(mut comm: Communicator, every: usize) {
    let (stream, n) = (stream(&comm), comm.world_size());
    let placement = Placement::one_node(n);
    let by_windows = |entry: &&Entry| {
        entry.kind != Kind::SendRecv
            && entry.encoding == Encoding::Windows
            && !entry.is_in_network()
            && entry.check(n, placement, SLOTS).is_ok()
    };
    let mut rng = Rng(3);
    for entry in catalogue().filter(by_windows).step_by(every) {
        for in_place in [false, true].into_iter().take(1 + usize::from(entry.in_place)) {
            let (op, order, channels) = (OpKind::Sum, Order::Any, CHANNELS);
            let (root, seed) = (rng.next() as usize % n, rng.next());
            let count = 300_000 + rng.next() as usize % 300_000;
            let case = Case { entry, placement, order, op, in_place, root, count, channels, seed };
            comm.set_pin(pin(&case)).unwrap();
            check::<u8>(&comm, &stream, &case);
        }
    }
    comm.barrier().unwrap();
}

/// Longer copies that follow one another, which a block takes as one step: to each of several
/// peers, through slots that hold more than what threads copy side by side, and in place.
pub(crate) fn copies_in_a_row(_: &mut dyn Bootstrap) {
    const RANKS: usize = 4;
    let usual = config();
    let advanced = Advanced {
        slot_bytes: Some(8192),
        hot_kernels: false,
        single_launch: Some(false),
        ..usual.advanced
    };
    let comms = Communicator::local_with(RANKS, &Config { advanced, ..usual }).unwrap();
    std::thread::scope(|scope| {
        for comm in comms {
            scope.spawn(|| rows(comm));
        }
    });
}

fn rows(mut comm: Communicator) {
    let (stream, placement) = (stream(&comm), Placement::one_node(comm.world_size()));
    let direct = |entry: &&Entry| {
        let is_direct = matches!(
            entry.algorithm,
            Algorithm::Direct | Algorithm::Pairwise | Algorithm::TwoShot | Algorithm::OneShot
        );
        is_direct && !entry.encoding.has_flags() && entry.kind != Kind::SendRecv
    };
    let mut rng = Rng(13);
    for entry in catalogue().filter(direct) {
        for in_place in [false, true].into_iter().take(1 + usize::from(entry.in_place)) {
            let (op, order, channels, root) = (OpKind::Sum, Order::Any, CHANNELS, 1);
            // A channel's part of a chunk is a slot and a half.
            let count = 6 * 1024 + rng.next() as usize % 500;
            let count = if entry.kind == Kind::AllReduce { count * 4 } else { count };
            let seed = rng.next();
            let case = Case { entry, placement, order, op, in_place, root, count, channels, seed };
            comm.set_pin(pin(&case)).unwrap();
            check::<f32>(&comm, &stream, &case);
        }
    }
    comm.barrier().unwrap();
}

pub(crate) fn pin(case: &Case) -> Pin {
    Pin {
        algorithm: Some(case.entry.algorithm),
        encoding: Some(case.entry.encoding),
        channels: Some(case.channels),
    }
}

fn lengths(kind: Kind, count: usize, n: usize) -> (usize, usize) {
    match kind {
        Kind::Barrier => (0, 0),
        Kind::AllGather | Kind::Gather => (count, count * n),
        Kind::ReduceScatter | Kind::Scatter => (count * n, count),
        Kind::AllToAll => (count * n, count * n),
        _ => (count, count),
    }
}

/// Where an in-place input lies in the output, or the output in the input: the buffer's length, and
/// both starts.
fn in_place(kind: Kind, count: usize, rank: usize, n: usize) -> Option<(usize, usize, usize)> {
    match kind {
        Kind::AllReduce | Kind::Broadcast | Kind::Reduce => Some((count, 0, 0)),
        Kind::AllToAll => Some((count * n, 0, 0)),
        Kind::AllGather => Some((count * n, rank * count, 0)),
        Kind::ReduceScatter => Some((count * n, 0, rank * count)),
        _ => None,
    }
}

pub(crate) fn check<T: TestElement>(comm: &Communicator, stream: &Stream, case: &Case) {
    let (n, rank, kind) = (comm.world_size(), comm.rank(), case.entry.kind);
    let (input_len, output_len) = lengths(kind, case.count, n);
    let op = reduce_op::<T>(case.op, &mut Rng(case.seed));
    let inputs: Vec<Vec<T>> = (0..n)
        .map(|r| {
            let mut rng = Rng(case.seed ^ (r as u64 + 1).wrapping_mul(0x1234_5678_9abc_def1));
            (0..input_len).map(|_| T::from_random(rng.next())).collect()
        })
        .collect();
    let poison = T::from_random(0xdead_beef_dead_beef);
    let spots = case.in_place.then(|| in_place(kind, case.count, rank, n));
    let (len, input_at, output_at) = match spots {
        None => (input_len + output_len, 0, input_len),
        Some(Some(spots)) => spots,
        Some(None) => return,
    };
    let mut values = vec![poison; len];
    values[input_at..][..input_len].copy_from_slice(&inputs[rank]);
    let mut buffer = comm.alloc::<T>(len).unwrap();
    buffer.write(&values).unwrap();
    let memory = |at: usize, count: usize| Memory {
        address: buffer.as_ptr().wrapping_add(at).cast(),
        count,
    };
    let (from, to) = (memory(input_at, input_len), memory(output_at, output_len));
    let call = Call::of(kind, T::DATA_TYPE, from, to).reduce_op(op);
    let call = if kind.is_rooted() { call.root(case.root) } else { call };
    // SAFETY: the buffer lives until the call is done, and nobody else uses it.
    unsafe { comm.on(stream).run(call) }.and_then(|work| work.wait()).unwrap();
    buffer.read(&mut values).unwrap();
    let found = &values[output_at..][..output_len];
    match reference::expected(case, op, &inputs, rank) {
        Some(expected) => {
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert!(
                    same(*found, *expected),
                    "{case:?} on rank {rank} of {n}: element {at} is {found:?}, not {expected:?}"
                );
            }
        }
        None if !case.in_place => {
            assert!(found.iter().all(|value| same(*value, poison)), "{case:?} wrote on rank {rank}")
        }
        None => {}
    }
}

/// The typed calls on a stream, as the tuner likes them, and a blocking one.
fn typed(comm: &Communicator, stream: &Stream, count: usize) {
    let (n, rank) = (comm.world_size(), comm.rank());
    let filled = |len: usize, value: f32| {
        let mut buffer = comm.alloc::<f32>(len).unwrap();
        buffer.write(&vec![value; len]).unwrap();
        buffer
    };
    let expect = |buffer: &DeviceBuffer<f32>, value: &dyn Fn(usize) -> f32| {
        let mut found = vec![0.0; buffer.len()];
        buffer.read(&mut found).unwrap();
        assert!(found.iter().enumerate().all(|(at, found)| *found == value(at)), "{count}");
    };
    let sum = (n * (n + 1) / 2) as f32;
    let on = comm.on(stream);
    let (one, many) = (filled(count, rank as f32 + 1.0), filled(count * n, rank as f32 + 1.0));
    let (mut to_one, mut to_many) = (filled(count, 0.0), filled(count * n, 0.0));
    let mut places = filled(count, rank as f32);
    let works = [
        on.all_reduce(&one, &mut to_one, ReduceOp::Sum).unwrap(),
        on.all_gather(&one, &mut to_many).unwrap(),
        on.broadcast_in_place(&mut places, n - 1).unwrap(),
    ];
    works.into_iter().for_each(|work| work.wait().unwrap());
    expect(&to_one, &|_| sum);
    expect(&to_many, &|at| (at / count) as f32 + 1.0);
    expect(&places, &|_| (n - 1) as f32);
    let _ = on.reduce_scatter(&many, &mut to_one, ReduceOp::Max).unwrap();
    let _ = on.all_to_all(&many, &mut to_many).unwrap();
    let _ = on.all_reduce_in_place(&mut places, ReduceOp::Avg).unwrap();
    let _ = on.reduce_in_place(&mut places, ReduceOp::Sum, 0).unwrap();
    on.barrier().unwrap().wait().unwrap();
    expect(&to_one, &|_| n as f32);
    expect(&to_many, &|at| (at / count) as f32 + 1.0);
    if rank == 0 {
        expect(&places, &|_| (n * (n - 1)) as f32);
    }
    let input = Memory { address: one.as_ptr().cast(), count };
    let output = Memory { address: to_one.as_ptr().cast(), count };
    let call = Call::of(Kind::AllReduce, DataType::F32, input, output);
    for _ in 0..3 {
        // SAFETY: both buffers live, and nobody else uses them.
        unsafe { comm.run(call) }.unwrap();
    }
    expect(&to_one, &|_| sum);
}

fn send_around(comm: &Communicator, stream: &Stream) {
    let n = comm.world_size();
    if n == 1 {
        return;
    }
    for len in [1000, 300_000] {
        send_len_around(comm, stream, len);
    }
}

fn send_len_around(comm: &Communicator, stream: &Stream, len: usize) {
    let (n, rank) = (comm.world_size(), comm.rank());
    let (mut from, mut to) = (comm.alloc::<u8>(len).unwrap(), comm.alloc::<u8>(len).unwrap());
    let sent = |rank: usize| (0..len).map(|at| (at % 251 + rank) as u8).collect::<Vec<_>>();
    from.write(&sent(rank)).unwrap();
    to.write(&vec![0xee; len]).unwrap();
    let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
    let on = comm.on(stream);
    // Even ranks send first. The last of an odd number has an even neighbour, to which it sends
    // later.
    if rank.is_multiple_of(2) {
        let _ = on.send(&from, next).unwrap();
        on.recv(&mut to, previous).unwrap().wait().unwrap();
    } else {
        let _ = on.recv(&mut to, previous).unwrap();
        on.send(&from, next).unwrap().wait().unwrap();
    }
    let mut found = vec![0; len];
    to.read(&mut found).unwrap();
    assert!(found == sent(previous), "{len} bytes from rank {previous}");
}

/// A graph of two calls, replayed; calls before, between and behind.
pub(crate) fn captured(comm: Communicator) {
    const COUNT: usize = 3000;
    let (stream, n) = (stream(&comm), comm.world_size());
    let mut buffer = comm.alloc::<f32>(COUNT).unwrap();
    let mut all = comm.alloc::<f32>(COUNT * n).unwrap();
    let eager = |buffer: &mut DeviceBuffer<f32>| {
        comm.on(&stream).all_reduce_in_place(buffer, ReduceOp::Max).unwrap().wait().unwrap();
    };
    eager(&mut buffer);
    let launches = comm.launches();
    // Threads are ranks, and other ranks may do anything meanwhile.
    let graph = Graph::capture(&stream, CaptureMode::ThreadLocal, || {
        let on = comm.on(&stream);
        let works = [
            on.all_reduce_in_place(&mut buffer, ReduceOp::Sum)?,
            on.all_gather(&buffer, &mut all)?,
        ];
        assert!(works.iter().all(Work::is_done), "nobody waits for what is only recorded");
        Ok::<(), Error>(())
    });
    let graph = graph.unwrap();
    assert_eq!(comm.launches(), launches, "nothing was called");
    line_up();
    for round in 1..5 {
        buffer.write(&[round as f32; COUNT]).unwrap();
        // SAFETY: buffers and communicator live.
        unsafe { graph.launch(&stream) }.unwrap();
        stream.synchronize().unwrap();
        let mut found = vec![0.0; COUNT * n];
        all.read(&mut found).unwrap();
        assert!(found.iter().all(|found| *found == (round * n) as f32));
        eager(&mut buffer);
    }
    comm.barrier().unwrap();
}

/// A graph that is replayed beside another call ends the communicator by an error that says so,
/// whichever comes first.
pub(crate) fn replayed_beside(comm: Communicator) {
    replay_beside(comm, true);
}

pub(crate) fn called_beside(comm: Communicator) {
    replay_beside(comm, false);
}

fn replay_beside(comm: Communicator, replays_first: bool) {
    // Far below the time-out of `config`.
    const LONG: Duration = Duration::from_secs(100);
    let (of_graph, of_calls) = (stream(&comm), stream(&comm));
    let mut buffers = [comm.alloc::<f32>(3000).unwrap(), comm.alloc::<f32>(3000).unwrap()];
    let [captured, eager] = &mut buffers;
    let graph = Graph::capture(&of_graph, CaptureMode::ThreadLocal, || {
        comm.on(&of_graph).all_reduce_in_place(captured, ReduceOp::Sum).map(drop)
    });
    let graph = graph.unwrap();
    comm.barrier().unwrap();
    // SAFETY: the buffer and the communicator live.
    let replay = || unsafe { graph.launch(&of_graph) }.unwrap();
    if comm.rank() == 1 {
        // Neither of the other one's can end, nor find a message of something else.
        let (handle, begin) = (comm.handle(), Instant::now());
        while handle.error().is_none() {
            assert!(begin.elapsed() < LONG, "the other rank goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
    } else if replays_first {
        replay();
        // Long enough for it to begin, mostly.
        std::thread::sleep(Duration::from_millis(50));
    }
    let begin = Instant::now();
    let made = comm.on(&of_calls).all_reduce_in_place(eager, ReduceOp::Sum);
    if comm.rank() == 0 && !replays_first {
        std::thread::sleep(Duration::from_millis(50));
        replay();
    }
    let error = made.and_then(|work| work.wait()).unwrap_err();
    match &error {
        Error::ReplayedBeside { rank: 0, .. } if comm.rank() == 0 => {}
        Error::Stopped { reason, .. } if comm.rank() == 1 => {
            assert!(reason.contains("beside another call"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert!(begin.elapsed() < LONG, "told by the time-out");
    // Nothing runs any more.
    of_graph.synchronize().unwrap();
}

/// Calls follow one another, whatever their streams; a stream of somebody else's waits for a call.
pub(crate) fn streams(comm: Communicator) {
    const COUNT: usize = 5000;
    let streams = [stream(&comm), stream(&comm)];
    let mut buffer = comm.alloc::<f64>(COUNT).unwrap();
    buffer.write(&[1.0; COUNT]).unwrap();
    let mut last = None;
    for step in 0..40 {
        let on = comm.on(&streams[step % 2]);
        last = Some(on.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap());
    }
    let work = last.unwrap();
    let third = stream(&comm);
    work.wait_on(&third).unwrap();
    third.synchronize().unwrap();
    // More are under way than have a place of their own.
    for step in 0..100 {
        let _ = comm.on(&streams[step % 2]).barrier().unwrap();
    }
    let mut found = vec![0.0; COUNT];
    buffer.read(&mut found).unwrap();
    let expected = (comm.world_size() as f64).powi(40);
    assert!(found.iter().all(|found| *found == expected));
    comm.barrier().unwrap();
}

/// A link to a rank of another node has memory once it is used.
pub(crate) fn over_links(mut comm: Communicator) {
    let (rank, n) = (comm.rank(), comm.world_size());
    let registered = || Control::attach().unwrap().live().registered;
    let before = (comm.memory().staging_bytes, registered());
    // All have looked before any calls: a part of each alone is agreed without links.
    drop(comm.split(Some(rank as u32), 0).unwrap());
    let pin = Pin { algorithm: Some(Algorithm::Ring), ..Pin::default() };
    comm.set_pin(pin).unwrap();
    let mut buffer = comm.alloc::<i32>(1000).unwrap();
    let context = comm.context().unwrap();
    let mut sum = |comm: &mut Communicator| {
        let own = (rank as i32 + 1).to_ne_bytes().repeat(buffer.len());
        // SAFETY: it is as long, and no call uses it.
        unsafe { oxccl_transports::cuda::copy_in(&context, buffer.as_ptr().cast(), &own) }.unwrap();
        comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        let mut found = vec![0; own.len()];
        // SAFETY: as above.
        unsafe { oxccl_transports::cuda::copy_out(&context, &mut found, buffer.as_ptr().cast()) }
            .unwrap();
        let expected = (n * (n + 1) / 2) as i32;
        assert!(found.chunks(4).all(|found| found == expected.to_ne_bytes()));
    };
    sum(&mut comm);
    let of_ring = (comm.memory().staging_bytes, registered());
    // Until here the others have made no other call. A barrier may use more links.
    sum(&mut comm);
    comm.set_pin(Pin { algorithm: Some(Algorithm::OneShot), ..Pin::default() }).unwrap();
    sum(&mut comm);
    let of_all = (comm.memory().staging_bytes, registered());
    // The ring has two neighbours; every other link has as much.
    let (link_bytes, links) = ((of_ring.0 - before.0) / 2, of_ring.1 - before.1);
    assert!(link_bytes > 0 && links == 2, "{before:?} {of_ring:?}");
    let others = n - 1 - links;
    assert_eq!(of_all, (of_ring.0 + others * link_bytes, of_ring.1 + others));
}

/// Two communicators whose kernels do not fit at once, and come to a GPU the other way round than
/// to the other: their calls take turns.
pub(crate) fn crowded(comm: Communicator) {
    let (rank, context) = (comm.rank(), comm.context().unwrap());
    let part = comm.split(Some(0), 0).unwrap().unwrap();
    let (late, soon) = (stream(&comm), stream(&part));
    let word = oxccl_transports::cuda::PinnedMemory::allocate(&context, 8).unwrap();
    // SAFETY: pinned, aligned, and alive until the streams have ended.
    let mark = unsafe { std::sync::atomic::AtomicU64::from_ptr(word.as_ptr().cast()) };
    let mut buffers = [comm.alloc::<i32>(100_000).unwrap(), comm.alloc::<i32>(100_000).unwrap()];
    for round in 1..4u64 {
        let own = (rank as i32 + 1).to_ne_bytes().repeat(buffers[0].len());
        for buffer in &buffers {
            // SAFETY: it is as long, and no call uses it.
            unsafe { oxccl_transports::cuda::copy_in(&context, buffer.as_ptr().cast(), &own) }
                .unwrap();
        }
        line_up();
        if rank == 1 {
            // SAFETY: the word outlives the streams' work.
            unsafe { late.wait_value(word.device_ptr().cast(), round) }.unwrap();
        }
        let [first, second] = &mut buffers;
        let first = comm.on(&late).all_reduce_in_place(first, ReduceOp::Sum).unwrap();
        let second = part.on(&soon).all_reduce_in_place(second, ReduceOp::Sum).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        mark.store(round, std::sync::atomic::Ordering::Release);
        first.wait().unwrap();
        second.wait().unwrap();
        for buffer in &buffers {
            let mut found = vec![0; own.len()];
            // SAFETY: as above.
            unsafe {
                oxccl_transports::cuda::copy_out(&context, &mut found, buffer.as_ptr().cast())
            }
            .unwrap();
            assert!(found.chunks(4).all(|found| found == 3i32.to_ne_bytes()));
        }
    }
}

/// Ranks of a process that launch by themselves cannot take turns: a communicator that would have
/// them do so is refused, and the others go on.
pub(crate) fn too_crowded(comm: Communicator) {
    // The other rank may only hear that.
    let refused = comm.split(Some(0), 0).map(drop).unwrap_err().to_string();
    assert!(refused.contains("thread blocks at once"), "{refused}");
    comm.barrier().unwrap();
}
