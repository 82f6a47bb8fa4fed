//! The CUDA driver layer against the stand-in: each case is a process that takes it for libcuda.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{assigned, connect_as, deadline, in_cuda_processes};
use oxccl_cuda_stand_in::control::{Control, Live};
use oxccl_transports::cuda::sys::{self, CUresult};
use oxccl_transports::cuda::{
    Context, DeviceMemory, DeviceRegion, Driver, Exports, Imports, IpcHandle, IpcMemory,
    PinnedMemory, Pointer, PointerKind, RegisteredRegion, Version, copy_in, copy_out,
};
use oxccl_transports::{Bootstrap, CudaError, Region};

macro_rules! cases {
    ($($case:ident($world:expr, $settings:expr))*) => {
        $(mod $case {
            #[test]
            fn on_the_stand_in() {
                super::in_cuda_processes($world, stringify!($case), &$settings);
            }
        })*

        #[test]
        #[ignore = "one process, started by the other tests"]
        fn rank_process() {
            match assigned().0.as_str() {
                $(stringify!($case) => $case(),)*
                other => panic!("no case {other}"),
            }
        }
    };
}

cases!(
    too_old(1, [("OXCCL_STAND_IN_DRIVER", "11080")])
    stub(1, [("OXCCL_STAND_IN_FAIL", "cuInit:1:34")])
    no_device(1, [("OXCCL_STAND_IN_DEVICES", "0")])
    devices(1, [("OXCCL_STAND_IN_DEVICES", "2"), ("OXCCL_STAND_IN_CAPABILITY", "103")])
    contexts(1, [("OXCCL_STAND_IN_DEVICES", "2")])
    pointers(1, [("OXCCL_STAND_IN_DEVICES", "2")])
    out_of_memory(1, [("OXCCL_STAND_IN_MEMORY", "8388608")])
    no_virtual_memory(1, [("OXCCL_STAND_IN_VIRTUAL_MEMORY", "0")])
    host_memory(1, [])
    every_failure(1, [])
    failure_from_outside(1, [("OXCCL_STAND_IN_FAIL", "cuMemCreate:2:2")])
    memory_out_of_adapters_reach(1, [("OXCCL_STAND_IN_FAIL", "cuMemCreate:1:800")])
    captures(1, [])
    own_allocations(1, [("OXCCL_STAND_IN_DEVICES", "2")])
    own_allocations_without_peers(1, [("OXCCL_STAND_IN_DEVICES", "2"), ("OXCCL_STAND_IN_PEERS", "0")])
    other_allocations(2, [])
);

fn context(ordinal: usize) -> Context {
    Context::primary(Driver::load().unwrap().device(ordinal).unwrap()).unwrap()
}

fn live() -> Live {
    Control::attach().unwrap().live()
}

#[test]
fn without_a_driver() {
    match Driver::load() {
        Err(CudaError::NoDriver) => {}
        // Somebody's real machine.
        other => skip("without_a_driver", &format!("there is a driver: {other:?}")),
    }
}

fn skip(name: &str, why: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}

fn too_old() {
    match Driver::load() {
        Err(CudaError::DriverTooOld { found: Version(11080), needed: Driver::OLDEST }) => {}
        other => panic!("{other:?}"),
    }
}

fn no_device() {
    assert!(matches!(Driver::load(), Err(CudaError::NoDevice)));
}

fn devices() {
    let driver = Driver::load().unwrap();
    assert_eq!(driver.version().to_string(), "13.0");
    let [first, second] = driver.devices().unwrap().try_into().unwrap();
    assert_ne!(first.uuid().unwrap(), second.uuid().unwrap());
    assert_eq!(first.capability().unwrap(), (10, 3));
    assert!(first.reaches(&second).unwrap() && first.reaches(&first).unwrap());
    assert!(!first.name().unwrap().is_empty() && first.multiprocessors().unwrap() == 132);
    match driver.device(2) {
        Err(CudaError::NoSuchDevice { ordinal: 2, count: 2 }) => {}
        other => panic!("{other:?}"),
    }
}

