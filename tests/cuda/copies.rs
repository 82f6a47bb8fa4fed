//! Calls that copy engines carry out (`OXCCL_ZERO_SM=1`): results, beside kernels, in graphs, in
//! parts; and how those end that cannot be done.

use crate::calls::stream;
use crate::common::Rng;
use crate::ends::{DONE, stay_away};
use crate::processes::{deadline, die, is_local, line_up, on_hardware};
use oxccl::cuda::{CaptureMode, Graph, Stream};
use oxccl::{Collectives, Communicator, DeviceBuffer, DeviceSlice, Error, ReduceOp};
use oxccl_cuda_stand_in::control::Control;
use oxccl_transports::cuda::{DeviceMemory, copy_in, copy_out};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const POISON: u32 = 0xdead_beef;

/// What rank `rank` has at `at` of its input.
fn value(seed: u64, rank: usize, at: usize) -> u32 {
    (Rng(seed ^ (rank as u64) << 40 ^ at as u64).next() >> 16) as u32
}

fn values(seed: u64, rank: usize, count: usize) -> Vec<u32> {
    (0..count).map(|at| value(seed, rank, at)).collect()
}

fn found(buffer: &DeviceBuffer<u32>) -> Vec<u32> {
    let mut found = vec![0; buffer.len()];
    buffer.read(&mut found).unwrap();
    found
}

/// A part of a buffer, which is used until the work with it has ended, and by nobody else.
fn part(buffer: &DeviceBuffer<u32>, range: Range<usize>) -> DeviceSlice<u32> {
    assert!(range.end <= buffer.len());
    // SAFETY: within the buffer, whose works are waited for before it is looked at.
    unsafe { DeviceSlice::from_raw_parts(buffer.as_ptr().add(range.start), range.len()) }
}

/// Writes a part of a buffer.
fn put(buffer: &mut DeviceBuffer<u32>, start: usize, values: &[u32]) {
    let mut all = found(buffer);
    all[start..start + values.len()].copy_from_slice(values);
    buffer.write(&all).unwrap();
}

/// Two buffers that all ranks allocate alike, and a stream.
struct Rank<'a> {
    comm: &'a Communicator,
    stream: &'a Stream,
    count: usize,
    input: DeviceBuffer<u32>,
    output: DeviceBuffer<u32>,
}

