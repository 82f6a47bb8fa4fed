//! Custom schedules on GPUs: several chunks in a rank's part, and scratch, in calls by themselves,
//! on streams, and in groups.

use crate::calls::{config, stream};
use crate::rewritten::{by_scratch, divided, received_apart, side_by_side};
use oxccl::cuda::Stream;
use oxccl::plans::algorithms::{Algorithm, Encoding, find};
use oxccl::plans::schedule::{SLOTS, Schedule, ScheduleFile};
use oxccl::plans::topology::Placement;
use oxccl::{
    Collective, Collectives, Communicator, Config, CustomSchedule, Kind, Order, Pin, ReduceOp,
};
use oxccl_transports::Bootstrap;
use std::sync::Arc;

const RANKS: usize = 3;

/// The ring, rewritten.
fn custom(
    kind: Kind,
    encoding: Encoding,
    rewritten: impl Fn(&Schedule) -> Schedule,
    channels: usize,
) -> Config {
    let entry = find(kind, Algorithm::Ring, encoding).unwrap();
    let placement = Placement::one_node(RANKS);
    let ring = entry.schedule(Collective::new(kind, RANKS), placement, Order::Any, SLOTS).unwrap();
    let file = ScheduleFile::new(rewritten(&ring), Order::Any, entry.in_place);
    Config {
        schedule: Some(Arc::new(CustomSchedule::prove("it", file).unwrap())),
        pin: Pin { channels: Some(channels), ..Pin::default() },
        max_channels: channels,
        ..config()
    }
}

fn values(seed: usize, count: usize) -> Vec<i32> {
    (0..count).map(|at| (at * 7919 + seed * 104_729) as i32).collect()
}

fn sum(turn: usize, count: usize) -> Vec<i32> {
    let add = |mut sum: Vec<i32>, rank: usize| {
        let more = values(turn + rank, count);
        sum.iter_mut().zip(more).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
        sum
    };
    (0..RANKS).fold(vec![0; count], add)
}

fn reduces(comm: &Communicator) {
    let stream = stream(comm);
    reduces_alone(comm, &stream);
    reduces_in_groups(comm, &stream);
}

fn reduces_alone(comm: &Communicator, stream: &Stream) {
    for (turn, count) in [0, 1, 77, 5_000].into_iter().enumerate() {
        let mut input = comm.alloc::<i32>(count).unwrap();
        input.write(&values(turn + comm.rank(), count)).unwrap();
        let mut output = comm.alloc::<i32>(count).unwrap();
        let mut found = vec![-1; count];
        output.write(&found).unwrap();
        let _ = comm.on(stream).all_reduce(&input, &mut output, ReduceOp::Sum).unwrap();
        let work = comm.on(stream).all_reduce_in_place(&mut input, ReduceOp::Sum).unwrap();
        work.wait().unwrap();
        for buffer in [&input, &output] {
            buffer.read(&mut found).unwrap();
            assert_eq!(found, sum(turn, count));
        }
    }
}

fn reduces_in_groups(comm: &Communicator, stream: &Stream) {
    // Odd buckets, so that there are holes between them.
    let counts = [1, 999, 30, 2_001];
    let mut buckets: Vec<_> = counts.map(|count| comm.alloc::<i32>(count).unwrap()).into();
    for turn in 0..3 {
        for (bucket, count) in buckets.iter_mut().zip(counts) {
            bucket.write(&values(turn + comm.rank(), count)).unwrap();
        }
        let grouped = comm.on(stream).group(|group| {
            let mut buckets = buckets.iter_mut();
            buckets.try_for_each(|one| group.all_reduce_in_place(one, ReduceOp::Sum).map(drop))
        });
        grouped.unwrap().0.wait().unwrap();
        for (bucket, count) in buckets.iter().zip(counts) {
            let mut found = vec![0; count];
            bucket.read(&mut found).unwrap();
            assert_eq!(found, sum(turn, count));
        }
    }
}