fn contexts() {
    let driver = Driver::load().unwrap();
    assert!(matches!(Context::current(driver), Err(CudaError::NoCurrentContext)));
    let (first, second) = (context(0), context(1));
    let current = || Context::current(driver).map(|context| context.device().ordinal());
    first.scope(|| assert_current(current(), 0)).unwrap();
    let nested = first.scope(|| {
        second.scope(|| assert_current(current(), 1))?;
        assert_current(current(), 0)
    });
    nested.unwrap();
    assert!(matches!(current(), Err(CudaError::NoCurrentContext)), "as it was");
    let mut other = std::ptr::null_mut();
    // SAFETY: the driver is loaded, and the pointer valid.
    unsafe {
        assert_eq!(sys::cuCtxCreate_v2(&raw mut other, 0, 1), CUresult::CUDA_SUCCESS);
        assert!(matches!(current(), Err(CudaError::NotPrimary { ordinal: 1 })));
        assert_eq!(sys::cuCtxDestroy_v2(other), CUresult::CUDA_SUCCESS);
    }
    let again = first.clone();
    drop(first);
    assert_eq!(live().retained, 2);
    drop((again, second));
    assert_eq!(live(), Live::default());
}

fn assert_current(found: Result<usize, CudaError>, expected: usize) -> Result<(), CudaError> {
    assert_eq!(found?, expected);
    Ok(())
}

fn pointers() {
    let (first, second) = (context(0), context(1));
    let memory = DeviceMemory::allocate(&first, 1000).unwrap();
    let at = memory.as_ptr();
    let inside = Pointer::of(&first, at.wrapping_add(300)).unwrap();
    assert_eq!(inside.kind, PointerKind::Device);
    assert_eq!((inside.start, inside.len_bytes, inside.device), (at as u64, 1000, 0));
    inside.check_device(&first, 700).unwrap();
    match inside.check_device(&first, 701) {
        Err(CudaError::TooShort { beyond_bytes: 1, len_bytes: 701, .. }) => {}
        other => panic!("{other:?}"),
    }
    match inside.check_device(&second, 700) {
        Err(CudaError::OtherDevice { found: 0, ordinal: 1, .. }) => {}
        other => panic!("{other:?}"),
    }
    let host = [0u8; 8];
    let pinned = PinnedMemory::allocate(&first, 8).unwrap();
    for (address, kind) in
        [(host.as_ptr(), PointerKind::Unknown), (pinned.as_ptr().cast_const(), PointerKind::Pinned)]
    {
        let pointer = Pointer::of(&first, address).unwrap();
        assert_eq!(pointer.kind, kind);
        let refused = pointer.check_device(&first, 8);
        assert!(matches!(refused, Err(CudaError::NotDeviceMemory { ordinal: 0, .. })));
    }
    let buffer = inside.buffer;
    drop(memory);
    assert_eq!(Pointer::of(&first, at).unwrap().kind, PointerKind::Unknown, "it is freed");
    let memory = DeviceMemory::allocate(&first, 1000).unwrap();
    assert_eq!(memory.as_ptr(), at, "the same address again");
    assert_ne!(Pointer::of(&first, at).unwrap().buffer, buffer, "and another buffer");
}

fn out_of_memory() {
    let context = context(0);
    let some = DeviceMemory::allocate(&context, 3 << 20).unwrap();
    match DeviceMemory::allocate(&context, 5 << 20) {
        Err(CudaError::OutOfMemory { bytes, free_bytes: Some(free), .. }) => {
            assert_eq!((bytes, free), (5 << 20, 4 << 20));
        }
        other => panic!("{other:?}"),
    }
    let region = DeviceRegion::create(&context, 4 << 20).unwrap();
    assert!(matches!(
        DeviceRegion::create(&context, 1),
        Err(CudaError::OutOfMemory { free_bytes: Some(0), .. })
    ));
    drop((some, region));
    DeviceRegion::create(&context, 8 << 20).unwrap();
}

fn no_virtual_memory() {
    let refused = DeviceRegion::create(&context(0), 1);
    assert!(matches!(refused, Err(CudaError::NotSupported { ordinal: 0, .. })), "{refused:?}");
    assert_eq!(live(), Live::default());
}

fn host_memory() {
    let context = context(0);
    let region = Arc::new(Region::create("test", 8192).unwrap());
    let registered =
        RegisteredRegion::register(&context, region.clone(), region.len_bytes()).unwrap();
    assert_eq!(live().registered, 1);
    let pointer = Pointer::of(&context, registered.device_ptr()).unwrap();
    assert_eq!(pointer.kind, PointerKind::Pinned);
    // The driver takes it once in a process, for as long as anybody has it.
    let twice = RegisteredRegion::register(&context, region.clone(), region.len_bytes()).unwrap();
    assert_eq!((twice.device_ptr(), live().registered), (registered.device_ptr(), 1));
    drop(registered);
    assert_eq!(live().registered, 1);
    drop(twice);
    assert_eq!(live().registered, 0);
    RegisteredRegion::register(&context, region.clone(), region.len_bytes()).unwrap();
    let pinned = PinnedMemory::allocate(&context, 100).unwrap();
    // SAFETY: it has 100 bytes.
    assert_eq!(unsafe { pinned.as_ptr().add(99).read() }, 0);
    drop((pinned, context));
    assert_eq!(live(), Live::default());
}

