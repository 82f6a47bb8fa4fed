//! A call: what one rank asks for, checked once, and what all ranks must agree on.

mod lengths;
mod list;
mod mix;
mod record;
mod signature;

pub(crate) use lengths::{Counts, Lengths};
pub(crate) use list::{CallList, Placed};
pub(crate) use mix::Mix;
pub(crate) use record::{GroupRecord, Record, What};
pub(crate) use signature::{Difference, FREE_SHIFT, SIGNATURE_WORDS, Signature};

use crate::error::Error;
use oxccl_plans::collective::{Collective, Kind, Order};
use oxccl_plans::element::{DataType, Element, OpKind, ReduceOp};
use oxccl_plans::length::Length;

use std::sync::Arc;

/// Elements in memory, without a type or a borrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The first element.
    pub address: *mut u8,
    /// Number of elements.
    pub count: usize,
}

impl Memory {
    /// No elements: for the argument that this rank's part in a rooted call does not use.
    pub const NONE: Memory = Memory { address: std::ptr::null_mut(), count: 0 };

    /// The memory of a borrowed input.
    #[inline]
    pub(crate) fn of<T: Element>(values: &[T]) -> Memory {
        Memory { address: values.as_ptr().cast_mut().cast(), count: values.len() }
    }

    /// The memory of a borrowed output.
    #[inline]
    pub(crate) fn of_mut<T: Element>(values: &mut [T]) -> Memory {
        Memory { address: values.as_mut_ptr().cast(), count: values.len() }
    }

    /// A rank's part of a buffer of `T` that holds one for every rank.
    pub(crate) fn part<T>(self, kind: Kind, rank: usize, ranks: usize) -> Result<Memory, Error> {
        let count = self.count;
        if !count.is_multiple_of(ranks) {
            return Err(Error::NotDivisible { kind, argument: "buffer", count, ranks });
        }
        let count = count / ranks;
        Ok(Memory { address: self.address.wrapping_add(rank * count * size_of::<T>()), count })
    }

    /// A rank's part of a buffer of `T` that holds so many elements for each rank, without gaps.
    pub(crate) fn uneven_part<T>(
        self,
        kind: Kind,
        rank: usize,
        counts: &[usize],
    ) -> Result<Memory, Error> {
        let sum = |counts: &[usize]| Length::sum(counts.iter().copied(), size_of::<T>());
        let all = sum(counts).map_err(Error::too_long(kind.name(), "counts"))?;
        length(kind, "buffer", self.count, all)?;
        let before = sum(&counts[..rank]).map_err(Error::too_long(kind.name(), "counts"))?;
        let address = self.address.wrapping_add(before.bytes());
        Ok(Memory { address, count: counts[rank] })
    }

    /// Input and output of a gather or scatter in place: the whole buffer and its part on the root, that part alone elsewhere.
    pub(crate) fn of_root<T>(
        self,
        collective: Collective,
        rank: usize,
    ) -> Result<[Memory; 2], Error> {
        let (kind, ranks) = (collective.kind, collective.ranks);
        Ok(match (kind, rank == collective.root) {
            (Kind::Gather, true) => [self.part::<T>(kind, rank, ranks)?, self],
            (Kind::Gather, false) => [self, Memory::NONE],
            (_, true) => [self, self.part::<T>(kind, rank, ranks)?],
            (_, false) => [Memory::NONE, self],
        })
    }
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

/// All that a call with equal parts is made from, in a few words. A call with the arguments of the one before needs no second check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked([u64; 8]);

impl PartialEq for Asked {
    /// Word by word in registers: the words have just been written there, and a call of the system's comparison takes longer.
    #[inline]
    fn eq(&self, other: &Asked) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
    }
}

impl Asked {
    /// What no call is made from.
    pub(crate) const NOTHING: Asked = Asked([u64::MAX; 8]);

    #[inline]
    pub(crate) fn new<T: Element>(
        collective: Collective,
        input: Memory,
        output: Memory,
        op: ReduceOp<T>,
    ) -> Asked {
        let Collective { kind, ranks, root, receiver } = collective;
        let what = kind as u64 | (T::DATA_TYPE as u64) << 8 | (op.kind() as u64) << 16;
        Asked([
            what | (ranks as u64) << 32,
            root as u64,
            receiver as u64,
            op.factor_bits(),
            input.address as u64,
            input.count as u64,
            output.address as u64,
            output.count as u64,
        ])
    }
}