/// Beside them, calls of another kind, which have the connections that the lists leave.
fn reduces_with_others(comm: &Communicator) {
    let stream = stream(comm);
    reduces_alone(comm, &stream);
    reduces_in_groups(comm, &stream);
    let (count, one) = (1_100, values(comm.rank(), 1_100));
    let all: Vec<i32> = (0..RANKS).flat_map(|rank| values(rank, count)).collect();
    let mut input = comm.alloc::<i32>(count).unwrap();
    let mut sums = [comm.alloc::<i32>(count).unwrap(), comm.alloc::<i32>(count).unwrap()];
    let mut gathered = comm.alloc::<i32>(all.len()).unwrap();
    input.write(&one).unwrap();
    for _ in 0..3 {
        sums.iter_mut().for_each(|of| of.write(&one).unwrap());
        gathered.write(&vec![-1; all.len()]).unwrap();
        let grouped = comm.on(&stream).group(|group| {
            let [first, second] = &mut sums;
            group.all_reduce_in_place(first, ReduceOp::Sum)?;
            group.all_gather(&input, &mut gathered)?;
            group.all_reduce_in_place(second, ReduceOp::Max).map(drop)
        });
        grouped.unwrap().0.wait().unwrap();
        let mut found = vec![0; all.len()];
        gathered.read(&mut found).unwrap();
        assert_eq!(found, all);
        sums[0].read(&mut found[..count]).unwrap();
        assert_eq!(found[..count], sum(0, count));
        sums[1].read(&mut found[..count]).unwrap();
        let most = |at: usize| (0..RANKS).map(|rank| values(rank, count)[at]).max();
        assert!((0..count).step_by(97).all(|at| Some(found[at]) == most(at)));
    }
}

fn gathers(comm: &Communicator) {
    let stream = stream(comm);
    let counts = [700, 0, 33];
    let all: Vec<i32> = (0..RANKS).flat_map(|rank| values(rank, counts[rank])).collect();
    let mut input = comm.alloc::<i32>(counts[comm.rank()]).unwrap();
    input.write(&values(comm.rank(), counts[comm.rank()])).unwrap();
    let mut output = comm.alloc::<i32>(all.len()).unwrap();
    let mut found = vec![-1; all.len()];
    output.write(&found).unwrap();
    let work = comm.on(&stream).all_gather_v(&input, &mut output, &counts).unwrap();
    work.wait().unwrap();
    output.read(&mut found).unwrap();
    assert_eq!(found, all);
}

pub(crate) fn schedules(_: &mut dyn Bootstrap) {
    for encoding in [Encoding::Slots, Encoding::Ll, Encoding::Ll128] {
        for (kind, calls) in
            [(Kind::AllReduce, reduces as fn(&Communicator)), (Kind::AllGather, gathers)]
        {
            // Groups have no LL128 lane.
            if encoding == Encoding::Ll128 && kind == Kind::AllReduce {
                continue;
            }
            let in_scratch = |ring: &Schedule| by_scratch(&divided(ring, 2));
            everywhere(&custom(kind, encoding, in_scratch, 2), calls);
        }
    }
}

/// Two lists of each rank, side by side with parts of their own, and by turns through scratch.
pub(crate) fn lists(_: &mut dyn Bootstrap) {
    for encoding in [Encoding::Slots, Encoding::Ll, Encoding::Ll128] {
        for rewritten in [|ring: &Schedule| side_by_side(ring, 2), received_apart] {
            // Groups have no LL128 lane.
            let calls = match encoding {
                Encoding::Ll128 => |comm: &Communicator| reduces_alone(comm, &stream(comm)),
                _ => reduces_with_others as fn(&Communicator),
            };
            everywhere(&custom(Kind::AllReduce, encoding, rewritten, 4), calls);
            everywhere(&custom(Kind::AllGather, encoding, rewritten, 2), gathers);
        }
    }
}

fn everywhere(config: &Config, calls: fn(&Communicator)) {
    let ranks = Communicator::local_with(RANKS, config).unwrap();
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(move || calls(&comm));
        }
    });
}