/// All that a rank sets up, with every call of it failing in turn: an error each time, and nothing
/// left.
fn every_failure() {
    let control = Control::attach().unwrap();
    let host = Arc::new(Region::create("test", 4096).unwrap());
    let set_up = || -> Result<_, CudaError> {
        let context = Context::primary(Driver::load()?.device(0)?)?;
        let region = DeviceRegion::create(&context, 1)?;
        let memory = DeviceMemory::allocate(&context, 1)?;
        let pinned = PinnedMemory::allocate(&context, 1)?;
        let registered = RegisteredRegion::register(&context, host.clone(), host.len_bytes())?;
        let handle = IpcHandle::of(&context, memory.as_ptr(), 1)?;
        Ok((region, memory, pinned, registered, handle))
    };
    let before = control.calls();
    drop(set_up().unwrap());
    let most = control.calls() - before;
    let descriptors = common::held().0;
    let mut failures = 0;
    for call in 1..=most {
        control.fail(&format!("*:{call}:999"));
        match set_up() {
            // It was one of those that are made while things are given back.
            Ok(done) => {
                control.fail("");
                drop(done);
            }
            Err(CudaError::Driver { code: 999, function, .. }) => {
                assert!(function.starts_with("cu"));
                failures += 1;
            }
            Err(other) => panic!("call {call}: {other}"),
        }
        control.fail("");
        assert_eq!(control.live(), Live::default(), "call {call}");
        assert_eq!(common::held().0, descriptors, "call {call}");
    }
    assert!(failures > 25, "{failures} of {most}");
}

fn failure_from_outside() {
    let context = context(0);
    let _first = DeviceRegion::create(&context, 1).unwrap();
    let second = DeviceRegion::create(&context, 1);
    assert!(matches!(second, Err(CudaError::OutOfMemory { .. })), "{second:?}");
    DeviceRegion::create(&context, 1).unwrap();
}

/// The driver does not permit memory for adapters, as in some virtual machines.
fn memory_out_of_adapters_reach() {
    let region = DeviceRegion::create(&context(0), 1).unwrap();
    assert!(region.len_bytes() > 0);
}

fn stub() {
    let error = Driver::load().unwrap_err();
    assert!(matches!(error, CudaError::StubDriver), "{error}");
}

