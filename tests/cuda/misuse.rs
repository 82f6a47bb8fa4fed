//! What a rank alone can see is wrong: a typed error, and the communicator still works; and starts
//! that cannot be.

use crate::calls::{config, stream};
use crate::common::left;
use crate::processes::{deadline, meet};
use crate::rank::gpu;
use oxccl::bucket::GradientBuckets;
use oxccl::cuda::{CaptureMode, Graph, Stream};
use oxccl::plans::algorithms::Encoding;
use oxccl::{
    Advanced, Call, Collectives, Communicator, Config, DataType, Device, DeviceBuffer, Error,
    FabricKind, GpuDirect, Kind, Memory, OpKind, Pin, ReduceOp, UniqueId, Unready,
};
use oxccl_cuda_stand_in::control::{Control, Live};
use oxccl_transports::cuda::{DeviceMemory, PinnedMemory};
use oxccl_transports::{Bootstrap, Cause, CudaError, Error as Transport};
use std::str::FromStr;
use std::time::Instant;

fn cuda(error: &Error) -> &CudaError {
    match error {
        Error::Transport(Transport::Cuda(error)) => error,
        other => panic!("{other:?}"),
    }
}

const COUNT: usize = 1000;

/// Buffers that the GPU does not have.
pub(crate) fn memory(comm: Communicator) {
    let context = comm.context().unwrap();
    let stream = stream(&comm);
    let good = DeviceMemory::allocate(&context, 4 * COUNT).unwrap();
    let refused = |address: *mut u8, count: usize| {
        let memory = |address| Memory { address, count };
        let (from, to) = (memory(address), memory(good.as_ptr()));
        let call = Call::of(Kind::AllReduce, DataType::F32, from, to);
        // SAFETY: what is wrong is refused; the rest lives.
        let blocking = unsafe { comm.run(call) };
        // SAFETY: as above.
        let queued = unsafe { comm.on(&stream).run(call) }.and_then(|work| work.wait());
        assert_eq!(blocking.is_ok(), queued.is_ok());
        queued.err()
    };
    let mut host = vec![0f32; COUNT];
    let error = refused(host.as_mut_ptr().cast(), COUNT).unwrap();
    assert!(matches!(cuda(&error), CudaError::NotDeviceMemory { found: "host memory", .. }));
    let error = comm.all_reduce_in_place(&mut host, ReduceOp::Sum).unwrap_err();
    assert!(matches!(error, Error::OtherMemory { .. }), "slices are the host's: {error}");
    let pinned = PinnedMemory::allocate(&context, 4 * COUNT).unwrap();
    let error = refused(pinned.as_ptr(), COUNT).unwrap();
    assert!(matches!(cuda(&error), CudaError::NotDeviceMemory { found: "pinned host memory", .. }));
    let other = DeviceMemory::allocate(&gpu(1).unwrap(), 4 * COUNT).unwrap();
    let error = refused(other.as_ptr(), COUNT).unwrap();
    assert!(matches!(cuda(&error), CudaError::OtherDevice { found: 1, ordinal: 0, .. }));
    let freed = DeviceMemory::allocate(&context, 4 * COUNT).unwrap();
    let address = freed.as_ptr();
    assert!(refused(address, COUNT).is_none());
    drop(freed);
    let error = refused(address, COUNT).unwrap();
    assert!(matches!(cuda(&error), CudaError::NotDeviceMemory { .. }), "{error}");
    let short = DeviceMemory::allocate(&context, 4 * COUNT - 4).unwrap();
    let error = refused(short.as_ptr(), COUNT).unwrap();
    assert!(matches!(cuda(&error), CudaError::TooShort { beyond_bytes: 4, .. }), "{error}");
    assert!(refused(good.as_ptr(), COUNT).is_none(), "it still works");
    of_the_host(&comm, &stream);
    assert!(refused(good.as_ptr(), COUNT).is_none(), "it still works");
}

