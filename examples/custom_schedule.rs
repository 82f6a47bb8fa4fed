//! A custom algorithm: a schedule in Rust, proven, and run on ranks of this process.
//!
//! ```text
//! cargo run --example custom_schedule                    # proves it and runs it
//! cargo run --example custom_schedule -- --json          # prints it as a file
//! oxccl verify examples/custom_schedule.json             # proves the file
//! oxccl bench all_reduce --ranks 4 --schedule examples/custom_schedule.json
//! ```
//!
//! The algorithm is an all-reduce over a star: every rank sends its input to rank 0, which reduces
//! them by rank and sends the result to all. It is nobody's favourite, but it fits a screen.

use std::error::Error;
use std::sync::Arc;

use oxccl::plans::schedule::{
    Chunking, Lane, Link, Operand, RankBuilder, Read, SLOTS, Schedule, ScheduleFile, Tree, Write,
};
use oxccl::{Collective, Collectives, Communicator, Config, CustomSchedule, Kind, Order, ReduceOp};

const RANKS: usize = 4;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let file = ScheduleFile::new(star(RANKS), Order::Rank, true);
    if std::env::args().any(|argument| argument == "--json") {
        println!("{}", file.to_json());
        return Ok(());
    }
    // Nothing runs that has not been proven.
    let custom = Arc::new(CustomSchedule::prove("star", file)?);
    println!(
        "proven: every rank gets the left fold by rank, in place or not, without deadlock or race"
    );
    let config = Config { schedule: Some(custom), order: Order::Rank, ..Config::default() };
    let ranks = Communicator::local_with(RANKS, &config)?;
    let threads: Vec<_> = ranks.into_iter().map(|rank| std::thread::spawn(|| run(rank))).collect();
    for thread in threads {
        println!("{}", thread.join().map_err(|_| "a rank panicked")??);
    }
    Ok(())
}

/// One rank's steps, for all ranks.
pub(crate) fn star(ranks: usize) -> Schedule {
    let link = |peer| Link::new(peer, Lane::Slots);
    let list = |rank| {
        let mut b = RankBuilder::new(rank, SLOTS, Tree::Left);
        if rank == 0 {
            let own = Read::Raw(Operand::Input(0));
            let reads: Vec<Read> =
                (0..ranks).map(|r| if r == 0 { own } else { Read::RecvRaw(link(r)) }).collect();
            let mut writes = vec![Write::To(Operand::Output(0))];
            writes.extend((1..ranks).map(|r| Write::Send(link(r))));
            b.transfer(&reads, &writes, true);
        } else {
            b.send(Operand::Input(0), link(0));
            b.recv_copy(link(0), Operand::Output(0));
        }
        b.finish()
    };
    Schedule {
        collective: Collective::new(Kind::AllReduce, ranks),
        input: Chunking::Whole,
        output: Chunking::Whole,
        scratch: 0,
        slots: SLOTS,
        lists_per_rank: 1,
        lists: (0..ranks).map(list).collect(),
    }
}

/// A call like any other.
fn run(comm: Communicator) -> Result<String, oxccl::Error> {
    let mut values = vec![comm.rank() as f32 + 0.5; 1000];
    comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
    let plan = comm.plan::<f32>(Kind::AllReduce, oxccl::OpKind::Sum, 1000, 0, true, true)?;
    assert_eq!(values, vec![8.0; 1000]);
    Ok(format!(
        "rank {}: {} everywhere, by {} ({})",
        comm.rank(),
        values[0],
        plan.algorithm,
        plan.reason
    ))
}
