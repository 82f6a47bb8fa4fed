//! A call of one rank, checked once: who takes part, how long its buffers are, and that they fit.

use super::{Asked, Call, Counts, Ends, Fit, Lengths, Options, Parts, Signature};
use crate::config::Config;
use crate::error::Error;
use oxccl_plans::collective::{Collective, Kind, Order};
use oxccl_plans::element::{DataType, OpKind};
use oxccl_plans::length::Length;
use std::sync::Arc;

/// One rank's part in one collective, checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CheckedCall {
    pub(crate) collective: Collective,
    pub(crate) data_type: DataType,
    pub(crate) op: OpKind,
    pub(crate) factor_bits: u64,
    /// These bits are the factor's address.
    pub(crate) factor_at: bool,
    /// As in `Layout::even`: the whole buffer or one rank's part, by kind.
    pub(crate) count: usize,
    pub(crate) counts: Option<Arc<Counts>>,
    pub(crate) lengths: Lengths,
    pub(crate) input: *mut u8,
    pub(crate) output: *mut u8,
    pub(crate) in_place: bool,
    /// What it asks for beside the communicator's settings.
    pub(crate) options: Options,
    /// What it was made from; nothing where it cannot be repeated by that.
    pub(crate) asked: Asked,
}

// SAFETY: a call is a description; whoever runs it vouches for the memory, which is not tied to a
// thread.
unsafe impl Send for CheckedCall {}

impl CheckedCall {
    /// What this rank asks for, of so many ranks.
    ///
    /// # Errors
    /// As [`Call::of`] lists them.
    pub(crate) fn new(call: &Call<'_>, rank: usize, ranks: usize) -> Result<CheckedCall, Error> {
        if call.factor_at && ranks > 1 {
            return Err(Error::FactorInMemory { ranks });
        }
        match call.parts {
            Parts::Even => CheckedCall::even(call, rank, ranks),
            Parts::PerRank(counts) => {
                one_count_each(call.kind, "counts", counts, ranks)?;
                CheckedCall::uneven(call, rank, Counts::PerRank(counts.to_vec()))
            }
            Parts::Own { send, recv } => {
                let counts = Counts::own(rank, ranks, send, recv)?;
                CheckedCall::uneven(call, rank, counts)
            }
        }
    }

    fn even(call: &Call<'_>, rank: usize, ranks: usize) -> Result<CheckedCall, Error> {
        let Call { kind, input, output, .. } = *call;
        let collective = match call.ends {
            Ends::All => Collective::new(kind, ranks),
            Ends::Root(root) => Collective::rooted(kind, ranks, root),
            Ends::To(peer) => Collective::send_recv(ranks, rank, peer),
            Ends::From(peer) => Collective::send_recv(ranks, peer, rank),
        };
        check_ranks(&collective, rank)?;
        let count = even_count(&collective, rank, input.count, output.count)?;
        let checked = CheckedCall {
            input: if collective.has_input(rank) { input.address } else { std::ptr::null_mut() },
            output: if collective.has_output(rank) { output.address } else { std::ptr::null_mut() },
            in_place: kind == Kind::AllToAll && input.address == output.address && count > 0,
            factor_bits: if kind.reduces() { call.factor_bits } else { 0 },
            factor_at: kind.reduces() && call.factor_at,
            asked: Asked::new(call),
            ..CheckedCall::without_memory(collective, call.data_type, call.op, count)?
        };
        if collective.has_input(rank) {
            length(kind, "input", input.count, checked.lengths.input)?;
        }
        if collective.has_output(rank) {
            length(kind, "output", output.count, checked.lengths.output)?;
        }
        checked.check_memory(rank)?;
        Ok(checked)
    }

    /// Goes on as this call, which differs in its memory alone. False if that does not fit, or if
    /// ranks must know of it.
    #[inline]
    pub(crate) fn move_to(&mut self, call: &Call<'_>, asked: &Asked, fit: &Fit) -> bool {
        let Some(addresses) = fit.addresses(call) else { return false };
        (self.input, self.output) = addresses;
        self.asked = *asked;
        true
    }

    /// A call with equal parts, of which nobody knows yet where they are.
    pub(crate) fn without_memory(
        collective: Collective,
        data_type: DataType,
        op: OpKind,
        count: usize,
    ) -> Result<CheckedCall, Error> {
        let kind = collective.kind;
        if kind.reduces() && !op.applies_to(data_type) {
            return Err(Error::Op { op, data_type });
        }
        let lengths = Lengths::even(&collective, count, data_type.len_bytes())
            .map_err(Error::too_long(kind.name(), "count"))?;
        Ok(CheckedCall {
            collective,
            data_type,
            op: if kind.reduces() { op } else { OpKind::Sum },
            factor_bits: 0,
            factor_at: false,
            count,
            counts: None,
            lengths,
            input: std::ptr::null_mut(),
            output: std::ptr::null_mut(),
            in_place: false,
            options: Options::NONE,
            asked: Asked::NOTHING,
        })
    }

