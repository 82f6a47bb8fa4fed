//! What orders the kernels' accesses to memory: the emulator keeps account of it
//! (`cuda_stand_in/emulator/order.cpp`), and ends the process at an access that nothing orders.
//! `tools/memory-order` shows that these cases find each fence and each access that is weakened.

use crate::calls::{self, CHANNELS, check, pin, stream};
use crate::common::Rng;
use crate::common::left;
use crate::common::run::Case;
use crate::groups::{Of, Wanted, buckets, launch};
use crate::guests::gradients_with;
use crate::hot;
use oxccl::cuda::Stream;
use oxccl::plans::algorithms::{Encoding, Entry, catalogue};
use oxccl::plans::schedule::SLOTS;
use oxccl::plans::topology::Placement;
use oxccl::{Collectives, Communicator, DeviceBuffer, Kind, OpKind, Order, Pin, ReduceOp};
use oxccl_cuda_stand_in::control::Control;

/// Every algorithm but those of a switch, in lengths of one round and of several.
pub(crate) fn algorithms(comm: Communicator) {
    // Two minutes.
    let every = if left::to_test_all("the memory order of every algorithm") { 12 } else { 1 };
    run(comm, every, |entry| !entry.is_in_network());
}

/// Those that have kernels of their own.
pub(crate) fn hot_kernels(comm: Communicator) {
    run(comm, 1, |entry| {
        !entry.is_in_network()
            && hot::of_calls().any(|one| {
                (one.kind, one.algorithm, one.encoding)
                    == (entry.kind, entry.algorithm, entry.encoding)
            })
    });
}

/// Some long copies by the engine.
pub(crate) fn bulk_copies(comm: Communicator) {
    calls::some_long_copies(comm, 4);
}

/// Those of a switch.
pub(crate) fn by_switch(comm: Communicator) {
    run(comm, 1, Entry::is_in_network);
}

fn run(mut comm: Communicator, every: usize, wanted: impl Fn(&Entry) -> bool) {
    let (stream, mut rng) = (stream(&comm), Rng(7));
    let (n, nodes) = (comm.world_size(), calls::config().nodes.unwrap_or(1));
    let placement = Placement::uniform(n / nodes);
    let there_is = |entry: &&Entry| {
        entry.kind != Kind::SendRecv
            && wanted(entry)
            && !entry.is_in_fabric()
            && entry.check(n, placement, SLOTS).is_ok()
            && (nodes == 1 || entry.encoding == Encoding::Slots)
    };
    for entry in catalogue().filter(there_is).step_by(every) {
        for in_place in [false, true].into_iter().take(1 + usize::from(entry.in_place)) {
            for count in [2, 300 + (rng.next() % 300) as usize] {
                let (root, seed) = (rng.next() as usize % n, rng.next());
                let (op, order, channels) = (OpKind::Sum, Order::Any, CHANNELS);
                let case =
                    Case { entry, placement, order, op, in_place, root, count, channels, seed };
                comm.set_pin(pin(&case)).unwrap();
                check::<f32>(&comm, &stream, &case);
                if in_place {
                    again(&comm, &stream, entry.kind, count);
                }
            }
        }
    }
    comm.set_pin(Pin::default()).unwrap();
    comm.barrier().unwrap();
}

fn filled(comm: &Communicator, count: usize) -> DeviceBuffer<f32> {
    let mut buffer = comm.alloc::<f32>(count).unwrap();
    buffer.write(&vec![1.0; count]).unwrap();
    buffer
}

/// The same buffer by calls that follow one another, without the host between them: what one reads
/// of a peer the next one writes there.
fn again(comm: &Communicator, stream: &Stream, kind: Kind, count: usize) {
    let mut buffer = filled(comm, count * comm.world_size());
    let works = [(); 3].map(|()| match kind {
        Kind::AllReduce => comm.on(stream).all_reduce_in_place(&mut buffer, ReduceOp::Sum).ok(),
        Kind::AllGather => comm.on(stream).all_gather_in_place(&mut buffer).ok(),
        Kind::AllToAll => comm.on(stream).all_to_all_in_place(&mut buffer).ok(),
        Kind::Broadcast => comm.on(stream).broadcast_in_place(&mut buffer, 0).ok(),
        _ => None,
    });
    works.into_iter().flatten().for_each(|work| work.wait().unwrap());
}

