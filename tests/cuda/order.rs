//! What streams, events and captures do, as the device layer offers them.

use crate::processes::nothing_is_left;
use crate::rank::{Rank, gpu};
use oxccl::cuda::{CaptureMode, CaptureState, Event, Graph, Stream, copy, fill};
use oxccl_transports::cuda::{DeviceMemory, PinnedMemory, beside_captures, copy_out, sys};
use oxccl_transports::{Bootstrap, CudaError, Error, local};
use std::time::Duration;

pub(crate) fn streams(bootstrap: &mut dyn Bootstrap) {
    let context = gpu(0).unwrap();
    let (first, second) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    let words = PinnedMemory::allocate(&context, 64).unwrap();
    let memory = DeviceMemory::allocate(&context, 16).unwrap();
    let (gate, seen) = (words.device_ptr().cast::<u64>(), words.device_ptr().wrapping_add(8));
    let event = Event::new(&context).unwrap();
    assert!(event.is_done().unwrap(), "it was never recorded");
    // SAFETY: words and memory live until both streams are done.
    unsafe {
        first.wait_value(gate, 5).unwrap();
        fill(&first, memory.as_ptr(), 7, 16).unwrap();
        first.write_value(seen.cast(), 1).unwrap();
        event.record(&first).unwrap();
        event.hold(&second).unwrap();
        copy(&second, words.as_ptr().add(16), memory.as_ptr(), 16).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(
            !first.is_done().unwrap() && !second.is_done().unwrap() && !event.is_done().unwrap()
        );
        let third = Stream::new(&context).unwrap();
        third.write_value(gate, 4).unwrap();
        third.synchronize().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(!first.is_done().unwrap(), "4 is less than 5");
        third.write_value(gate, 6).unwrap();
        second.synchronize().unwrap();
        assert_eq!(words.as_ptr().add(8).cast::<u64>().read_volatile(), 1);
        assert_eq!(words.as_ptr().add(16).cast::<[u8; 16]>().read_volatile(), [7; 16]);
    }
    event.synchronize().unwrap();
    assert!(first.is_done().unwrap() && event.is_done().unwrap());
    drop((first, second, words, memory, event, context));
    nothing_is_left();
    bootstrap.liveness().close(0);
}

pub(crate) fn captures(bootstrap: &mut dyn Bootstrap) {
    let context = gpu(0).unwrap();
    let (first, second) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    let memory = DeviceMemory::allocate(&context, 8).unwrap();
    let event = Event::new(&context).unwrap();
    assert_eq!(first.capture_state().unwrap(), CaptureState::None);
    let graph = Graph::capture::<CudaError>(&first, CaptureMode::Global, || {
        let CaptureState::Active(number) = first.capture_state()? else { panic!("it is captured") };
        let driver = context.device().driver();
        drop(beside_captures(driver, || DeviceMemory::allocate(&context, 8)).unwrap());
        // SAFETY: the memory outlives the graph.
        unsafe { fill(&first, memory.as_ptr(), 1, 8) }?;
        event.record(&first)?;
        event.hold(&second)?;
        assert_eq!(second.capture_state()?, CaptureState::Active(number), "it has joined");
        // SAFETY: as above.
        unsafe { fill(&second, memory.as_ptr(), 2, 4) }?;
        event.record(&second)?;
        event.hold(&first)
    });
    let mut found = [9; 8];
    // SAFETY: the memory is as long, and lives.
    unsafe {
        copy_out(&context, &mut found, memory.as_ptr()).unwrap();
        assert_ne!(found, [2, 2, 2, 2, 1, 1, 1, 1], "nothing happens before the launch");
        graph.unwrap().launch(&first).unwrap();
        first.synchronize().unwrap();
        copy_out(&context, &mut found, memory.as_ptr()).unwrap();
    }
    assert_eq!(found, [2, 2, 2, 2, 1, 1, 1, 1]);
    let spoiled = Graph::capture::<CudaError>(&first, CaptureMode::Global, || {
        let refused = first.synchronize();
        assert!(matches!(refused, Err(CudaError::Capturing { .. })), "{refused:?}");
        assert_eq!(first.capture_state()?, CaptureState::Invalid);
        Ok(())
    });
    assert!(matches!(spoiled, Err(CudaError::Capturing { .. })), "{spoiled:?}");
    let unjoined = Graph::capture::<CudaError>(&first, CaptureMode::Relaxed, || {
        event.record(&first)?;
        event.hold(&second)?;
        // SAFETY: it never happens.
        unsafe { fill(&second, memory.as_ptr(), 2, 4) }
    });
    assert!(matches!(unjoined, Err(CudaError::Capturing { .. })), "{unjoined:?}");
    let failed = Graph::capture(&first, CaptureMode::Global, || Err(CudaError::NoDevice));
    assert!(matches!(failed, Err(CudaError::NoDevice)), "what failed first is told");
    first.synchronize().unwrap();
    drop((first, second, memory, event, context));
    nothing_is_left();
    bootstrap.liveness().close(0);
}