/// One rank's part in one collective. Made by [`Call::new`], which checks the arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub(crate) collective: Collective,
    pub(crate) data_type: DataType,
    pub(crate) op: OpKind,
    pub(crate) factor_bits: u64,
    /// As in `Layout::even`: the whole buffer or one rank's part, by kind.
    pub(crate) count: usize,
    pub(crate) counts: Option<Arc<Counts>>,
    pub(crate) lengths: Lengths,
    pub(crate) input: *mut u8,
    pub(crate) output: *mut u8,
    pub(crate) in_place: bool,
    /// At most so many channels; 0: as many as the communicator would take.
    pub(crate) channels: u16,
    /// What it was made from; nothing where it cannot be repeated by that.
    pub(crate) asked: Asked,
}

// SAFETY: a call is a description; whoever runs it vouches for the memory, which is not tied to a thread.
unsafe impl Send for Call {}

impl Call {
    /// A call of any kind with equal parts, from bare memory: for bindings to other languages. `rank` is the caller's. Elements
    /// have the type `T`; `op` is not looked at by kinds that reduce nothing.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::Overflow`], [`Error::NotDivisible`], [`Error::Unaligned`], [`Error::Overlap`], [`Error::Rank`],
    /// [`Error::Op`].
    pub fn new<T: Element>(
        collective: Collective,
        rank: usize,
        input: Memory,
        output: Memory,
        op: ReduceOp<T>,
    ) -> Result<Call, Error> {
        check_ranks(&collective, rank)?;
        let count = even_count(&collective, rank, input.count, output.count)?;
        let call = Call {
            input: if collective.has_input(rank) { input.address } else { std::ptr::null_mut() },
            output: if collective.has_output(rank) { output.address } else { std::ptr::null_mut() },
            in_place: collective.kind == Kind::AllToAll
                && input.address == output.address
                && count > 0,
            factor_bits: if collective.kind.reduces() { op.factor_bits() } else { 0 },
            asked: Asked::new(collective, input, output, op),
            ..Call::without_memory(collective, T::DATA_TYPE, op.kind(), count)?
        };
        if collective.has_input(rank) {
            length(collective.kind, "input", input.count, call.lengths.input)?;
        }
        if collective.has_output(rank) {
            length(collective.kind, "output", output.count, call.lengths.output)?;
        }
        call.check_memory(rank, input.count, output.count)?;
        Ok(call)
    }

    /// A call with equal parts, of which nobody knows yet where they are.
    pub(crate) fn without_memory(
        collective: Collective,
        data_type: DataType,
        op: OpKind,
        count: usize,
    ) -> Result<Call, Error> {
        let kind = collective.kind;
        if kind.reduces() && !op.applies_to(data_type) {
            return Err(Error::Op { op, data_type });
        }
        let lengths = Lengths::even(&collective, count, data_type.len_bytes())
            .map_err(Error::too_long(kind.name(), "count"))?;
        Ok(Call {
            collective,
            data_type,
            op: if kind.reduces() { op } else { OpKind::Sum },
            factor_bits: 0,
            count,
            counts: None,
            lengths,
            input: std::ptr::null_mut(),
            output: std::ptr::null_mut(),
            in_place: false,
            channels: 0,
            asked: Asked::NOTHING,
        })
    }

    /// The same call over another number of elements; as it is where parts differ.
    pub(crate) fn with_count(&self, count: usize) -> Result<Call, Error> {
        if self.counts.is_some() {
            return Ok(self.clone());
        }
        let lengths = Lengths::even(&self.collective, count, self.data_type.len_bytes())
            .map_err(Error::too_long(self.collective.kind.name(), "buffers"))?;
        Ok(Call { count, lengths, ..self.clone() })
    }

