//! Groups that come again: as they were, without an allocation; and changed in part.

use crate::allocations::ALLOCATIONS;
use crate::common::turns::{LENGTHS, TURNS, expected, value};
use oxccl::{Collectives, Communicator, DeviceBuffer, ReduceOp, Unready, Work};

/// Groups, some of which have a bucket that is marked ready later, allocate nothing on the host
/// once they have been there: as many as are under way at once, and one after the other.
pub(crate) fn allocate_nothing(comm: Communicator) {
    let (stream, n, rank) = (crate::calls::stream(&comm), comm.world_size(), comm.rank());
    let mut sums: Vec<_> = (0..20).map(|_| comm.alloc::<f32>(300).unwrap()).collect();
    let (own, mut all) = (comm.alloc::<u8>(90).unwrap(), comm.alloc::<u8>(90 * n).unwrap());
    let mut came = comm.alloc::<u8>(90).unwrap();
    let [mut late, mut ready] = [(); 2].map(|()| comm.alloc::<f32>(500).unwrap());
    let mut launch = |is_gated: bool| {
        let on = comm.on(&stream);
        let mut unready = Unready::new(&mut late);
        let launched = on.group(|group| {
            for buffer in &mut sums {
                group.all_reduce_in_place(buffer, ReduceOp::Avg)?;
            }
            group.all_gather(&own, &mut all)?;
            group.send(&own, (rank + 1) % n)?;
            group.recv(&mut came, (rank + n - 1) % n)?;
            match is_gated {
                true => group.all_reduce_in_place(&mut unready, ReduceOp::Max),
                false => group.all_reduce_in_place(&mut ready, ReduceOp::Max),
            }
        });
        let (work, _) = launched.unwrap();
        unready.ready();
        work
    };
    let wait = |work: Work| {
        work.bucket(20).unwrap().wait().unwrap();
        work.wait().unwrap();
    };
    for is_gated in [false, true] {
        // More at once than there are later, whatever the thread that sees them through is kept
        // from.
        let works = [(); 4].map(|()| launch(is_gated));
        works.into_iter().for_each(wait);
        (0..4).for_each(|_| wait(launch(is_gated)));
    }
    let before = ALLOCATIONS.get();
    // A wait that lasts, on a busy machine, looks at the ranks' logs, which allocates.
    let mut fewest = [u64::MAX; 2];
    for turn in 0..50 {
        let before = ALLOCATIONS.get();
        wait(launch(turn % 2 == 1));
        fewest[turn % 2] = fewest[turn % 2].min(ALLOCATIONS.get() - before);
    }
    assert_eq!(fewest, [0; 2]);
    assert!(before > 0, "the counter counts");
    // A call that is not ready is prepared like one that is.
    assert_eq!(comm.plans(), 1);
    comm.barrier().unwrap();
}

/// Other buffers, other lengths and other calls from one group to the next.
pub(crate) fn change_in_part(comm: Communicator) {
    let (stream, n, rank) = (crate::calls::stream(&comm), comm.world_size(), comm.rank());
    let alloc = |len: usize| comm.alloc::<f32>(len).unwrap();
    let mut buffers: Vec<DeviceBuffer<f32>> = LENGTHS.into_iter().map(alloc).collect();
    // Each changes from the one before; then once more, from the beginning.
    for (turn, wanted) in TURNS.iter().enumerate().chain(TURNS.iter().enumerate()) {
        for (at, buffer) in buffers.iter_mut().enumerate() {
            let values: Vec<f32> =
                (0..buffer.len()).map(|place| value(turn, at, rank, place)).collect();
            buffer.write(&values).unwrap();
        }
        let plans = comm.plans();
        let mut free: Vec<_> = buffers.iter_mut().map(Some).collect();
        let (work, ()) = comm
            .on(&stream)
            .group(|group| {
                for (bucket, at) in wanted.buffers.iter().enumerate() {
                    let is_other = wanted.other == Some(bucket);
                    let op = if is_other { ReduceOp::Max } else { ReduceOp::Sum };
                    group.all_reduce_in_place(free[*at].take().unwrap(), op)?;
                }
                Ok(())
            })
            .unwrap();
        work.wait().unwrap();
        assert!(comm.plans() <= plans + u64::from(wanted.is_new), "turn {turn}");
        for (at, buffer) in buffers.iter().enumerate() {
            let mut found = vec![0.0; buffer.len()];
            buffer.read(&mut found).unwrap();
            for (place, found) in found.into_iter().enumerate() {
                assert_eq!(found, expected(turn, at, rank, n, place), "turn {turn}, buffer {at}");
            }
        }
    }
    assert_eq!(comm.plans(), TURNS.iter().filter(|turn| turn.is_new).count() as u64);
    comm.barrier().unwrap();
}