/// What may not be done while a stream is captured.
fn captures() {
    let context = context(0);
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let done = |answer| assert_eq!(answer, CUresult::CUDA_SUCCESS);
    let capture = || -> Result<(), CudaError> {
        let (mut stream, mut graph) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the driver is loaded, the context current, and the pointers valid.
        unsafe {
            done(sys::cuStreamCreate(&raw mut stream, 1));
            done(sys::cuStreamBeginCapture_v2(stream, mode));
            let refused = DeviceMemory::allocate(&context, 8).unwrap_err();
            assert!(
                matches!(refused, CudaError::Capturing { function: "cuMemAlloc_v2", .. }),
                "{refused}"
            );
            let spoiled = sys::cuStreamEndCapture(stream, &raw mut graph);
            assert_eq!(spoiled, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
            done(sys::cuStreamDestroy_v2(stream));
        }
        DeviceMemory::allocate(&context, 8).map(drop)
    };
    context.scope(capture).unwrap();
}

/// A handle of this process itself, as ranks that are threads use it, on one GPU and on two.
fn own_allocations() {
    let (first, second) = (context(0), context(1));
    let memory = DeviceMemory::allocate(&first, 100).unwrap();
    let handle = IpcHandle::of(&first, memory.as_ptr().wrapping_add(10), 90).unwrap();
    let mut imports = Imports::default();
    for context in [&first, &second, &second] {
        assert_eq!(imports.address(context, &handle).unwrap(), memory.as_ptr().wrapping_add(10));
        second.reach_plain_memory(first.device().uuid().unwrap()).unwrap();
    }
    let at = memory.as_ptr();
    drop(memory);
    // SAFETY: the driver finds out that it is nobody's.
    assert!(unsafe { copy_in(&first, at, &[1]) }.is_err(), "it is freed");
}

fn own_allocations_without_peers() {
    let (first, second) = (context(0), context(1));
    let memory = DeviceMemory::allocate(&first, 100).unwrap();
    let handle = IpcHandle::of(&first, memory.as_ptr(), 1).unwrap();
    IpcMemory::open(&first, &handle).unwrap();
    let refused = IpcMemory::open(&second, &handle);
    assert!(matches!(refused, Err(CudaError::NoPeerAccess { ordinal: 1, .. })), "{refused:?}");
}

/// Buffers that somebody else allocated: parts of a block, freed, and there again.
fn other_allocations() {
    let mut b = connect_as(&assigned().1);
    let context = context(0);
    let mut imports = Imports::default();
    if b.rank() == 0 {
        lend(&mut b, &context);
    } else {
        borrow(&mut b, &context, &mut imports);
    }
    b.all_gather(&[], deadline()).unwrap();
    drop((imports, context));
    assert_eq!(live(), Live::default());
    b.liveness().close(0);
}

/// Sends a handle and a byte that is behind it; without a handle, nothing.
fn tell(b: &mut dyn Bootstrap, told: Option<(&IpcHandle, u8)>) -> Option<(IpcHandle, u8)> {
    let encode = |(handle, byte): (&IpcHandle, u8)| {
        [&[byte][..], &serde_json::to_vec(handle).unwrap()].concat()
    };
    let all = b.all_gather(&told.map(encode).unwrap_or_default(), deadline()).unwrap();
    let (byte, handle) = all[0].split_first()?;
    Some((serde_json::from_slice(handle).unwrap(), *byte))
}

/// Sends a handle, and waits until the other rank has read what is behind it.
fn show(b: &mut dyn Bootstrap, handle: &IpcHandle, byte: u8) {
    tell(b, Some((handle, byte)));
    b.all_gather(&[], deadline()).unwrap();
}

fn lend(b: &mut dyn Bootstrap, context: &Context) {
    let mut exports = Exports::default();
    let new = |byte: u8| {
        let memory = DeviceMemory::allocate(context, 600).unwrap();
        // SAFETY: its own memory, which nobody uses yet.
        unsafe { copy_in(context, memory.as_ptr(), &[byte; 600]) }.unwrap();
        memory
    };
    let mut handle = |memory: &DeviceMemory, offset: usize| {
        exports.handle(context, memory.as_ptr().wrapping_add(offset), 8).unwrap()
    };
    let (first, second) = (new(1), new(2));
    // Two in one block; the second at an offset.
    show(b, &handle(&first, 0), 1);
    show(b, &handle(&second, 512), 2);
    show(b, &handle(&second, 0), 2);
    let (old, at) = (handle(&second, 0), second.as_ptr());
    drop(second);
    let third = new(3);
    assert_eq!(third.as_ptr(), at, "the address comes again");
    assert_ne!(handle(&third, 0), old, "and is another buffer");
    show(b, &handle(&third, 0), 3);
    let refused = IpcHandle::of(context, DeviceRegion::create(context, 1).unwrap().as_ptr(), 1);
    assert!(matches!(refused, Err(CudaError::NotShareable { .. })));
    let stale = handle(&first, 0);
    drop((first, third));
    show(b, &stale, 1);
}

fn borrow(b: &mut dyn Bootstrap, context: &Context, imports: &mut Imports) {
    let mut addresses = Vec::new();
    for _ in 0..4 {
        let (handle, byte) = tell(b, None).unwrap();
        let at = imports.address(context, &handle).unwrap();
        let mut bytes = [0; 8];
        // SAFETY: the other rank keeps the buffer until all have met again, and does not write to
        // it.
        unsafe { copy_out(context, &mut bytes, at) }.unwrap();
        assert_eq!(bytes, [byte; 8]);
        b.all_gather(&[], deadline()).unwrap();
        addresses.push(at);
    }
    assert_eq!(imports.len(), 2, "each allocation once");
    assert_eq!(addresses[1], addresses[2].wrapping_add(512), "the offset is in the handle");
    let (stale, _) = tell(b, None).unwrap();
    *imports = Imports::default();
    assert_eq!(live().imported, 0, "all are closed");
    let refused = Imports::default().address(context, &stale);
    assert!(matches!(refused, Err(CudaError::Driver { .. })), "{refused:?}");
    b.all_gather(&[], deadline()).unwrap();
}
