//! Why a plan of MSCCL++ is refused.

use thiserror::Error;

/// Why a plan of MSCCL++ is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanFault {
    /// It is no plan: what is wrong, with line and column.
    #[error("not an execution plan of MSCCL++: {0}")]
    Json(String),
    /// The plan as a whole cannot be represented.
    #[error("{0}")]
    Whole(String),
    /// An operation that cannot be represented.
    #[error("{place}: {unfit}")]
    Operation {
        /// The operation.
        place: PlanPlace,
        /// What it is.
        unfit: String,
    },
    /// Its thread blocks wait for ever.
    #[error("deadlock: {}", first(.0))]
    Deadlock(Vec<PlanWaits>),
    /// Two operations touch the same chunk, one of them writes, and nothing orders them.
    #[error("nothing orders {one} and {other}, which both touch {buffer}[{chunk}] of gpu {gpu}")]
    Race {
        /// The operation that came first.
        one: PlanPlace,
        /// The other one.
        other: PlanPlace,
        /// Whose memory.
        gpu: usize,
        /// The buffer, as the plan calls it.
        buffer: char,
        /// The chunk.
        chunk: usize,
    },
}

impl PlanFault {
    /// Whether the plan can be represented, and is wrong.
    pub fn is_wrong(&self) -> bool {
        matches!(self, PlanFault::Deadlock(_) | PlanFault::Race { .. })
    }

    /// What went wrong, step by step, behind what the fault itself says.
    pub fn story(&self) -> String {
        match self {
            PlanFault::Deadlock(waits) => waits.iter().map(|one| format!("{one}.\n")).collect(),
            _ => String::new(),
        }
    }
}

/// An operation of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("gpu {gpu}, threadblock {block}, op {op} ({name})")]
pub struct PlanPlace {
    /// The rank.
    pub gpu: usize,
    /// The thread block.
    pub block: usize,
    /// Its number among those of the thread block, from 0; those of a pipeline are counted in it.
    pub op: usize,
    /// Its name.
    pub name: String,
}

/// An operation that waits for ever, and for what.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place} waits for {awaited}")]
pub struct PlanWaits {
    /// The operation.
    pub place: PlanPlace,
    /// For what.
    pub awaited: String,
}

fn first(waits: &[PlanWaits]) -> String {
    let others = waits.len().saturating_sub(1);
    match waits.first() {
        Some(one) if others > 0 => format!("{one}, and {others} more wait"),
        Some(one) => one.to_string(),
        None => "nothing goes on".to_owned(),
    }
}
