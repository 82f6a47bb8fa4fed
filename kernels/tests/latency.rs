//! Prints what an exchange of 8 bytes costs between two pinned threads. Run it by hand:
//! `cargo test -p oxccl-kernels --release --test latency -- --ignored --nocapture`
#![allow(clippy::unwrap_used)]

mod machine;

use machine::*;
use oxccl_kernels::format::*;
use oxccl_kernels::{HostExecutor, Isa, Outcome};
use std::time::Instant;

fn pin(core: usize) {
    // SAFETY: a zeroed set is an empty one, and the call reads no more than its size.
    unsafe {
        let mut set: [u64; 16] = [0; 16];
        set[core / 64] |= 1 << (core % 64);
        unsafe extern "C" {
            fn sched_setaffinity(pid: i32, size: usize, set: *const u64) -> i32;
        }
        sched_setaffinity(0, 128, set.as_ptr());
    }
}

#[test]
#[ignore = "a measurement"]
fn exchange() {
    const BATCHES: usize = 1000;
    const CALLS: usize = 200;
    for executor in Isa::all().into_iter().filter_map(HostExecutor::for_isa) {
        for len in [8, 64, 1024, 8192] {
            let mut world = World::new(Shape { ll_slots: 8, ll_bytes: 8192, ..Shape::default() });
            let programs: Vec<_> = (0..2)
                .map(|rank| ll_exchange(&world, rank, DataType::F32, Fold::Sum, len))
                .collect();
            let times = run_ranks(&mut world.ranks, |index, rank| {
                pin(index);
                let (input, mut output) = (vec![0; len], vec![0; len]);
                rank.spins = 100_000;
                let mut launch = rank.launch(&programs[index], input.as_ptr(), output.as_mut_ptr());
                let mut best = f64::MAX;
                for _ in 0..BATCHES {
                    let start = Instant::now();
                    for _ in 0..CALLS {
                        launch.call += 1;
                        // SAFETY: as in `Rank::execute`.
                        assert_eq!(unsafe { executor.execute(&launch, 0) }, Outcome::Done);
                    }
                    let time = start.elapsed().as_nanos() as f64 / CALLS as f64;
                    best = best.min(time);
                }
                best
            });
            println!("{} {len} B: {:.0} ns a call", executor.isa().name(), times[0]);
        }
    }
}

/// The machine's own instructions: one rank that sends to itself, so no line moves.
#[test]
#[ignore = "a measurement"]
fn alone() {
    for executor in Isa::all().into_iter().filter_map(HostExecutor::for_isa) {
        let mut world = World::new(Shape { ranks: 1, ..Shape::default() });
        let me = world.connection(0, 0, Lane::Ll);
        let own = operand(Space::Input, 0);
        let steps = vec![
            wait_head(me, 1 - i64::from(world.shape.ll_slots)),
            reduce_copy(0, 8, &[own], &[slot(Space::PeerSlot, me, Lane::Ll, 0)]),
            reduce_copy(
                0,
                8,
                &[own, slot(Space::Slot, me, Lane::Ll, 0)],
                &[operand(Space::Output, 0)],
            ),
            signal_head(me, 1),
        ];
        let program = Program::once(DataType::F32, Fold::Sum, steps, vec![(me, 1, 1)]);
        pin(0);
        let rank = &mut world.ranks[0];
        let (input, mut output) = ([0; 8], [0; 8]);
        let launch = rank.launch(&program, input.as_ptr(), output.as_mut_ptr());
        let mut best = f64::MAX;
        for _ in 0..2000 {
            let start = Instant::now();
            for _ in 0..500 {
                // SAFETY: as in `Rank::execute`.
                assert_eq!(unsafe { executor.execute(&launch, 0) }, Outcome::Done);
            }
            best = best.min(start.elapsed().as_nanos() as f64 / 500.0);
        }
        println!("{}: {best:.1} ns of our own a call", executor.isa().name());
    }
}
