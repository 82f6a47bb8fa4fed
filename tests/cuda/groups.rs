//! Groups on GPUs: the same as their calls one by one, bit for bit, in one launch; done and ready
//! bucket by bucket; in graphs.

use crate::calls::stream;
use crate::common::Rng;
use crate::common::element::{TestElement, reduce_op};
use crate::processes::{die, is_local};
use oxccl::cuda::{CaptureMode, Graph, Stream};
use oxccl::plans::algorithms::{Algorithm, Encoding};
use oxccl::{
    Call, Collectives, Communicator, DeviceBuffer, Error, F8E4M3, Kind, Memory, OpKind, Order, Pin,
    ReduceOp, StreamGroup, Unready, Work, bf16, f16,
};
use oxccl_cuda_stand_in::control::Control;
use oxccl_transports::{CudaError, Error as Transport};
use std::time::Duration;

/// More than a part of a group, so that two of these are done one after the other.
const LARGE: usize = 4_200_000;

/// One bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) kind: Kind,
    pub(crate) of: Of,
    pub(crate) op: OpKind,
    pub(crate) count: usize,
    pub(crate) root: usize,
    pub(crate) in_place: bool,
    /// So many elements lie in front of its buffers, and behind them.
    pub(crate) shift: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Of {
    F32,
    F16,
    Bf16,
    I8,
    F64,
    F8,
}

fn random(rng: &mut Rng, ranks: usize, mixed: bool) -> Wanted {
    let kinds = [
        Kind::AllReduce,
        Kind::AllReduce,
        Kind::ReduceScatter,
        Kind::AllGather,
        Kind::AllToAll,
        Kind::Broadcast,
        Kind::Reduce,
        Kind::Gather,
        Kind::Scatter,
        Kind::Barrier,
    ];
    let types = [Of::F32, Of::Bf16, Of::I8, Of::F64, Of::F8];
    let ops = [OpKind::Sum, OpKind::Max, OpKind::Avg, OpKind::Prod, OpKind::PreMulSum];
    let mut pick = |count: usize| rng.next() as usize % count;
    let (kind, root) = (kinds[pick(kinds.len())], pick(ranks));
    let count = [0, 1 + pick(40), 40 + pick(1500)][pick(3)];
    let (of, op) = if mixed { (types[pick(5)], ops[pick(5)]) } else { (Of::F32, OpKind::Sum) };
    // What is no number need not have the same bits.
    let op = if op == OpKind::Prod && !matches!(of, Of::I8) { OpKind::Min } else { op };
    Wanted { kind, of, op, count, root, in_place: false, shift: 0 }
}

/// A bucket's buffers, and its call over them.
pub(crate) struct Bucket {
    input: DeviceBuffer<u8>,
    output: DeviceBuffer<u8>,
    call: Call<'static>,
}

impl Bucket {
    fn new(comm: &Communicator, wanted: &Wanted, seed: u64) -> Bucket {
        match wanted.of {
            Of::F32 => Bucket::of::<f32>(comm, wanted, seed),
            Of::F16 => Bucket::of::<f16>(comm, wanted, seed),
            Of::Bf16 => Bucket::of::<bf16>(comm, wanted, seed),
            Of::I8 => Bucket::of::<i8>(comm, wanted, seed),
            Of::F64 => Bucket::of::<f64>(comm, wanted, seed),
            Of::F8 => Bucket::of::<F8E4M3>(comm, wanted, seed),
        }
    }