/// Memory of a communicator on the host, in every way that buffers are given to one on a GPU.
fn of_the_host(comm: &Communicator, stream: &Stream) {
    let [on_host] = Communicator::local_with(1, &Config::default()).unwrap().try_into().unwrap();
    let mut buffer = on_host.alloc::<f32>(COUNT).unwrap();
    let mut own = comm.alloc::<f32>(COUNT).unwrap();
    let host_memory = |error: Error| match cuda(&error) {
        CudaError::NotDeviceMemory { .. } => {}
        other => panic!("{other:?}"),
    };
    host_memory(comm.on(stream).all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap_err());
    host_memory(comm.on(stream).all_gather(&own, &mut buffer).unwrap_err());
    let mut late = Unready::new(&mut buffer);
    let grouped = comm.on(stream).group(|group| {
        group.all_reduce_in_place(&mut own, ReduceOp::Sum)?;
        group.all_reduce_in_place(&mut late, ReduceOp::Sum)
    });
    host_memory(grouped.map(drop).unwrap_err());
    late.ready();
    let other_memory = |error: Error| match error {
        Error::OtherMemory { device: Device::Cuda(_) } => {}
        other => panic!("{other:?}"),
    };
    let slices = comm.group(|group| group.all_reduce_in_place(&mut buffer, ReduceOp::Sum));
    other_memory(slices.unwrap_err());
    other_memory(comm.all_reduce_in_place(&mut [0f32; COUNT], ReduceOp::Sum).unwrap_err());
    other_memory(comm.all_gather(&own, &mut buffer).unwrap_err());
    let mut gradients = GradientBuckets::<f32>::new(&on_host, &[COUNT]).unwrap();
    host_memory(gradients.launch(comm, stream, ReduceOp::Sum).map(drop).unwrap_err());
    let mut gradients = GradientBuckets::<f32>::new(comm, &[COUNT]).unwrap();
    assert!(matches!(gradients.gradient(0), Err(Error::MemoryOfGpu)));
    assert!(matches!(gradients.gradient_mut(0), Err(Error::MemoryOfGpu)));
    let mut step = gradients.launch(comm, stream, ReduceOp::Sum).unwrap();
    assert!(matches!(step.gradient(0), Err(Error::MemoryOfGpu)));
    step.ready(0).unwrap();
    step.finish().wait().unwrap();
}

/// LL128 over links that may split its lines.
pub(crate) fn no_nvlink(mut comm: Communicator) {
    let mut buffer = comm.alloc::<f32>(16 << 10).unwrap();
    let stream = stream(&comm);
    reduce(&comm, &stream, &mut buffer).unwrap();
    let plan = comm.plan::<f32>(Kind::AllReduce, OpKind::Sum, 16 << 10, 0, true, true).unwrap();
    assert_ne!(plan.encoding, Encoding::Ll128);
    comm.set_pin(Pin { encoding: Some(Encoding::Ll128), ..Pin::default() }).unwrap();
    let error = reduce(&comm, &stream, &mut buffer).unwrap_err();
    assert!(matches!(error, Error::NoAlgorithm { .. }), "{error}");
    assert!(error.to_string().contains("joined by NVLink"), "{error}");
    comm.set_pin(Pin::default()).unwrap();
    reduce(&comm, &stream, &mut buffer).unwrap();
}

fn reduce(comm: &Communicator, on: &Stream, buffer: &mut DeviceBuffer<f32>) -> Result<(), Error> {
    comm.on(on).all_reduce_in_place(buffer, ReduceOp::Sum).and_then(|work| work.wait())
}

