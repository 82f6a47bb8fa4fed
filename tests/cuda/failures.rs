//! What goes wrong: a typed error on the rank that has it, no hang, nothing left.

use crate::processes::{deadline, meet, nothing_is_left};
use crate::rank::{Rank, gpu, image};
use oxccl::cuda::{Image, Kernels, Stream};
use oxccl::plans::algorithms::{Algorithm, Encoding, find};
use oxccl::{DataType, Kind, UniqueId};
use oxccl_cuda_stand_in::control::{Control, Live};
use oxccl_kernels::{Fold, Outcome};
use oxccl_transports::{Bootstrap, Cause, CudaError, Error, local, shm};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The start of two ranks, over and over: each driver call of it fails once, on one rank and then
/// on the other. Where a switch joins their GPUs, both may also start without it.
pub(crate) fn every_call(outer: &mut dyn Bootstrap) {
    let control = Control::attach().unwrap();
    let rank = outer.rank();
    let before = control.calls();
    let Started { calls, switch } = start(outer, &control).unwrap();
    let all = outer.all_gather(&(calls - before).to_le_bytes(), deadline()).unwrap();
    let descriptors = descriptors();
    for (victim, most) in all.iter().enumerate() {
        let most = u64::from_le_bytes(most[..].try_into().unwrap());
        assert!(most > 60, "{most} calls of rank {victim}");
        let (mut failures, mut without) = (0, 0);
        for number in 1..=most {
            if rank == victim {
                control.fail(&format!("*:{number}:999"));
            }
            let started = start(outer, &control);
            control.fail("");
            match started {
                Err(Error::Cuda(CudaError::Driver { code: 999, .. })) if rank == victim => {
                    failures += 1
                }
                Err(Error::Stopped(Cause::Aborted { rank: told, .. })) if rank != victim => {
                    assert_eq!(told, victim);
                    failures += 1;
                }
                Ok(Started { switch: false, .. }) if switch => without += 1,
                other => panic!("call {number} of rank {victim}, on rank {rank}: {other:?}"),
            }
            assert_eq!(control.live(), Live::default(), "call {number}");
            wait_until("descriptors are closed", || self::descriptors() == descriptors);
        }
        assert_eq!(failures + without, most);
        assert_eq!(without > 0, switch, "{without} starts without the switch");
    }
    outer.liveness().close(0);
}

#[derive(Debug)]
struct Started {
    /// Driver calls until all ranks were complete.
    calls: u64,
    switch: bool,
}