    fn of<T: TestElement>(comm: &Communicator, wanted: &Wanted, seed: u64) -> Bucket {
        let (n, rank, count) = (comm.world_size(), comm.rank(), wanted.count);
        let (input_len, output_len) = match wanted.kind {
            Kind::Barrier => (0, 0),
            Kind::AllGather | Kind::Gather => (count, count * n),
            Kind::ReduceScatter | Kind::Scatter => (count * n, count),
            Kind::AllToAll => (count * n, count * n),
            _ => (count, count),
        };
        let (size, shift) = (size_of::<T>(), wanted.shift * size_of::<T>());
        let mut input = comm.alloc::<u8>(input_len * size + 2 * shift).unwrap();
        let mut output = comm.alloc::<u8>(output_len * size + 2 * shift).unwrap();
        let mut rng = Rng(seed.wrapping_mul(2 * rank as u64 + 3));
        let bytes = |value: T| value.bits().to_ne_bytes().into_iter().take(size_of::<T>());
        let values = (0..input.len() / size).flat_map(|_| bytes(T::from_random(rng.next())));
        let values = values.collect::<Vec<u8>>();
        input.write(&values).unwrap();
        let memory = |buffer: &DeviceBuffer<u8>, count| {
            let address = buffer.as_ptr().wrapping_add(shift);
            Memory { address, count }
        };
        let (mut from, to) = (memory(&input, input_len), memory(&output, output_len));
        if wanted.in_place {
            output.write(&values).unwrap();
            from = to;
        } else {
            output.write(&vec![0xee; output.len()]).unwrap();
        }
        let op = reduce_op::<T>(wanted.op, &mut Rng(seed));
        let call = Call::of(wanted.kind, T::DATA_TYPE, from, to).reduce_op(op);
        let call = if wanted.kind.is_rooted() { call.root(wanted.root) } else { call };
        Bucket { input, output, call }
    }

    pub(crate) fn read(&self) -> [Vec<u8>; 2] {
        [&self.input, &self.output].map(|buffer| {
            let mut found = vec![0; buffer.len()];
            buffer.read(&mut found).unwrap();
            found
        })
    }
}

pub(crate) fn buckets(comm: &Communicator, wanted: &[Wanted]) -> Vec<Bucket> {
    let bucket = |(at, wanted)| Bucket::new(comm, wanted, at as u64 * 77 + 5);
    wanted.iter().enumerate().map(bucket).collect()
}

/// Their calls as one group. The buffers live, and nobody else uses them, until the work has ended.
pub(crate) fn launch(comm: &Communicator, stream: &Stream, buckets: &[Bucket]) -> Work {
    let fill = |group: &mut StreamGroup<'_>| {
        // SAFETY: the buffers live until the group is done, and nobody else uses them.
        buckets.iter().try_for_each(|bucket| unsafe { group.run(bucket.call) }.map(drop))
    };
    comm.on(stream).group(fill).unwrap().0
}

/// Random groups against their calls one by one. The second launch has other buffers, the third the
/// same once more.
pub(crate) fn random_groups(mut comm: Communicator) {
    comm.set_order(Order::Rank).unwrap();
    let (streams, n) = ([stream(&comm), stream(&comm)], comm.world_size());
    for seed in 0..8u64 {
        let mut rng = Rng(seed * 1000 + 1);
        let len = [1, 3, 20, 60][seed as usize % 4];
        let wanted: Vec<Wanted> = (0..len).map(|_| random(&mut rng, n, seed % 2 == 1)).collect();
        let expected = buckets(&comm, &wanted);
        for bucket in &expected {
            // SAFETY: the buffers live until the call is done, and nobody else uses them.
            unsafe { comm.on(&streams[0]).run(bucket.call) }.and_then(|work| work.wait()).unwrap();
        }
        let plans = comm.plans();
        let mut found = buckets(&comm, &wanted);
        for turn in 0..3 {
            if turn == 1 {
                found = buckets(&comm, &wanted);
            }
            let launches = comm.launches();
            launch(&comm, &streams[turn % 2], &found).wait().unwrap();
            assert_eq!(comm.launches(), launches + 1, "one launch, whatever the number of buckets");
            assert_eq!(comm.plans(), plans + 1, "planned once");
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(
                    found.read(),
                    expected.read(),
                    "seed {seed}, bucket {at}: {:?}",
                    wanted[at]
                );
            }
        }
    }
    comm.barrier().unwrap();
}

/// Groups of so many ranks that the operands of a move leave no room for those of its pieces: in
/// place, and by messages with flags.
pub(crate) fn of_many(mut comm: Communicator) {
    let (stream, rank, n) = (stream(&comm), comm.rank(), comm.world_size());
    for (algorithm, encoding) in
        [(Algorithm::TwoShotPush, Encoding::Windows), (Algorithm::TwoShot, Encoding::Ll)]
    {
        let (algorithm, encoding) = (Some(algorithm), Some(encoding));
        comm.set_pin(Pin { algorithm, encoding, channels: Some(1) }).unwrap();
        let counts = [3, 700, 40];
        let mut buckets = counts.map(|count| filled(&comm, count, rank as i32));
        let works = comm.on(&stream).group(|group| {
            buckets
                .iter_mut()
                .try_for_each(|bucket| group.all_reduce_in_place(bucket, ReduceOp::Sum).map(drop))
        });
        works.unwrap().0.wait().unwrap();
        buckets.iter().for_each(|bucket| expect(bucket, (0..n as i32).sum::<i32>()));
    }
    comm.barrier().unwrap();
}