    /// A call whose parts differ by rank; `input` and `output` are this rank's.
    pub(crate) fn with_counts<T: Element>(
        kind: Kind,
        rank: usize,
        counts: Counts,
        input: Memory,
        output: Memory,
        op: ReduceOp<T>,
    ) -> Result<Call, Error> {
        let ranks = match &counts {
            Counts::PerRank(counts) => counts.len(),
            Counts::Matrix(matrix) => matrix.len(),
            Counts::Own { send, .. } => send.len(),
        };
        let lengths = Lengths::uneven(kind, &counts, rank, size_of::<T>())?;
        length(kind, "input", input.count, lengths.input)?;
        length(kind, "output", output.count, lengths.output)?;
        if kind.reduces() && !op.kind().applies_to(T::DATA_TYPE) {
            return Err(Error::Op { op: op.kind(), data_type: T::DATA_TYPE });
        }
        let call = Call {
            collective: Collective::new(kind, ranks),
            data_type: T::DATA_TYPE,
            op: if kind.reduces() { op.kind() } else { OpKind::Sum },
            factor_bits: if kind.reduces() { op.factor_bits() } else { 0 },
            count: 0,
            counts: Some(Arc::new(counts)),
            lengths,
            input: input.address,
            output: output.address,
            in_place: false,
            channels: 0,
            asked: Asked::NOTHING,
        };
        Ok(call)
    }

    /// All of it but its buffers.
    pub(crate) fn signature(&self, windows: bool, order: Order) -> Signature {
        Signature {
            kind: self.collective.kind,
            data_type: self.data_type,
            op: self.op,
            order,
            in_place: self.in_place,
            windows,
            root: self.collective.root as u32,
            receiver: self.collective.receiver as u32,
            channels: self.channels,
            count: self.common_count(),
            counts_hash: self.counts.as_deref().map_or(0, Counts::hash_word),
            factor_bits: self.factor_bits,
        }
    }

    /// What all ranks have as its count: as in `Layout::even`, or of all parts together where counts differ.
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

    fn check_memory(
        &self,
        rank: usize,
        input_count: usize,
        output_count: usize,
    ) -> Result<(), Error> {
        let align = self.data_type.len_bytes();
        for (argument, address, count) in
            [("input", self.input, input_count), ("output", self.output, output_count)]
        {
            let unused = address.is_null() && count == 0;
            if !unused && !(address as usize).is_multiple_of(align) {
                return Err(Error::Unaligned { argument, address: address as usize, align });
            }
        }
        let (input_bytes, output_bytes) = self.buffer_bytes();
        for (argument, address, bytes) in
            [("input", self.input, input_bytes), ("output", self.output, output_bytes)]
        {
            if (address as usize).checked_add(bytes).is_none() {
                return Err(Error::Overflow { call: self.collective.kind.name(), argument });
            }
        }
        if self.input.is_null() || self.output.is_null() || input_bytes == 0 || output_bytes == 0 {
            return Ok(());
        }
        let (input, output) = (self.input as usize, self.output as usize);
        let apart = input + input_bytes <= output || output + output_bytes <= input;
        let in_place = match self.collective.kind {
            Kind::AllGather | Kind::Gather => input == output + rank * input_bytes,
            Kind::ReduceScatter | Kind::Scatter => output == input + rank * output_bytes,
            Kind::SendRecv => false,
            _ => input == output,
        };
        if apart || in_place { Ok(()) } else { Err(Error::Overlap { kind: self.collective.kind }) }
    }
}

fn length(kind: Kind, argument: &'static str, found: usize, needed: Length) -> Result<(), Error> {
    let expected = needed.count();
    if found == expected { Ok(()) } else { Err(Error::Length { kind, argument, found, expected }) }
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

/// The count of a call with equal parts, out of the lengths of the buffers that this rank's part uses. What their lengths must be follows.
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

    fn memory(values: &mut [f32]) -> Memory {
        Memory { address: values.as_mut_ptr().cast(), count: values.len() }
    }

    #[test]
    fn arguments_are_named() {
        let mut a = [0f32; 8];
        let mut b = [0f32; 6];
        let make = |kind, input, output| {
            Call::new(Collective::new(kind, 2), 0, input, output, ReduceOp::<f32>::Sum)
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
        let op = Call::new(
            Collective::new(Kind::AllReduce, 2),
            0,
            memory(&mut b),
            memory(&mut b),
            ReduceOp::<f32>::BitOr,
        );
        assert!(matches!(op, Err(Error::Op { .. })));
    }
}