/// One connection for all streams: what waits in one stream keeps back what comes later in another.
pub(crate) fn one_connection(bootstrap: &mut dyn Bootstrap) {
    let context = gpu(0).unwrap();
    let (first, second) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    let gate = PinnedMemory::allocate(&context, 8).unwrap();
    let memory = DeviceMemory::allocate(&context, 8).unwrap();
    // SAFETY: gate and memory live until both streams are done.
    unsafe {
        first.wait_value(gate.device_ptr().cast(), 1).unwrap();
        fill(&second, memory.as_ptr(), 1, 8).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(!second.is_done().unwrap(), "it stands behind the wait");
        gate.as_ptr().cast::<u64>().write_volatile(1);
    }
    second.synchronize().unwrap();
    first.synchronize().unwrap();
    bootstrap.liveness().close(0);
}

/// Streams of others: one that some library made, and the legacy default stream.
pub(crate) fn foreign(bootstrap: &mut dyn Bootstrap) {
    let (context, other) = (gpu(0).unwrap(), gpu(1).unwrap());
    let mut raw = std::ptr::null_mut();
    let made = context.scope(|| {
        // SAFETY: the driver is loaded, the context current, and the pointer valid. 0: ordered with
        // the default stream.
        oxccl_transports::cuda::check("cuStreamCreate", unsafe {
            sys::cuStreamCreate(&raw mut raw, 0)
        })
    });
    made.unwrap();
    let memory = DeviceMemory::allocate(&context, 8).unwrap();
    // SAFETY: the stream lives to the end; null is the default one. The memory lives as well.
    unsafe {
        let theirs = Stream::foreign(&context, raw.cast()).unwrap();
        let default = Stream::foreign(&context, std::ptr::null_mut()).unwrap();
        let gate = PinnedMemory::allocate(&context, 8).unwrap();
        theirs.wait_value(gate.device_ptr().cast(), 1).unwrap();
        fill(&theirs, memory.as_ptr(), 1, 8).unwrap();
        fill(&default, memory.as_ptr(), 2, 4).unwrap();
        assert!(!default.is_done().unwrap(), "it is ordered behind");
        gate.as_ptr().cast::<u64>().write_volatile(1);
        default.synchronize().unwrap();
        let mut found = [0; 8];
        copy_out(&context, &mut found, memory.as_ptr()).unwrap();
        assert_eq!(found, [2, 2, 2, 2, 1, 1, 1, 1]);
        let wrong = Stream::foreign(&other, raw.cast());
        assert!(matches!(wrong, Err(CudaError::NotPrimary { ordinal: 1 })), "{wrong:?}");
        let spoiled = Graph::capture::<CudaError>(&theirs, CaptureMode::Relaxed, || {
            let refused = fill(&default, memory.as_ptr(), 3, 8);
            assert!(matches!(refused, Err(CudaError::Capturing { .. })), "{refused:?}");
            Ok(())
        });
        assert!(spoiled.is_err(), "the default stream would be ordered with what is captured");
        let beside = Graph::capture::<Error>(&theirs, CaptureMode::Global, || {
            beside_captures(context.device().driver(), || {
                let [mut alone] = local(1).try_into().unwrap();
                drop(Rank::start(&mut alone)?);
                alone.liveness().close(0);
                Ok(())
            })
        });
        beside.expect("a start does not disturb what is captured");
        drop(theirs);
        assert_eq!(sys::cuStreamQuery(raw), sys::CUresult::CUDA_ERROR_INVALID_CONTEXT);
        let alive = context.scope(|| oxccl_transports::cuda::check("", sys::cuStreamQuery(raw)));
        alive.expect("who did not make it does not end it");
        let ended =
            context.scope(|| oxccl_transports::cuda::check("", sys::cuStreamDestroy_v2(raw)));
        ended.unwrap();
        assert!(Stream::foreign(&context, raw.cast()).is_err(), "it is gone");
    }
    bootstrap.liveness().close(0);
}
