//! Ranks of one process that share their launches.

use crate::calls::{config, stream};
use crate::processes::{deadline, nothing_is_left};
use oxccl::cuda::{CaptureMode, Event, Graph, Stream};
use oxccl::{Advanced, Collectives, Communicator, Config, DeviceBuffer, Error, ReduceOp, Unready};
use oxccl_cuda_stand_in::control::Control;
use oxccl_transports::{Bootstrap, CudaError, Error as Transport};
use std::time::Duration;

const RANKS: usize = 3;
const COUNT: usize = 5000;

fn joined() -> Config {
    Config { advanced: Advanced { single_launch: Some(true), ..config().advanced }, ..config() }
}

fn on_threads(ranks: Vec<Communicator>, run: impl Fn(Communicator) + Sync) {
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(|| run(comm));
        }
    });
}

fn filled(comm: &Communicator, value: f32) -> DeviceBuffer<f32> {
    let mut buffer = comm.alloc(COUNT).unwrap();
    buffer.write(&[value; COUNT]).unwrap();
    buffer
}

fn expect(buffer: &DeviceBuffer<f32>, value: f32) {
    let mut found = vec![0.0; COUNT];
    buffer.read(&mut found).unwrap();
    assert!(found.iter().all(|found| *found == value), "{} is not {value}", found[0]);
}

/// Each call is one launch for all ranks, whatever their streams; sends and receives are each
/// rank's own.
pub(crate) fn launches(outer: &mut dyn Bootstrap) {
    let control = Control::attach().unwrap();
    on_threads(Communicator::local_with(RANKS, &joined()).unwrap(), |comm| {
        let streams = [stream(&comm), stream(&comm)];
        let (rank, n) = (comm.rank(), comm.world_size());
        let mut buffer = filled(&comm, rank as f32 + 1.0);
        let mut sum = (n * (n + 1) / 2) as f32;
        comm.barrier().unwrap();
        // Nobody launches without this rank.
        let before = control.launches();
        for step in 0..5 {
            let on = comm.on(&streams[(step + rank) % 2]);
            let _ = on.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        }
        comm.barrier().unwrap();
        assert_eq!(control.launches() - before, 6);
        (1..5).for_each(|_| sum *= n as f32);
        expect(&buffer, sum);
        // More than there are places.
        for _ in 0..100 {
            let _ = comm.on(&streams[0]).barrier().unwrap();
        }
        comm.barrier().unwrap();
        match rank {
            0 => comm.on(&streams[0]).send(&buffer, 1).unwrap().wait().unwrap(),
            1 => comm.on(&streams[0]).recv(&mut buffer, 0).unwrap().wait().unwrap(),
            _ => {}
        }
        comm.barrier().unwrap();
        assert_eq!(control.launches() - before, 110);
    });
    nothing_is_left();
    outer.liveness().close(0);
}