    /// The same call over another number of elements; as it is where parts differ.
    pub(crate) fn with_count(&self, count: usize) -> Result<CheckedCall, Error> {
        if self.counts.is_some() {
            return Ok(self.clone());
        }
        let lengths = Lengths::even(&self.collective, count, self.data_type.len_bytes())
            .map_err(Error::too_long(self.collective.kind.name(), "buffers"))?;
        Ok(CheckedCall { count, lengths, ..self.clone() })
    }

    /// A call whose parts differ by rank.
    pub(crate) fn uneven(
        call: &Call<'_>,
        rank: usize,
        counts: Counts,
    ) -> Result<CheckedCall, Error> {
        let Call { kind, data_type, op, input, output, .. } = *call;
        let has_such = match &counts {
            Counts::PerRank(_) => matches!(kind, Kind::AllGather | Kind::ReduceScatter),
            Counts::Matrix(_) | Counts::Own { .. } => kind == Kind::AllToAll,
        };
        if !has_such {
            return Err(Error::Counts { kind });
        }
        let ranks = match &counts {
            Counts::PerRank(counts) => counts.len(),
            Counts::Matrix(matrix) => matrix.len(),
            Counts::Own { send, .. } => send.len(),
        };
        let lengths = Lengths::uneven(kind, &counts, rank, data_type.len_bytes())?;
        length(kind, "input", input.count, lengths.input)?;
        length(kind, "output", output.count, lengths.output)?;
        if kind.reduces() && !op.applies_to(data_type) {
            return Err(Error::Op { op, data_type });
        }
        Ok(CheckedCall {
            collective: Collective::new(kind, ranks),
            data_type,
            op: if kind.reduces() { op } else { OpKind::Sum },
            factor_bits: if kind.reduces() { call.factor_bits } else { 0 },
            factor_at: kind.reduces() && call.factor_at,
            count: 0,
            counts: Some(Arc::new(counts)),
            lengths,
            input: input.address,
            output: output.address,
            in_place: false,
            options: Options::NONE,
            asked: Asked::NOTHING,
        })
    }

    /// The order of reduction that it promises.
    pub(crate) fn order(&self, config: &Config) -> Order {
        self.options.order().unwrap_or(config.order)
    }

    /// All of it but its buffers.
    pub(crate) fn signature(&self, windows: bool, copies: bool, config: &Config) -> Signature {
        Signature {
            kind: self.collective.kind,
            data_type: self.data_type,
            op: self.op,
            order: self.order(config),
            in_place: self.in_place,
            windows,
            copies,
            root: self.collective.root as u32,
            receiver: self.collective.receiver as u32,
            options: Options::of_plan_bits(self.options.plan_bits()),
            count: self.common_count(),
            counts_hash: self.counts.as_deref().map_or(0, Counts::hash_word),
            factor_bits: self.factor_bits,
        }
    }

    /// What all ranks have as its count: as in `Layout::even`, or of all parts together where
    /// counts differ.
    pub(crate) fn common_count(&self) -> u64 {
        match self.counts.as_deref() {
            None => self.count as u64,
            Some(Counts::PerRank(_)) => self.lengths.longest.count() as u64,
            Some(Counts::Matrix(rows)) => {
                rows.iter().flatten().fold(0, |sum, count| sum.saturating_add(*count as u64))
            }
            // Each of its messages has a count of its own.
            Some(Counts::Own { .. }) => 0,
        }
    }

    /// Bytes of this rank's input and output.
    pub(crate) fn buffer_bytes(&self) -> (usize, usize) {
        (self.lengths.input.bytes(), self.lengths.output.bytes())
    }

    /// Bytes of the largest buffer on any rank: what the tuner looks at.
    pub(crate) fn total_bytes(&self) -> usize {
        self.lengths.longest.bytes()
    }

    fn check_memory(&self, rank: usize) -> Result<(), Error> {
        if Fit::of(self, rank).fits(self.input.addr(), self.output.addr()) {
            return Ok(());
        }
        let (align, kind) = (self.data_type.len_bytes(), self.collective.kind);
        let (input_bytes, output_bytes) = self.buffer_bytes();
        for (argument, address, bytes) in [
            ("input", self.input as usize, input_bytes),
            ("output", self.output as usize, output_bytes),
        ] {
            if !address.is_multiple_of(align) {
                return Err(Error::Unaligned { argument, address, align });
            }
            if address.checked_add(bytes).is_none() {
                return Err(Error::Overflow { call: kind.name(), argument });
            }
        }
        Err(Error::Overlap { kind })
    }
}

