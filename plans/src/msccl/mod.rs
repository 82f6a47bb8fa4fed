//! MSCCL's XML: algorithms as MSCCL, its tools and schedulers publish them, read as schedules.
//!
//! A file has several thread blocks for each rank, which run side by side. Here each rank has one
//! list, so they are put in an order: that in which one execution of the file comes to their steps
//! (`order`). What depends on nothing but messages and dependencies is the same in all
//! executions, so one that ends shows that all do. Steps of two thread blocks that touch the same
//! chunk must be ordered by these too (`race`): then it does not matter which execution it is.
//! Channels of a call run the list side by side, each on a share of every chunk.
//!
//! Every chunk is where it was last written: in the output where it has a place there, otherwise
//! in scratch, and in the input as long as nothing has been written (`compile`). So a file that
//! works in place also works with separate buffers.

mod compile;
mod fault;
mod order;
mod parse;
mod race;

pub use fault::{Awaited, MscclFault, Place, Unfit, Waits};

use crate::collective::Order;
use crate::schedule::ScheduleFile;

/// Reads the text of an MSCCL file. Whether the schedule is right is for
/// [`verify`](crate::verify::verify) to say.
///
/// # Errors
/// [`MscclFault`] names the line of what cannot be represented, and of steps that deadlock or race.
pub fn from_xml(text: &str) -> Result<ScheduleFile, MscclFault> {
    let algorithm = parse::parse(text)?;
    let events = order::order(&algorithm)?;
    race::check(&algorithm, &events)?;
    let (schedule, notes) = compile::compile(&algorithm, &events);
    Ok(ScheduleFile { schedule, order: Order::Any, in_place: algorithm.in_place, notes })
}
