//! How calls on a GPU end that cannot be done: the rank that is to blame is named, and nobody
//! hangs.

use crate::calls::stream;
use crate::processes::{deadline, die, line_up};
use oxccl::cuda::{CaptureMode, Graph};
use oxccl::{CallOptions, Collectives, Communicator, Error, ReduceOp};
use oxccl_transports::cuda::DeviceMemory;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const COUNT: usize = 2000;

/// Rank 1 does not come in time.
pub(crate) fn late(comm: Communicator) {
    late_while(comm, || ());
}

/// Meanwhile the rank that waits gives back memory: the driver waits for its kernel, and lets
/// nobody in who would ask about events.
pub(crate) fn late_beside_a_free(comm: Communicator) {
    let other = DeviceMemory::allocate(comm.context().as_ref().unwrap(), 4096).unwrap();
    late_while(comm, || drop(other));
}

fn late_while(mut comm: Communicator, act: impl FnOnce()) {
    comm.barrier().unwrap();
    comm.set_timeout(Duration::from_millis(300)).unwrap();
    let stream = stream(&comm);
    let mut buffer = comm.alloc::<f32>(COUNT).unwrap();
    if comm.rank() == 0 {
        let work = comm.on(&stream).all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        act();
        match work.wait() {
            Err(Error::TimedOut { detail, .. }) => {
                assert!(detail.contains("rank 1 has not called all_reduce"), "{detail}");
                assert!(detail.contains("its last was barrier"), "{detail}");
            }
            other => panic!("{other:?}"),
        }
        let again = comm.on(&stream).all_reduce_in_place(&mut buffer, ReduceOp::Sum);
        assert!(matches!(again, Err(Error::Broken { .. })), "{again:?}");
        DONE.store(true, Ordering::Release);
    } else {
        stay_away();
        let work = comm.on(&stream).all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        let error = work.wait();
        assert!(matches!(error, Err(Error::Stopped { rank: 0, .. }) | Ok(())), "{error:?}");
        let error = comm.barrier();
        assert!(error.is_err(), "nobody comes");
    }
}

/// Rank 1 does not come in the time that one call of rank 0's has.
pub(crate) fn late_for_one_call(comm: Communicator) {
    comm.barrier().unwrap();
    let stream = stream(&comm);
    let mut buffer = comm.alloc::<f32>(COUNT).unwrap();
    let timeout = Some(Duration::from_millis(300));
    let on = comm.on(&stream).with_options(CallOptions { timeout, ..CallOptions::default() });
    let on = on.unwrap();
    on.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap().wait().unwrap();
    if comm.rank() == 0 {
        let work = on.all_reduce_in_place(&mut buffer, ReduceOp::Sum);
        let error = work.and_then(|work| work.wait()).unwrap_err();
        assert!(matches!(error, Error::TimedOut { seconds: 0.3, .. }), "{error:?}");
        assert_eq!(error.ranks(), [1], "{error}");
        DONE.store(true, Ordering::Release);
    } else {
        stay_away();
        assert!(comm.barrier().is_err(), "nobody comes");
    }
}

