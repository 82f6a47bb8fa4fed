//! MSCCL's XML: algorithms as MSCCL, its tools and schedulers publish them, read as schedules.
//!
//! A file has several thread blocks for each rank, which run side by side. Either each is a list of
//! its own, and tells others what they depend on (`tell`). Or each rank has one list, and the steps
//! of its thread blocks are put in an order: that in which one execution of the file comes to them
//! (`order`). What depends on nothing but messages and dependencies is the same in all executions,
//! so one that ends shows that all do. Steps of two thread blocks that touch the same chunk must be
//! ordered by these too (`race`): then it does not matter which execution it is. Channels of a call
//! run lists side by side, each on a share of every chunk.
//!
//! Every chunk is where it was last written: in the output where it has a place there, otherwise
//! in scratch, and in the input as long as nothing has been written (`compile`). So a file that
//! works in place also works with separate buffers.

mod compile;
mod fault;
mod memory;
mod order;
mod parse;
pub mod plan;
mod race;
mod tell;

pub use fault::{Awaited, MscclFault, Place, Unfit, Waits};

use crate::collective::Order;
use crate::schedule::ScheduleFile;

/// What becomes of the thread blocks of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Blocks {
    /// Those of a rank are one list, in an order. It runs on one channel, and on more it has more
    /// shares.
    #[default]
    Merged,
    /// Each is a list of its own, on a channel of its own.
    Lists,
}

impl Blocks {
    /// All of them.
    pub const ALL: [Blocks; 2] = [Blocks::Merged, Blocks::Lists];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Blocks::Merged => "merged",
            Blocks::Lists => "lists",
        }
    }
}

impl std::str::FromStr for Blocks {
    type Err = String;

    fn from_str(text: &str) -> Result<Blocks, String> {
        let named = Blocks::ALL.into_iter().find(|blocks| blocks.name() == text);
        named.ok_or_else(|| format!("{text:?} is neither merged nor lists"))
    }
}

/// Reads the text of an MSCCL file. Whether the schedule is right is for
/// [`verify`](crate::verify::verify) to say.
///
/// # Errors
/// [`MscclFault`] names the line of what cannot be represented, and of steps that deadlock or race.
pub fn from_xml(text: &str, blocks: Blocks) -> Result<ScheduleFile, MscclFault> {
    let algorithm = parse::parse(text)?;
    let events = order::order(&algorithm, blocks)?;
    race::check(&algorithm, &events)?;
    let (schedule, notes) = compile::compile(&algorithm, &events, blocks);
    Ok(ScheduleFile { schedule, order: Order::Any, in_place: algorithm.in_place, notes })
}
