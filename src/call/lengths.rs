//! How long a call's buffers are, found once, when it is made.

use super::{Mix, one_count_each};
use crate::error::Error;
use oxccl_plans::collective::{Collective, Kind};
use oxccl_plans::length::{Length, TooLong};
use std::hash::{Hash, Hasher};

/// Counts that differ between ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// Rank r's part.
    PerRank(Vec<usize>),
    /// From rank s to rank r.
    Matrix(Vec<Vec<usize>>),
    /// From and to this rank, of an all-to-all that is carried out as messages: in groups.
    Own {
        /// To each rank.
        send: Vec<usize>,
        /// From each rank.
        recv: Vec<usize>,
    },
}

impl Counts {
    /// Those of an all-to-all of which each rank knows its own.
    pub(crate) fn own(
        rank: usize,
        world: usize,
        send: &[usize],
        recv: &[usize],
    ) -> Result<Counts, Error> {
        for (argument, counts) in [("send_counts", send), ("recv_counts", recv)] {
            one_count_each(Kind::AllToAll, argument, counts, world)?;
        }
        let (sent, received) = (send[rank], recv[rank]);
        if sent != received {
            let (sender, receiver) = (rank, rank);
            return Err(Error::CountsDiffer { sender, receiver, sent, received });
        }
        Ok(Counts::Own { send: send.to_vec(), recv: recv.to_vec() })
    }

    /// All of them as one word that is not 0.
    pub(crate) fn hash_word(&self) -> u64 {
        let mut mix = Mix::default();
        match self {
            Counts::PerRank(counts) => counts.hash(&mut mix),
            Counts::Matrix(counts) => counts.hash(&mut mix),
            Counts::Own { send, recv } => (send, recv).hash(&mut mix),
        }
        mix.finish() | 1
    }
}

/// How long a call's buffers are. Where all parts of these lengths are, no offset into them can
/// wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    /// This rank's input; where only the root has one, the root's.
    pub(crate) input: Length,
    /// This rank's output, or the root's.
    pub(crate) output: Length,
    /// The longest buffer of any rank: what the tuner looks at.
    pub(crate) longest: Length,
}

impl Lengths {
    /// Of equal parts. `count` is as in `Layout::even`.
    pub(crate) fn even(
        collective: &Collective,
        count: usize,
        size_bytes: usize,
    ) -> Result<Lengths, TooLong> {
        let one = Length::new(count, size_bytes)?;
        let all = || one.times(collective.ranks);
        let (input, output) = match collective.kind {
            Kind::AllGather | Kind::Gather => (one, all()?),
            Kind::ReduceScatter | Kind::Scatter => (all()?, one),
            Kind::AllToAll => (all()?, all()?),
            _ => (one, one),
        };
        Ok(Lengths { input, output, longest: longer(input, output) })
    }

    /// Of parts that differ, on this rank.
    ///
    /// # Errors
    /// [`Error::Overflow`] names the counts.
    pub(crate) fn uneven(
        kind: Kind,
        counts: &Counts,
        rank: usize,
        size_bytes: usize,
    ) -> Result<Lengths, Error> {
        let sum = |argument, counts: &mut dyn Iterator<Item = usize>| {
            Length::sum(counts, size_bytes).map_err(Error::too_long(kind.name(), argument))
        };
        match counts {
            Counts::PerRank(counts) => {
                let all = sum("counts", &mut counts.iter().copied())?;
                let own = sum("counts", &mut counts.iter().copied().skip(rank).take(1))?;
                let (input, output) = if kind == Kind::AllGather { (own, all) } else { (all, own) };
                Ok(Lengths { input, output, longest: all })
            }
            Counts::Own { send, recv } => {
                let input = sum("send_counts", &mut send.iter().copied())?;
                let output = sum("recv_counts", &mut recv.iter().copied())?;
                Ok(Lengths { input, output, longest: longer(input, output) })
            }
            Counts::Matrix(matrix) => {
                let of_rank = |rank: usize| {
                    let input = sum("send_counts", &mut matrix[rank].iter().copied())?;
                    let output = sum("recv_counts", &mut matrix.iter().map(|row| row[rank]))?;
                    Ok::<_, Error>((input, output))
                };
                let (input, output) = of_rank(rank)?;
                let mut longest = longer(input, output);
                for other in 0..matrix.len() {
                    let (input, output) = of_rank(other)?;
                    longest = longer(longest, longer(input, output));
                }
                Ok(Lengths { input, output, longest })
            }
        }
    }
}

fn longer(one: Length, other: Length) -> Length {
    if one.count() < other.count() { other } else { one }
}
