//! Ranks that join later.
#![allow(clippy::unwrap_used)]

use oxccl::{Collectives, Communicator, Config, Error, HostBuffer, ReduceOp, UniqueId};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Elements of a buffer that goes in place where it can.
const COUNT: usize = 300_000;

fn config(nodes: usize) -> Config {
    let nodes = (nodes > 1).then_some(nodes);
    Config { nodes, heap_bytes: 16 << 20, max_channels: 2, ..Config::default() }
}

/// Runs ranks in threads, which meet as processes do.
fn on_ranks(world: usize, config: &Config, rank: impl Fn(Communicator) + Sync) {
    let (id, _server) = UniqueId::create().unwrap();
    std::thread::scope(|scope| {
        for number in 0..world {
            let (id, rank) = (&id, &rank);
            scope.spawn(move || rank(Communicator::connect(id, number, world, config).unwrap()));
        }
    });
}

/// Fails unless a sum in place over all ranks is right.
fn sums(comm: &Communicator, buffer: &mut HostBuffer<f32>, expected: usize) {
    buffer.fill(comm.rank() as f32 + 1.0);
    comm.all_reduce_in_place(buffer, ReduceOp::Sum).unwrap();
    assert!(buffer.iter().all(|value| *value == expected as f32), "{}", buffer[0]);
}

/// Two ranks become four, and these six, over the memory that they have.
fn grows(nodes: usize) {
    let config = &config(nodes);
    let joins: Mutex<Vec<std::thread::JoinHandle<()>>> = Mutex::new(Vec::new());
    on_ranks(2, config, |two| {
        let rank = two.rank();
        let mut buffer = two.alloc_host::<f32>(COUNT).unwrap();
        sums(&two, &mut buffer, 3);
        // The last rank invites: any may.
        let id = (rank == 1).then(|| two.invite().unwrap());
        for (id, number) in id.iter().flat_map(|id| [(id.clone(), 2), (id.clone(), 3)]) {
            let config = config.clone();
            let join = move || {
                let four = Communicator::connect(&id, number, 4, &config).unwrap();
                let mut buffer = four.alloc_host::<f32>(COUNT).unwrap();
                sums(&four, &mut buffer, 10);
                sums(&four, &mut buffer, 10);
                let pair = four.split(Some(number as u32 % 2), 0).unwrap().unwrap();
                sums(&pair, &mut buffer, 3);
                let six = four.grow(6, None).unwrap();
                four.close().unwrap();
                sums(&six, &mut buffer, 21);
                six.close().unwrap();
            };
            joins.lock().unwrap().push(std::thread::spawn(join));
        }
        let four = two.grow(4, id.as_ref()).unwrap();
        assert_eq!((four.rank(), four.world_size(), four.nodes()), (rank, 4, nodes));
        sums(&four, &mut buffer, 10);
        // The one before goes on, and what is allocated in one is reached in the other.
        sums(&two, &mut buffer, 3);
        let mut newer = four.alloc_host::<f32>(COUNT).unwrap();
        sums(&two, &mut newer, 3);
        sums(&four, &mut newer, 10);
        two.close().unwrap();
        let pair = four.split(Some(rank as u32 % 2), 0).unwrap().unwrap();
        sums(&pair, &mut newer, 3);
        let id = (rank == 0).then(|| four.invite().unwrap());
        for (id, number) in id.iter().flat_map(|id| [(id.clone(), 4), (id.clone(), 5)]) {
            let config = config.clone();
            let join = move || {
                let six = Communicator::connect(&id, number, 6, &config).unwrap();
                let mut buffer = six.alloc_host::<f32>(COUNT).unwrap();
                sums(&six, &mut buffer, 21);
                six.close().unwrap();
            };
            joins.lock().unwrap().push(std::thread::spawn(join));
        }
        let six = four.grow(6, id.as_ref()).unwrap();
        four.close().unwrap();
        sums(&six, &mut buffer, 21);
        six.close().unwrap();
    });
    for thread in joins.into_inner().unwrap() {
        thread.join().unwrap();
    }
}

#[test]
fn ranks_join_later() {
    grows(1);
}

#[test]
fn ranks_of_several_nodes_join_later() {
    grows(2);
}