impl Rank<'_> {
    fn new<'a>(comm: &'a Communicator, stream: &'a Stream, count: usize) -> Rank<'a> {
        let all = count * comm.world_size();
        let (input, output) = (comm.alloc(all).unwrap(), comm.alloc(all).unwrap());
        Rank { comm, stream, count, input, output }
    }

    fn fill(&mut self, seed: u64, len: usize) {
        let poison = vec![POISON; self.input.len()];
        self.input.write(&poison).unwrap();
        self.output.write(&poison).unwrap();
        put(&mut self.input, 0, &values(seed, self.comm.rank(), len));
    }

    /// Every call once, out of place and in place, of every root.
    fn check(&mut self, rng: &mut Rng) {
        let (rank, n, count) = (self.comm.rank(), self.comm.world_size(), self.count);
        let gathered =
            |seed| -> Vec<u32> { (0..n).flat_map(|of| values(seed, of, count)).collect() };

        let seed = rng.next();
        self.fill(seed, count);
        let on = self.comm.on(self.stream);
        let input = part(&self.input, 0..count);
        on.all_gather(&input, &mut self.output).unwrap().wait().unwrap();
        assert_eq!(found(&self.output), gathered(seed));
        assert_eq!(found(&self.input)[..count], values(seed, rank, count), "the input stays");

        let seed = rng.next();
        self.fill(seed, 0);
        put(&mut self.output, rank * count, &values(seed, rank, count));
        self.comm.on(self.stream).all_gather_in_place(&mut self.output).unwrap().wait().unwrap();
        assert_eq!(found(&self.output), gathered(seed));

        let seed = rng.next();
        self.fill(seed, n * count);
        let on = self.comm.on(self.stream);
        on.all_to_all(&self.input, &mut self.output).unwrap().wait().unwrap();
        let expected: Vec<u32> = (0..n)
            .flat_map(|of| (0..count).map(move |at| value(seed, of, rank * count + at)))
            .collect();
        assert_eq!(found(&self.output), expected);

        for root in 0..n {
            self.rooted(rng.next(), root);
        }
    }

    fn rooted(&mut self, seed: u64, root: usize) {
        let (rank, n, count) = (self.comm.rank(), self.comm.world_size(), self.count);
        self.fill(seed, count);
        let on = self.comm.on(self.stream);
        on.broadcast_in_place(&mut self.input, root).unwrap().wait().unwrap();
        let mut expected = vec![POISON; n * count];
        expected[..count].copy_from_slice(&values(seed, root, count));
        assert_eq!(found(&self.input), expected);

        self.fill(seed, count);
        let (input, on) = (part(&self.input, 0..count), self.comm.on(self.stream));
        on.gather(&input, &mut self.output, root).unwrap().wait().unwrap();
        let gathered: Vec<u32> = (0..n).flat_map(|of| values(seed, of, count)).collect();
        let expected = if rank == root { gathered.clone() } else { vec![POISON; n * count] };
        assert_eq!(found(&self.output), expected);

        // In place: the root has all, the others their part at the same place.
        self.fill(seed, 0);
        let at = if rank == root { root * count } else { 0 };
        put(&mut self.output, at, &values(seed, rank, count));
        let len = if rank == root { n * count } else { count };
        let mut buffer = part(&self.output, 0..len);
        let on = self.comm.on(self.stream);
        on.gather_in_place(&mut buffer, root).unwrap().wait().unwrap();
        if rank == root {
            assert_eq!(found(&self.output), gathered);
        } else {
            assert_eq!(found(&self.output)[..count], values(seed, rank, count));
        }

        self.fill(seed, n * count);
        let mut buffer = part(&self.input, 0..len);
        let on = self.comm.on(self.stream);
        on.scatter_in_place(&mut buffer, root).unwrap().wait().unwrap();
        let sent = values(seed, root, n * count);
        if rank == root {
            assert_eq!(found(&self.input), sent, "a root's buffer stays");
        } else {
            let expected = &sent[rank * count..(rank + 1) * count];
            assert_eq!(found(&self.input)[..count], *expected);
            assert_eq!(found(&self.input)[count..], values(seed, rank, n * count)[count..]);
        }
    }
}

/// All calls that copy engines carry out, for short buffers and long ones: no kernel is launched.
pub(crate) fn all(comm: Communicator) {
    let stream = stream(&comm);
    let mut rng = Rng(7);
    comm.barrier().unwrap();
    let control = (!on_hardware()).then(|| Control::attach().unwrap());
    let before = control.as_ref().map(Control::launches);
    for count in [1, 3, 1_000, 40_001] {
        Rank::new(&comm, &stream, count).check(&mut rng);
    }
    uneven(&comm, &stream, &mut rng);
    if is_local() {
        line_up();
    }
    // Of one process all launches are counted.
    assert_eq!(control.as_ref().map(Control::launches), before, "a kernel was launched");
    if is_local() {
        line_up();
    }
    comm.barrier().unwrap();
}

/// Parts of different lengths; where a rank has nothing, kernels do it.
fn uneven(comm: &Communicator, stream: &Stream, rng: &mut Rng) {
    let (rank, n) = (comm.rank(), comm.world_size());
    let counts: Vec<usize> = (0..n).map(|of| 5 + 700 * of).collect();
    let total: usize = counts.iter().sum();
    let start: usize = counts[..rank].iter().sum();
    let (mut input, mut output) = (comm.alloc(total).unwrap(), comm.alloc(total).unwrap());
    let seed = rng.next();
    let expected: Vec<u32> = (0..n).flat_map(|of| values(seed, of, counts[of])).collect();
    put(&mut input, 0, &values(seed, rank, counts[rank]));
    output.write(&vec![POISON; total]).unwrap();
    let own = part(&input, 0..counts[rank]);
    comm.on(stream).all_gather_v(&own, &mut output, &counts).unwrap().wait().unwrap();
    assert_eq!(found(&output), expected);
    output.write(&vec![POISON; total]).unwrap();
    put(&mut output, start, &values(seed, rank, counts[rank]));
    comm.on(stream).all_gather_v_in_place(&mut output, &counts).unwrap().wait().unwrap();
    assert_eq!(found(&output), expected);
}

