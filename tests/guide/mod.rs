//! The code of docs/guide.md, run on two ranks; `documentation.rs` compares the lines.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oxccl::bucket::GradientBuckets;
use oxccl::{
    CallOptions, Collectives, Communicator, Config, CustomSchedule, Error, Kind, OpKind, Order,
    Pin, ReduceOp, Stream, UniqueId,
};

/// What a rank that fails has to say.
type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Runs this on every rank of the world, in a thread each.
fn on_all(
    ranks: Vec<Communicator>,
    rank: impl Fn(Communicator) -> Result<(), Failed> + Copy + Send + Sync,
) {
    std::thread::scope(|scope| {
        let run = |comm| scope.spawn(move || rank(comm).map_err(|error| error.to_string()));
        let threads: Vec<_> = ranks.into_iter().map(run).collect();
        for thread in threads {
            assert_eq!(thread.join().expect("the rank does not panic"), Ok(()));
        }
    });
}

#[test]
fn starting() -> Result<(), Error> {
    let rank = |comm: &Communicator| assert!(comm.rank() < comm.world_size());
    let ranks = Communicator::local(2)?;
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(move || rank(&comm));
        }
    });
    Ok(())
}

#[test]
fn calls_streams_and_groups() -> Result<(), Error> {
    on_all(Communicator::local(2)?, |mut comm| {
        let input = vec![1.0f32; 1000];
        let mut output = vec![0.0f32; 1000];
        comm.all_reduce(&input, &mut output, ReduceOp::Sum)?;
        comm.all_reduce_in_place(&mut output, ReduceOp::Max)?;
        assert_eq!(output, [2.0; 1000]);

        let mut gradient = comm.alloc_host::<f32>(1000)?;
        gradient.fill(1.0);
        comm.all_reduce_in_place(&mut gradient, ReduceOp::Sum)?;
        assert_eq!(gradient[..], [2.0; 1000]);

        let mut weights = vec![1.0f32; 100_000];
        let mut weights = comm.register_host(&mut weights)?;
        comm.broadcast_in_place(&mut weights, 0)?;
        assert_eq!(weights[99_999], 1.0);

        let stream = Stream::new()?;
        let work = comm.on(&stream).all_reduce_in_place(&mut gradient, ReduceOp::Avg)?;
        // … compute something else …
        work.wait()?;

        let few = CallOptions { channels: Some(1), ..CallOptions::default() };
        let on = comm.on(&stream).with_options(few)?;
        let work = on.all_reduce_in_place(&mut gradient, ReduceOp::Avg)?;
        work.wait()?;
        let mut loss = [0.5f32];
        let tree = CallOptions { order: Some(Order::Tree), ..CallOptions::default() };
        comm.with_options(tree, || comm.all_reduce_in_place(&mut loss, ReduceOp::Sum))??;
        assert_eq!(loss, [1.0]);

        let mut gradients = vec![vec![1.0f32; 1000], vec![2.0; 17], vec![3.0; 5]];
        comm.group(|group| {
            for gradient in &mut gradients {
                group.all_reduce_in_place(gradient, ReduceOp::Sum)?;
            }
            Ok(())
        })?;
        assert_eq!(gradients[1], [4.0; 17]);

        let mut first = comm.alloc_host::<f32>(1000)?;
        let mut second = comm.alloc_host::<f32>(10)?;
        let (work, ()) = comm.on(&stream).group(|group| {
            group.all_reduce_in_place(&mut first, ReduceOp::Sum)?;
            group.all_reduce_in_place(&mut second, ReduceOp::Sum)?;
            Ok(())
        })?;
        work.bucket(0).expect("there are two").wait()?;
        work.wait()?;

        let mut buckets = GradientBuckets::<f32>::new(&comm, &[3000, 10, 500])?;
        let mut step = buckets.launch(&comm, &stream, ReduceOp::Avg)?;
        for parameter in (0..3).rev() {
            step.gradient(parameter)?.fill(comm.rank() as f32); // Back-propagation.
            step.ready(parameter)?;
        }
        step.finish().wait()?;
        assert_eq!(buckets.gradient(1)?, [0.5; 10]);

        comm.set_order(Order::Tree)?;
        comm.all_reduce_in_place(&mut gradient, ReduceOp::Sum)?;
        assert_eq!(gradient[..], [4.0; 1000]);
        Ok(())
    });
    Ok(())
}