/// What a rank waits for is seen from outside, while its kernel waits.
pub(crate) fn seen(comm: Communicator) {
    comm.barrier().unwrap();
    let stream = stream(&comm);
    let mut buffer = comm.alloc::<f32>(COUNT).unwrap();
    if comm.rank() == 1 {
        stay_away();
    }
    let work = comm.on(&stream).all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
    if comm.rank() == 0 {
        let deadline = deadline();
        loop {
            let found = oxccl::status::of_process(std::process::id()).unwrap().ranks;
            assert_eq!(found.len(), 2);
            let [waits, late] = [&found[0].seen, &found[1].seen];
            let for_late = waits.waits.iter().any(|wait| wait.wait_for.peer() == Some(1));
            if for_late && waits.waiting_s.is_some() {
                let last = waits.last().unwrap();
                assert_eq!(
                    (last.kind.as_deref(), last.count),
                    (Some("all_reduce"), Some(COUNT as u64))
                );
                assert_eq!((waits.entered, waits.is_inside), (2, true));
                assert_eq!((late.entered, late.is_inside), (1, false));
                break;
            }
            assert!(Instant::now() < deadline, "{found:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        DONE.store(true, Ordering::Release);
    }
    work.wait().unwrap();
}

/// Set when the rank that calls has seen what comes of it.
pub(crate) static DONE: AtomicBool = AtomicBool::new(false);

pub(crate) fn stay_away() {
    let deadline = deadline();
    while !DONE.load(Ordering::Acquire) {
        assert!(Instant::now() < deadline, "the other rank hangs");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A replay waits for a rank that does not replay.
pub(crate) fn late_replay(mut comm: Communicator) {
    comm.set_timeout(Duration::from_millis(300)).unwrap();
    let stream = stream(&comm);
    let mut buffer = comm.alloc::<f32>(COUNT).unwrap();
    let graph = Graph::capture(&stream, CaptureMode::ThreadLocal, || {
        comm.on(&stream).all_reduce_in_place(&mut buffer, ReduceOp::Sum).map(drop)
    });
    let graph = graph.unwrap();
    line_up();
    comm.barrier().unwrap();
    if comm.rank() == 0 {
        // SAFETY: buffer and communicator live.
        unsafe { graph.launch(&stream) }.unwrap();
        stream.synchronize().unwrap();
        // The next call fails, whether the thread that looks after replays has already told why or
        // not.
        let error = comm.barrier().unwrap_err();
        let told = matches!(error, Error::TimedOut { .. } | Error::Broken { .. });
        // It has told the others while this call waited for them.
        assert!(told || matches!(error, Error::Stopped { rank: 0, .. }), "{error:?}");
        DONE.store(true, Ordering::Release);
    } else {
        stay_away();
        // What rank 0 sent before it gave up may be enough for one.
        let error = (0..2).find_map(|_| comm.barrier().err());
        assert!(matches!(error, Some(Error::Stopped { rank: 0, .. })), "{error:?}");
    }
}

/// The ranks call for different counts.
pub(crate) fn mismatch(comm: Communicator) {
    let stream = stream(&comm);
    let mut buffer = comm.alloc::<f32>(COUNT + comm.rank()).unwrap();
    let work = comm.on(&stream).all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
    match work.wait() {
        Err(Error::Mismatch { argument: "count", call: 1, rank, .. }) => {
            assert_eq!(rank, 1 - comm.rank());
        }
        Err(Error::Stopped { .. }) => {}
        other => panic!("{other:?}"),
    }
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
    let mut buffer = comm.alloc::<f32>(COUNT).unwrap();
    let work = comm.on(&stream).all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
    let error = work.wait();
    assert!(matches!(error, Err(Error::Died { rank: 1, .. })), "{error:?}");
}

/// The ranks that remain after a death go on, with the memory that they have.
pub(crate) fn survivors(comm: Communicator) {
    let (rank, dead) = (comm.rank(), 1);
    let mut buffer = comm.alloc::<f32>(COUNT).unwrap();
    let met = comm.barrier();
    if rank == dead {
        met.unwrap();
        die();
    }
    let error = met.and_then(|()| comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum));
    let error = error.unwrap_err();
    assert_eq!(error.ranks(), [dead], "{error:?}");
    let rest = comm.shrink(&error.ranks()).unwrap();
    drop(comm);
    buffer.write(&[rank as f32; COUNT]).unwrap();
    rest.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
    let mut found = [0.0; COUNT];
    buffer.read(&mut found).unwrap();
    assert_eq!(found, [2.0; COUNT]);
    crate::common::typed::check(&rest, &stream(&rest));
    rest.close().unwrap();
}

/// Another thread has enough while a kernel waits.
pub(crate) fn aborted(comm: Communicator) {
    comm.barrier().unwrap();
    let handle = comm.handle();
    if comm.rank() == 1 {
        while handle.error().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
    } else {
        let stream = stream(&comm);
        let mut buffer = comm.alloc::<f32>(COUNT).unwrap();
        let work = comm.on(&stream).all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            handle.abort("it is enough")
        });
        let error = work.wait().unwrap_err();
        assert!(matches!(error, Error::Stopped { rank: 0, .. }), "{error:?}");
        thread.join().unwrap().unwrap();
    }
    assert!(comm.barrier().unwrap_err().to_string().contains("it is enough"));
}

/// A thread panics.
pub(crate) fn panic(comm: Communicator) {
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        let victim = std::thread::spawn(move || {
            let _comm = comm;
            // Without the message of a real panic.
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(victim.join().is_err());
        return;
    }
    let mut buffer = comm.alloc::<f32>(COUNT).unwrap();
    let stream = stream(&comm);
    let works: Vec<_> = (0..3)
        .filter_map(|_| comm.on(&stream).all_reduce_in_place(&mut buffer, ReduceOp::Sum).ok())
        .collect();
    let mut errors = works.into_iter().map(|work| work.wait().unwrap_err());
    if let Some(first) = errors.next() {
        assert!(matches!(first, Error::Died { rank: 1, .. }), "{first:?}");
    }
    assert!(errors.all(|error| matches!(error, Error::Broken { .. })));
}

/// A rank closes its communicator before a call that needs it.
pub(crate) fn left(comm: Communicator) {
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        return;
    }
    let error = comm.barrier();
    assert!(matches!(error, Err(Error::Left { rank: 1, calls: 1, .. })), "{error:?}");
}
