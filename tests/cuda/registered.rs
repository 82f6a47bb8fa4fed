//! Memory of other libraries in place, among processes: it is registered by all ranks or by none,
//! opened once, and never mistaken for other memory at its address.

use crate::calls::stream;
use crate::common::events::Events;
use crate::processes::{line_up, nothing_is_left};
use oxccl::cuda::{CaptureMode, Graph, Stream};
use oxccl::plans::algorithms::Encoding;
use oxccl::{
    Call, Collectives, Communicator, DataType, Error, Kind, Memory, OpKind, Pin, Registration,
};
use oxccl_cuda_stand_in::control::Control;
use oxccl_transports::cuda::{DeviceMemory, DeviceRegion, copy_in, copy_out};

const COUNT: usize = 3000;
/// Room for an input and an output, in a block that other allocations share.
const SHARED_BYTES: usize = 8 * COUNT + 4096;
/// The same in a block of its own.
const OWN_BYTES: usize = 2 << 20;

fn windows() -> Pin {
    Pin { encoding: Some(Encoding::Windows), ..Pin::default() }
}

/// Runs an all-reduce of this rank's `value` from one address to another, and checks the sum. False
/// if peers do not reach both.
fn all_reduce(
    comm: &Communicator,
    stream: &Stream,
    from: *mut u8,
    to: *mut u8,
    value: f32,
) -> bool {
    let context = comm.context().unwrap();
    let (rank, n) = (comm.rank() as f32, comm.world_size() as f32);
    let input: Vec<u8> =
        (0..COUNT).flat_map(|at| (value + rank + (at % 5) as f32).to_ne_bytes()).collect();
    // SAFETY: both have room, and no call uses them.
    unsafe {
        copy_in(&context, from, &input).unwrap();
        copy_in(&context, to, &vec![0xee; 4 * COUNT]).unwrap();
    }
    let memory = |address| Memory { address, count: COUNT };
    let call = Call::of(Kind::AllReduce, DataType::F32, memory(from), memory(to));
    // SAFETY: both live until the work has ended.
    match unsafe { comm.on(stream).run(call) }.and_then(|work| work.wait()) {
        Ok(()) => {}
        Err(Error::NoAlgorithm { .. }) => return false,
        Err(error) => panic!("{error}"),
    }
    let mut found = vec![0; 4 * COUNT];
    // SAFETY: as above.
    unsafe { copy_out(&context, &mut found, to) }.unwrap();
    for (at, found) in found.chunks(4).enumerate() {
        let expected = n * (value + (at % 5) as f32) + n * (n - 1.0) / 2.0;
        assert_eq!(f32::from_ne_bytes(found.try_into().unwrap()), expected, "element {at}");
    }
    true
}

/// A group of all-reduces, of each rank's `value`, in place in such memory: in three buckets that
/// begin and end anywhere. False if peers do not reach it.
fn grouped(comm: &Communicator, stream: &Stream, memory: *mut u8, value: f32) -> bool {
    const BUCKETS: [(usize, usize); 3] = [(0, 700), (701, 1), (1000, COUNT - 1000)];
    let (context, n) = (comm.context().unwrap(), comm.world_size() as f32);
    let values = (value + comm.rank() as f32).to_ne_bytes().repeat(COUNT);
    // SAFETY: it has room, and no call uses it.
    unsafe { copy_in(&context, memory, &values) }.unwrap();
    let call = |(at, count): (usize, usize)| {
        let bucket = Memory { address: memory.wrapping_add(4 * at), count };
        Call::of(Kind::AllReduce, DataType::F32, bucket, bucket)
    };
    let launched = comm.on(stream).group(|group| {
        // SAFETY: it lives until the work has ended.
        BUCKETS.into_iter().try_for_each(|at| unsafe { group.run(call(at)) }.map(drop))
    });
    match launched.and_then(|(work, ())| work.wait()) {
        Ok(()) => {}
        Err(Error::NoAlgorithm { .. }) => return false,
        Err(error) => panic!("{error}"),
    }
    let mut found = vec![0; 4 * COUNT];
    // SAFETY: as above.
    unsafe { copy_out(&context, &mut found, memory) }.unwrap();
    for (at, found) in found.chunks(4).enumerate() {
        let in_bucket = BUCKETS.iter().any(|(start, count)| (*start..start + count).contains(&at));
        let sum = n * value + n * (n - 1.0) / 2.0;
        let expected = if in_bucket { sum } else { value + comm.rank() as f32 };
        assert_eq!(f32::from_ne_bytes(found.try_into().unwrap()), expected, "element {at}");
    }
    true
}