/// One of three dies, and another one takes its place.
#[test]
fn a_rank_that_has_died_is_replaced() {
    let config = &config(1);
    let (ids, invited) = channel::<UniqueId>();
    let ids: Mutex<Sender<UniqueId>> = Mutex::new(ids);
    let (id, _server) = UniqueId::create().unwrap();
    let rank = |number: usize| {
        let comm = Communicator::connect(&id, number, 3, config).unwrap();
        let mut buffer = comm.alloc_host::<f32>(COUNT).unwrap();
        sums(&comm, &mut buffer, 6);
        if number == 1 {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        let dead = comm.barrier().unwrap_err().ranks();
        let two = comm.shrink(&dead).unwrap();
        assert!(matches!(comm.grow(4, None), Err(Error::Broken { .. })), "it has ended");
        drop(comm);
        let id = (number == 0).then(|| two.invite().unwrap());
        id.iter().for_each(|id| ids.lock().unwrap().send(id.clone()).unwrap());
        let three = two.grow(3, id.as_ref()).unwrap();
        two.close().unwrap();
        sums(&three, &mut buffer, 6);
        three.close().unwrap();
    };
    let rank = &rank;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..3).map(|number| scope.spawn(move || rank(number))).collect();
        let id = invited.recv().unwrap();
        let three = Communicator::connect(&id, 2, 3, config).unwrap();
        let mut buffer = three.alloc_host::<f32>(COUNT).unwrap();
        sums(&three, &mut buffer, 6);
        three.close().unwrap();
        let ends: Vec<_> = ranks.into_iter().map(|rank| rank.join().is_ok()).collect();
        assert_eq!(ends, [true, false, true]);
    });
}

/// What cannot be is an error on all ranks, and the communicator goes on.
#[test]
fn what_cannot_grow_goes_on() {
    on_ranks(2, &config(1), |mut two| {
        let mut buffer = two.alloc_host::<f32>(COUNT).unwrap();
        let id = (two.rank() == 0).then(|| two.invite().unwrap());
        let refused = |world: usize, id: Option<&UniqueId>, why: &str| {
            let error = two.grow(world, id).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        };
        refused(2, id.as_ref(), "must be above 2");
        refused(3 + two.rank(), id.as_ref(), "is 3 on rank 0 and 4 on rank 1");
        refused(3, None, "one rank must give");
        sums(&two, &mut buffer, 3);
        // Nobody joins.
        two.set_timeout(Duration::from_secs(1)).unwrap();
        let begin = Instant::now();
        let error = two.grow(3, id.as_ref()).unwrap_err();
        assert!(error.to_string().contains("2"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
        sums(&two, &mut buffer, 3);
        two.close().unwrap();
    });
}

/// Threads of `local` grow as processes do: the third rank has met them nowhere before.
#[test]
fn threads_of_one_process_are_joined() {
    let config = &config(1);
    let (ids, invited) = channel::<UniqueId>();
    std::thread::scope(|scope| {
        for two in Communicator::local_with(2, config).unwrap() {
            let ids = ids.clone();
            scope.spawn(move || {
                let mut buffer = two.alloc_host::<f32>(COUNT).unwrap();
                sums(&two, &mut buffer, 3);
                let id = (two.rank() == 0).then(|| two.invite().unwrap());
                id.iter().for_each(|id| ids.send(id.clone()).unwrap());
                let three = two.grow(3, id.as_ref()).unwrap();
                sums(&three, &mut buffer, 6);
                sums(&two, &mut buffer, 3);
                let mut private = vec![three.rank() as i64; COUNT];
                three.all_reduce_in_place(&mut private[..], ReduceOp::Max).unwrap();
                assert!(private.iter().all(|value| *value == 2));
                two.close().unwrap();
                sums(&three, &mut buffer, 6);
                three.close().unwrap();
            });
        }
        let three = Communicator::connect(&invited.recv().unwrap(), 2, 3, config).unwrap();
        let mut buffer = three.alloc_host::<f32>(COUNT).unwrap();
        sums(&three, &mut buffer, 6);
        three.all_reduce_in_place(&mut vec![2_i64; COUNT][..], ReduceOp::Max).unwrap();
        sums(&three, &mut buffer, 6);
        three.close().unwrap();
    });
}