/// Calls of copy engines and of kernels follow one another, in one stream and over two, and nobody
/// waits for the host between them.
pub(crate) fn beside_kernels(comm: Communicator) {
    let (rank, n) = (comm.rank(), comm.world_size());
    let streams = [stream(&comm), stream(&comm)];
    let mut sums = comm.alloc::<f32>(1000).unwrap();
    let mut all = comm.alloc::<f32>(1000 * n).unwrap();
    let mut rng = Rng(3);
    for _ in 0..20 {
        sums.write(&[rank as f32; 1000]).unwrap();
        let mut factor = 1.0;
        for _ in 0..6 {
            let on = comm.on(&streams[rng.next() as usize % 2]);
            let _ = on.all_reduce_in_place(&mut sums, ReduceOp::Sum).unwrap();
            let on = comm.on(&streams[rng.next() as usize % 2]);
            let _ = on.all_gather(&sums, &mut all).unwrap();
            factor *= n as f32;
        }
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        let expected = factor / n as f32 * (0..n).sum::<usize>() as f32;
        let mut found = vec![0.0; 1000 * n];
        all.read(&mut found).unwrap();
        assert!(found.iter().all(|found| *found == expected), "{} {expected}", found[0]);
    }
    comm.barrier().unwrap();
}

/// Replays of a graph of both, beside calls that come between them.
pub(crate) fn captured(comm: Communicator) {
    let (rank, n, stream) = (comm.rank(), comm.world_size(), stream(&comm));
    let mut own = comm.alloc::<u32>(3_000).unwrap();
    let mut all = comm.alloc::<u32>(3_000 * n).unwrap();
    let graph = Graph::capture(&stream, CaptureMode::ThreadLocal, || {
        let on = comm.on(&stream);
        let _ = on.all_gather(&own, &mut all)?;
        let _ = on.all_reduce_in_place(&mut all, ReduceOp::Max)?;
        let _ = on.broadcast_in_place(&mut all, n - 1)?;
        Ok::<(), Error>(())
    });
    let graph = graph.unwrap();
    if is_local() {
        line_up();
    }
    for round in 0..5 {
        own.write(&values(round, rank, 3_000)).unwrap();
        // SAFETY: buffers and communicator live.
        unsafe { graph.launch(&stream) }.unwrap();
        stream.synchronize().unwrap();
        let expected: Vec<u32> = (0..n).flat_map(|of| values(round, of, 3_000)).collect();
        assert_eq!(found(&all), expected);
        Rank::new(&comm, &stream, 100).check(&mut Rng(round));
    }
    comm.barrier().unwrap();
}

/// In parts of the ranks, whose memory is the whole's.
pub(crate) fn of_parts(comm: Communicator) {
    let part = comm.split(Some((comm.rank() % 2) as u32), 0).unwrap().unwrap();
    let on = stream(&part);
    let mut outer = Rank::new(&comm, &on, 500);
    if part.world_size() > 1 {
        Rank::new(&part, &on, 500).check(&mut Rng(11));
    }
    outer.check(&mut Rng(12));
    drop(outer);
    part.close().unwrap();
    comm.close().unwrap();
}

