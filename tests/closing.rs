//! What was sent before a communicator was closed arrives, and what ranks called otherwise than
//! others is told at the latest then.
#![allow(clippy::unwrap_used)]

use oxccl::{Collectives, Communicator, Config, Error, ReduceOp, UniqueId};
use std::process::Command;
use std::time::Duration;

fn config(nodes: Option<usize>) -> Config {
    let timeout = Duration::from_secs(60);
    Config { timeout, nodes, heap_bytes: 1 << 20, max_channels: 2, ..Config::default() }
}

/// Runs ranks that meet as processes do, as so many nodes.
fn on_nodes<T: Send>(
    (n, nodes): (usize, usize),
    rank: impl Fn(Communicator) -> T + Sync,
) -> Vec<T> {
    let (id, _server) = UniqueId::create().unwrap();
    let (id, rank) = (&id, &rank);
    std::thread::scope(|scope| {
        let start = |number| {
            let config = config((nodes > 1).then_some(nodes));
            move || rank(Communicator::connect(id, number, n, &config).unwrap())
        };
        let threads: Vec<_> = (0..n).map(|number| scope.spawn(start(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The root's one call, which makes the links, is followed by its end; the others come later. Most
/// of that is waiting, so all goes on at once.
#[test]
fn the_first_message_of_a_rank_that_closes_arrives() {
    std::thread::scope(|scope| {
        for shape in [(2, 2), (4, 2), (2, 1)] {
            for (count, pause_ms) in [(4, 0), (4, 400), (5000, 400), (4, 1500)] {
                let pause = Duration::from_millis(pause_ms);
                for root in [0, shape.0 - 1] {
                    scope.spawn(move || {
                        broadcast_arrives(shape, root, count, pause);
                        message_arrives(shape, root, pause);
                    });
                }
            }
        }
    });
}

fn broadcast_arrives(shape: (usize, usize), root: usize, count: usize, pause: Duration) {
    on_nodes(shape, |comm| {
        let mut values = vec![if comm.rank() == root { 7 } else { -1i32 }; count];
        if comm.rank() != root {
            std::thread::sleep(pause);
        }
        comm.broadcast_in_place(&mut values, root).unwrap();
        assert!(values.iter().all(|value| *value == 7));
    });
}

fn message_arrives(shape: (usize, usize), root: usize, pause: Duration) {
    on_nodes(shape, |comm| {
        let mut value = [if comm.rank() == root { 9u8 } else { 0 }];
        let peer = (root + 1) % comm.world_size();
        if comm.rank() == root {
            comm.send(&value, peer).unwrap();
        } else if comm.rank() == peer {
            std::thread::sleep(pause);
            comm.recv(&mut value, root).unwrap();
            assert_eq!(value, [9]);
        }
    });
}

/// Calls of all kinds, and messages, in which all ranks agree.
#[test]
fn ranks_that_agree_close_without_an_error() {
    for (n, nodes) in [(2, 1), (4, 2)] {
        let ends = on_nodes((n, nodes), |comm| {
            let (rank, mut values) = (comm.rank(), vec![1.0f32; 4 * comm.world_size()]);
            for _ in 0..3 {
                comm.all_reduce_in_place(&mut values, ReduceOp::PreMulSum(0.5))?;
                comm.broadcast_in_place(&mut values, 1)?;
                // A message may be received after a call that comes behind it.
                if rank == 0 {
                    comm.send(&values[..1], 1)?;
                }
                comm.barrier()?;
                if rank == 1 {
                    comm.recv(&mut values[..1], 0)?;
                }
                comm.group(|group| {
                    let (one, other) = values.split_at_mut(4);
                    group.all_reduce_in_place(one, ReduceOp::Sum)?;
                    match rank {
                        0 => group.send(other, 1).map(drop),
                        1 => group.recv(other, 0).map(drop),
                        _ => Ok(()),
                    }
                })?;
            }
            comm.close()
        });
        assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    }
}

#[test]
fn who_does_not_close_is_named() {
    let ends = on_nodes((2, 1), |mut comm| {
        comm.barrier()?;
        if comm.rank() == 1 {
            drop(comm);
            return Ok(());
        }
        comm.set_timeout(Duration::from_secs(20))?;
        comm.close()
    });
    assert!(matches!(ends[0], Err(Error::Left { rank: 1, calls: 1, .. })), "{ends:?}");
    let ends = on_nodes((2, 1), |mut comm| {
        comm.barrier()?;
        comm.set_timeout(Duration::from_millis(500))?;
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(1500));
            return comm.barrier();
        }
        comm.close()
    });
    let text = ends[0].as_ref().unwrap_err().to_string();
    assert!(text.contains("rank 1 has not called close"), "{text}");
    assert!(ends[1].is_err(), "{ends:?}");
}

/// What a later message would have told is printed where there is none.
#[test]
fn a_dropped_communicator_tells_what_nobody_waited_for() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "two_roots", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&child.stderr).into_owned();
    assert!(child.status.success(), "{told}");
    let expected = "a communicator was dropped, not closed: call #1: root differs: rank ";
    assert!(told.contains(expected), "{told}");
}

#[test]
#[ignore = "the process of another test"]
fn two_roots() {
    let ranks = Communicator::local_with(2, &config(None)).unwrap();
    for comm in &ranks {
        comm.broadcast_in_place(&mut [comm.rank() as u32], comm.rank()).unwrap();
    }
}