/// A group is one kernel, whatever it is made of; and once its tables are there, nothing else.
pub(crate) fn one_kernel(comm: Communicator) {
    let control = Control::attach().unwrap();
    let (stream, n) = (stream(&comm), comm.world_size());
    let mut rng = Rng(9);
    let wanted: Vec<Wanted> = (0..40).map(|_| random(&mut rng, n, true)).collect();
    let buckets = buckets(&comm, &wanted);
    let launch = || launch(&comm, &stream, &buckets);
    // What is needed once is made: for more at once than there are later, whatever the thread that
    // sees them through is kept from.
    let works = [(); 4].map(|()| launch());
    works.into_iter().for_each(|work| work.wait().unwrap());
    let (live, before) = (control.live(), control.launches());
    for _ in 0..5 {
        launch().wait().unwrap();
    }
    assert_eq!(control.launches() - before, 5, "one kernel each");
    assert_eq!(control.live(), live, "nothing is allocated");
    assert_eq!(comm.plans(), 1);
}

fn filled<T: oxccl::Element>(comm: &Communicator, count: usize, value: T) -> DeviceBuffer<T> {
    let mut buffer = comm.alloc::<T>(count).unwrap();
    buffer.write(&vec![value; count]).unwrap();
    buffer
}

fn expect<T: oxccl::Element + PartialEq + std::fmt::Debug>(buffer: &DeviceBuffer<T>, value: T) {
    let mut found = vec![value; buffer.len()];
    buffer.read(&mut found).unwrap();
    assert!(found.iter().all(|found| *found == value), "{:?}, not {value:?}", found.first());
}

/// Whether a stream was not let wait, since it might have kept back marks.
fn few_connections(waits: Result<(), Error>) -> bool {
    match waits {
        Ok(()) => false,
        Err(Error::Transport(Transport::Cuda(CudaError::TooFewConnections {
            streams,
            connections,
        }))) => {
            assert!(
                streams > connections
                    && connections == crate::calls::config().advanced.cuda_connections
            );
            true
        }
        Err(error) => panic!("{error}"),
    }
}

/// Has a stream wait for a bucket whose mark this rank has made, and waits for that; by the host
/// where other ranks of the process might have to get their marks past that stream.
fn await_on(comm: &Communicator, bucket: &Work, stream: &Stream) {
    if few_connections(bucket.wait_on(stream)) {
        assert!(is_local(), "rank {}'s marks are on their way", comm.rank());
        bucket.wait().unwrap();
    }
    stream.synchronize().unwrap();
}

/// Buckets that become ready one after the other, marked by the host and by a stream, and are used
/// while others are not ready.
pub(crate) fn bucket_by_bucket(comm: Communicator) {
    let [stream, marks, other] = [(); 3].map(|()| crate::calls::stream(&comm));
    let n = comm.world_size() as f32;
    let [mut first, mut second, mut third] = [(); 3].map(|()| filled(&comm, LARGE, 0f32));
    let mut sums = comm.alloc::<f32>(LARGE).unwrap();
    for round in 1..=3 {
        let [mut one, mut two, mut three] = [&mut first, &mut second, &mut third].map(Unready::new);
        let launched = comm.on(&stream).group(|group| {
            group.all_reduce_in_place(&mut one, ReduceOp::Sum)?;
            group.all_reduce(&two, &mut sums, ReduceOp::Sum)?;
            group.all_reduce_in_place(&mut three, ReduceOp::Max)
        });
        let (work, _) = launched.unwrap();
        let [first, second, third] = [0, 1, 2].map(|at| work.bucket(at).unwrap());
        assert!(work.bucket(3).is_none());
        assert!(first.wait_timeout(Duration::from_millis(10)).is_none());
        one.write(&vec![round as f32; LARGE]).unwrap();
        one.ready();
        first.wait().unwrap();
        assert!(!second.is_done() && !third.is_done() && !work.is_done());
        two.write(&vec![1.0; LARGE]).unwrap();
        two.ready_on(&marks).unwrap();
        // Another stream waits for the second bucket alone.
        await_on(&comm, &second, &other);
        assert!(second.is_done() && !third.is_done());
        three.write(&vec![round as f32 + 5.0; LARGE]).unwrap();
        three.ready_on(&marks).unwrap();
        if few_connections(work.wait_on(&other)) {
            assert!(is_local(), "all is marked here");
        }
        other.synchronize().unwrap();
        third.wait().unwrap();
        work.wait().unwrap();
    }
    expect(&first, 3.0 * n);
    expect(&sums, n);
    expect(&third, 8.0);
    assert_eq!(comm.plans(), 1);
    comm.barrier().unwrap();
}

