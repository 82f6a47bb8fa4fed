//! What is wrong with ranks of another node is found as on this node: their logs come as reports
//! through the rendezvous.
#![allow(clippy::unwrap_used)]

use oxccl::{Collectives, Communicator, Config, Error, ReduceOp, UniqueId};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Four ranks on two nodes, each joining by the rendezvous; rank 3's errors are left out.
fn errors(
    timeout: Duration,
    rank: impl Fn(&mut Communicator) -> Result<(), Error> + Sync,
) -> Vec<Error> {
    let (id, _server) = UniqueId::create().unwrap();
    let config =
        Config { nodes: Some(2), heap_bytes: 1 << 20, max_channels: 2, ..Config::default() };
    let (id, config, rank) = (&id, &config, &rank);
    std::thread::scope(|scope| {
        let start = |number: usize| {
            scope.spawn(move || {
                let mut comm = Communicator::connect(id, number, 4, config).unwrap();
                // A call that all make, so that there is a last one.
                comm.barrier().unwrap();
                comm.set_timeout(timeout).unwrap();
                rank(&mut comm)
            })
        };
        let ranks: Vec<_> = (0..4).map(start).collect();
        let ends = ranks.into_iter().map(|rank| rank.join().unwrap());
        ends.take(3).map(Result::unwrap_err).collect()
    })
}

fn all_reduce(comm: &Communicator, count: usize) -> Result<(), Error> {
    comm.all_reduce_in_place(&mut vec![1.0f32; count], ReduceOp::Sum)
}

#[test]
fn another_call_is_named() {
    let long = Duration::from_secs(60);
    let errors = errors(long, |comm| all_reduce(comm, if comm.rank() == 3 { 200 } else { 100 }));
    for (rank, error) in errors.iter().enumerate() {
        // Whoever finds it out tells the others.
        let text = error.to_string();
        assert!(text.contains("100") && text.contains("200"), "rank {rank}: {text}");
    }
}

#[test]
fn a_rank_that_has_not_called_is_named() {
    let ended = AtomicUsize::new(0);
    let errors = errors(Duration::from_millis(700), |comm| {
        if comm.rank() < 3 {
            let error = all_reduce(comm, 100);
            ended.fetch_add(1, Ordering::Relaxed);
            return error;
        }
        // It comes when all is over.
        while ended.load(Ordering::Relaxed) < 3 {
            std::thread::sleep(Duration::from_millis(5));
        }
        all_reduce(comm, 100)
    });
    for (rank, error) in errors.iter().enumerate() {
        let text = error.to_string();
        let last = "(its last was barrier";
        assert!(text.contains("rank 3 has not called all_reduce"), "rank {rank}: {text}");
        assert!(text.contains(last), "rank {rank}: {text}");
    }
}

#[test]
fn the_bucket_of_a_group_is_named() {
    let long = Duration::from_secs(60);
    let errors = errors(long, |comm| {
        let third = if comm.rank() == 3 { 90 } else { 70 };
        let mut buckets = [10, 20, third, 40].map(|count| vec![1.0f32; count]);
        comm.group(|group| {
            let mut all = buckets.iter_mut();
            all.try_for_each(|b| group.all_reduce_in_place(b, ReduceOp::Sum).map(drop))
        })
    });
    let texts: Vec<String> = errors.iter().map(Error::to_string).collect();
    let named = |text: &String| text.contains("bucket 2") && text.contains("90");
    assert!(texts.iter().all(named), "{texts:?}");
}

#[test]
fn a_message_of_a_group_that_differs_is_named() {
    let long = Duration::from_secs(60);
    let errors = errors(long, |comm| {
        let (rank, world) = (comm.rank(), comm.world_size());
        let count = if rank == 3 { 90 } else { 70 };
        let (sent, mut received) = (vec![1.0f32; count], vec![0.0f32; 70]);
        let mut sum = [1.0f32; 8];
        comm.group(|group| {
            group.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
            group.send(&sent, (rank + 1) % world)?;
            group.recv(&mut received, (rank + world - 1) % world).map(drop)
        })?;
        // Those whose messages were right hear of it here.
        comm.barrier()
    });
    // Rank 0, on the other node, is the one that 3 sends to.
    let texts: Vec<String> = errors.iter().map(Error::to_string).collect();
    let named =
        |text: &String| text.contains("bucket") && text.contains("90") && text.contains("70");
    assert!(texts.iter().all(named), "{texts:?}");
}
