//! The search for schedules that are faster than the catalogue's on a given topology.
//!
//! A candidate is a *recipe*: trees along which chunks go, and how they are made into instructions.
//! Trees come from a greedy matching on the time-expanded network (TACOS; there are ways and prior
//! work), or go as the catalogue's algorithms do: to all at once, around a ring, along rails and
//! then inside of nodes. An all-gather goes down the trees. A reduce-scatter is the same turned
//! around: up the trees, with a reduction at each rank. An all-reduce goes up, and then down.
//!
//! The search first tries a list of recipes, and then changes the best ones by chance: trees,
//! chunks for each rank, the lane, what is done in place. Each candidate is proven by the
//! [verifier](crate::verify), as any custom schedule is, and timed by a [`Judge`], who has the
//! [simulator](crate::simulate). Nothing here reads a clock. Equal goals, and judges who answer
//! alike, give equal schedules.
//!
//! What is not tried: switches that reduce (`nvls`), and trees that change from round to round.

mod error;
mod matching;
mod recipe;
mod script;
mod search;
#[cfg(test)]
mod tests;
mod trees;
mod ways;

pub use error::SynthError;
pub use search::{Found, Judge, Outcome, synthesize};

use crate::collective::Kind;
use crate::topology::Network;

/// The most ranks that a schedule is searched for.
pub const MOST_RANKS: usize = 128;

/// The collectives that are searched for.
pub const KINDS: [Kind; 3] = [Kind::AllGather, Kind::ReduceScatter, Kind::AllReduce];

/// What is searched for.
#[derive(Clone, Copy, Debug)]
pub struct Goal<'a> {
    /// The collective.
    pub kind: Kind,
    /// The ranks, and the links between them.
    pub network: &'a Network,
    /// The larger of one rank's input and output, in bytes.
    pub bytes: usize,
    /// Whether there are slots for LL128 messages.
    pub ll128: bool,
    /// Channels that a call has at most: as many lists may each rank have.
    pub channels: usize,
    /// What chance begins with.
    pub seed: u64,
    /// How many candidates are timed, at most.
    pub candidates: Option<usize>,
}

impl Goal<'_> {
    /// Whether it is searched for.
    ///
    /// # Errors
    /// [`SynthError`] says why not.
    pub fn check(&self) -> Result<(), SynthError> {
        let (kind, ranks, bytes) = (self.kind, self.network.ranks(), self.bytes);
        if !KINDS.contains(&kind) {
            Err(SynthError::Kind { kind })
        } else if ranks < 2 {
            Err(SynthError::OneRank)
        } else if ranks > MOST_RANKS {
            Err(SynthError::TooManyRanks { ranks })
        } else if bytes < ranks {
            Err(SynthError::TooShort { bytes, ranks })
        } else {
            Ok(())
        }
    }
}