/// Fails unless an argument has as many elements as are needed.
pub(super) fn length(
    kind: Kind,
    argument: &'static str,
    found: usize,
    needed: Length,
) -> Result<(), Error> {
    let expected = needed.count();
    if found == expected { Ok(()) } else { Err(Error::Length { kind, argument, found, expected }) }
}

/// Fails unless there is a count for each rank.
pub(crate) fn one_count_each(
    kind: Kind,
    argument: &'static str,
    counts: &[usize],
    ranks: usize,
) -> Result<(), Error> {
    if counts.len() == ranks {
        return Ok(());
    }
    Err(Error::Length { kind, argument, found: counts.len(), expected: ranks })
}

/// Fails for ranks that the collective does not have.
fn check_ranks(collective: &Collective, rank: usize) -> Result<(), Error> {
    let last = collective.ranks.saturating_sub(1);
    if rank >= collective.ranks {
        return Err(Error::Rank { argument: "rank", rank, last, own: false });
    }
    if collective.kind == Kind::SendRecv {
        let peer = if collective.root == rank { collective.receiver } else { collective.root };
        let other = [collective.root, collective.receiver].into_iter().find(|end| *end > last);
        let peer = other.unwrap_or(peer);
        if peer > last || peer == rank {
            return Err(Error::Rank { argument: "peer", rank: peer, last, own: true });
        }
    } else if collective.root > last {
        return Err(Error::Rank { argument: "root", rank: collective.root, last, own: false });
    }
    Ok(())
}

/// The count of a call with equal parts, out of the lengths of the buffers that this rank's part
/// uses. What their lengths must be follows.
fn even_count(
    collective: &Collective,
    rank: usize,
    input: usize,
    output: usize,
) -> Result<usize, Error> {
    let (kind, n) = (collective.kind, collective.ranks);
    let divided = |argument, count: usize| {
        if count.is_multiple_of(n) {
            Ok(count / n)
        } else {
            Err(Error::NotDivisible { kind, argument, count, ranks: n })
        }
    };
    let count = match kind {
        Kind::Barrier => 0,
        Kind::AllGather | Kind::Gather => input,
        Kind::ReduceScatter => output,
        Kind::AllToAll => divided("input", input)?,
        Kind::Scatter => output,
        Kind::Reduce => input,
        Kind::Broadcast => output,
        Kind::SendRecv if rank == collective.root => input,
        Kind::AllReduce | Kind::SendRecv => output,
    };
    // The lengths a v-variant would have are told as such.
    match kind {
        Kind::AllGather => divided("output", output)?,
        Kind::ReduceScatter => divided("input", input)?,
        _ => 0,
    };
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Memory;

    fn memory(values: &mut [f32]) -> Memory {
        Memory { address: values.as_mut_ptr().cast(), count: values.len() }
    }

    #[test]
    fn arguments_are_named() {
        let mut a = [0f32; 8];
        let mut b = [0f32; 6];
        let make = |kind, input, output| {
            CheckedCall::new(&Call::of(kind, DataType::F32, input, output), 0, 2)
        };
        let error = make(Kind::AllReduce, memory(&mut a), memory(&mut b)).unwrap_err();
        assert_eq!(error.to_string(), "input has 8 elements, all_reduce needs 6");
        let error = make(Kind::AllToAll, memory(&mut a[..7]), memory(&mut b)).unwrap_err();
        assert!(matches!(error, Error::NotDivisible { argument: "input", .. }), "{error}");
        let [first, second] = [memory(&mut a[..6]), memory(&mut a[2..8])];
        assert!(matches!(make(Kind::AllReduce, first, second), Err(Error::Overlap { .. })));
        let odd = Memory { address: memory(&mut a).address.wrapping_add(2), count: 6 };
        assert!(matches!(
            make(Kind::AllReduce, odd, memory(&mut b)),
            Err(Error::Unaligned { argument: "input", .. })
        ));
        let buffer = memory(&mut b);
        let call = Call::of(Kind::AllReduce, DataType::F32, buffer, buffer).op(OpKind::BitOr);
        assert!(matches!(CheckedCall::new(&call, 0, 2), Err(Error::Op { .. })));
        let call = Call::of(Kind::Broadcast, DataType::F32, buffer, buffer).counts(&[3, 3]);
        assert!(matches!(CheckedCall::new(&call, 0, 2), Err(Error::Counts { .. })));
    }
}