/// Groups, too: of several kinds, with messages that only some ranks have, with a bucket that one
/// rank has ready later, and of messages alone.
pub(crate) fn groups(outer: &mut dyn Bootstrap) {
    let control = Control::attach().unwrap();
    on_threads(Communicator::local_with(RANKS, &joined()).unwrap(), |comm| {
        let (stream, rank, n) = (stream(&comm), comm.rank(), comm.world_size());
        let mut sums = [filled(&comm, 1.0), filled(&comm, 2.0)];
        let mut late = filled(&comm, 0.0);
        let mut whole = comm.alloc::<i8>(n * 70).unwrap();
        let mut message = filled(&comm, rank as f32);
        comm.barrier().unwrap();
        let before = control.launches();
        for step in 1..=5 {
            let mut unready = Unready::new(&mut late);
            let (work, _) = comm
                .on(&stream)
                .group(|group| {
                    for buffer in &mut sums {
                        group.all_reduce_in_place(buffer, ReduceOp::Max)?;
                    }
                    group.all_gather_in_place(&mut whole)?;
                    match rank {
                        0 => drop(group.send(&message, 1)?),
                        1 => drop(group.recv(&mut message, 0)?),
                        _ => {}
                    }
                    group.all_reduce_in_place(&mut unready, ReduceOp::Sum)
                })
                .unwrap();
            unready.write(&vec![step as f32; COUNT]).unwrap();
            unready.ready();
            work.wait().unwrap();
            expect(&late, (step * n) as f32);
        }
        comm.barrier().unwrap();
        assert_eq!(control.launches() - before, 5 * n as u64 + 1, "with marks, one of each rank");
        let (work, ()) = comm
            .on(&stream)
            .group(|group| {
                for buffer in &mut sums {
                    group.all_reduce_in_place(buffer, ReduceOp::Max)?;
                }
                group.all_gather_in_place(&mut whole)
            })
            .map(|(work, _)| (work, ()))
            .unwrap();
        work.wait().unwrap();
        comm.barrier().unwrap();
        assert_eq!(control.launches() - before, 5 * n as u64 + 3, "one for all ranks each");
        // From here on ranks launch alone.
        comm.barrier().unwrap();
        sums.iter().zip([1.0, 2.0]).for_each(|(sum, value)| expect(sum, value));
        expect(&message, if rank == 1 { 0.0 } else { rank as f32 });
        // What one rank alone has to send takes more channels, and another kernel, than what all
        // have.
        let filled_with = |(count, value): (usize, usize)| {
            let mut buffer = comm.alloc::<f32>(count).unwrap();
            buffer.write(&vec![value as f32; count]).unwrap();
            buffer
        };
        let [mut long, mut small, mut other] = [(9000, rank), (10, 1), (20, 2)].map(filled_with);
        for _ in 0..3 {
            let (work, ()) = comm
                .on(&stream)
                .group(|group| {
                    group.all_reduce_in_place(&mut small, ReduceOp::Max)?;
                    group.all_reduce_in_place(&mut other, ReduceOp::Max)?;
                    match rank {
                        0 => group.send(&long, 2).map(drop),
                        2 => group.recv(&mut long, 0).map(drop),
                        _ => Ok(()),
                    }
                })
                .unwrap();
            work.wait().unwrap();
        }
        let mut found = [9.0; 9000];
        long.read(&mut found).unwrap();
        assert_eq!(found, [if rank == 2 { 0.0 } else { rank as f32 }; 9000]);
        let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
        let (work, ()) = comm
            .on(&stream)
            .group(|group| {
                group.send(&sums[0], next)?;
                group.recv(&mut message, previous).map(drop)
            })
            .unwrap();
        work.wait().unwrap();
        expect(&message, 1.0);
        comm.barrier().unwrap();
        assert_eq!(control.launches() - before, 9 * n as u64 + 5, "one of each rank");
    });
    nothing_is_left();
    outer.liveness().close(0);
}

/// The streams of all ranks in one graph, which has one kernel.
pub(crate) fn captured(outer: &mut dyn Bootstrap) {
    let control = Control::attach().unwrap();
    let ranks = Communicator::local_with(RANKS, &joined()).unwrap();
    let context = ranks[0].context().unwrap();
    let streams: Vec<Stream> = ranks.iter().map(stream).collect();
    let mut buffers: Vec<_> = ranks.iter().map(|comm| filled(comm, 1.0)).collect();
    let (fork, join) = (Event::new(&context).unwrap(), Event::new(&context).unwrap());
    let before = control.launches();
    let capture = || -> Result<(), Error> {
        fork.record(&streams[0])?;
        streams[1..].iter().try_for_each(|stream| fork.hold(stream))?;
        std::thread::scope(|scope| {
            for ((comm, stream), buffer) in ranks.iter().zip(&streams).zip(&mut buffers) {
                let shared = Moved(comm);
                scope.spawn(move || {
                    let comm = { shared }.0;
                    let work = comm.on(stream).all_reduce_in_place(buffer, ReduceOp::Sum);
                    assert!(work.unwrap().is_done(), "only recorded");
                });
            }
        });
        for stream in &streams[1..] {
            join.record(stream)?;
            join.hold(&streams[0])?;
        }
        Ok(())
    };
    let graph = Graph::capture(&streams[0], CaptureMode::Relaxed, capture).unwrap();
    assert_eq!(control.launches() - before, 1);
    let mut value = 1.0;
    for _ in 0..3 {
        // SAFETY: all that it was captured with lives.
        unsafe { graph.launch(&streams[0]) }.unwrap();
        streams[0].synchronize().unwrap();
        value *= RANKS as f32;
        buffers.iter().for_each(|buffer| expect(buffer, value));
    }
    drop(graph);
    on_threads(ranks, |comm| comm.barrier().unwrap());
    drop((buffers, streams, fork, join, context));
    nothing_is_left();
    outer.liveness().close(0);
}