/// More buckets than a block has threads, and few, which have a kernel of their schedule: written
/// and marked in any order.
pub(crate) fn marked_in_any_order(comm: Communicator) {
    let (stream, n) = (stream(&comm), comm.world_size() as i32);
    for (turn, len) in [600, 30, 600, 30].into_iter().enumerate() {
        let mut rng = Rng(turn as u64 * 31 + comm.rank() as u64);
        let mut buffers: Vec<_> = (0..len).map(|at| filled(&comm, 1 + at % 5, -1)).collect();
        let mut late: Vec<_> = buffers.iter_mut().map(Unready::new).collect();
        let works = comm.on(&stream).group(|group| {
            late.iter_mut()
                .try_for_each(|late| group.all_reduce_in_place(late, ReduceOp::Sum).map(drop))
        });
        let (work, ()) = works.unwrap();
        let mut late: Vec<_> = late.into_iter().enumerate().collect();
        while !late.is_empty() {
            // Backwards, as gradients come, and out of the middle.
            let next = if turn < 2 { late.len() - 1 } else { rng.next() as usize % late.len() };
            let (at, mut marked) = late.swap_remove(next);
            marked.write(&vec![at as i32; 1 + at % 5]).unwrap();
            marked.ready();
        }
        work.wait().unwrap();
        buffers.iter().enumerate().for_each(|(at, buffer)| expect(buffer, at as i32 * n));
    }
    comm.barrier().unwrap();
}

/// A bucket that is done is the host's, though the group goes on.
pub(crate) fn done_is_done(comm: Communicator) {
    let stream = stream(&comm);
    let [mut first, mut second] = [(); 2].map(|()| filled(&comm, LARGE, 1i32));
    let mut late = Unready::new(&mut second);
    let (work, _) = comm
        .on(&stream)
        .group(|group| {
            group.all_reduce_in_place(&mut first, ReduceOp::Sum)?;
            group.all_reduce_in_place(&mut late, ReduceOp::Sum)
        })
        .unwrap();
    work.bucket(0).unwrap().wait().unwrap();
    assert!(!work.is_done());
    late.ready();
    expect(&first, comm.world_size() as i32);
    work.wait().unwrap();
    expect(&second, comm.world_size() as i32);
    comm.barrier().unwrap();
}

/// One connection for all streams: what would keep back a mark is refused, and possible once the
/// mark is made.
pub(crate) fn kept_back(comm: Communicator) {
    let [stream, other] = [(); 2].map(|()| crate::calls::stream(&comm));
    let mut buffer = filled(&comm, LARGE, 1f32);
    for _ in 0..3 {
        let mut late = Unready::new(&mut buffer);
        let (work, _) = comm
            .on(&stream)
            .group(|group| group.all_reduce_in_place(&mut late, ReduceOp::Sum))
            .unwrap();
        let bucket = work.bucket(0).unwrap();
        assert!(few_connections(bucket.wait_on(&other)) && few_connections(work.wait_on(&other)));
        assert!(few_connections(comm.barrier()));
        assert!(few_connections(comm.on(&stream).barrier().map(drop)));
        late.ready_on(&other).unwrap();
        bucket.wait_on(&other).unwrap();
        work.wait_on(&other).unwrap();
        let _ = comm.on(&other).barrier().unwrap();
        other.synchronize().unwrap();
        work.wait().unwrap();
    }
    comm.barrier().unwrap();
}

