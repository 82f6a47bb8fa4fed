//! Communicators of parts of the ranks.
#![allow(clippy::unwrap_used)]

#[path = "common/held.rs"]
mod held;
#[allow(unreachable_pub)]
#[path = "common/typed.rs"]
mod typed;

use held::held;
use oxccl::plans::algorithms::{Algorithm, Encoding};
use oxccl::{Collectives, Communicator, Config, Error, Pin, ReduceOp, Stream, UniqueId};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

fn config(nodes: Option<usize>) -> Config {
    let mut config = Config {
        timeout: Duration::from_secs(60),
        nodes,
        heap_bytes: 16 << 20,
        max_channels: 2,
        ..Config::default()
    };
    // So that what is reached in place is told from what the system would read.
    config.advanced.cma = Some(false);
    config
}

/// How ranks meet.
#[derive(Clone, Copy, Debug)]
enum Place {
    Threads,
    /// As processes do.
    Processes,
    /// As processes of so many nodes do.
    Nodes(usize),
}

const PLACES: [Place; 3] = [Place::Threads, Place::Processes, Place::Nodes(2)];

fn run<T: Send>(place: Place, n: usize, rank: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let nodes = match place {
        Place::Nodes(nodes) => Some(nodes),
        Place::Threads | Place::Processes => None,
    };
    let (config, rank) = (&config(nodes), &rank);
    std::thread::scope(|scope| {
        let threads: Vec<_> = match place {
            Place::Threads => {
                let ranks = Communicator::local_with(n, config).unwrap();
                ranks.into_iter().map(|comm| scope.spawn(move || rank(comm))).collect()
            }
            Place::Processes | Place::Nodes(_) => {
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
            }
        };
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn part(comm: &Communicator, color: usize, key: i64) -> Communicator {
    comm.split(Some(color as u32), key).unwrap().unwrap()
}

/// The sum of the ranks' world ranks, by a call of a part.
fn sum(part: &Communicator, world_rank: usize) -> usize {
    let mut value = [world_rank as u64];
    part.all_reduce_in_place(&mut value, ReduceOp::Sum).unwrap();
    value[0] as usize
}

/// Tensor, data and pipeline parallel: every typed method in every dimension, in the order of each
/// rank's own threads.
#[test]
fn a_mesh_runs_all_collectives_in_all_dimensions() {
    for place in PLACES {
        run(place, 8, |world| {
            let rank = world.rank();
            let dimensions: Vec<_> = [1, 2, 4]
                .map(|step| (step, part(&world, rank / (2 * step) * step + rank % step, 0)))
                .into();
            for (step, line) in &dimensions {
                assert_eq!((line.world_size(), line.rank()), (2, rank / step % 2));
                assert_eq!(sum(line, rank), 2 * rank + step - 2 * step * line.rank());
            }
            std::thread::scope(|scope| {
                for (_, line) in dimensions {
                    scope.spawn(move || {
                        typed::check(&line, &Stream::new().unwrap());
                        line.close().unwrap();
                    });
                }
            });
            assert_eq!(sum(&world, rank), 28, "the whole goes on");
            world.close().unwrap();
        });
    }
}

#[test]
fn keys_number_the_ranks_and_some_are_in_no_part() {
    for place in PLACES {
        run(place, 5, |world| {
            let rank = world.rank();
            let odd = rank % 2 == 1;
            let part = world.split(odd.then_some(7), -(rank as i64)).unwrap();
            assert_eq!(part.is_some(), odd);
            if let Some(part) = part {
                assert_eq!((part.rank(), part.world_size()), ((3 - rank) / 2, 2));
                let mut from = [rank as u32];
                part.broadcast_in_place(&mut from, 0).unwrap();
                assert_eq!(from, [3]);
            }
            let alone = self::part(&world, rank, 0);
            assert_eq!(sum(&alone, rank), rank);
            let all = self::part(&world, 0, (rank as i64 + 2) % 5);
            assert_eq!((all.rank(), sum(&all, rank)), ((rank + 2) % 5, 10));
        });
    }
}

#[test]
fn parts_are_split_in_turn_and_outlive_the_whole() {
    for place in PLACES {
        run(place, 8, |world| {
            let rank = world.rank();
            let half = part(&world, rank / 4, 0);
            let mut buffer = world.alloc::<u64>(1).unwrap().into_host().unwrap();
            world.close().unwrap();
            let quarter = part(&half, half.rank() % 2, 0);
            drop(half);
            buffer[0] = rank as u64;
            quarter.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
            assert_eq!(buffer[0] as usize, rank + (rank ^ 2));
            let alone = part(&quarter, quarter.rank(), 0);
            quarter.close().unwrap();
            assert_eq!(sum(&alone, rank), rank);
            alone.close().unwrap();
        });
    }
}

/// Only windows reach memory in place, and they are all that the pin allows.
/// More than rooms in the whole's files, some of which are taken by one rank and not by the other.
#[test]
fn any_number_of_parts_is_there_at_once() {
    for place in PLACES {
        run(place, 4, |world| {
            let rank = world.rank();
            let own: Vec<_> =
                (0..12).map(|_| world.split((rank == 3).then_some(0), 0).unwrap()).collect();
            assert_eq!(own.iter().flatten().count(), if rank == 3 { 12 } else { 0 });
            for _ in 0..2 {
                let odd: Vec<_> = (0..10).map(|_| part(&world, rank % 2, 0)).collect();
                let inner: Vec<_> =
                    odd.iter().take(rank % 2 * 4).map(|of| part(of, 0, 0)).collect();
                let all: Vec<_> = (0..10).map(|_| part(&world, 0, 0)).collect();
                for one in &all {
                    assert_eq!(sum(one, rank), 6);
                }
                for one in inner.iter().chain(&odd) {
                    assert_eq!(sum(one, rank), 2 + 2 * (rank % 2));
                }
                let parts = inner.into_iter().chain(all).chain(odd);
                parts.for_each(|part| part.close().unwrap());
            }
            let part = part(&world, 0, 0);
            world.close().unwrap();
            for _ in 0..40 {
                let inner = self::part(&part, 0, 0);
                assert_eq!(sum(&inner, rank), 6);
                inner.close().unwrap();
            }
            part.close().unwrap();
        });
    }
}

#[test]
fn memory_of_the_whole_is_reached_in_place_by_its_parts() {
    for place in [Place::Threads, Place::Processes] {
        run(place, 4, |world| {
            let rank = world.rank();
            let mut pairs = part(&world, rank % 2, 0);
            let (algorithm, encoding) = (Some(Algorithm::TwoShot), Some(Encoding::Windows));
            pairs.set_pin(Pin { algorithm, encoding, ..Pin::default() }).unwrap();
            for from in [&world, &pairs] {
                let mut buffer = from.alloc::<f32>(5000).unwrap().into_host().unwrap();
                buffer.fill(rank as f32);
                pairs.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
                let sum = (2 * (rank % 2) + 2) as f32;
                assert!(buffer.iter().all(|value| *value == sum), "{:?}", &buffer[..3]);
            }
            if matches!(place, Place::Processes) {
                let refused =
                    pairs.all_reduce_in_place(&mut [1.0f32; 5000], ReduceOp::Sum).unwrap_err();
                assert!(matches!(refused, Error::NoAlgorithm { .. }), "{refused}");
            }
        });
    }
}

#[test]
#[ignore = "the process of another test, which counts what it holds"]
fn many_splits() {
    for place in PLACES {
        let (met, times) = (Barrier::new(4), if let Place::Nodes(_) = place { 100 } else { 1000 });
        run(place, 4, |world| {
            let rank = world.rank();
            let once = |turn: usize| {
                let (color, partner) = match turn % 2 {
                    0 => (rank / 2, rank ^ 1),
                    _ => (rank % 2, rank ^ 2),
                };
                let part = part(&world, color, 0);
                assert_eq!(sum(&part, rank), rank + partner);
                if turn.is_multiple_of(3) {
                    part.close().unwrap()
                }
            };
            let counted = || {
                met.wait();
                // What others of the process drop goes a moment later.
                let now = held();
                met.wait();
                now
            };
            (0..20).for_each(once);
            let before = counted();
            (0..times).for_each(once);
            let after = counted();
            for (before, after) in before.into_iter().zip(after) {
                assert!(after <= before + 8, "{place:?}: from {before} to {after}");
            }
        });
    }
}

#[test]
fn a_thousand_splits_leave_nothing_behind() {
    let child = child("many_splits", &[]).wait_with_output().unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}

fn child(test: &str, variables: &[(&str, String)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn who_calls_something_else_than_a_split_is_named() {
    for place in PLACES {
        for close in [false, true] {
            let ends = run(place, 3, |world| match world.rank() {
                1 if close => world.close(),
                1 => world.all_reduce_in_place(&mut [1.0f32], ReduceOp::Sum),
                _ => world.split(Some(0), 0).map(drop),
            });
            for end in ends {
                let text = end.unwrap_err().to_string();
                let other = if close { "close" } else { "all_reduce of 1 float" };
                let differs = format!("the call differs: rank 1 has {other}, rank ");
                let named = text.contains(&differs) && text.contains(" split");
                assert!(named, "{place:?}: {text}");
            }
        }
    }
}

#[test]
fn a_rank_that_does_not_split_is_named_when_the_time_is_over() {
    for place in PLACES {
        let met = Barrier::new(3);
        let ends = run(place, 3, |mut world| {
            world.set_timeout(Duration::from_millis(500)).unwrap();
            let end = match world.rank() {
                2 => Ok(()),
                _ => world.split(Some(0), 0).map(drop),
            };
            met.wait();
            end
        });
        for end in &ends[..2] {
            let text = end.as_ref().unwrap_err().to_string();
            assert!(text.contains("rank 2"), "{place:?}: {text}");
        }
    }
}

#[test]
fn what_ends_a_part_ends_no_other() {
    for place in PLACES {
        run(place, 4, |world| {
            let rank = world.rank();
            let (row, column) = (part(&world, rank / 2, 0), part(&world, rank % 2, 0));
            if rank < 2 {
                // Its two ranks call different things.
                let mut values = [1.0f32; 2];
                let end = row.all_reduce_in_place(&mut values[..1 + rank], ReduceOp::Sum);
                assert!(matches!(end, Err(Error::Mismatch { .. })), "{end:?}");
                assert!(row.barrier().unwrap_err().is_fatal());
            } else {
                assert_eq!(sum(&row, rank), 5);
            }
            assert_eq!(sum(&column, rank), 2 * (rank % 2) + 2);
            assert_eq!(sum(&world, rank), 6);
        });
    }
}

const RANK: &str = "SPLIT_TEST_RANK";
const ID: &str = "SPLIT_TEST_ID";
const NODES: &str = "SPLIT_TEST_NODES";

/// One of four processes dies: the parts that it is in end, and name it; the others go on.
#[test]
fn a_death_ends_the_parts_that_the_rank_is_in() {
    for nodes in [1, 2] {
        let (id, _server) = UniqueId::create().unwrap();
        let start = |rank: usize| {
            let variables =
                [(RANK, rank.to_string()), (ID, id.to_string()), (NODES, nodes.to_string())];
            child("mourner", &variables)
        };
        let ranks: Vec<_> = (0..4).map(start).collect();
        let ends: Vec<_> =
            ranks.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
        let told: Vec<_> = ends.iter().map(|end| String::from_utf8_lossy(&end.stderr)).collect();
        for (rank, end) in ends.iter().enumerate() {
            // Of all: one that fails takes others with it.
            assert_eq!(end.status.success(), rank != 3, "rank {rank} on {nodes}: {told:#?}");
        }
    }
}

#[test]
#[ignore = "a rank of another test"]
fn mourner() {
    let variable = |name| std::env::var(name).unwrap();
    let rank: usize = variable(RANK).parse().unwrap();
    let nodes: usize = variable(NODES).parse().unwrap();
    let id: UniqueId = variable(ID).parse().unwrap();
    let config = config((nodes > 1).then_some(nodes));
    let world = Communicator::connect(&id, rank, 4, &config).unwrap();
    let (row, column) = (part(&world, rank / 2, 0), part(&world, rank % 2, 0));
    assert_eq!((sum(&row, rank), sum(&column, rank)), (4 * (rank / 2) + 1, 2 * (rank % 2) + 2));
    if rank == 3 {
        // What it has sent arrives.
        std::thread::sleep(Duration::from_millis(300));
        // SAFETY: it ends the process, past everything.
        unsafe { libc::_exit(9) };
    }
    let dead = |end: Result<(), Error>, number: usize| {
        let error = end.unwrap_err();
        assert_eq!(error.ranks(), [number], "{error}");
    };
    let asked = Instant::now();
    match rank {
        1 => dead(column.barrier(), 1),
        2 => dead(row.barrier(), 1),
        _ => {}
    }
    dead(world.barrier(), 3);
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    for _ in 0..100 {
        match rank {
            0 => assert_eq!((sum(&row, 0), sum(&column, 0)), (1, 2)),
            1 => assert_eq!(sum(&row, 1), 1),
            _ => assert_eq!(sum(&column, 2), 2),
        }
    }
    if rank < 2 {
        row.close().unwrap();
    }
}
