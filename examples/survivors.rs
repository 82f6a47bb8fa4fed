//! A job that goes on when ranks die.
//!
//! ```text
//! cargo build --release --example survivors
//! oxccl run --ranks 4 --keep-going -- target/release/examples/survivors --dies 2
//! ```
//!
//! Each rank has a target, its number, and all look together for the point with the least squared
//! distance to all targets, by gradient descent: the mean. Rank 2 kills itself on the way. The
//! others get an error that names it, make a communicator without it, with the memory that they
//! have, and find the mean of theirs.

use std::error::Error;

use oxccl::{Collectives, Communicator, ReduceOp};

const STEPS: usize = 200;
const DIMENSIONS: usize = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--dies");
    let dies = arguments.nth(1).map(|rank| rank.parse()).transpose()?;
    run(dies)
}

/// One rank, which may be the one that dies.
pub(crate) fn run(dies: Option<usize>) -> Result<(), Box<dyn Error>> {
    let mut comm = Communicator::from_env()?;
    let own = comm.rank();
    let target = own as f32;
    let mut point = vec![0.0f32; DIMENSIONS];
    // It stays where it is, in memory that every rank reaches.
    let mut gradient = comm.alloc_host::<f32>(DIMENSIONS)?;
    let mut step = 0;
    while step < STEPS {
        if step == STEPS / 2 && dies == Some(own) {
            std::process::abort();
        }
        // Anew after a failure, which may have changed it.
        gradient.iter_mut().zip(&point).for_each(|(gradient, at)| *gradient = at - target);
        match comm.all_reduce_in_place(&mut gradient, ReduceOp::Avg) {
            Ok(()) => {}
            Err(error) if error.is_fatal() && !error.ranks().is_empty() => {
                eprintln!("rank {} of {}: {error}", comm.rank(), comm.world_size());
                comm = comm.shrink(&error.ranks())?;
                // A rank may have finished a step that others have not.
                let mut first = [step as u64];
                comm.all_reduce_in_place(&mut first, ReduceOp::Min)?;
                step = first[0] as usize;
                // So all go on from the point of one of them.
                comm.broadcast_in_place(&mut point, 0)?;
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        point.iter_mut().zip(&gradient[..]).for_each(|(at, gradient)| *at -= 0.1 * gradient);
        step += 1;
    }
    if comm.rank() == 0 {
        println!("the mean of {} targets is {:.3}", comm.world_size(), point[0]);
    }
    comm.close()?;
    Ok(())
}