/// A communicator that another thread uses while its own waits for that.
struct Moved<'a>(&'a Communicator);
// SAFETY: one thread at a time uses it.
unsafe impl Send for Moved<'_> {}

/// Ranks that call something else, do not come, or capture alone: named, and nobody hangs.
pub(crate) fn misuse(outer: &mut dyn Bootstrap) {
    on_threads(Communicator::local_with(2, &joined()).unwrap(), |mut comm| {
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            comm.set_timeout(Duration::from_millis(300)).unwrap();
            let error = comm.barrier().unwrap_err();
            let Error::TimedOut { detail, .. } = &error else { panic!("{error:?}") };
            assert!(detail.contains("rank 1 has not called barrier"), "{detail}");
        } else {
            comm.set_timeout(Duration::from_secs(60)).unwrap();
            let buffer = filled(&comm, 0.0);
            let sent = comm.on(&stream(&comm)).send(&buffer, 0).and_then(|work| work.wait());
            sent.unwrap_err();
        }
        assert!(matches!(comm.barrier(), Err(Error::Broken { .. })));
    });
    on_threads(Communicator::local_with(2, &joined()).unwrap(), |comm| {
        let mut ints = comm.alloc::<i32>(COUNT).unwrap();
        let error = match comm.rank() {
            0 => comm.on(&stream(&comm)).broadcast_in_place(&mut ints, 0).map(drop),
            _ => comm.barrier(),
        };
        match error.unwrap_err() {
            Error::Mismatch { argument, .. } => assert_eq!(argument, "the collective"),
            Error::Stopped { reason, .. } => assert!(reason.contains("the collective"), "{reason}"),
            other => panic!("{other:?}"),
        }
    });
    on_threads(Communicator::local_with(2, &joined()).unwrap(), |comm| {
        let stream = stream(&comm);
        let mut buffer = filled(&comm, 0.0);
        let mut call =
            || comm.on(&stream).all_reduce_in_place(&mut buffer, ReduceOp::Sum).map(drop);
        let error = match comm.rank() {
            0 => Graph::capture(&stream, CaptureMode::ThreadLocal, call).map(drop).unwrap_err(),
            _ => call().unwrap_err(),
        };
        match error {
            Error::CapturedApart { .. } => {}
            Error::Stopped { reason, .. } => assert!(reason.contains("one graph"), "{reason}"),
            other => panic!("{other:?}"),
        }
    });
    nothing_is_left();
    outer.liveness().close(0);
}

/// Configurations without ranks that could share a launch, and a launch that fails.
pub(crate) fn starts(outer: &mut dyn Bootstrap) {
    let wrong = |config: &Config| match Communicator::local_with(2, config).unwrap_err() {
        Error::Config { variable: "single_launch", .. } => {}
        Error::Transport(Transport::Stopped(_)) => {}
        other => panic!("{other:?}"),
    };
    wrong(&Config {
        advanced: Advanced { single_launch: Some(true), ..Advanced::default() },
        ..Config::default()
    });
    // They take turns with two GPUs.
    wrong(&joined());
    let one = Config { device: oxccl::Device::Cuda(Some(0)), ..joined() };
    let (id, _server) = oxccl::UniqueId::create().unwrap();
    let process = Communicator::connect(&id, 0, 1, &one).unwrap_err();
    assert!(matches!(process, Error::Config { variable: "single_launch", .. }), "{process:?}");
    let control = Control::attach().unwrap();
    let begin = std::time::Instant::now();
    on_threads(Communicator::local_with(2, &one).unwrap(), |comm| {
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            control.fail("cuLaunchKernelEx:1:701");
        }
        match comm.barrier().and_then(|()| comm.barrier()).unwrap_err() {
            Error::DeviceLost { source: CudaError::Driver { code: 701, .. } }
            | Error::Stopped { .. } => {}
            other => panic!("{other:?}"),
        }
    });
    assert!(begin + Duration::from_secs(50) < deadline(), "nobody waits for the time-out");
    control.fail("");
    nothing_is_left();
    outer.liveness().close(0);
}