/// A bucket is never marked ready on rank 1: the time-out names it, and streams that wait for it go
/// on.
pub(crate) fn never_ready(mut comm: Communicator) {
    comm.set_timeout(Duration::from_millis(500)).unwrap();
    let [stream, other] = [(); 2].map(|()| crate::calls::stream(&comm));
    let [mut first, mut second] = [(); 2].map(|()| filled(&comm, LARGE, 1f32));
    let mut late = Unready::new(&mut second);
    let (work, _) = comm
        .on(&stream)
        .group(|group| {
            group.all_reduce_in_place(&mut first, ReduceOp::Sum)?;
            group.all_reduce_in_place(&mut late, ReduceOp::Sum)
        })
        .unwrap();
    let [first, second] = [0, 1].map(|at| work.bucket(at).unwrap());
    // It stands in front of the mark.
    few_connections(second.wait_on(&other));
    first.wait().unwrap();
    if comm.rank() != 1 {
        late.ready();
    }
    let error = work.wait().unwrap_err();
    let text = error.to_string();
    let named = text.contains("bucket 1 has not been marked ready on rank 1");
    assert!(named || matches!(error, Error::Stopped { .. }), "{text}");
    assert!(matches!(second.wait(), Err(Error::Broken { .. })), "it was never done");
    assert!(first.is_done() && !second.is_done());
    other.synchronize().unwrap();
}

/// Ranks make different groups: the first bucket that differs is named.
pub(crate) fn mismatch(comm: Communicator) {
    let stream = stream(&comm);
    let extra = usize::from(comm.rank() == 1);
    let mut buffers: Vec<_> =
        (0..5).map(|at| filled(&comm, 100 + if at == 3 { extra } else { 0 }, 1f32)).collect();
    let (work, ()) = comm
        .on(&stream)
        .group(|group| {
            for buffer in &mut buffers {
                group.all_reduce_in_place(buffer, ReduceOp::Sum)?;
            }
            Ok(())
        })
        .unwrap();
    match work.wait() {
        Err(Error::Mismatch { bucket: Some(3), argument: "count", .. } | Error::Stopped { .. }) => {
        }
        other => panic!("{other:?}"),
    }
}

/// A rank dies while others are in a group.
pub(crate) fn death(comm: Communicator) {
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        die();
    }
    let stream = stream(&comm);
    let mut buffer = filled(&comm, 3000, 1f32);
    let (work, _) = comm
        .on(&stream)
        .group(|group| group.all_reduce_in_place(&mut buffer, ReduceOp::Sum))
        .unwrap();
    let error = work.wait();
    assert!(matches!(error, Err(Error::Died { rank: 1, .. })), "{error:?}");
}

/// Uneven parts: from one rank to another.
fn uneven(from: usize, to: usize) -> usize {
    (from * 7 + to * 3) % 5 * 130
}

/// Messages of all kinds beside collectives: around the ring, both ways at once, to oneself, and
/// all-to-alls of uneven parts.
pub(crate) fn messages(comm: Communicator) {
    let (stream, n, rank) = (stream(&comm), comm.world_size(), comm.rank());
    let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
    let send_counts: Vec<usize> = (0..n).map(|peer| uneven(rank, peer)).collect();
    let recv_counts: Vec<usize> = (0..n).map(|peer| uneven(peer, rank)).collect();
    let parts: Vec<usize> = (0..n).map(|peer| uneven(peer, 1)).collect();
    for turn in 0..3u32 {
        let value = |from: usize, to: usize| (from * 10 + to) as u32 + turn * 1000;
        let own = filled(&comm, 2000, value(rank, next));
        let back = filled(&comm, 3, value(rank, previous));
        let mut sum = filled(&comm, 500, 1u32);
        let [mut from_previous, mut from_next] = [2000, 3].map(|len| filled(&comm, len, 0u32));
        let mut many = comm.alloc::<u32>(send_counts.iter().sum()).unwrap();
        let sent: Vec<u32> = (0..n).flat_map(|to| vec![value(rank, to); send_counts[to]]).collect();
        many.write(&sent).unwrap();
        let mut received = filled(&comm, recv_counts.iter().sum(), 0u32);
        let part = filled(&comm, parts[rank], value(rank, 0));
        let mut gathered = filled(&comm, parts.iter().sum(), 0u32);
        let all = filled(&comm, parts.iter().sum(), 2u32);
        let mut scattered = filled(&comm, parts[rank], 0u32);
        let (work, ()) = comm
            .on(&stream)
            .group(|group| {
                group.send(&own, next)?;
                group.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
                group.recv(&mut from_previous, previous)?;
                group.all_to_all_v(&many, &send_counts, &mut received, &recv_counts)?;
                group.recv(&mut from_next, next)?;
                group.all_gather_v(&part, &mut gathered, &parts)?;
                group.send(&back, previous)?;
                group.reduce_scatter_v(&all, &mut scattered, &parts, ReduceOp::Sum)?;
                Ok(())
            })
            .unwrap();
        work.bucket(3).unwrap().wait().unwrap();
        work.wait().unwrap();
        expect(&sum, n as u32);
        expect(&scattered, 2 * n as u32);
        let expect_parts = |buffer: &DeviceBuffer<u32>, expected: Vec<u32>| {
            let mut found = vec![0; buffer.len()];
            buffer.read(&mut found).unwrap();
            assert_eq!(found, expected);
        };
        let came = (0..n).flat_map(|from| vec![value(from, rank); recv_counts[from]]).collect();
        expect_parts(&received, came);
        let every = (0..n).flat_map(|from| vec![value(from, 0); parts[from]]).collect();
        expect_parts(&gathered, every);
        // With two ranks both neighbours are one, and messages come in order.
        expect(&from_previous, value(previous, rank));
        expect(&from_next, value(next, rank));
    }
    comm.barrier().unwrap();
}