/// What another library has allocated, and the ranks have registered, each at an address of its
/// own: peers read it at the same place of it. What they write may lie anywhere.
pub(crate) fn registered(comm: Communicator) {
    const COUNT: usize = 3_000;
    let (rank, n, stream) = (comm.rank(), comm.world_size(), stream(&comm));
    let context = comm.context().unwrap();
    let allocate = |bytes| DeviceMemory::allocate(&context, bytes).unwrap();
    let _before = (rank == 1).then(|| allocate(8 << 20));
    let (theirs, private) = (allocate(4 << 20), allocate(4 * COUNT * n));
    let registration = comm.register(theirs.as_ptr(), theirs.len_bytes()).unwrap();
    let slice = |of: &DeviceMemory, at: usize, len: usize| {
        // SAFETY: as long, and nobody else uses it until the works have ended.
        unsafe { DeviceSlice::<u32>::from_raw_parts(of.as_ptr().cast::<u32>().add(at), len) }
    };
    let write = |at: usize, values: &[u32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        // SAFETY: within it, and no call uses it.
        unsafe { copy_in(&context, theirs.as_ptr().wrapping_add(4 * at), &bytes) }.unwrap();
    };
    let read = |from: *mut u8, len: usize| -> Vec<u32> {
        let mut bytes = vec![0; 4 * len];
        // SAFETY: as above.
        unsafe { copy_out(&context, &mut bytes, from) }.unwrap();
        bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
    };
    comm.barrier().unwrap();
    let control = (!on_hardware()).then(|| Control::attach().unwrap());
    let before = control.as_ref().map(Control::launches);
    for round in 0..3 {
        let (seed, at) = (50 + round, 1_000 * round as usize + 7);
        write(at, &values(seed, rank, COUNT));
        let mut all = slice(&private, 0, COUNT * n);
        comm.on(&stream).all_gather(&slice(&theirs, at, COUNT), &mut all).unwrap().wait().unwrap();
        let expected: Vec<u32> = (0..n).flat_map(|of| values(seed, of, COUNT)).collect();
        assert_eq!(read(private.as_ptr(), COUNT * n), expected);
        // In place, from a place within it.
        write(at, &vec![POISON; COUNT * n]);
        write(at + rank * COUNT, &values(seed, rank, COUNT));
        let mut all = slice(&theirs, at, COUNT * n);
        comm.on(&stream).all_gather_in_place(&mut all).unwrap().wait().unwrap();
        assert_eq!(read(theirs.as_ptr().wrapping_add(4 * at), COUNT * n), expected);
        let root = round as usize % n;
        write(at, &values(seed + 100, rank, COUNT));
        let mut some = slice(&theirs, at, COUNT);
        comm.on(&stream).broadcast_in_place(&mut some, root).unwrap().wait().unwrap();
        let found = read(theirs.as_ptr().wrapping_add(4 * at), COUNT);
        assert_eq!(found, values(seed + 100, root, COUNT));
    }
    assert_eq!(control.as_ref().map(Control::launches), before, "a kernel was launched");
    comm.deregister(registration).unwrap();
    comm.barrier().unwrap();
}

/// Ranks whose buffers lie at different places of their heaps learn it.
pub(crate) fn elsewhere(comm: Communicator) {
    let (rank, stream) = (comm.rank(), stream(&comm));
    let _before = (rank == 1).then(|| comm.alloc::<u32>(4_000).unwrap());
    let mut buffer = comm.alloc::<u32>(2_000).unwrap();
    let untouched = values(1, rank, 2_000);
    buffer.write(&untouched).unwrap();
    let work = comm.on(&stream).broadcast_in_place(&mut buffer, 0).unwrap();
    match work.wait() {
        Err(Error::Mismatch { argument: "where peers read", call: 1, rank: other, .. }) => {
            assert_eq!(other, 1 - rank);
        }
        Err(Error::Stopped { .. }) => {}
        other => panic!("{other:?}"),
    }
    if rank == 0 {
        assert_eq!(found(&buffer), untouched, "a root's buffer stays");
    }
}

/// A rank whose buffer is no memory of its heap, so that a kernel would carry the call out, learns
/// it, and so do the others.
pub(crate) fn other_memory(mut comm: Communicator) {
    let (rank, n, stream) = (comm.rank(), comm.world_size(), stream(&comm));
    comm.set_timeout(Duration::from_millis(500)).unwrap();
    let context = comm.context().unwrap();
    let foreign = DeviceMemory::allocate(&context, 4_000).unwrap();
    let heap = comm.alloc::<u32>(1_000).unwrap();
    let mut all = comm.alloc::<u32>(1_000 * n).unwrap();
    // SAFETY: it is as long, and lives until the stream has ended.
    let foreign =
        unsafe { oxccl::DeviceSlice::<u32>::from_raw_parts(foreign.as_ptr().cast(), 1_000) };
    let on = comm.on(&stream);
    let made = match rank {
        0 => on.all_gather(&heap, &mut all),
        _ => on.all_gather(&foreign, &mut all),
    };
    match made.and_then(|work| work.wait()) {
        Err(Error::Mismatch { argument: "what moves the data", rank: other, .. }) => {
            assert_eq!(other, 1 - rank);
        }
        Err(Error::Stopped { .. }) => {}
        other => panic!("{other:?}"),
    }
    stream.synchronize().unwrap();
}