#[test]
fn messages_counts_and_pins() -> Result<(), Error> {
    on_all(Communicator::local(2)?, |mut comm| {
        let next = (comm.rank() + 1) % comm.world_size();
        let previous = (comm.rank() + comm.world_size() - 1) % comm.world_size();
        let mut received = [0u32; 100];
        comm.group(|group| {
            group.send(&[7u32; 100], next)?;
            group.recv(&mut received, previous)
        })?;
        assert_eq!(received, [7; 100]);

        let counts = [3, 5];
        let own = vec![1.0f32; counts[comm.rank()]];
        let mut all = vec![0.0f32; 8];
        comm.all_gather_v(&own, &mut all, &counts)?;
        assert_eq!(all, [1.0; 8]);

        let pin = Pin { algorithm: "ring".parse().ok(), ..Pin::default() };
        comm.set_pin(pin)?;
        let plan = comm.plan::<f32>(Kind::AllReduce, OpKind::Sum, 1000, 0, true, true)?;
        println!("{} / {}: {}", plan.algorithm, plan.encoding, plan.reason);
        assert_eq!(plan.algorithm.to_string(), "ring");

        comm.close()?;
        Ok(())
    });
    Ok(())
}

#[test]
fn starts_that_do_not_block_and_growing() -> Result<(), Failed> {
    let (id, _server) = UniqueId::create()?;
    let (rank, world) = (0, 1);
    let starting = Communicator::starting(&id, rank, world, &Config::from_env()?)?;
    if !starting.wait_timeout(Duration::from_secs(10)) {
        starting.abort("the operator has stopped the job")?; // An error on all ranks that have come.
    }
    let comm = starting.wait()?;

    let id = comm.invite()?; // One rank does, and hands it to those that join.
    let config = Config::from_env()?;
    let joining: Vec<_> =
        (1..4).map(|rank| Communicator::starting(&id, rank, 4, &config)).collect();
    let grown = comm.grow(4, Some(&id))?; // All ranks do; the new ones connect by the id.
    assert_eq!(grown.world_size(), 4);
    for rank in joining {
        assert_eq!(rank?.wait()?.world_size(), 4);
    }
    Ok(())
}

#[test]
fn parts() -> Result<(), Error> {
    on_all(Communicator::local(4)?, |comm| {
        let (rank, tensor) = (comm.rank() as u32, 2);
        let row = comm.split(Some(rank / tensor), 0)?;
        let column = comm.split(Some(rank % tensor), 0)?;

        for (part, place) in [(row, rank % tensor), (column, rank / tensor)] {
            let part = part.ok_or("every rank has given a color")?;
            assert_eq!((part.rank() as u32, part.world_size()), (place, 2));
            part.close()?;
        }
        Ok(())
    });
    Ok(())
}

#[test]
fn ending_and_going_on() -> Result<(), Error> {
    on_all(Communicator::local(3)?, |mut comm| {
        let mut gradient = [1.0f32; 1000];
        if comm.rank() == 2 {
            let ended = comm.handle();
            let handle = comm.handle();
            std::thread::spawn(move || handle.abort("the operator has stopped the job"));
            // Where the others reduce, a barrier before that would be a mismatch.
            while ended.error().is_none() {
                std::thread::yield_now();
            }
            assert!(comm.barrier().is_err());
            return Ok(());
        }
        if let Err(error) = comm.all_reduce_in_place(&mut gradient, ReduceOp::Sum) {
            comm = comm.shrink(&error.ranks())?;
        }
        assert_eq!(comm.world_size(), 2);
        comm.close()?;
        Ok(())
    });
    Ok(())
}

#[test]
fn custom_schedules() -> Result<(), Failed> {
    let custom = CustomSchedule::read(Path::new("examples/custom_schedule.json"))?;
    let config =
        Config { schedule: Some(Arc::new(custom)), order: Order::Rank, ..Config::default() };
    let ranks = Communicator::local_with(4, &config)?;
    on_all(ranks, |comm| {
        let mut values = [comm.rank() as f32; 10];
        comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
        assert_eq!(values, [6.0; 10]);
        Ok(())
    });
    Ok(())
}
