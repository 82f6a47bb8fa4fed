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

impl Side {
    /// As it is told to the others.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Ok(bytes) = postcard::to_extend(self, TAG.to_vec()) else {
            unreachable!("a vector can grow")
        };
        bytes
    }

    /// `None` for what is told in another exchange.
    fn decode(bytes: &[u8]) -> Option<Side> {
        match postcard::take_from_bytes(bytes.strip_prefix(TAG)?) {
            Ok((side, [])) => Some(side),
            _ => None,
        }
    }

    /// The ranks that this one comes together with, in their new order, by what all have told.
    pub(crate) fn members(
        &self,
        rank: usize,
        all: Vec<Vec<u8>>,
    ) -> Result<Option<Vec<usize>>, Error> {
        let mut members = Vec::new();
        for (other, bytes) in all.into_iter().enumerate() {
            let Some(side) = Side::decode(&bytes) else {
                let detail = "it told something else than its side of a split".to_owned();
                let ranks = Vec::new();
                return Err(Error::Stopped(Cause::Mismatch { rank: other, detail, ranks }));
            };
            if side.color == self.color {
                members.push((side.key, other));
            }
        }
        members.sort_unstable();
        let members: Vec<usize> = members.into_iter().map(|(_, rank)| rank).collect();
        debug_assert!(members.contains(&rank));
        Ok(self.color.map(|_| members))
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

/// What some of the ranks have told, of what all have.
pub(crate) fn of_ranks(mut told: Vec<Vec<u8>>, ranks: &[usize]) -> Vec<Vec<u8>> {
    ranks.iter().map(|&rank| std::mem::take(&mut told[rank])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_come_together_by_key_and_rank() {
        let sides = [(Some(1), 5), (Some(0), 0), (Some(1), -2), (None, 0), (Some(1), 5)];
        let sides = sides.map(|(color, key)| Side { color, key });
        let all: Vec<Vec<u8>> = sides.iter().map(Side::encode).collect();
        let members = |rank: usize| sides[rank].members(rank, all.clone()).unwrap();
        assert_eq!(members(0), Some(vec![2, 0, 4]));
        assert_eq!(members(4), members(0));
        assert_eq!(members(1), Some(vec![1]));
        assert_eq!(members(3), None);
        let longer = [&sides[0].encode()[..], &[0]].concat();
        for other in [vec![], vec![9; 25], longer] {
            let mut all = all.clone();
            all[3] = other;
            let error = sides[0].members(0, all).unwrap_err();
            assert!(matches!(error, Error::Stopped(Cause::Mismatch { rank: 3, .. })), "{error:?}");
        }
    }
}