/// Groups of buckets of all lengths, of one type and of two, that follow one another.
pub(crate) fn groups(mut comm: Communicator) {
    let (stream, n, mut rng) = (stream(&comm), comm.world_size(), Rng(11));
    let encodings =
        [Some(Encoding::Windows), Some(Encoding::Slots), Some(Encoding::Ll), None, None];
    for (round, encoding) in encodings.into_iter().enumerate() {
        comm.set_pin(Pin { encoding, ..Pin::default() }).unwrap();
        let mut lengths = [(); 5].map(|()| 1 + rng.next() as usize % 900);
        lengths[rng.next() as usize % 5] = 1;
        let mut reduced = lengths.map(|len| filled(&comm, len));
        let mut gathered = lengths.map(|len| filled(&comm, len * n));
        let mut others = comm.alloc::<i32>(70).unwrap();
        others.write(&[1; 70]).unwrap();
        for _ in 0..2 {
            let launched = comm.on(&stream).group(|group| {
                for (one, other) in reduced.iter_mut().zip(&mut gathered) {
                    group.all_reduce_in_place(one, ReduceOp::Sum)?;
                    group.all_gather_in_place(other)?;
                }
                if round % 2 == 1 {
                    group.all_reduce_in_place(&mut others, ReduceOp::Max)?;
                }
                Ok(())
            });
            let _ = launched.unwrap();
        }
        stream.synchronize().unwrap();
        for buffer in &reduced {
            let mut found = vec![0.0; buffer.len()];
            buffer.read(&mut found).unwrap();
            assert!(found.iter().all(|one| *one == (n * n) as f32), "round {round}: {found:?}");
        }
    }
    comm.set_pin(Pin::default()).unwrap();
    comm.barrier().unwrap();
}

/// Groups that have kernels of their own and follow one another, in place where that can be.
pub(crate) fn hot_groups(mut comm: Communicator) {
    let (stream, mut rng) = (stream(&comm), Rng(13));
    for one in hot::of_calls().filter(|one| one.in_buckets.is_some()) {
        let (algorithm, encoding) = (Some(one.algorithm), Some(one.encoding));
        comm.set_pin(Pin { algorithm, encoding, channels: Some(CHANNELS) }).unwrap();
        let in_place = one.kind == Kind::AllReduce;
        // Little enough to be one round of small slots.
        let wanted = [(); 4].map(|()| {
            let count = [1, rng.next() as usize % 18][rng.next() as usize % 2];
            Wanted {
                kind: one.kind,
                of: Of::F32,
                op: OpKind::Sum,
                count,
                root: 0,
                in_place,
                shift: 0,
            }
        });
        let (buckets, before) = (buckets(&comm, &wanted), Control::attach().unwrap().hot());
        let works = [(); 3].map(|()| launch(&comm, &stream, &buckets));
        works.into_iter().for_each(|work| work.wait().unwrap());
        comm.barrier().unwrap();
        assert!(Control::attach().unwrap().hot() >= before + 3, "{}", one.name);
    }
    comm.set_pin(Pin::default()).unwrap();
    comm.barrier().unwrap();
}

/// Buckets that kernels of others write beside the group that reduces them, where peers read them
/// in place: tokens say that they may, and what they find there.
pub(crate) fn guests_in_windows(mut comm: Communicator) {
    let encoding = Some(Encoding::Windows);
    comm.set_pin(Pin { encoding, ..Pin::default() }).unwrap();
    gradients_with(&comm, true).unwrap();
    comm.set_pin(Pin::default()).unwrap();
    comm.barrier().unwrap();
}
