//! MSCCL++'s execution plans, as its language writes them and its executor reads them (JSON), read
//! as schedules.
//!
//! Thread blocks of a plan read and write peers' memory, and order that by signals, barriers,
//! semaphores, and packets whose flags say that they are there. One execution of the plan is
//! carried out (`run`), and each rank has one list: what it does, in that order. A chunk that is
//! written to or read from a peer's memory is a message there. Whatever two thread blocks do with
//! the same chunk must be ordered: then it does not matter which execution it is. So what is left
//! of a plan is what goes where, over any transport; its signals, and in which thread block
//! something happens, are not.
//!
//! What a pipeline does in units it does at once here. Relaxed signals order as others do.

mod fault;
mod file;
mod read;
mod run;

pub use fault::{PlanFault, PlanPlace, PlanWaits};

use crate::collective::Order;
use crate::schedule::ScheduleFile;

/// Whether the text is a plan, and not a schedule of oxccl's own.
pub fn is_plan(text: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Head {
        gpus: Option<serde::de::IgnoredAny>,
        steps: Option<serde::de::IgnoredAny>,
    }
    serde_json::from_str(text).is_ok_and(|head: Head| head.gpus.is_some() && head.steps.is_none())
}

/// Reads the text of a plan. Whether the schedule is right is for
/// [`verify`](crate::verify::verify) to say.
///
/// # Errors
/// [`PlanFault`] names the operation that cannot be represented, or those that deadlock or race.
pub fn from_plan(text: &str) -> Result<ScheduleFile, PlanFault> {
    let plan = read::read(text)?;
    let (schedule, notes) = run::run(&plan)?;
    let in_place = plan.algorithm.in_place;
    Ok(ScheduleFile { schedule, order: Order::Any, in_place, notes })
}
