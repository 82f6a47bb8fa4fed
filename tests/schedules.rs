//! Custom schedules with all that the language has, run over threads and compared with a reference:
//! any count, uneven ones too, in and out of place, in several rounds and channels.
#![allow(clippy::unwrap_used)]

mod common;

use oxccl::plans;

#[path = "common/rewritten.rs"]
mod rewritten;

use common::{Rng, seed};
use oxccl::plans::algorithms::{Algorithm, Encoding, catalogue, find};
use oxccl::plans::schedule::{SEGMENTS, SLOTS, Schedule, ScheduleFile};
use oxccl::plans::topology::Placement;
use oxccl::{
    Advanced, Collective, Collectives, Communicator, Config, CustomSchedule, Error, Kind, Order,
    Pin, ReduceOp,
};
use rewritten::{by_scratch, divided, received_apart, side_by_side};
use std::sync::Arc;
use std::time::Duration;

const RANKS: usize = 4;
const POISON: i32 = 0x5a5a_5a5a;

/// Slots so small that some thousands of elements take several rounds.
fn config(file: ScheduleFile, channels: usize) -> Config {
    Config {
        schedule: Some(Arc::new(CustomSchedule::prove("it", file).unwrap())),
        max_channels: channels.max(2),
        pin: Pin { channels: Some(channels), ..Pin::default() },
        advanced: Advanced { slot_bytes: Some(4608), ll_slot_bytes: 6144, ..Advanced::default() },
        ..Config::default()
    }
}

fn random(len: usize, seed: u64) -> Vec<i32> {
    let mut rng = Rng(seed);
    (0..len).map(|_| rng.next() as i32).collect()
}

/// What every rank contributes, and the wrapped sum of all.
fn sum(inputs: &[Vec<i32>]) -> Vec<i32> {
    let mut sum = inputs[0].clone();
    for input in &inputs[1..] {
        sum.iter_mut().zip(input).for_each(|(sum, value)| *sum = sum.wrapping_add(*value));
    }
    sum
}

/// A call with `count` elements for each rank, or in all where ranks have no parts.
fn check(comm: &Communicator, kind: Kind, count: usize, in_place: bool, seed: u64) {
    let rank = comm.rank();
    let parts = matches!(kind, Kind::ReduceScatter | Kind::AllToAll | Kind::Scatter);
    let len = if parts { count * RANKS } else { count };
    let inputs: Vec<Vec<i32>> = (0..RANKS).map(|of| random(len, seed ^ of as u64)).collect();
    let input = &inputs[rank];
    let of = |all: &[i32], part: usize| all[part * count..][..count].to_vec();
    let expected: Option<Vec<i32>> = match kind {
        Kind::AllReduce => Some(sum(&inputs)),
        Kind::Reduce => (rank == 0).then(|| sum(&inputs)),
        Kind::ReduceScatter => Some(of(&sum(&inputs), rank)),
        Kind::AllGather => Some(inputs.concat()),
        Kind::Gather => (rank == 0).then(|| inputs.concat()),
        Kind::AllToAll => Some(inputs.iter().flat_map(|from| of(from, rank)).collect()),
        Kind::Broadcast => Some(inputs[0].clone()),
        Kind::Scatter => Some(of(&inputs[0], rank)),
        Kind::SendRecv | Kind::Barrier => return,
    };
    let op = ReduceOp::Sum;
    let out_len = expected.as_ref().map_or(0, Vec::len);
    let mut output = vec![POISON; out_len];
    if !in_place {
        match kind {
            Kind::AllReduce => comm.all_reduce(input, &mut output, op),
            Kind::Reduce => comm.reduce(input, &mut output, op, 0),
            Kind::ReduceScatter => comm.reduce_scatter(input, &mut output, op),
            Kind::AllGather => comm.all_gather(input, &mut output),
            Kind::Gather => comm.gather(input, &mut output, 0),
            Kind::AllToAll => comm.all_to_all(input, &mut output),
            Kind::Broadcast => comm.broadcast(input, &mut output, 0),
            _ => comm.scatter(input, &mut output, 0),
        }
        .unwrap();
        if let Some(expected) = expected {
            assert_eq!(output, expected, "{kind} of {count}");
        }
        return;
    }
    // Of these the root's call alone is in place.
    if rank != 0 && matches!(kind, Kind::Gather | Kind::Scatter) {
        match kind {
            Kind::Gather => comm.gather(input, &mut output, 0),
            _ => comm.scatter(input, &mut output, 0),
        }
        .unwrap();
        assert!(expected.is_none_or(|expected| output == expected), "{kind} of {count}");
        return;
    }
    let gathers = matches!(kind, Kind::AllGather | Kind::Gather);
    let mut buffer = if gathers { vec![POISON; count * RANKS] } else { input.clone() };
    let mine = rank * count..(rank + 1) * count;
    if gathers {
        buffer[mine.clone()].copy_from_slice(input);
    }
    match kind {
        Kind::AllReduce => comm.all_reduce_in_place(&mut buffer, op),
        Kind::Reduce => comm.reduce_in_place(&mut buffer, op, 0),
        Kind::ReduceScatter => comm.reduce_scatter_in_place(&mut buffer, op),
        Kind::AllGather => comm.all_gather_in_place(&mut buffer),
        Kind::Gather => comm.gather_in_place(&mut buffer, 0),
        Kind::AllToAll => comm.all_to_all_in_place(&mut buffer),
        Kind::Broadcast => comm.broadcast_in_place(&mut buffer, 0),
        _ => comm.scatter_in_place(&mut buffer, 0),
    }
    .unwrap();
    let Some(expected) = expected else { return };
    let found = if kind == Kind::ReduceScatter { &buffer[mine] } else { &buffer[..expected.len()] };
    assert_eq!(found, expected, "{kind} of {count} in place");
}