fn register(comm: &Communicator, memory: &DeviceMemory) -> Registration {
    // Anywhere in it: what is registered is the allocation.
    comm.register(memory.as_ptr().wrapping_add(100), 8).unwrap()
}

fn imported() -> usize {
    Control::attach().unwrap().live().imported
}

pub(crate) fn in_place(mut comm: Communicator) {
    let events = Events::collect();
    let (stream, context) = (stream(&comm), comm.context().unwrap());
    // So that an allocation is elsewhere in its block on every rank, and a buffer elsewhere in its
    // allocation.
    let in_front = DeviceMemory::allocate(&context, 1000 * (comm.rank() + 1)).unwrap();
    let start = 64 * comm.rank();
    let at = |memory: &DeviceMemory| memory.as_ptr().wrapping_add(start);
    let behind = |memory: &DeviceMemory| memory.as_ptr().wrapping_add(start + 4 * COUNT);
    let mut memory: Vec<DeviceMemory> = [SHARED_BYTES, SHARED_BYTES, OWN_BYTES]
        .map(|len_bytes| DeviceMemory::allocate(&context, len_bytes).unwrap())
        .into();
    let heap = comm.alloc::<f32>(COUNT).unwrap();
    let run = |comm: &Communicator, from, to, value| all_reduce(comm, &stream, from, to, value);
    assert!(run(&comm, at(&memory[0]), behind(&memory[0]), 1.0), "through slots");
    comm.set_pin(windows()).unwrap();
    assert!(!run(&comm, at(&memory[0]), behind(&memory[0]), 2.0), "not registered");
    assert!(!grouped(&comm, &stream, at(&memory[0]), 2.0), "not registered");
    let mut registrations: Vec<_> = memory.iter().map(|memory| register(&comm, memory)).collect();
    events.has(
        registrations.len(),
        "memory is registered",
        &["rank=", "address=0x", "len_bytes=8"],
    );
    let opened = imported();
    // Two allocations of each peer share a block.
    assert_eq!(opened, 2 * (comm.world_size() - 1));
    for memory in &memory {
        assert!(run(&comm, at(memory), behind(memory), 3.0));
        assert!(run(&comm, behind(memory), at(memory), 4.0));
        assert!(grouped(&comm, &stream, at(memory), 3.0));
        assert!(grouped(&comm, &stream, behind(memory), 4.0));
    }
    assert!(run(&comm, at(&memory[1]), behind(&memory[2]), 5.0), "two registrations");
    let (from, to) = match comm.rank() % 2 {
        0 => (heap.as_ptr().cast(), at(&memory[2])),
        _ => (at(&memory[2]), heap.as_ptr().cast()),
    };
    assert!(run(&comm, from, to, 6.0), "of the communicator and of another library");
    registrations.push(register(&comm, &memory[1]));
    registrations.push(comm.register(heap.as_ptr().cast(), 4).unwrap());
    registrations.push(comm.register(std::ptr::null(), 0).unwrap());
    assert_eq!(imported(), opened, "opened once");
    replay(&comm, &stream, at(&memory[2]));
    addresses_come_again(&comm, &stream, &mut memory);
    assert_eq!(imported(), opened, "what is gone is closed");
    for registration in registrations {
        comm.deregister(registration).unwrap();
    }
    assert!(!run(&comm, at(&memory[1]), behind(&memory[1]), 7.0), "not registered any more");
    comm.set_pin(Pin::default()).unwrap();
    assert!(run(&comm, at(&memory[1]), behind(&memory[1]), 8.0), "through slots");
    assert!(grouped(&comm, &stream, at(&memory[1]), 8.0), "through slots");
    drop((heap, stream, comm, memory, in_front, context));
    nothing_is_left();
}

fn replay(comm: &Communicator, stream: &Stream, buffer: *mut u8) {
    let memory = Memory { address: buffer, count: COUNT };
    let call = Call::of(Kind::AllReduce, DataType::F32, memory, memory).op(OpKind::Max);
    let graph = Graph::capture(stream, CaptureMode::ThreadLocal, || {
        // SAFETY: the buffer outlives the graph.
        unsafe { comm.on(stream).run(call) }.map(drop)
    });
    let graph = graph.unwrap();
    line_up();
    for round in 1..4u8 {
        let own = f32::from(round) + comm.rank() as f32;
        let context = comm.context().unwrap();
        // SAFETY: the buffer is as long; peers read it in replays alone, each of which all leave
        // together.
        unsafe {
            copy_in(&context, buffer, &own.to_ne_bytes().repeat(COUNT)).unwrap();
            graph.launch(stream).unwrap();
            stream.synchronize().unwrap();
            let mut found = vec![0; 4 * COUNT];
            copy_out(&context, &mut found, buffer).unwrap();
            let most = f32::from(round) + comm.world_size() as f32 - 1.0;
            assert!(found.chunks(4).all(|found| found == most.to_ne_bytes()));
        }
    }
}