/// The ranks call for different counts.
pub(crate) fn mismatch(comm: Communicator) {
    let stream = stream(&comm);
    let buffer = comm.alloc::<u32>(2_000).unwrap();
    let begin = Instant::now();
    let mut some = part(&buffer, 0..1_000 + comm.rank());
    let work = comm.on(&stream).broadcast_in_place(&mut some, 1).unwrap();
    match work.wait() {
        Err(Error::Mismatch { argument: "count", call: 1, rank, .. }) => {
            assert_eq!(rank, 1 - comm.rank());
        }
        Err(Error::Stopped { .. }) => {}
        other => panic!("{other:?}"),
    }
    // Long before the time-out.
    assert!(begin.elapsed() < Duration::from_secs(100));
}

/// Ranks of one process that share a stream learn it: what one waits for would stand behind that.
pub(crate) fn one_stream(comm: Communicator) {
    static SHARED: Mutex<Option<usize>> = Mutex::new(None);
    comm.barrier().unwrap();
    let owned = (comm.rank() == 0).then(|| stream(&comm));
    if let Some(stream) = &owned {
        *SHARED.lock().unwrap() = Some(stream.raw() as usize);
    }
    line_up();
    let raw = SHARED.lock().unwrap().unwrap();
    // SAFETY: it is given back when both ranks are at the end.
    let shared = unsafe { Stream::foreign(&comm.context().unwrap(), raw as *mut _) }.unwrap();
    let mut buffer = comm.alloc::<u32>(2_000).unwrap();
    // One after the other they may use it.
    let other = stream(&comm);
    for user in [0, 1, 0] {
        let on = comm.on(if comm.rank() == user { &shared } else { &other });
        on.broadcast_in_place(&mut buffer, 0).unwrap().wait().unwrap();
        line_up();
    }
    // At most one of them is put in.
    let made = comm.on(&shared).broadcast_in_place(&mut buffer, 0);
    let told = made.as_ref().err().map(Error::to_string);
    assert!(
        told.as_ref().is_none_or(|told| told.contains("make a stream for each rank")),
        "{told:?}"
    );
    line_up();
    if told.is_some() {
        comm.handle().abort("so it is").unwrap();
    }
    line_up();
    let error = made.and_then(|work| work.wait()).unwrap_err();
    let stopped = matches!(error, Error::Stopped { .. } | Error::Broken { .. });
    assert!(stopped || told.is_some(), "{error:?}");
    drop((comm, shared));
    line_up();
}

/// Rank 1 does not come in time: nothing of what was put behind the call in the stream touches it.
pub(crate) fn late(mut comm: Communicator) {
    let stream = stream(&comm);
    let mut buffer = comm.alloc::<u32>(2_000).unwrap();
    buffer.write(&values(1, comm.rank(), 2_000)).unwrap();
    comm.barrier().unwrap();
    comm.set_timeout(Duration::from_millis(300)).unwrap();
    if comm.rank() == 0 {
        let made = |buffer: &mut DeviceBuffer<u32>| {
            comm.on(&stream).broadcast_in_place(buffer, 0).unwrap()
        };
        let works = [made(&mut buffer), made(&mut buffer), made(&mut buffer)];
        let mut errors = works.into_iter().map(|work| work.wait().unwrap_err());
        match errors.next() {
            Some(Error::TimedOut { detail, ranks, .. }) => {
                assert_eq!(ranks, [1]);
                assert!(detail.contains("rank 1 has not called broadcast"), "{detail}");
            }
            other => panic!("{other:?}"),
        }
        assert!(errors.all(|error| matches!(error, Error::Broken { .. })));
        stream.synchronize().unwrap();
        DONE.store(true, Ordering::Release);
    } else {
        stay_away();
        assert_eq!(found(&buffer), values(1, 1, 2_000), "nobody has written here");
        let error = comm.barrier();
        assert!(error.is_err(), "nobody comes");
    }
}