/// Parts of different lengths.
fn check_uneven(comm: &Communicator, kind: Kind, seed: u64) {
    let (rank, mut rng) = (comm.rank(), Rng(seed));
    let counts: Vec<usize> = (0..RANKS).map(|_| (rng.next() % 700) as usize).collect();
    let start = |counts: &[usize], part: usize| counts[..part].iter().sum::<usize>();
    let part = |all: &[i32], counts: &[usize], part: usize| {
        all[start(counts, part)..][..counts[part]].to_vec()
    };
    let inputs = |len: &dyn Fn(usize) -> usize| -> Vec<Vec<i32>> {
        (0..RANKS).map(|of| random(len(of), seed ^ of as u64)).collect()
    };
    match kind {
        Kind::AllGather => {
            let inputs = inputs(&|of| counts[of]);
            let mut output = vec![POISON; counts.iter().sum()];
            comm.all_gather_v(&inputs[rank], &mut output, &counts).unwrap();
            assert_eq!(output, inputs.concat());
        }
        Kind::ReduceScatter => {
            let inputs = inputs(&|_| counts.iter().sum());
            let mut output = vec![POISON; counts[rank]];
            comm.reduce_scatter_v(&inputs[rank], &mut output, &counts, ReduceOp::Sum).unwrap();
            assert_eq!(output, part(&sum(&inputs), &counts, rank));
        }
        _ => {}
    }
}

/// All that there is to call with a schedule of this kind.
fn check_all(file: &ScheduleFile, channels: [usize; 2], seed: u64) {
    let kind = file.schedule.collective.kind;
    for channels in channels {
        let ranks = Communicator::local_with(RANKS, &config(file.clone(), channels)).unwrap();
        std::thread::scope(|scope| {
            for comm in ranks {
                scope.spawn(move || {
                    for (turn, count) in [0, 1, 3, 50, 1000, 30_011].into_iter().enumerate() {
                        for in_place in
                            [false, true].into_iter().take(1 + usize::from(file.in_place))
                        {
                            check(&comm, kind, count, in_place, seed + 100 * turn as u64);
                        }
                    }
                    check_uneven(&comm, kind, seed);
                });
            }
        });
    }
}

/// Schedules of the catalogue whose messages have room for so many times as many segments.
fn schedules(times: usize) -> impl Iterator<Item = (Schedule, bool)> {
    catalogue().filter_map(move |entry| {
        let other = matches!(entry.kind, Kind::SendRecv | Kind::Barrier);
        if other || entry.encoding == Encoding::Ll128 {
            return None;
        }
        let collective = Collective::new(entry.kind, RANKS);
        let placement = Placement::uniform(RANKS);
        let whole = entry.schedule(collective, placement, Order::Any, SLOTS).ok()?;
        let most = whole.most_segments().into_iter().map(|(_, most)| most).max()?;
        (most * times <= SEGMENTS as usize).then_some((whole, entry.in_place))
    })
}

#[test]
fn chunks_inside_a_ranks_part() {
    let seed = seed();
    for (whole, in_place) in schedules(3) {
        check_all(&ScheduleFile::new(divided(&whole, 3), Order::Any, in_place), [1, 2], seed);
    }
}

#[test]
fn chunks_in_scratch() {
    let seed = seed();
    for (whole, in_place) in schedules(2) {
        let file = ScheduleFile::new(by_scratch(&divided(&whole, 2)), Order::Any, in_place);
        check_all(&file, [1, 2], seed);
    }
}

