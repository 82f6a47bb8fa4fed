//! What goes wrong is an error with a name, on every rank that can know, and nothing hangs.
#![allow(clippy::unwrap_used)]

#[path = "common/port.rs"]
mod port;

use oxccl::plans::algorithms::Algorithm;
use oxccl::{
    Advanced, CallOptions, Collectives, Communicator, Config, Error, Order, Pin, ReduceOp, Stream,
    UniqueId,
};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn config(timeout_ms: u64) -> Config {
    Config { timeout: Duration::from_millis(timeout_ms), heap_bytes: 64 << 20, ..Config::default() }
}

/// Runs `rank` on a thread for every rank and returns what they return, in rank order.
fn on_ranks<T: Send>(n: usize, timeout_ms: u64, rank: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let ranks = Communicator::local_with(n, &config(timeout_ms)).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| rank(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Every rank's error names what differs; a later call says that the communicator has ended.
fn mismatch(what: &str, call: impl Fn(&Communicator, usize) -> Result<(), Error> + Sync) {
    for n in [2, 3] {
        let errors = on_ranks(n, 20_000, |comm| {
            comm.barrier().unwrap();
            let error = call(&comm, comm.rank()).and_then(|()| comm.barrier()).unwrap_err();
            let later = comm.barrier().unwrap_err();
            assert!(matches!(later, Error::Broken { .. }), "{later}");
            error
        });
        for error in &errors {
            assert!(error.to_string().contains(what), "{what}: {error}");
        }
        assert!(errors.iter().any(|error| matches!(error, Error::Mismatch { .. })), "{errors:?}");
    }
}

#[test]
fn different_lengths() {
    for base in [2, 1000, 100_000] {
        mismatch("count differs", |comm, rank| {
            comm.all_reduce_in_place(
                &mut vec![1.0f32; base + usize::from(rank == 1)],
                ReduceOp::Sum,
            )
        });
    }
}

#[test]
fn different_types_and_operations() {
    mismatch("the type differs", |comm, rank| match rank {
        0 => comm.all_reduce_in_place(&mut [1.0f32; 64], ReduceOp::Sum),
        _ => comm.all_reduce_in_place(&mut [1i32; 64], ReduceOp::Sum),
    });
    mismatch("op differs", |comm, rank| {
        comm.all_reduce_in_place(
            &mut [1.0f32; 50_000],
            if rank == 0 { ReduceOp::Max } else { ReduceOp::Sum },
        )
    });
}

#[test]
fn different_collectives_and_roots() {
    mismatch("the collective differs", |comm, rank| match rank {
        0 => comm.all_reduce_in_place(&mut [1.0f32; 64], ReduceOp::Sum),
        _ => comm.all_to_all_in_place(&mut [1.0f32; 6 * 64]),
    });
    mismatch("root differs", |comm, rank| {
        comm.broadcast_in_place(&mut [1.0f32; 64], usize::from(rank == 0))
    });
}

#[test]
fn different_limits_of_channels() {
    mismatch("most channels differs", |comm, rank| {
        let stream = Stream::new()?;
        let mut buffer = comm.alloc_host::<f32>(50_000)?;
        let channels = Some(1 + usize::from(rank == 0));
        comm.on(&stream)
            .with_options(CallOptions { channels, ..CallOptions::default() })?
            .all_reduce_in_place(&mut buffer, ReduceOp::Sum)?
            .wait()
    });
}

#[test]
fn different_options() {
    mismatch("the algorithm differs", |comm, rank| {
        let algorithm = Some([Algorithm::OneShot, Algorithm::Ring][rank % 2]);
        let options = CallOptions { algorithm, ..CallOptions::default() };
        comm.with_options(options, || comm.all_reduce_in_place(&mut [1.0f32; 64], ReduceOp::Sum))?
    });
    mismatch("order differs", |comm, rank| {
        let order = Some([Order::Rank, Order::Tree][rank % 2]);
        let options = CallOptions { order, ..CallOptions::default() };
        comm.with_options(options, || comm.all_reduce_in_place(&mut [1.0f32; 64], ReduceOp::Sum))?
    });
}

#[test]
fn a_rank_that_does_not_call_is_named() {
    let ended = AtomicUsize::new(0);
    let errors = on_ranks(3, 60_000, |mut comm| {
        comm.barrier().unwrap();
        comm.set_timeout(Duration::from_millis(500)).unwrap();
        if comm.rank() < 2 {
            let error = comm.all_reduce_in_place(&mut [1.0f32; 100], ReduceOp::Sum).unwrap_err();
            ended.fetch_add(1, Ordering::Relaxed);
            return error;
        }
        // It comes when all is over.
        while ended.load(Ordering::Relaxed) < 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        comm.barrier().unwrap_err()
    });
    let text = errors[..2].iter().map(Error::to_string).collect::<Vec<_>>().join("\n");
    assert!(
        text.contains("rank 2 has not called all_reduce of 100 float #2 (its last was barrier #1)"),
        "{text}"
    );
    assert!(errors[..2].iter().any(|error| matches!(error, Error::TimedOut { .. })), "{text}");
}

#[test]
fn a_rank_that_closed_is_named() {
    let errors = on_ranks(2, 20_000, |comm| {
        comm.barrier().unwrap();
        let start = Instant::now();
        let result = if comm.rank() == 0 { Ok(()) } else { comm.barrier() };
        assert!(start.elapsed() < Duration::from_secs(10), "no need to wait for the time-out");
        result
    });
    let error = errors[1].as_ref().unwrap_err();
    assert!(matches!(error, Error::Left { rank: 0, calls: 1, .. }), "{error}");
}

#[test]
fn a_rank_that_panics_is_dead_to_the_others() {
    let ranks = Communicator::local_with(2, &config(20_000)).unwrap();
    let mut ranks = ranks.into_iter();
    let (first, second) = (ranks.next().unwrap(), ranks.next().unwrap());
    let panics = std::thread::spawn(move || {
        first.barrier().unwrap();
        panic!("on purpose");
    });
    let survives = std::thread::spawn(move || {
        second.barrier().unwrap();
        second.all_reduce_in_place(&mut [1.0f32; 1000], ReduceOp::Sum).unwrap_err()
    });
    assert!(panics.join().is_err());
    let error = survives.join().unwrap();
    assert!(matches!(error, Error::Died { rank: 0, .. }), "{error}");
}

#[test]
fn misuse_leaves_the_communicator_usable() {
    on_ranks(2, 20_000, |comm| {
        let mut short = [0.0f32; 3];
        let errors = [
            comm.all_reduce(&[1.0; 4], &mut short, ReduceOp::Sum).unwrap_err(),
            comm.reduce_scatter(&[1.0; 5], &mut short[..2], ReduceOp::Sum).unwrap_err(),
            comm.all_to_all(&[1.0; 3], &mut short).unwrap_err(),
            comm.broadcast_in_place(&mut short, 2).unwrap_err(),
            comm.send(&short, comm.rank()).unwrap_err(),
            comm.recv(&mut short, 9).unwrap_err(),
            comm.all_reduce_in_place(&mut short, ReduceOp::BitXor).unwrap_err(),
        ];
        let texts = [
            "input has 4 elements",
            "input of reduce_scatter has 5",
            "input of all_to_all has 3",
            "root is rank 2",
            "peer is rank",
            "peer is rank 9",
            "bxor",
        ];
        for (error, text) in errors.iter().zip(texts) {
            assert!(error.to_string().contains(text), "{error}");
        }
        let mut fine = [1.0f32];
        comm.all_reduce_in_place(&mut fine, ReduceOp::Sum).unwrap();
        assert_eq!(fine, [2.0]);
    });
}

/// What an error says of the communicator is what the communicator then does.
#[test]
fn fatal_errors_end_the_communicator_and_others_do_not() {
    let counts = |a: usize, b: usize| [a, b];
    on_ranks(2, 20_000, |comm| {
        let other = 1 - comm.rank();
        let usable = [
            comm.all_reduce(&[1.0f32; 2], &mut [0.0; 3], ReduceOp::Sum).unwrap_err(),
            comm.broadcast(&[1.0f32; 2], &mut [0.0; 2], 2).unwrap_err(),
            comm.alloc_host::<f32>(1 << 40).unwrap_err(),
            // Each sends the other one element and expects two.
            comm.all_to_all_v(
                &[1.0f32; 2],
                &counts(1, 1),
                &mut [0.0; 3],
                &if comm.rank() == 0 { counts(1, 2) } else { counts(2, 1) },
            )
            .unwrap_err(),
        ];
        for error in &usable {
            assert!(!error.is_fatal(), "{error}");
        }
        assert_eq!(usable.each_ref().map(Error::is_misuse), [true, true, false, false]);
        assert_eq!(usable.each_ref().map(|error| error.ranks().len()), [0, 0, 0, 2]);
        comm.barrier().unwrap();
        let mut data = vec![1.0f32; 4 + comm.rank()];
        let error = comm.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap_err();
        assert!(error.is_fatal() && !error.is_misuse(), "{error}");
        assert!(error.ranks().contains(&other), "{error}");
        let later = comm.barrier().unwrap_err();
        assert!(matches!(later, Error::Broken { .. }) && later.is_fatal(), "{later}");
        assert_eq!(later.ranks(), error.ranks());
    });
}

#[test]
fn channels_that_cannot_be_are_the_same_setting_everywhere() {
    on_ranks(1, 1000, |mut comm| {
        let stream = Stream::new().unwrap();
        for channels in [0, usize::MAX] {
            let options = CallOptions { channels: Some(channels), ..CallOptions::default() };
            let of_a_stream = comm.on(&stream).with_options(options).map(drop).unwrap_err();
            let of_a_call = comm.with_options(options, || ()).unwrap_err();
            let pin = Pin { channels: Some(channels), ..Pin::default() };
            for error in [of_a_stream, of_a_call, comm.set_pin(pin).unwrap_err()] {
                let is_named = matches!(error, Error::Config { variable: "pin" | "options", .. });
                assert!(is_named && error.to_string().contains("channels must be 1 to"), "{error}");
            }
        }
    });
}

#[test]
fn a_time_out_names_the_ranks_that_did_not_come() {
    let (late, over) = (AtomicUsize::new(0), AtomicUsize::new(0));
    on_ranks(3, 300, |comm| {
        comm.barrier().unwrap();
        if comm.rank() == 1 {
            while over.load(Ordering::SeqCst) < 2 {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(comm.barrier().unwrap_err().is_fatal());
            return;
        }
        let error = comm.barrier().unwrap_err();
        assert!(error.is_fatal() && !error.is_misuse(), "{error}");
        if matches!(error, Error::TimedOut { .. }) {
            assert_eq!(error.ranks(), [1], "{error}");
            late.fetch_add(1, Ordering::SeqCst);
        }
        over.fetch_add(1, Ordering::SeqCst);
    });
    assert!(late.into_inner() >= 1, "who noticed first says who is missing");
}

#[test]
fn configurations_must_agree() {
    let (id, _server) = UniqueId::create().unwrap();
    let errors: Vec<Error> = std::thread::scope(|scope| {
        let id = &id;
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                let config = Config {
                    advanced: Advanced {
                        slot_bytes: Some(1024 << rank),
                        ..config(60_000).advanced
                    },
                    ..config(60_000)
                };
                scope.spawn(move || Communicator::connect(id, rank, 2, &config).unwrap_err())
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for (rank, error) in errors.iter().enumerate() {
        assert!(matches!(error, Error::ConfigDiffers { setting: "slot_bytes", .. }), "{error}");
        assert_eq!(error.ranks(), [1 - rank], "{error}");
    }
}

#[test]
fn more_memory_than_there_is_is_an_error() {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib = |name: &str| -> usize {
        let line = meminfo.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let all = (kib("MemTotal:") + kib("SwapTotal:")) << 10;
    let config = Config { heap_bytes: 2 * all + (64 << 20), ..config(20_000) };
    let ranks = Communicator::local_with(2, &config).unwrap();
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(move || {
                if comm.rank() == 1 {
                    let error = comm.alloc_host::<u8>(2 * all).unwrap_err();
                    assert!(
                        matches!(error, Error::OutOfMemory { bytes, .. } if bytes == 2 * all),
                        "{error}"
                    );
                }
                // It has cost nothing: the range is free again, and both ranks go on.
                let mut fine = comm.alloc_host::<f32>(1 << 20).unwrap();
                fine.fill(1.0);
                comm.all_reduce_in_place(&mut fine, ReduceOp::Sum).unwrap();
                assert!(fine.iter().all(|value| *value == 2.0));
            });
        }
    });
}

#[test]
fn memory_must_be_of_one_kind() {
    let (id, _server) = UniqueId::create().unwrap();
    let texts: Vec<String> = std::thread::scope(|scope| {
        let id = &id;
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                scope.spawn(move || {
                    let comm = Communicator::connect(id, rank, 2, &config(20_000)).unwrap();
                    let mut reached = comm.alloc_host::<f32>(1 << 16).unwrap();
                    let mut private = vec![0.0f32; 1 << 16];
                    // Both kinds work, as long as all ranks use the same.
                    comm.all_reduce_in_place(&mut reached, ReduceOp::Sum).unwrap();
                    comm.all_reduce_in_place(&mut private, ReduceOp::Sum).unwrap();
                    let buffer = if rank == 0 { &mut private[..] } else { &mut reached[..] };
                    comm.all_reduce_in_place(buffer, ReduceOp::Sum).unwrap_err().to_string()
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(texts.iter().all(|text| text.contains("memory differs")), "{texts:?}");
}

#[test]
fn a_receive_of_another_length_is_told() {
    let errors = on_ranks(2, 20_000, |comm| match comm.rank() {
        0 => comm.send(&[1.0f32; 8], 1).and_then(|()| comm.barrier()),
        _ => comm.recv(&mut [0.0f32; 9], 0),
    });
    let error = errors[1].as_ref().unwrap_err();
    assert!(matches!(error, Error::Mismatch { rank: 0, .. }), "{error}");
    assert!(
        errors[0].as_ref().unwrap_err().to_string().contains("send of 9 float from rank 0 to 1"),
        "{errors:?}"
    );
}

/// Under which names a rank, this program once more, is told where to meet and who it is.
const MEETING: &str = "FAILURES_TEST_UNIQUE_ID";
const RANK: &str = "FAILURES_TEST_RANK";

fn of_four(id: &UniqueId, rank: usize) -> Communicator {
    Communicator::connect(id, rank, 4, &config(30_000)).unwrap()
}

#[test]
#[ignore = "a rank of the other test"]
fn one_of_four() {
    let rank = std::env::var(RANK).unwrap().parse().unwrap();
    let id: UniqueId = std::env::var(MEETING).unwrap().parse().unwrap();
    let _server = (rank == 0).then(|| id.serve().unwrap());
    let comm = of_four(&id, rank);
    while comm.all_reduce_in_place(&mut [1.0f32; 1000], ReduceOp::Sum).is_ok() {}
}

/// One of the two serves the rendezvous, so that nobody is told of the other.
#[test]
fn two_ranks_of_a_node_that_die_at_once_hold_nobody_up() {
    let id = UniqueId::meeting(&format!("127.0.0.1:{}", port::free_port()), None).unwrap();
    let start = |rank: usize| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "one_of_four", "--ignored"])
            .envs([(MEETING, id.to_string()), (RANK, rank.to_string())])
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut others: Vec<_> = (0..3).map(start).collect();
    let comm = of_four(&id, 3);
    let all_reduce = || comm.all_reduce_in_place(&mut [1.0f32; 1000], ReduceOp::Sum);
    (0..20).for_each(|_| all_reduce().unwrap());
    others[..2].iter_mut().for_each(|child| child.kill().unwrap());
    let killed = Instant::now();
    let error = std::iter::repeat_with(all_reduce).find_map(Result::err).unwrap();
    assert!(matches!(error, Error::Died { rank: 0, .. }), "{error}");
    for mut child in others {
        child.wait().unwrap();
    }
    // Half of what a rank grants to another that it cannot know to be dead.
    assert!(killed.elapsed() < Duration::from_secs(30), "{:?}", killed.elapsed());
}