/// Memory is freed without a word, and its address may come again: it is other memory.
fn addresses_come_again(comm: &Communicator, stream: &Stream, memory: &mut [DeviceMemory]) {
    let context = comm.context().unwrap();
    for (at, len_bytes) in [(0, SHARED_BYTES), (2, OWN_BYTES)] {
        let run = |memory: &DeviceMemory, value| {
            let (from, to) = (memory.as_ptr(), memory.as_ptr().wrapping_add(4 * COUNT));
            all_reduce(comm, stream, from, to, value)
        };
        assert!(grouped(comm, stream, memory[at].as_ptr(), 8.0));
        let before = memory[at].as_ptr();
        // A free one takes its place while it is freed.
        memory[at] = DeviceMemory::allocate(&context, 1).unwrap();
        memory[at] = DeviceMemory::allocate(&context, len_bytes).unwrap();
        // A long one's address is the system's choice.
        assert!(memory[at].as_ptr() == before || len_bytes == OWN_BYTES, "the address came again");
        assert!(!run(&memory[at], 9.0), "not registered");
        assert!(!grouped(comm, stream, memory[at].as_ptr(), 9.0), "not registered");
        drop(register(comm, &memory[at]));
        assert!(run(&memory[at], 10.0));
        assert!(grouped(comm, stream, memory[at].as_ptr(), 10.0), "its new number");
    }
}

/// What a communicator has registered its parts reach, made before or after; what a part has, only
/// its own.
pub(crate) fn in_parts(comm: Communicator) {
    let (stream, context, rank) = (stream(&comm), comm.context().unwrap(), comm.rank());
    let reaches = |comm: &mut Communicator, memory: &DeviceMemory, value| {
        comm.set_pin(windows()).unwrap();
        let (from, to) = (memory.as_ptr(), memory.as_ptr().wrapping_add(4 * COUNT));
        let is_reached = all_reduce(comm, &stream, from, to, value);
        comm.set_pin(Pin::default()).unwrap();
        is_reached
    };
    // Each in a block of its own.
    let allocate = |_| DeviceMemory::allocate(&context, OWN_BYTES).unwrap();
    let memory: Vec<DeviceMemory> = (0..4).map(allocate).collect();
    let [before, after, own, both] = [0, 1, 2, 3].map(|at: usize| &memory[at]);
    let mut whole = comm;
    let of_before = register(&whole, before);
    // The other way round, so that numbers and places differ.
    let mut part = whole.split(Some(rank as u32 % 2), -(rank as i64)).unwrap().unwrap();
    assert!(reaches(&mut part, before, 1.0));
    assert!(!reaches(&mut part, after, 2.0));
    let _of_after = register(&whole, after);
    assert!(reaches(&mut part, after, 3.0) && reaches(&mut whole, after, 3.0));
    let peers = whole.world_size() - 1;
    assert_eq!(imported(), 2 * peers);
    let _of_own = register(&part, own);
    assert!(reaches(&mut part, own, 4.0) && !reaches(&mut whole, own, 4.0));
    assert_eq!(imported(), 2 * peers + 1);
    assert_eq!((whole.memory().registrations, part.memory().registrations), (2, 3));
    let of_both = [register(&part, both), register(&whole, both)];
    assert_eq!(imported(), 3 * peers + 1, "opened once");
    let mut alone = part.split(Some(part.rank() as u32), 0).unwrap().unwrap();
    assert!(reaches(&mut alone, own, 5.0) && reaches(&mut alone, both, 5.0));
    let [in_part, in_whole] = of_both;
    whole.deregister(in_whole).unwrap();
    assert_eq!(imported(), 2 * peers + 2, "by those alone that have it in the part");
    assert!(reaches(&mut part, both, 6.0) && !reaches(&mut whole, both, 6.0));
    part.deregister(in_part).unwrap();
    assert!(!reaches(&mut part, both, 7.0));
    assert_eq!(imported(), 2 * peers + 1);
    // A number that has been used is another's.
    let mut fewer = whole.shrink(&[3]).map_err(|_| rank);
    let of_both = register(&part, both);
    if let Ok(fewer) = &mut fewer {
        assert!(reaches(fewer, before, 8.0) && !reaches(fewer, both, 8.0));
    }
    assert!(reaches(&mut part, both, 8.0));
    whole.deregister(of_before).unwrap();
    assert!(!reaches(&mut part, before, 9.0));
    part.deregister(of_both).unwrap();
    drop((fewer, alone));
    whole.close().unwrap();
    assert!(reaches(&mut part, after, 10.0) && reaches(&mut part, own, 10.0));
    // Of the whole's ranks only those of the part are left.
    assert_eq!(imported(), 2);
    part.close().unwrap();
    drop((stream, memory, context));
    nothing_is_left();
}