/// Two lists of each rank, side by side with parts of their own, and by turns through scratch.
#[test]
fn several_lists() {
    let (seed, mut seen) = (seed(), 0);
    for (whole, in_place) in schedules(2).filter(|(whole, _)| !whole.uses_windows()) {
        for schedule in [side_by_side(&whole, 2), received_apart(&whole)] {
            check_all(&ScheduleFile::new(schedule, Order::Any, in_place), [3, 4], seed);
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen}");
}

/// Links to ranks of other nodes are alike for lists.
#[test]
fn several_lists_between_nodes() {
    let seed = seed();
    let ring = find(Kind::AllReduce, Algorithm::Ring, Encoding::Slots).unwrap();
    let (collective, placement) = (Collective::new(Kind::AllReduce, RANKS), Placement::uniform(2));
    let ring = ring.schedule(collective, placement, Order::Any, SLOTS).unwrap();
    for schedule in [side_by_side(&ring, 3), received_apart(&ring)] {
        let file = ScheduleFile::new(schedule, Order::Any, true);
        let config = Config { nodes: Some(2), ..config(file, 6) };
        let ranks = Communicator::local_with(RANKS, &config).unwrap();
        std::thread::scope(|scope| {
            for comm in ranks {
                scope.spawn(move || {
                    for count in [0, 1, 1000, 30_011] {
                        check(&comm, Kind::AllReduce, count, false, seed + count as u64);
                        check(&comm, Kind::AllReduce, count, true, seed + count as u64);
                    }
                });
            }
        });
    }
}

/// Lists wait for others of their own rank as well, which is nobody's fault.
#[test]
fn a_rank_that_does_not_call_is_named_whichever_list_waits() {
    for encoding in [Encoding::Slots, Encoding::Ll] {
        let ring = find(Kind::AllReduce, Algorithm::Ring, encoding).unwrap();
        let (collective, placement) =
            (Collective::new(Kind::AllReduce, RANKS), Placement::uniform(RANKS));
        let ring = ring.schedule(collective, placement, Order::Any, SLOTS).unwrap();
        let file = ScheduleFile::new(received_apart(&ring), Order::Any, true);
        let config = Config { timeout: Duration::from_millis(500), ..config(file, 2) };
        let ranks = Communicator::local_with(RANKS, &config).unwrap();
        std::thread::scope(|scope| {
            for comm in ranks {
                scope.spawn(move || {
                    if comm.rank() == 2 {
                        std::thread::sleep(Duration::from_millis(1500));
                        return;
                    }
                    let error = comm.all_reduce_in_place(&mut [1.0_f32; 5], ReduceOp::Sum);
                    let text = error.unwrap_err().to_string();
                    assert!(text.contains("rank 2 has not called all_reduce"), "{text}");
                    for wait in text.split("; ").filter(|part| part.contains(" waits at step ")) {
                        let [waits, for_whom] = wait.split_once(" waits ").unwrap().into();
                        assert!(!for_whom.ends_with(waits), "{text}");
                    }
                });
            }
        });
    }
}

#[test]
fn several_lists_need_channels() {
    let all_reduce = |(whole, _): &(Schedule, bool)| {
        whole.collective.kind == Kind::AllReduce && !whole.uses_windows()
    };
    let (whole, in_place) = schedules(2).find(all_reduce).unwrap();
    let file = ScheduleFile::new(side_by_side(&whole, 3), Order::Any, in_place);
    let refused = |channels: usize, call: fn(&Communicator) -> Result<(), Error>| {
        let ranks = Communicator::local_with(RANKS, &config(file.clone(), channels)).unwrap();
        let calls: Vec<_> =
            ranks.into_iter().map(|comm| std::thread::spawn(move || call(&comm))).collect();
        calls.into_iter().map(|call| call.join().unwrap().unwrap_err().to_string()).last().unwrap()
    };
    let reduce = |comm: &Communicator| comm.all_reduce_in_place(&mut [1.0_f32; 5], ReduceOp::Sum);
    let text = refused(2, reduce);
    assert!(text.contains("3 lists, which need 3 channels: set OXCCL_MAX_CHANNELS=3"), "{text}");
    let mixed = |comm: &Communicator| {
        let (mut reduced, mut gathered) = ([1.0_f32; 5], [0.0_f32; 5 * RANKS]);
        comm.group(|group| {
            group.all_gather(&[2.0_f32; 5], &mut gathered)?;
            group.all_reduce_in_place(&mut reduced, ReduceOp::Sum).map(drop)
        })
        .map(drop)
    };
    let text = refused(3, mixed);
    assert!(text.contains("takes 3 channels in a group"), "{text}");
    assert!(text.ends_with("one more: set OXCCL_MAX_CHANNELS=4"), "{text}");
}

/// One group with buckets that lie in one part, another part of the schedule, and, where `mixed`,
/// calls of other kinds before, between and behind.
fn check_group(comm: &Communicator, mixed: bool, seed: u64) {
    let rank = comm.rank();
    let counts = [1, 999, 30, 2_001];
    let of = |rank: usize| counts.map(|count| random(count, seed ^ rank as u64));
    let wide = |rank: usize| random(1_501, seed ^ 0xff ^ rank as u64);
    let inputs: Vec<_> = (0..RANKS).map(of).collect();
    let mut buckets = of(rank);
    let mut doubles: Vec<i64> = wide(rank).into_iter().map(i64::from).collect();
    let (own, mut gathered) = (wide(rank), vec![POISON; 1_501 * RANKS]);
    let mut told = if rank == 0 { wide(0) } else { vec![POISON; 1_501] };
    comm.group(|group| {
        let [first, rest @ ..] = &mut buckets;
        if mixed {
            group.all_gather(&own, &mut gathered)?;
        }
        group.all_reduce_in_place(first, ReduceOp::Sum)?;
        group.all_reduce_in_place(&mut doubles, ReduceOp::Sum)?;
        if mixed {
            group.broadcast_in_place(&mut told, 0)?;
        }
        for bucket in rest {
            group.all_reduce_in_place(bucket, ReduceOp::Sum)?;
        }
        if mixed { group.barrier().map(drop) } else { Ok(()) }
    })
    .unwrap();
    for (at, found) in buckets.iter().enumerate() {
        let of_bucket: Vec<_> = inputs.iter().map(|of| of[at].clone()).collect();
        assert_eq!(found, &sum(&of_bucket));
    }
    let all: Vec<Vec<i32>> = (0..RANKS).map(wide).collect();
    let sums = (0..1_501).map(|at| all.iter().map(|of| i64::from(of[at])).sum::<i64>());
    assert!(doubles.into_iter().eq(sums));
    if mixed {
        assert_eq!(gathered, all.concat());
        assert_eq!(told, all[0]);
    }
}

/// Lists use each other's connections, and channels go from part to part by themselves.
#[test]
fn several_lists_in_groups() {
    let seed = seed();
    let reduces = |(whole, _): &(Schedule, bool)| {
        whole.collective.kind == Kind::AllReduce && !whole.uses_windows()
    };
    let mut seen = 0;
    for (whole, in_place) in schedules(2).filter(reduces) {
        for schedule in [side_by_side(&whole, 2), received_apart(&whole)] {
            let file = ScheduleFile::new(schedule, Order::Any, in_place);
            // Twice as many as one share needs, and one.
            for (channels, nodes) in [(8, None), (5, None), (6, Some(2))] {
                let config = Config { nodes, ..config(file.clone(), channels) };
                let encoding = config.schedule.as_ref().unwrap().encoding();
                // No flags between nodes, and no LL128 in groups.
                if encoding == Encoding::Ll128 || nodes.is_some() && encoding.has_flags() {
                    continue;
                }
                let ranks = Communicator::local_with(RANKS, &config).unwrap();
                std::thread::scope(|scope| {
                    for comm in ranks {
                        scope.spawn(move || {
                            for turn in 0..3 {
                                check_group(&comm, turn == 1, seed + turn);
                            }
                        });
                    }
                });
                seen += 1;
            }
        }
    }
    assert!(seen > 20, "{seen}");
}

/// The parts of a group are custom too, and its buckets have holes between them.
#[test]
fn groups_in_scratch() {
    let seed = seed();
    let reduces = |(whole, _): &(Schedule, bool)| {
        // Groups are not reduced by switches.
        whole.collective.kind == Kind::AllReduce && !whole.uses_multicast()
    };
    for (whole, in_place) in schedules(2).filter(reduces) {
        let file = ScheduleFile::new(by_scratch(&divided(&whole, 2)), Order::Any, in_place);
        let ranks = Communicator::local_with(RANKS, &config(file, 2)).unwrap();
        std::thread::scope(|scope| {
            for comm in ranks {
                scope.spawn(move || {
                    let counts = [1, 999, 30, 2_001];
                    let of = |rank: usize| counts.map(|count| random(count, seed ^ rank as u64));
                    let inputs: Vec<_> = (0..RANKS).map(of).collect();
                    let mut buckets = of(comm.rank());
                    comm.group(|group| {
                        for bucket in &mut buckets {
                            group.all_reduce_in_place(bucket, ReduceOp::Sum)?;
                        }
                        Ok(())
                    })
                    .unwrap();
                    for (at, found) in buckets.iter().enumerate() {
                        let of_bucket: Vec<_> = inputs.iter().map(|of| of[at].clone()).collect();
                        assert_eq!(found, &sum(&of_bucket));
                    }
                });
            }
        });
    }
}
