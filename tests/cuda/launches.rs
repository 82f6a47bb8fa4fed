//! What calls ask of the driver: launches, their blocks, and what else.

use crate::calls::{CHANNELS, stream};
use crate::processes::line_up;
use oxccl::{CallOptions, Collectives, Communicator, Error, ReduceOp};
use oxccl_cuda_stand_in::control::Control;

/// Calls and groups that are to use few blocks do.
pub(crate) fn few_blocks(comm: Communicator) {
    let control = Control::attach().unwrap();
    let (stream, n) = (stream(&comm), comm.world_size() as u64);
    let on = comm.on(&stream);
    let mut buffer = comm.alloc::<f32>(100_000).unwrap();
    let mut blocks = |limit: Option<usize>, grouped: bool| {
        let on =
            on.with_options(CallOptions { channels: limit, ..CallOptions::default() }).unwrap();
        comm.barrier().unwrap();
        let before = control.blocks();
        comm.barrier().unwrap();
        for _ in 0..10 {
            let all = &mut buffer;
            if grouped {
                let made = on.group(|group| group.all_reduce_in_place(all, ReduceOp::Max));
                made.and_then(|(work, _)| work.wait()).unwrap();
            } else {
                on.all_reduce_in_place(all, ReduceOp::Max).and_then(|work| work.wait()).unwrap();
            }
        }
        comm.barrier().unwrap();
        control.blocks() - before
    };
    for (limit, channels) in [(None, CHANNELS), (Some(1), 1), (Some(CHANNELS), CHANNELS)] {
        for grouped in [false, true] {
            let blocks = blocks(limit, grouped);
            // Two barriers have a block each; others may be one barrier ahead or behind.
            let expected = n * (2 + 10 * channels as u64);
            assert!(blocks.abs_diff(expected) < n, "{blocks} blocks, {limit:?}, {grouped}");
        }
    }
    for wrong in [0, CHANNELS + 1] {
        let options = CallOptions { channels: Some(wrong), ..CallOptions::default() };
        let error = on.with_options(options).unwrap_err();
        assert!(matches!(error, Error::Config { variable: "options", .. }), "{error}");
    }
}

/// Each call is one launch, large or small, in the domain for remote memory where a GPU has that.
pub(crate) fn one_a_call(comm: Communicator) {
    let control = Control::attach().unwrap();
    let has_domains = comm.context().unwrap().device().capability().unwrap() >= (9, 0);
    let stream = stream(&comm);
    let meet = || comm.on(&stream).barrier().unwrap().wait().unwrap();
    meet();
    meet();
    for count in [1, 1000, 100_000] {
        let mut buffer = comm.alloc::<f32>(count).unwrap();
        let before = control.launches();
        meet();
        for _ in 0..5 {
            let _ = comm.on(&stream).all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        }
        meet();
        meet();
        let made = control.launches() - before;
        // This rank's; the others' may be one barrier behind or ahead.
        let (n, each) = (comm.world_size() as u64, 8);
        assert!((n * each - 2 * n..=n * each + 2 * n).contains(&made), "{made} launches");
    }
    line_up();
    assert_eq!(control.remote(), if has_domains { control.launches() } else { 0 });
    line_up();
}

/// What a call like those before it asks of the driver: whether the stream is captured, and the
/// launch; of memory that is not the heap's, which allocation it is in. Each of the two steps has
/// to know besides which context is current, and here to make its own so.
pub(crate) fn driver_calls(comm: Communicator) {
    const CALLS: u64 = 20;
    const CONTEXT: u64 = 2;
    let (control, stream) = (Control::attach().unwrap(), stream(&comm));
    let context = comm.context().unwrap();
    let of_driver = oxccl_transports::cuda::DeviceMemory::allocate(&context, 4096).unwrap();
    let mut of_heap = comm.alloc::<f32>(1024).unwrap();
    let count = |call: &mut dyn FnMut()| {
        (0..4).for_each(|_| call());
        stream.synchronize().unwrap();
        line_up();
        let before = control.calls();
        line_up();
        (0..CALLS).for_each(|_| call());
        line_up();
        let made = control.calls() - before;
        line_up();
        made
    };
    let each = CALLS * comm.world_size() as u64;
    let made = count(&mut || {
        let _ = comm.on(&stream).all_reduce_in_place(&mut of_heap, ReduceOp::Sum).unwrap();
    });
    assert_eq!(made, each * (2 + CONTEXT));
    // SAFETY: it is as long, and lives until the stream has ended.
    let mut foreign =
        unsafe { oxccl::DeviceSlice::<f32>::from_raw_parts(of_driver.as_ptr().cast(), 1024) };
    let made = count(&mut || {
        let _ = comm.on(&stream).all_reduce_in_place(&mut foreign, ReduceOp::Sum).unwrap();
    });
    assert_eq!(made, each * (3 + 2 * CONTEXT));
    stream.synchronize().unwrap();
}
