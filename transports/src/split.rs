//! Which ranks come together when a communicator is split.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Cause, Error};

/// What it begins with: ranks may be in another exchange.
const TAG: &[u8] = b"split";

/// What one rank says when a communicator is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// Ranks of the same color come together; one without comes to none.
    pub color: Option<u32>,
    /// By it they are ordered; where keys are equal, by their ranks.
    pub key: i64,
}

/// The ranks that come together, in their new order, and what each has told besides.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Members {
    pub(crate) ranks: Vec<usize>,
    pub(crate) told: Vec<Vec<u8>>,
}

impl Side {
    /// As it is told to the others, with what else they are told.
    pub(crate) fn encode(&self, tells: &[u8]) -> Vec<u8> {
        let Ok(mut bytes) = postcard::to_extend(self, TAG.to_vec()) else {
            unreachable!("a vector can grow")
        };
        bytes.extend(tells);
        bytes
    }

    /// `None` for what is told in another exchange.
    fn decode(bytes: &[u8]) -> Option<(Side, &[u8])> {
        postcard::take_from_bytes(bytes.strip_prefix(TAG)?).ok()
    }

    /// The ranks that this one comes together with, by what all have told; nothing for one without
    /// a color.
    pub(crate) fn members(&self, rank: usize, all: &[Vec<u8>]) -> Result<Option<Members>, Error> {
        let mut members = Vec::new();
        for (other, bytes) in all.iter().enumerate() {
            let Some((side, tells)) = Side::decode(bytes) else {
                let detail = "it told something else than its side of a split".to_owned();
                let ranks = Vec::new();
                return Err(Error::Stopped(Cause::Mismatch { rank: other, detail, ranks }));
            };
            if side.color == self.color {
                members.push((side.key, other, tells));
            }
        }
        members.sort_unstable();
        debug_assert!(members.iter().any(|(_, other, _)| *other == rank));
        let (ranks, told) =
            members.into_iter().map(|(_, rank, told)| (rank, told.to_vec())).unzip();
        Ok(self.color.map(|_| Members { ranks, told }))
    }
}

/// The numbers of the parts that come of one way: the same on all ranks of a part.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    splits: u64,
    /// By ranks that have gone on by themselves, how often.
    shrinks: BTreeMap<Vec<usize>, u64>,
}

impl Numbers {
    /// That of the next split.
    pub(crate) fn split(&mut self) -> u64 {
        self.splits += 1;
        2 * self.splits
    }

    /// That of the next part of these ranks that is no split.
    pub(crate) fn shrink(&mut self, ranks: &[usize]) -> u64 {
        let shrinks = self.shrinks.entry(ranks.to_vec()).or_default();
        *shrinks += 1;
        2 * *shrinks + 1
    }
}

/// The same error where the ranks that it names have had these numbers.
pub(crate) fn by_numbers_before(error: Error, ranks: &[usize]) -> Error {
    let before = |rank: usize| ranks.get(rank).copied().unwrap_or(rank);
    match error {
        Error::Timeout { doing, missing } => {
            Error::Timeout { doing, missing: missing.into_iter().map(before).collect() }
        }
        Error::Left { rank, calls } => Error::Left { rank: before(rank), calls },
        Error::Stopped(cause) => Error::Stopped(cause.renumbered(before)),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_come_together_by_key_and_rank() {
        let sides = [(Some(1), 5), (Some(0), 0), (Some(1), -2), (None, 0), (Some(1), 5)];
        let sides = sides.map(|(color, key)| Side { color, key });
        let told = |rank: usize| vec![rank as u8; rank];
        let tell = |(rank, side): (usize, &Side)| side.encode(&told(rank));
        let all: Vec<Vec<u8>> = sides.iter().enumerate().map(tell).collect();
        let members = |rank: usize| sides[rank].members(rank, &all).unwrap();
        let of = |ranks: &[usize]| {
            let told = ranks.iter().map(|&rank| told(rank)).collect();
            Some(Members { ranks: ranks.to_vec(), told })
        };
        assert_eq!(members(0), of(&[2, 0, 4]));
        assert_eq!(members(4), members(0));
        assert_eq!(members(1), of(&[1]));
        assert_eq!(members(3), None);
        for other in [vec![], vec![9; 25], TAG.to_vec()] {
            let mut all = all.clone();
            all[3] = other;
            let error = sides[0].members(0, &all).unwrap_err();
            assert!(matches!(error, Error::Stopped(Cause::Mismatch { rank: 3, .. })), "{error:?}");
        }
    }
}
