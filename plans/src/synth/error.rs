//! Why nothing is searched for.

use super::{KINDS, MOST_RANKS};
use crate::collective::Kind;
use thiserror::Error;

/// Why nothing is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SynthError {
    /// There is no search for this collective.
    #[error(
        "no schedule of {kind} is searched for; there are {}",
        KINDS.map(Kind::name).join(", ")
    )]
    Kind {
        /// The collective.
        kind: Kind,
    },
    /// One rank sends nothing.
    #[error("one rank has nothing to send: name at least 2 ranks")]
    OneRank,
    /// Too many ranks.
    #[error("there are {ranks} ranks, and a schedule is searched for {MOST_RANKS} at most")]
    TooManyRanks {
        /// So many.
        ranks: usize,
    },
    /// Ranks have no element each.
    #[error("{bytes} bytes leave nothing for some of the {ranks} ranks: name a larger size")]
    TooShort {
        /// The size.
        bytes: usize,
        /// The ranks.
        ranks: usize,
    },
}
