//! After the first call of a shape, a blocking call or group allocates nothing.
#![allow(clippy::unwrap_used)]

#[path = "common/allocations.rs"]
mod allocations;

use allocations::ALLOCATIONS;
use oxccl::{Collectives, Communicator, Config, ReduceOp};

#[test]
fn cached_calls_allocate_nothing() {
    let config = Config { heap_bytes: 64 << 20, ..Config::default() };
    let ranks = Communicator::local_with(2, &config).unwrap();
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(move || {
                let mut buffers = [2, 3000, 100_000].map(|count| vec![1.0f32; count]);
                let mut gathered = vec![0.0f32; 6000];
                let mut calls = || {
                    for buffer in &mut buffers {
                        comm.all_reduce_in_place(buffer, ReduceOp::Avg).unwrap();
                        comm.broadcast_in_place(buffer, 1).unwrap();
                    }
                    comm.all_gather(&buffers[1], &mut gathered).unwrap();
                    comm.barrier().unwrap();
                };
                calls();
                let before = ALLOCATIONS.get();
                for _ in 0..50 {
                    calls();
                }
                assert_eq!(ALLOCATIONS.get() - before, 0);
                assert!(before > 0, "the counter counts");
            });
        }
    });
}

#[test]
fn cached_groups_are_not_planned_again_and_allocate_nothing() {
    let config = Config { heap_bytes: 64 << 20, ..Config::default() };
    let ranks = Communicator::local_with(2, &config).unwrap();
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(move || {
                let mut buffers = vec![vec![1.0f32; 300]; 20];
                let (own, mut gathered, mut other) = ([1u8; 90], [0u8; 180], vec![0u8; 90]);
                let mut group = || {
                    comm.group(|group| {
                        for buffer in &mut buffers {
                            group.all_reduce_in_place(buffer, ReduceOp::Avg)?;
                        }
                        group.all_gather(&own, &mut gathered)?;
                        group.send(&own, 1 - comm.rank())?;
                        group.recv(&mut other, 1 - comm.rank())
                    })
                    .unwrap();
                };
                // The list of calls is as long as it gets after the first.
                group();
                let before = ALLOCATIONS.get();
                for _ in 0..50 {
                    group();
                }
                assert_eq!(ALLOCATIONS.get() - before, 0);
                assert!(before > 0, "the counter counts");
                assert_eq!(comm.plans(), 1);
                assert_eq!(comm.launches(), 51);
            });
        }
    });
}
