//! The simulator: how long a schedule takes on a topology, event by event.
//!
//! It runs the instructions that the executors run, with the same chunks, channels, tiles and
//! rounds, and with the credits and counters of the machine: its step numbers are the program's.
//! What it adds is time:
//!
//! - **An instruction** costs its device's `instruction_ns`, on a GPU once for waits or signals
//!   that follow one another. A reduce-copy costs `move_ns`, `operand_ns` for each operand, and
//!   whatever takes longest of what its channels can read and write, what they can fold, its
//!   device's memory, and the links that it crosses. A GPU makes copies that follow one
//!   another one step, and `move_ns` and `operand_ns` are those of the first (`beside.rs`).
//! - **Kernels of one schedule** ([`crate::hot`]) cost less: what the device says of them.
//! - **A link** serves what crosses it in the order in which it is asked, at its bandwidth, and is
//!   never idle while it has been asked. A message is through when the slowest link of its way is,
//!   and arrives after the way's latency.
//! - **A release** of a GPU waits until its earlier stores to peers have been acknowledged; a
//!   signal then takes the way's latency. LL messages need neither.
//! - **Between nodes** the sender goes on as soon as the message lies in its own memory; adapters
//!   move it, and its announcement comes after it.
//! - **A switch that reduces** (only if asked for) passes on once what one reduce-copy reads of
//!   several peers through it, and spreads what one reduce-copy writes to several peers through it:
//!   the links behind it, or before it, carry it once.
//!
//! Channels with equal parts act alike. They are simulated as a few *bundles*
//! ([`Options::bundles`]), each of which moves together: enough for one to use the links while
//! another waits.
//!
//! # Large worlds, long messages
//!
//! Where ranks are alike under a turn of the nodes, one node stands for all; where they are under a
//! turn inside of all nodes, and there would still be very many, one rank stands for its node
//! ([`Statement::Folded`] says why they are alike). Otherwise all ranks are simulated one by one.
//! Where a message takes many rounds, they are simulated until the time of a round no longer
//! changes, and the rest is extrapolated ([`Prediction::simulated_rounds`]).

mod band;
mod beside;
mod bundle;
mod compile;
mod error;
mod fold;
mod machine;
mod messages;
mod nccl;
mod noise;
mod path;
mod program;
mod rails;
mod servers;
mod signals;
mod steady;
mod subject;
#[cfg(test)]
mod tests;
mod trace;
mod transfer;
mod turns;

pub use band::{BANDS, Band, Class, LONG_BYTES, MOST_RANKS, SHORT_BYTES, Whose};
pub use error::SimulationError;
pub use nccl::{NcclAlgorithm, NcclCall, NcclWay, Protocol, nccl};
pub use noise::Noise;
pub use path::{CriticalPath, Segment};
pub use subject::Subject;
pub use trace::{Event, Occupation, Trace};

use crate::hot;
use crate::length::Length;
use crate::schedule::{Layout, MAX_CHANNELS};
use crate::topology::Network;
use serde::Serialize;

/// How a schedule is lowered and simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Size of an element.
    pub element_bytes: usize,
    /// Channels that share the work.
    pub channels: usize,
    /// Bytes a channel handles per chunk and round.
    pub tile_bytes: usize,
    /// Whether switches that can reduce do.
    pub in_network: bool,
    /// Whether one node may stand for all.
    pub fold: Fold,
    /// Into how many bundles equal channels are put, at most; if nothing is said, 4, and 2 where
    /// more than 256 ranks are simulated, 1 where more than 8,192 ranks or 24 million
    /// instructions are.
    pub bundles: Option<usize>,
    /// Whether rounds may be extrapolated.
    pub extrapolate: bool,
    /// Whether every step is recorded.
    pub trace: bool,
    /// Whether GPUs carry out what they can by kernels of one schedule ([`crate::hot`]).
    pub hot_kernels: bool,
    /// Steps that take longer by chance. Then all ranks and rounds are simulated.
    pub noise: Option<Noise>,
}

/// Whether few ranks stand for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// From more than 1,024 ranks on, where it can.
    Auto,
    /// Never.
    Never,
    /// Wherever one node can stand for others.
    Always,
    /// Also wherever one rank can stand for others of its node.
    Inside,
}

/// Up to so many ranks are simulated one by one unless asked otherwise.
pub const RANK_BY_RANK: usize = 1024;

impl Default for Options {
    fn default() -> Options {
        Options {
            element_bytes: 4,
            channels: 1,
            tile_bytes: 64 << 10,
            in_network: false,
            fold: Fold::Auto,
            bundles: None,
            extrapolate: true,
            trace: false,
            hot_kernels: true,
            noise: None,
        }
    }
}

/// How the ranks were simulated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Statement {
    /// One by one.
    RankByRank,
    /// One by one though there are many, because ranks are not alike.
    NotFolded {
        /// Why not.
        why: String,
    },
    /// So many ranks stand for all.
    Folded {
        /// How many.
        ranks: usize,
        /// Why the others do the same.
        why: String,
    },
}

/// What a link carries in the call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkUse {
    /// The link: its node, where there are several, and its name.
    pub name: String,
    /// Bytes, with the flags of LL messages.
    pub bytes: u64,
    /// Part of the time in which it carries them.
    pub utilisation: f64,
}

/// How long a call takes. Predicted.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// From the call to its end on the last rank.
    pub time_ns: f64,
    /// Rounds that each channel runs.
    pub rounds: u64,
    /// Rounds that were simulated; the others are taken to be as long as the last of these.
    pub simulated_rounds: u64,
    /// How the ranks were simulated.
    pub statement: Statement,
    /// The links of the simulated ranks, the busiest first; those that carry nothing are left out.
    pub links: Vec<LinkUse>,
    /// Events that were simulated.
    pub events: u64,
    /// Every step, if asked for.
    pub trace: Option<Trace>,
}

/// Predicts a call.
///
/// # Errors
/// A schedule that deadlocks, reaches where the topology does not, or is too large to be simulated.
pub fn simulate(
    subject: &Subject<'_>,
    layout: &Layout,
    network: &Network,
    options: &Options,
) -> Result<Prediction, SimulationError> {
    let (channels, most) = (options.channels, MAX_CHANNELS);
    if channels == 0 || channels > most {
        return Err(SimulationError::Channels { channels, most });
    }
    Length::new(layout.end(), options.element_bytes)?;
    let compiled = compile::compile(subject, layout, network, options)?;
    if compiled.rounds.count == 1 && has_hot_kernel(subject, layout, network, options) {
        return steady::run(&compiled, &network.with_hot_costs(), options);
    }
    steady::run(&compiled, network, options)
}

/// Whether the runtime would carry the call out by a kernel of its schedule, as it has them for
/// sums of floats of 2 and 4 bytes.
fn has_hot_kernel(
    subject: &Subject<'_>,
    layout: &Layout,
    network: &Network,
    options: &Options,
) -> bool {
    let (ranks, kind) = (subject.collective.ranks, subject.collective.kind);
    if !options.hot_kernels
        || network.nodes() > 1
        || ranks > hot::MOST_RANKS
        || (0..ranks).any(|rank| network.device(rank).hot.is_none())
        || kind.reduces() && !matches!(options.element_bytes, 2 | 4)
    {
        return false;
    }
    let Ok(schedule) = subject.whole() else { return false };
    // Those of the others are alike.
    let (one, parts) = (hot::find(&schedule, 0), (options.element_bytes, options.channels));
    let extents = || hot::extents(layout, &schedule, 0, parts);
    one.is_some_and(|one| extents().is_some_and(|extents| one.serves(&extents)))
}
