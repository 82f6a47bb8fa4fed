//! A communicator that any thread ends, whatever its ranks wait for.
#![allow(clippy::unwrap_used)]

use oxccl::{Collectives, Communicator, Config, Error, Handle, ReduceOp, Stream, UniqueId};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Nothing but the abort ends a wait.
fn config(nodes: usize) -> Config {
    Config {
        timeout: Duration::MAX,
        nodes: (nodes > 1).then_some(nodes),
        heap_bytes: 1 << 20,
        max_channels: 2,
        ..Config::default()
    }
}

/// Runs ranks as threads, or as processes meet, on so many nodes.
fn run<T: Send>(nodes: usize, n: usize, rank: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let (config, rank) = (&config(nodes), &rank);
    std::thread::scope(|scope| {
        let threads: Vec<_> = if nodes == 0 {
            let ranks = Communicator::local_with(n, config).unwrap();
            ranks.into_iter().map(|comm| scope.spawn(move || rank(comm))).collect()
        } else {
            let (id, server) = UniqueId::create().unwrap();
            let (id, server) = (Arc::new(id), Arc::new(server));
            let connect = |number| {
                let (id, server) = (id.clone(), server.clone());
                move || {
                    let ended = rank(Communicator::connect(&id, number, n, config).unwrap());
                    drop(server);
                    ended
                }
            };
            (0..n).map(|number| scope.spawn(connect(number))).collect()
        };
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Threads, processes, and processes of two nodes.
const PLACES: [usize; 3] = [0, 1, 2];

type Wait = fn(&Communicator) -> Result<(), Error>;

/// What a rank waits in.
const WAITS: [(&str, Wait); 5] = [
    ("all_reduce", |comm| comm.all_reduce_in_place(&mut [1.0f32; 100], ReduceOp::Sum)),
    ("recv", |comm| comm.recv(&mut [0u8], (comm.rank() + 1) % 3)),
    ("group", |comm| {
        let mut buffers = [[1.0f32; 100], [2.0; 100]];
        comm.group(|group| {
            for buffer in &mut buffers {
                group.all_reduce_in_place(buffer, ReduceOp::Sum)?;
            }
            Ok(())
        })
    }),
    ("stream", |comm| {
        let mut buffer = comm.alloc_host::<f32>(100)?;
        let stream = Stream::new()?;
        comm.on(&stream).all_reduce_in_place(&mut buffer, ReduceOp::Sum)?.wait()
    }),
    ("split", |comm| comm.split(Some(0), 0).map(drop)),
];

fn stopped(error: &Error, what: &str) {
    match error {
        Error::Stopped { rank: 0, reason, .. } => {
            assert!(reason.contains("enough"), "{what}: {error}")
        }
        Error::Broken { first, .. } => assert!(first.contains("enough"), "{what}: {error}"),
        _ => panic!("{what}: {error}"),
    }
}

/// Ranks 0 and 1 wait for rank 2, which calls nothing; another thread of rank 0 has enough.
#[test]
fn an_abort_ends_every_wait_on_all_ranks() {
    for nodes in PLACES {
        for (what, wait) in WAITS {
            let met = Barrier::new(3);
            run(nodes, 3, |comm| {
                let handle = comm.handle();
                assert!(handle.error().is_none());
                assert_eq!((handle.rank(), handle.world_size()), (comm.rank(), 3));
                std::thread::scope(|scope| {
                    if handle.rank() == 0 {
                        let handle = handle.clone();
                        scope.spawn(move || {
                            std::thread::sleep(Duration::from_millis(60));
                            handle.abort("it is enough").unwrap();
                            handle.abort("nothing more").unwrap();
                        });
                    }
                    if handle.rank() < 2 {
                        let began = Instant::now();
                        stopped(&wait(&comm).unwrap_err(), what);
                        assert!(began.elapsed() < Duration::from_secs(20), "{what} on {nodes}");
                    }
                    met.wait();
                    let began = Instant::now();
                    while handle.error().is_none() {
                        assert!(began.elapsed() < Duration::from_secs(20), "{what}: it is told");
                        std::thread::yield_now();
                    }
                });
                stopped(&handle.error().unwrap(), what);
                stopped(&comm.barrier().unwrap_err(), what);
                stopped(&comm.close().unwrap_err(), what);
            });
        }
    }
}

#[test]
fn what_has_ended_is_not_aborted() {
    for nodes in PLACES {
        let handles: Vec<Handle> = run(nodes, 2, |comm| {
            let handle = comm.handle();
            comm.barrier().unwrap();
            comm.close().unwrap();
            handle.abort("too late").unwrap();
            assert!(handle.error().is_none());
            handle
        });
        assert!(handles.iter().all(|handle| handle.error().is_none()));
    }
}

/// A part that is aborted ends alone.
#[test]
fn an_abort_of_a_part_ends_no_other() {
    for nodes in PLACES {
        run(nodes, 4, |comm| {
            let part = comm.split(Some(comm.rank() as u32 % 2), 0).unwrap().unwrap();
            // A rank that is still on its way out of the split would have the abort from there.
            comm.barrier().unwrap();
            if comm.rank() == 0 {
                part.handle().abort("it is enough").unwrap();
            }
            // The first call may end well where all of its ranks make it.
            let end = part.barrier().and_then(|()| part.barrier());
            assert_eq!(end.is_err(), comm.rank() % 2 == 0, "{end:?}");
            comm.barrier().unwrap();
            comm.close().unwrap();
        });
    }
}

/// Calls that wait for hardly anything are stopped, too.
#[test]
fn an_abort_ends_a_loop_of_small_calls() {
    for nodes in PLACES {
        run(nodes, 2, |comm| {
            let handle = comm.handle();
            let mut value = [0u32];
            comm.all_reduce_in_place(&mut value, ReduceOp::Sum).unwrap();
            std::thread::scope(|scope| {
                if comm.rank() == 0 {
                    scope.spawn(move || {
                        std::thread::sleep(Duration::from_millis(30));
                        handle.abort("it is enough").unwrap();
                    });
                }
                let began = Instant::now();
                let error = loop {
                    match comm.all_reduce_in_place(&mut value, ReduceOp::Sum) {
                        Ok(()) => assert!(began.elapsed() < Duration::from_secs(20), "{nodes}"),
                        Err(error) => break error,
                    }
                };
                stopped(&error, "a loop");
            });
        });
    }
}