/// What one rank cannot register, or open, nobody has registered; the communicator stays usable.
pub(crate) fn by_all_or_none(mut comm: Communicator) {
    let control = Control::attach().unwrap();
    let (stream, context, rank) = (stream(&comm), comm.context().unwrap(), comm.rank());
    let memory = DeviceMemory::allocate(&context, SHARED_BYTES).unwrap();
    let (from, to) = (memory.as_ptr(), memory.as_ptr().wrapping_add(4 * COUNT));
    let virtual_memory = DeviceRegion::create(&context, OWN_BYTES).unwrap();
    let host = [0u8; 64];
    let (last, good) = (comm.world_size() - 1, (from.cast_const(), SHARED_BYTES));
    let bad = [
        (1, (host.as_ptr(), host.len()), "host memory"),
        (0, (virtual_memory.as_ptr().cast_const(), OWN_BYTES), "virtual-memory API"),
        (last, (from.cast_const(), SHARED_BYTES + 1), "by 1"),
    ];
    let refused = |culprit: usize, text: &str, registered: Result<Registration, Error>| {
        match registered {
            Err(Error::NotRegistered { rank, reason }) => {
                assert_eq!(rank, culprit, "{reason}");
                assert!(reason.contains(text), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(control.live().imported, 0);
    };
    for (culprit, memory, text) in bad {
        let (address, len_bytes) = if rank == culprit { memory } else { good };
        refused(culprit, text, comm.register(address, len_bytes));
    }
    for function in ["cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2"] {
        for culprit in [0, last] {
            if rank == culprit {
                control.fail(&format!("{function}:1:999"));
            }
            refused(culprit, function, comm.register(good.0, good.1));
            control.fail("");
        }
    }
    assert!(all_reduce(&comm, &stream, from, to, 1.0), "through slots");
    let registration = comm.register(good.0, good.1).unwrap();
    comm.set_pin(windows()).unwrap();
    assert!(all_reduce(&comm, &stream, from, to, 2.0), "in place");
    drop(registration);
    drop((comm, stream, memory, virtual_memory, context));
    nothing_is_left();
}

/// The buffers of a call are reached by all ranks, or of none: otherwise the ranks call different
/// things.
pub(crate) fn by_one_alone(comm: Communicator) {
    let (stream, context) = (stream(&comm), comm.context().unwrap());
    let memory = DeviceMemory::allocate(&context, SHARED_BYTES).unwrap();
    let (own, len_bytes) = match comm.rank() {
        0 => (memory.as_ptr(), SHARED_BYTES),
        _ => (std::ptr::null_mut(), 0),
    };
    let _registration = comm.register(own, len_bytes).unwrap();
    let buffer = Memory { address: memory.as_ptr(), count: COUNT };
    let call = Call::of(Kind::AllReduce, DataType::F32, buffer, buffer);
    // SAFETY: the memory lives until the work has ended.
    let error = unsafe { comm.on(&stream).run(call) }.and_then(|work| work.wait()).unwrap_err();
    match &error {
        Error::Mismatch { argument, .. } => assert_eq!(*argument, "memory"),
        Error::Stopped { reason, .. } => assert!(reason.contains("memory differs"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

/// A rank that registers nothing at all, and calls something else: all end within the time-out.
pub(crate) fn not_by_one(mut comm: Communicator) {
    comm.barrier().unwrap();
    comm.set_timeout(std::time::Duration::from_millis(300)).unwrap();
    if comm.rank() == 0 {
        comm.register(std::ptr::null(), 0).unwrap_err();
    } else {
        comm.barrier().unwrap_err();
    }
    let error = comm.barrier().unwrap_err();
    assert!(matches!(error, Error::Broken { .. }), "{error:?}");
    let error = comm.register(std::ptr::null(), 0).unwrap_err();
    assert!(matches!(error, Error::Broken { .. }), "{error:?}");
}
