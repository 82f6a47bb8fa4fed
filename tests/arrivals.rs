//! Barriers that tell who was late, and how memory is used.
#![allow(clippy::unwrap_used)]

use oxccl::{Collectives, Communicator, Config, Error, ReduceOp, UniqueId};
use std::sync::Arc;
use std::time::Duration;

/// Threads, processes, and processes of two nodes.
const PLACES: [usize; 3] = [0, 1, 2];
const HEAP_BYTES: usize = 8 << 20;

fn run<T: Send>(nodes: usize, n: usize, rank: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let (timeout, max_channels) = (Duration::from_secs(60), 2);
    let nodes_here = (nodes > 1).then_some(nodes);
    let config = Config {
        timeout,
        max_channels,
        nodes: nodes_here,
        heap_bytes: HEAP_BYTES,
        ..Config::default()
    };
    let (config, rank) = (&config, &rank);
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

#[test]
fn a_late_rank_is_found_by_how_late_it_is() {
    for nodes in PLACES {
        let found = run(nodes, 4, |comm| {
            let patience = Duration::from_secs(30);
            comm.monitored_barrier(patience).unwrap();
            if comm.rank() == 2 {
                std::thread::sleep(Duration::from_millis(300));
            }
            let late = comm.monitored_barrier(patience).unwrap();
            // Calls go on.
            let mut sum = [1u8];
            comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, [4]);
            comm.close().unwrap();
            late
        });
        for late in &found {
            assert_eq!(late, &found[0], "all are told the same");
            let last = (0..4).max_by_key(|rank| late[*rank]).unwrap();
            assert_eq!(last, 2, "{nodes}: {late:?}");
            assert!(late[2] >= Duration::from_millis(200), "{late:?}");
            assert_eq!(late.iter().min(), Some(&Duration::ZERO));
        }
    }
}

#[test]
fn who_does_not_come_is_named_within_the_barriers_own_time_out() {
    for nodes in PLACES {
        let met = std::sync::Barrier::new(4);
        let ends = run(nodes, 4, |comm| {
            let end = match comm.rank() {
                1 | 3 => Ok(()),
                _ => comm.monitored_barrier(Duration::from_millis(300)).map(drop),
            };
            met.wait();
            end
        });
        for rank in [0, 2] {
            let error = ends[rank].as_ref().unwrap_err();
            assert_eq!(error.ranks(), [1, 3], "{nodes}: {error}");
            assert!(error.to_string().contains("0.3 s"), "{nodes}: {error}");
        }
        assert!(ends.iter().any(|end| matches!(end, Err(Error::TimedOut { .. }))), "{ends:?}");
    }
}

#[test]
fn who_calls_another_barrier_is_named() {
    for nodes in PLACES {
        let ends = run(nodes, 3, |comm| match comm.rank() {
            1 => comm.barrier(),
            _ => comm.monitored_barrier(Duration::from_secs(30)).map(drop),
        });
        for end in ends {
            let text = end.unwrap_err().to_string();
            assert!(text.contains("rank 1 has barrier"), "{nodes}: {text}");
        }
    }
}

#[test]
fn memory_is_told() {
    for nodes in PLACES {
        run(nodes, 2, |comm| {
            let before = comm.memory();
            assert_eq!((before.heap_bytes, before.registrations), (HEAP_BYTES, 0));
            assert_eq!(before.largest_free_bytes, HEAP_BYTES - before.allocated_bytes);
            assert!(before.staging_bytes > 0);
            let buffers: Vec<_> = (0..3).map(|_| comm.alloc::<u8>(1 << 20).unwrap()).collect();
            let part = comm.split(Some(0), 0).unwrap().unwrap();
            let with = part.memory();
            assert_eq!(
                with.allocated_bytes,
                before.allocated_bytes + (3 << 20),
                "it is theirs, too"
            );
            let Ok([first, _middle, last]) = <[_; 3]>::try_from(buffers) else { panic!("three") };
            drop((first, last));
            let after = comm.memory();
            assert_eq!(after.allocated_bytes, before.allocated_bytes + (1 << 20));
            let free = after.heap_bytes - after.allocated_bytes;
            assert!(after.largest_free_bytes < free, "one in the middle stays");
            comm.barrier().unwrap();
        });
    }
}