/// A replay waits for a rank that does not replay.
pub(crate) fn late_replay(mut comm: Communicator) {
    comm.set_timeout(Duration::from_millis(300)).unwrap();
    let stream = stream(&comm);
    let mut buffer = comm.alloc::<u32>(2_000).unwrap();
    let graph = Graph::capture(&stream, CaptureMode::ThreadLocal, || {
        let on = comm.on(&stream);
        let _ = on.broadcast_in_place(&mut buffer, 0)?;
        on.broadcast_in_place(&mut buffer, 1).map(drop)
    });
    let graph = graph.unwrap();
    line_up();
    comm.barrier().unwrap();
    if comm.rank() == 0 {
        // SAFETY: buffer and communicator live.
        unsafe { graph.launch(&stream) }.unwrap();
        stream.synchronize().unwrap();
        let error = comm.barrier().unwrap_err();
        let told = matches!(error, Error::TimedOut { .. } | Error::Broken { .. });
        assert!(told || matches!(error, Error::Stopped { rank: 0, .. }), "{error:?}");
        DONE.store(true, Ordering::Release);
    } else {
        stay_away();
        let error = (0..2).find_map(|_| comm.barrier().err());
        assert!(matches!(error, Some(Error::Stopped { rank: 0, .. })), "{error:?}");
    }
}

/// What a rank waits for is seen from outside, while its stream waits.
pub(crate) fn seen(comm: Communicator) {
    comm.barrier().unwrap();
    let stream = stream(&comm);
    let mut buffer = comm.alloc::<u32>(2_000).unwrap();
    if comm.rank() == 1 {
        stay_away();
    }
    let work = comm.on(&stream).broadcast_in_place(&mut buffer, 0).unwrap();
    if comm.rank() == 0 {
        let deadline = deadline();
        loop {
            let found = oxccl::status::of_process(std::process::id()).unwrap().ranks;
            let waits = &found[0].seen;
            if waits.waits.iter().any(|wait| wait.wait_for.peer() == Some(1)) {
                break;
            }
            assert!(Instant::now() < deadline, "{found:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        DONE.store(true, Ordering::Release);
    }
    work.wait().unwrap();
}

/// A process ends without a goodbye.
pub(crate) fn death(comm: Communicator) {
    let met = comm.barrier();
    if comm.rank() == 1 {
        met.unwrap();
        die();
    }
    if let Err(error) = met {
        // The other was faster.
        assert!(matches!(error, Error::Died { rank: 1, .. }), "{error:?}");
        return;
    }
    let stream = stream(&comm);
    let mut all = comm.alloc::<u32>(2_000 * comm.world_size()).unwrap();
    let work = comm.on(&stream).all_gather_in_place(&mut all).unwrap();
    let error = work.wait();
    assert!(matches!(error, Err(Error::Died { rank: 1, .. })), "{error:?}");
}

/// Another thread has enough while a stream waits.
pub(crate) fn aborted(comm: Communicator) {
    comm.barrier().unwrap();
    let handle = comm.handle();
    if comm.rank() == 1 {
        while handle.error().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
    } else {
        let stream = stream(&comm);
        let mut all = comm.alloc::<u32>(2_000 * comm.world_size()).unwrap();
        let work = comm.on(&stream).all_gather_in_place(&mut all).unwrap();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            let begin = Instant::now();
            handle.abort("it is enough").map(|()| begin)
        });
        let error = work.wait().unwrap_err();
        assert!(matches!(error, Error::Stopped { rank: 0, .. }), "{error:?}");
        thread.join().unwrap().unwrap();
    }
    assert!(comm.barrier().unwrap_err().to_string().contains("it is enough"));
}

/// Where ranks are on several nodes, or an algorithm is asked for, kernels do it.
pub(crate) fn by_kernels(mut comm: Communicator) {
    let stream = stream(&comm);
    comm.barrier().unwrap();
    let control = (!on_hardware()).then(|| Control::attach().unwrap());
    if comm.nodes() == 1 {
        let algorithm = Some(oxccl::plans::algorithms::Algorithm::Direct);
        comm.set_pin(oxccl::Pin { algorithm, ..oxccl::Pin::default() }).unwrap();
    }
    let mut all = comm.alloc::<u32>(1_000 * comm.world_size()).unwrap();
    let before = control.as_ref().map(Control::launches);
    comm.on(&stream).all_gather_in_place(&mut all).unwrap().wait().unwrap();
    let made = control.as_ref().map(Control::launches);
    assert!(made.is_none() || made > before, "no kernel was launched");
    comm.set_pin(oxccl::Pin::default()).unwrap();
    comm.barrier().unwrap();
}