/// Streams that calls cannot go into.
pub(crate) fn streams(comm: Communicator) {
    let context = comm.context().unwrap();
    let mut buffer = comm.alloc::<f32>(100).unwrap();
    // SAFETY: the default stream always lives.
    let default = unsafe { Stream::foreign(&context, std::ptr::null_mut()) }.unwrap();
    let error = comm.on(&default).barrier().unwrap_err();
    assert!(matches!(cuda(&error), CudaError::DefaultStream { ranks: 2 }), "{error}");
    // By the names that CUDA has for default streams.
    let named = |number: usize| {
        // SAFETY: default streams always live.
        let stream = unsafe { Stream::foreign(&context, number as _) }.unwrap();
        comm.on(&stream).barrier().unwrap_err()
    };
    let (legacy, per_thread) = (named(1), named(2));
    assert!(matches!(cuda(&legacy), CudaError::DefaultStream { ranks: 2 }), "{legacy}");
    assert!(matches!(cuda(&per_thread), CudaError::PerThreadStream), "{per_thread}");
    let host = oxccl::Stream::new().unwrap();
    let error = comm.on(&host).barrier().unwrap_err();
    assert!(matches!(error, Error::OtherDevice { device: Device::Cuda(Some(0)) }), "{error}");
    let stream = stream(&comm);
    let spoiled = Graph::capture(&stream, CaptureMode::ThreadLocal, || {
        assert!(stream.synchronize().is_err());
        let error = comm.on(&stream).barrier().unwrap_err();
        assert!(matches!(cuda(&error), CudaError::InvalidCapture), "{error}");
        Ok::<(), Error>(())
    });
    assert!(spoiled.is_err());
    // Its own counts.
    comm.barrier().unwrap();
    let (few, mut many) = (config().advanced.cuda_connections, Vec::<Stream>::new());
    let error = loop {
        many.push(Stream::new(&context).unwrap());
        let on = comm.on(&many[many.len() - 1]);
        // One at a time: so many streams would keep each other back.
        match on.all_reduce_in_place(&mut buffer, ReduceOp::Sum) {
            Ok(work) => work.wait().unwrap(),
            Err(error) => break error,
        }
    };
    match cuda(&error) {
        CudaError::TooManyStreams { ranks: 2, streams, connections } => {
            assert_eq!((*streams, *connections), (few / 2 + 1, few));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(many.len(), few / 2);
    comm.barrier().unwrap();
    comm.on(&many[0]).barrier().unwrap().wait().unwrap();
    let [on_host] = Communicator::local_with(1, &Config::default()).unwrap().try_into().unwrap();
    let error = on_host.on(&stream).barrier().unwrap_err();
    assert!(matches!(error, Error::OtherDevice { device: Device::Host }), "{error}");
    of_a_gpu(&on_host, &host, &stream, &mut buffer);
}

/// Memory and streams of a GPU, in every way that they are given to a communicator on the host.
fn of_a_gpu(
    comm: &Communicator,
    stream: &oxccl::Stream,
    of_gpu: &Stream,
    buffer: &mut DeviceBuffer<f32>,
) {
    let other_memory = |error: Error| match error {
        Error::OtherMemory { device: Device::Host } => {}
        other => panic!("{other:?}"),
    };
    let other_device = |error: Error| match error {
        Error::OtherDevice { device: Device::Host } => {}
        other => panic!("{other:?}"),
    };
    let mut own = comm.alloc::<f32>(buffer.len()).unwrap();
    other_memory(comm.on(stream).all_reduce_in_place(buffer, ReduceOp::Sum).unwrap_err());
    other_memory(comm.on(stream).all_gather(&own, buffer).unwrap_err());
    let grouped = comm.on(stream).group(|group| {
        group.all_reduce_in_place(&mut own, ReduceOp::Sum)?;
        group.all_reduce_in_place(buffer, ReduceOp::Sum)
    });
    other_memory(grouped.map(drop).unwrap_err());
    let mut late = Unready::new(buffer);
    let gated = comm.on(stream).group(|group| group.all_reduce_in_place(&mut late, ReduceOp::Sum));
    other_memory(gated.map(drop).unwrap_err());
    late.ready();
    other_device(comm.on(of_gpu).group(|group| group.barrier()).map(drop).unwrap_err());
    let (work, _) =
        comm.on(stream).group(|group| group.all_reduce_in_place(&mut own, ReduceOp::Sum)).unwrap();
    other_device(work.bucket(0).unwrap().wait_on(of_gpu).unwrap_err());
    other_device(work.wait_on(of_gpu).unwrap_err());
    work.wait().unwrap();
    comm.on(stream).barrier().unwrap().wait().unwrap();
}

/// More ranks of a process than connections.
pub(crate) fn connections(comm: Communicator) {
    drop(comm);
    let config = Config {
        advanced: Advanced { cuda_connections: 1, single_launch: Some(false), ..config().advanced },
        ..config()
    };
    let error = Communicator::local_with(2, &config).unwrap_err();
    assert!(
        matches!(error, Error::Transport(Transport::Stopped(_)))
            || matches!(cuda(&error), CudaError::TooManyStreams { ranks: 2, connections: 1, .. }),
        "{error:?}"
    );
}

pub(crate) fn no_driver(outer: &mut dyn Bootstrap) {
    let config = Config { device: Device::Cuda(None), ..Config::default() };
    let error = Communicator::local_with(2, &config).unwrap_err();
    assert!(matches!(cuda(&error), CudaError::DriverTooOld { .. }), "{error}");
    outer.liveness().close(0);
}

/// A GPU without an engine for bulk copies, and one with it.
pub(crate) fn bulk_copies(outer: &mut dyn Bootstrap) {
    let config = Config {
        device: Device::Cuda(Some(0)),
        advanced: Advanced { bulk_copies: true, ..config().advanced },
        ..config()
    };
    let started = Communicator::local_with(2, &config);
    if std::env::var("OXCCL_STAND_IN_CAPABILITY").is_ok() {
        match started.unwrap_err() {
            Error::Transport(Transport::Cuda(CudaError::NotSupported { what, .. })) => {
                assert!(what.contains("bulk asynchronous copies"), "{what}");
            }
            Error::Transport(Transport::Stopped(Cause::Aborted { reason, .. })) => {
                assert!(reason.contains("bulk asynchronous copies"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    } else {
        std::thread::scope(|scope| {
            for comm in started.unwrap() {
                scope.spawn(move || first_calls(&comm).unwrap());
            }
        });
    }
    outer.liveness().close(0);
}

pub(crate) fn no_room(outer: &mut dyn Bootstrap) {
    let error = Communicator::local_with(2, &config()).unwrap_err();
    match cuda(&error) {
        CudaError::TooManyBlocks { ranks: 2, channels: 2, resident: 3, .. } => {}
        other => panic!("{other:?}"),
    }
    // With one channel each there is.
    let config = Config { max_channels: 1, ..config() };
    assert_eq!(Communicator::local_with(2, &config).unwrap().len(), 2);
    let missing = Config { device: Device::Cuda(Some(7)), ..config };
    let error = Communicator::local_with(2, &missing).unwrap_err();
    assert!(matches!(cuda(&error), CudaError::NoSuchDevice { ordinal: 7, count: 1 }), "{error}");
    outer.liveness().close(0);
}

/// Links by a way that adapters do not have, or without adapters.
pub(crate) fn not_direct(outer: &mut dyn Bootstrap) {
    let error = |direct, fabric| {
        let config = Config {
            fabric,
            advanced: Advanced { gpu_direct: Some(direct), ..config().advanced },
            ..config()
        };
        Communicator::local_with(2, &config).unwrap_err().to_string()
    };
    let over_tcp = error(GpuDirect::Peer, Some(FabricKind::Tcp));
    assert!(over_tcp.contains("gpu_direct: is peer, which rank "), "{over_tcp}");
    assert!(over_tcp.contains(" cannot do: links go over TCP"), "{over_tcp}");
    if config().fabric == Some(FabricKind::Rdma) {
        let dmabuf = error(GpuDirect::Dmabuf, Some(FabricKind::Rdma));
        assert!(dmabuf.contains("_0 does not take memory of the GPU as a dmabuf: "), "{dmabuf}");
    }
    let control = Control::attach().unwrap();
    wait_until("all is given back", || control.live() == Live::default());
    outer.liveness().close(0);
}

/// The start of two ranks and a first call, over and over: each driver call of it fails once, on
/// one rank and then on the other. The rank that has the failure tells it, the other one hears of
/// it, and nothing is left.
pub(crate) fn starts(outer: &mut dyn Bootstrap) {
    let control = Control::attach().unwrap();
    let before = control.calls();
    start(outer, &control).unwrap();
    // How often the ranks look for the call's end differs.
    let own = control.calls() - before;
    let all = outer.all_gather(&own.to_le_bytes(), deadline()).unwrap();
    let most = all.iter().map(|calls| u64::from_le_bytes(calls[..].try_into().unwrap())).min();
    let most = most.unwrap();
    let descriptors = descriptors();
    let mut failures = 0;
    // Either rank by turns: most calls are the look-ups of kernels, which are alike.
    let by_turns = left::to_test_all("starts_that_fail: each driver call on both ranks");
    for number in 1..=most {
        for victim in (0..2).filter(|victim| !by_turns || number as usize % 2 == *victim) {
            if outer.rank() == victim {
                control.fail(&format!("*:{number}:999"));
            }
            let started = start(outer, &control);
            control.fail("");
            match started {
                Err(
                    Error::Transport(Transport::Cuda(CudaError::Driver { code: 999, .. }))
                    | Error::DeviceLost { source: CudaError::Driver { code: 999, .. } }
                    | Error::Broken { .. },
                ) if outer.rank() == victim => {
                    failures += 1;
                }
                Err(Error::Transport(Transport::Stopped(Cause::Aborted { rank, .. })))
                | Err(Error::Stopped { rank, .. } | Error::Left { rank, .. })
                    if outer.rank() != victim =>
                {
                    assert_eq!(rank, victim);
                }
                // How many driver calls there are depends on how long the other rank takes.
                Ok(()) => {}
                other => panic!("call {number} of rank {victim}, on {}: {other:?}", outer.rank()),
            }
            wait_until("all is given back", || control.live() == Live::default());
            wait_until("descriptors are closed", || self::descriptors() == descriptors);
        }
    }
    assert!(failures > 60, "{failures} failures");
    out_of_memory(outer, &control);
    outer.liveness().close(0);
}

/// There is no memory in the middle of a start: an error of its own, which the other rank hears of,
/// and nothing is left.
fn out_of_memory(outer: &mut dyn Bootstrap, control: &Control) {
    if outer.rank() == 0 {
        control.fail("cuMemCreate:2:2");
    }
    let error = start(outer, control).unwrap_err();
    match &error {
        Error::Transport(Transport::Cuda(CudaError::OutOfMemory { .. })) if outer.rank() == 0 => {}
        Error::Transport(Transport::Stopped(Cause::Aborted { rank: 0, reason }))
            if outer.rank() == 1 =>
        {
            assert!(reason.contains("memory"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    wait_until("all is given back", || control.live() == Live::default());
}

fn start(outer: &mut dyn Bootstrap, control: &Control) -> Result<(), Error> {
    let made = (outer.rank() == 0).then(|| UniqueId::create().unwrap());
    let id = made.as_ref().map(|(id, _)| id.to_string()).unwrap_or_default();
    let all = outer.all_gather(id.as_bytes(), deadline()).unwrap();
    let id = UniqueId::from_str(std::str::from_utf8(&all[0]).unwrap()).unwrap();
    // Little memory, which each start clears.
    let config = Config { heap_bytes: 2 << 20, ..config() };
    let connected = Communicator::connect(&id, outer.rank(), outer.world(), &config);
    let done = connected.and_then(|comm| {
        let called = first_calls(&comm);
        // What fails to be given back is lost.
        control.fail("");
        called
    });
    control.fail("");
    meet(outer);
    done
}

fn first_calls(comm: &Communicator) -> Result<(), Error> {
    let mut buffer = comm.alloc::<f32>(10)?;
    buffer.write(&[1.0; 10])?;
    comm.on(&Stream::new(&comm.context().unwrap())?)
        .all_reduce_in_place(&mut buffer, ReduceOp::Sum)?
        .wait()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = deadline();
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