/// A group in a graph: replayed with other values, waited for bucket by bucket and marked ready by
/// branches of the graph. Of one part, whose buckets are done when its kernel is, and of two.
pub(crate) fn captured(comm: Communicator) {
    for late_op in [ReduceOp::Sum, ReduceOp::Max] {
        captured_with(&comm, late_op);
    }
}

fn captured_with(comm: &Communicator, late_op: ReduceOp<f32>) {
    const COUNT: usize = 3000;
    let [stream, marks, other] = [(); 3].map(|()| crate::calls::stream(comm));
    let n = comm.world_size() as f32;
    let [mut first, mut second] = [(); 2].map(|()| filled(comm, COUNT, 0f32));
    let mut seen = filled(comm, COUNT, 0f32);
    let launches = comm.launches();
    let graph = Graph::capture(&stream, CaptureMode::ThreadLocal, || {
        let fork = oxccl::cuda::Event::new(&comm.context().unwrap())?;
        fork.record(&stream)?;
        fork.hold(&marks)?;
        let mut late = Unready::new(&mut second);
        let (work, _) = comm.on(&stream).group(|group| {
            group.all_reduce_in_place(&mut first, ReduceOp::Sum)?;
            group.all_reduce_in_place(&mut late, late_op)
        })?;
        assert!(work.is_done(), "nobody waits for what is only recorded");
        late.ready_on(&marks)?;
        let bucket = work.bucket(0).unwrap();
        assert_eq!(bucket.done_words().is_ok(), late_op == ReduceOp::Max);
        bucket.wait_on(&other)?;
        // SAFETY: both buffers outlive the graph.
        unsafe {
            let (to, from) = (seen.as_ptr().cast(), first.as_ptr().cast_const().cast());
            oxccl::cuda::copy(&other, to, from, COUNT * 4)
        }?;
        for joined in [&marks, &other] {
            let join = oxccl::cuda::Event::new(&comm.context().unwrap())?;
            join.record(joined)?;
            join.hold(&stream)?;
        }
        Ok::<(), Error>(())
    });
    let graph = graph.unwrap();
    assert_eq!(comm.launches(), launches, "nothing was called");
    crate::processes::line_up();
    for round in 1..4 {
        first.write(&[round as f32; COUNT]).unwrap();
        second.write(&[1.0; COUNT]).unwrap();
        seen.write(&[0.0; COUNT]).unwrap();
        // SAFETY: buffers and communicator live.
        unsafe { graph.launch(&stream) }.unwrap();
        stream.synchronize().unwrap();
        expect(&first, round as f32 * n);
        expect(&second, if late_op == ReduceOp::Sum { n } else { 1.0 });
        expect(&seen, round as f32 * n);
        let (work, _) = comm
            .on(&stream)
            .group(|group| {
                group.all_reduce_in_place(&mut first, ReduceOp::Max)?;
                group.all_reduce_in_place(&mut second, ReduceOp::Max)
            })
            .unwrap();
        work.wait().unwrap();
    }
    comm.barrier().unwrap();
}