/// Starts both ranks over a rendezvous of their own, and ends them.
fn start(outer: &mut dyn Bootstrap, control: &Control) -> Result<Started, Error> {
    let made = (outer.rank() == 0).then(|| UniqueId::create().unwrap());
    let id = made.as_ref().map(|(id, _)| id.to_string()).unwrap_or_default();
    let all = outer.all_gather(id.as_bytes(), deadline()).unwrap();
    let id = UniqueId::from_str(std::str::from_utf8(&all[0]).unwrap()).unwrap();
    let mut inner = shm::connect(&id, outer.rank(), outer.world(), deadline()).unwrap();
    let started = Rank::start(&mut inner).and_then(|rank| {
        let entry = find(Kind::AllReduce, Algorithm::Ring, Encoding::Ll).unwrap();
        let prepared = rank.all_reduce(entry, DataType::F32, 100).inspect_err(|error| {
            let cause = Cause::Aborted { rank: inner.rank(), reason: error.to_string() };
            inner.liveness().abort(cause);
        });
        let started =
            Started { calls: control.calls(), switch: rank.gpu.borrow().switched().is_some() };
        control.fail("");
        prepared.map(|_| started)
    });
    // A rank that was complete may hear of the other's failure only now.
    let met = started.and_then(|started| inner.all_gather(&[], deadline()).map(|_| started));
    meet(outer);
    inner.liveness().close(0);
    met
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = deadline();
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Launches on this rank alone, so that it waits for a peer that does not come, until something
/// stops it.
fn stuck(bootstrap: &mut dyn Bootstrap, rank: &Rank, stop: impl FnOnce(&mut dyn Bootstrap)) {
    let entry = find(Kind::AllReduce, Algorithm::Ring, Encoding::Slots).unwrap();
    let prepared = rank.all_reduce(entry, DataType::F32, 1000).unwrap();
    rank.put(&rank.stream, &prepared, rank.heap, [0, 1 << 20]).unwrap();
    let progress = || rank.gpu.borrow().tables().progress(0);
    wait_until("the kernel tells what it waits for", || progress().call == 1);
    assert_eq!(progress().peer as usize, 1 - bootstrap.rank());
    assert!(!rank.stream.is_done().unwrap());
    stop(bootstrap);
    rank.stream.synchronize().unwrap();
    let (_, status) = rank.outcome().unwrap_err();
    assert_eq!(status.outcome, Outcome::Aborted as u32);
    assert_eq!(progress().call, 1, "it stays written");
}

/// Floats have no bits to fold: a kernel does not take a program for one that it knows.
pub(crate) fn foreign_fold(bootstrap: &mut dyn Bootstrap) {
    let rank = Rank::start(bootstrap).unwrap();
    let entry = find(Kind::AllReduce, Algorithm::Ring, Encoding::Slots).unwrap();
    for (data_type, fold, fits) in [
        (DataType::I32, Fold::BitAnd, true),
        (DataType::F32, Fold::Min, true),
        (DataType::F32, Fold::BitAnd, false),
    ] {
        let prepared = rank.folding(entry, data_type, [fold, Fold::Max], 100).unwrap();
        rank.put(&rank.stream, &prepared, rank.heap, [0, 1 << 20]).unwrap();
        rank.stream.synchronize().unwrap();
        let outcome = rank.outcome().map_err(|(_, status)| status.outcome);
        let expected = if fits { Ok(()) } else { Err(Outcome::BadProgram as u32) };
        assert_eq!(outcome, expected, "{data_type:?} {fold:?}");
        bootstrap.all_gather(&[], deadline()).unwrap();
    }
}

/// One rank waits in a kernel; the other aborts.
pub(crate) fn abort(bootstrap: &mut dyn Bootstrap) {
    let rank = Rank::start(bootstrap).unwrap();
    if bootstrap.rank() == 0 {
        stuck(bootstrap, &rank, |bootstrap| {
            let told = bootstrap.all_gather(&[], deadline());
            assert!(matches!(told, Err(Error::Stopped(_)) | Ok(_)), "{told:?}");
        });
        assert_eq!(
            bootstrap.liveness().cause(),
            Some(Cause::Aborted { rank: 1, reason: "test".to_owned() })
        );
    } else {
        meet(bootstrap);
        bootstrap.liveness().abort(Cause::Aborted { rank: 1, reason: "test".to_owned() });
    }
    drop(rank);
    nothing_is_left();
}

/// One rank waits in a kernel; the other's thread, in the same process, ends without a goodbye. Its
/// bootstrap goes before its memory: giving that back waits for all kernels of the context, the
/// other rank's too, so they must have been told.
pub(crate) fn death(outer: &mut dyn Bootstrap) {
    let [mut survivor, mut victim] = local(2).try_into().unwrap();
    let (go, gone) = std::sync::mpsc::channel();
    let dead = std::thread::spawn(move || {
        let rank = Rank::start(&mut victim).unwrap();
        gone.recv().unwrap();
        drop(victim);
        drop(rank);
    });
    let rank = Rank::start(&mut survivor).unwrap();
    stuck(&mut survivor, &rank, |_| go.send(()).unwrap());
    assert_eq!(survivor.liveness().cause(), Some(Cause::Died { rank: 1 }));
    dead.join().unwrap();
    outer.liveness().close(0);
}

/// Two ranks of two channels need four blocks at once, and there is room for three. A third rank
/// has another GPU.
pub(crate) fn too_many_blocks(bootstrap: &mut dyn Bootstrap) {
    let context = gpu(0).unwrap();
    let kernels = Kernels::load(&context, image(context.device()).unwrap()).unwrap();
    let kernel = kernels.pick(DataType::BF16, Fold::Max).unwrap();
    kernels.check_residency(kernel, 3, 1).unwrap();
    match kernels.check_residency(kernel, 2, 2) {
        Err(CudaError::TooManyBlocks { ranks: 2, channels: 2, resident: 3, .. }) => {}
        other => panic!("{other:?}"),
    }
    let bulk = kernels.with_bulk_copies(kernel).unwrap();
    assert_eq!(bulk.resident(), kernel.resident(), "one block fits, stages and all");
    let refused = kernels.pick(DataType::F32, Fold::BitXor);
    assert!(matches!(refused, Err(CudaError::NotSupported { .. })), "{refused:?}");
    // Of a start, on every rank alike, whichever GPU it is on.
    let ranks = bootstrap.world();
    match Rank::start_with(bootstrap, 2, None) {
        Err(Error::Cuda(CudaError::TooManyBlocks { ranks: 2, channels: 2, .. })) => {}
        other => panic!("{:?} of {ranks}", other.map(drop)),
    }
}

/// A kernel of one GPU in a stream of another.
pub(crate) fn wrong_context(bootstrap: &mut dyn Bootstrap) {
    let rank = Rank::start(bootstrap).unwrap();
    let entry = find(Kind::AllReduce, Algorithm::OneShot, Encoding::Ll).unwrap();
    let prepared = rank.all_reduce(entry, DataType::F32, 10).unwrap();
    let other = Stream::new(&gpu(1).unwrap()).unwrap();
    let refused = rank.put(&other, &prepared, rank.heap, [0, 40]);
    assert!(matches!(refused, Err(CudaError::Driver { .. })), "{refused:?}");
    rank.stream.synchronize().unwrap();
    bootstrap.liveness().close(0);
}

/// A GPU older than all code in the image; and the image that this build has, or has not.
pub(crate) fn no_image(bootstrap: &mut dyn Bootstrap) {
    let context = gpu(0).unwrap();
    match Kernels::load(&context, image(context.device()).unwrap()) {
        Err(CudaError::NoImage { capability, ordinal: 0, .. }) => assert_eq!(capability, "7.5"),
        other => panic!("{other:?}"),
    }
    // SAFETY: a text with a zero at its end.
    let nonsense = unsafe { Image::from_bytes(b"nonsense\0") };
    let refused = Kernels::load(&context, nonsense);
    assert!(matches!(refused, Err(CudaError::NoImage { .. })), "{refused:?}");
    let embedded = Image::embedded(context.device());
    match oxccl_kernels::image::FATBIN {
        Some(_) => assert!(embedded.is_ok()),
        None => assert!(matches!(embedded, Err(CudaError::NoImage { .. }))),
    }
    bootstrap.liveness().close(0);
}

/// Host memory where a kernel needs a GPU's: the context ends, as by an illegal address.
pub(crate) fn host_pointer(bootstrap: &mut dyn Bootstrap) {
    let rank = Rank::start(bootstrap).unwrap();
    let entry = find(Kind::AllReduce, Algorithm::OneShot, Encoding::Ll).unwrap();
    let prepared = rank.all_reduce(entry, DataType::F32, 10).unwrap();
    let mut buffer = [0u8; 80];
    rank.put(&rank.stream, &prepared, buffer.as_mut_ptr(), [0, 40]).unwrap();
    let ended = rank.stream.synchronize().unwrap_err();
    const ILLEGAL_ADDRESS: u32 = 700;
    assert_eq!(ended.code(), Some(ILLEGAL_ADDRESS));
    let later = rank.stream.is_done().unwrap_err();
    assert_eq!(later.code(), Some(ILLEGAL_ADDRESS), "{later}: nothing works any more");
    bootstrap.liveness().close(0);
}
