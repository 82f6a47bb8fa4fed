//! Why a schedule cannot be simulated.

use crate::algorithms::Unavailable;
use crate::length::TooLong;
use crate::lower::SlotTooSmall;
use crate::topology::TopologyError;
use crate::verify::Violation;
use thiserror::Error;

/// Why a schedule cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// The topology is wrong.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The schedule is wrong, or ranks wait for each other for ever.
    #[error(transparent)]
    Schedule(#[from] Violation),
    /// The algorithm does not exist for these ranks.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The tile does not hold a message's segments.
    #[error(transparent)]
    SlotTooSmall(#[from] SlotTooSmall),
    /// The buffers are longer than memory.
    #[error("the buffers come to {0}")]
    TooLong(#[from] TooLong),
    /// No call uses so many channels.
    #[error("{channels} channels are asked for, and a call uses 1 to {most}")]
    Channels {
        /// What is asked for.
        channels: usize,
        /// The most that there can be.
        most: usize,
    },
    /// Ranks have more lists than there are channels for.
    #[error("its lists need {needed} channels, and it has {channels}")]
    TooManyLists {
        /// What is needed.
        needed: usize,
        /// What is asked for.
        channels: usize,
    },
    /// Schedule and network have different numbers of ranks.
    #[error("the schedule is for {schedule} ranks, the network has {network}")]
    Ranks {
        /// The schedule's.
        schedule: usize,
        /// The network's.
        network: usize,
    },
    /// A peer's buffer is used in place across nodes.
    #[error(
        "rank {rank}, step {step} reaches into a buffer of rank {peer}, which is on another node: use the encodings ll or slots between nodes"
    )]
    WindowAcross {
        /// The rank.
        rank: usize,
        /// The step.
        step: usize,
        /// The peer.
        peer: usize,
    },
    /// The fabric's switches are to reduce, and do not.
    #[error(
        "rank {rank}, step {step} has the fabric's switches reduce, which they do not on this topology: a [fabric] says \
         so by reduces = true"
    )]
    FabricDoesNotReduce {
        /// The rank.
        rank: usize,
        /// The step.
        step: usize,
    },
    /// An instruction that no executor takes.
    #[error(
        "rank {rank}, step {step} has {operands} operands, and an instruction has at most {limit}"
    )]
    Operands {
        /// The rank.
        rank: usize,
        /// The step.
        step: usize,
        /// How many it has.
        operands: usize,
        /// How many it may have.
        limit: usize,
    },
    /// Too much to be held in memory.
    #[error(
        "about {instructions} instructions are more than the {limit} that are simulated at once: {remedy}"
    )]
    TooLarge {
        /// How many there would be.
        instructions: u64,
        /// How many there may be.
        limit: u64,
        /// What to do.
        remedy: String,
    },
    /// Too much to be recorded.
    #[error("more than {limit} steps: too many to trace; choose fewer ranks or a smaller size")]
    TraceTooLarge {
        /// How many there may be.
        limit: usize,
    },
}

impl SimulationError {
    pub(super) fn too_large(instructions: u64, limit: u64) -> SimulationError {
        let remedy = "choose fewer ranks, or an algorithm with fewer steps or with ranks alike";
        SimulationError::TooLarge { instructions, limit, remedy: remedy.into() }
    }
}
