//! Communicators that give back their memory between calls, and have it again: the same addresses,
//! so that captured calls can be replayed.

use crate::calls::stream;
use crate::processes::{is_local, line_up, nothing_is_left};
use oxccl::cuda::{CaptureMode, Graph, Stream};
use oxccl::{Call, Collectives, Communicator, DataType, Error, Kind, Memory};
use oxccl_cuda_stand_in::control::Control;
use oxccl_transports::cuda::{DeviceMemory, copy_in, copy_out};

const COUNT: usize = 40_000;

/// Sums in place what `run` is given, which puts an all-reduce of it into the stream.
fn sums(
    comm: &Communicator,
    stream: &Stream,
    memory: &DeviceMemory,
    value: u32,
    run: impl FnOnce(Call<'static>) -> Result<(), Error>,
) -> Result<(), Error> {
    let (context, n) = (comm.context().unwrap(), comm.world_size() as u32);
    let own: Vec<u8> =
        (0..COUNT as u32).flat_map(|at| (value + at + comm.rank() as u32).to_ne_bytes()).collect();
    // SAFETY: it is as long, and no call uses it.
    unsafe { copy_in(&context, memory.as_ptr(), &own) }.unwrap();
    let buffer = Memory { address: memory.as_ptr(), count: COUNT };
    run(Call::of(Kind::AllReduce, DataType::U32, buffer, buffer))?;
    stream.synchronize().unwrap();
    let mut found = vec![0; 4 * COUNT];
    // SAFETY: as above.
    unsafe { copy_out(&context, &mut found, memory.as_ptr()) }.unwrap();
    for (at, found) in (0..).zip(found.chunks(4)) {
        let expected = n * (value + at) + n * (n - 1) / 2;
        assert_eq!(u32::from_ne_bytes(found.try_into().unwrap()), expected, "element {at}");
    }
    Ok(())
}

pub(crate) fn suspended(comm: Communicator) {
    let (stream, context, control) =
        (stream(&comm), comm.context().unwrap(), Control::attach().unwrap());
    let memory = DeviceMemory::allocate(&context, 4 * COUNT).unwrap();
    let part = comm.split(Some(0), 0).unwrap().unwrap();
    let launched = |comm: &Communicator, value| {
        sums(comm, &stream, &memory, value, |call| {
            // SAFETY: the memory lives until the stream has been waited for.
            unsafe { comm.on(&stream).run(call) }.map(drop)
        })
    };
    launched(&comm, 1).unwrap();
    launched(&part, 2).unwrap();
    let buffer = Memory { address: memory.as_ptr(), count: COUNT };
    let graph = Graph::capture(&stream, CaptureMode::ThreadLocal, || {
        let call = Call::of(Kind::AllReduce, DataType::U32, buffer, buffer);
        // SAFETY: the memory outlives the graph.
        unsafe { comm.on(&stream).run(call) }.map(drop)
    });
    let graph = graph.unwrap();
    let replayed = |value| {
        line_up();
        sums(&comm, &stream, &memory, value, |_| {
            // SAFETY: as above.
            unsafe { graph.launch(&stream) }.unwrap();
            Ok(())
        })
    };
    replayed(3).unwrap();
    comm.resume().unwrap();
    for round in 4..7 {
        line_up();
        let before = control.live();
        line_up();
        comm.suspend().unwrap();
        let after = control.live();
        // This rank's and what it has of others', or that of all of this process.
        let given = before.physical - after.physical;
        assert_eq!(given, comm.world_size(), "{before:?} {after:?}");
        assert_eq!(before.mappings - after.mappings, given);
        assert_eq!(before.reservations, after.reservations, "addresses stay");
        assert!(comm.is_suspended());
        assert!(matches!(launched(&comm, round), Err(Error::Suspended)));
        assert!(matches!(comm.suspend(), Err(Error::Suspended)));
        launched(&part, round).unwrap();
        line_up();
        comm.resume().unwrap();
        assert!(!comm.is_suspended());
        line_up();
        assert_eq!(control.live(), before, "all is there again");
        line_up();
        launched(&comm, round).unwrap();
        replayed(round).unwrap();
        launched(&part, round).unwrap();
    }
    comm.suspend().unwrap();
    drop((graph, part, stream, comm, memory, context));
    if !is_local() {
        nothing_is_left();
    }
}

/// A rank whose driver has no memory left ends the communicator on all ranks, by name.
pub(crate) fn without_memory(comm: Communicator) {
    comm.suspend().unwrap();
    let rank = comm.rank();
    if rank == 1 {
        Control::attach().unwrap().fail("cuMemCreate:1");
    }
    let error = comm.resume().unwrap_err();
    match rank {
        1 => assert!(matches!(error, Error::DeviceLost { .. }), "{error}"),
        _ => assert!(error.ranks().contains(&1), "{error}"),
    }
    assert!(error.is_fatal(), "{error}");
}
