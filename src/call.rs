//! A call: what one rank asks for, checked once, and what all ranks must agree on.

mod described;

pub(crate) use described::{Described, FREE_SHIFT, Key};

use crate::collective::{Collective, Kind};
use crate::element::{DataType, Element, OpKind, ReduceOp};
use crate::error::Error;
use crate::schedule::size_bytes;
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
        length(kind, "buffer", self.count, counts.iter().sum())?;
        let before: usize = counts[..rank].iter().sum();
        let address = self.address.wrapping_add(before * size_of::<T>());
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
    pub(crate) input: *mut u8,
    pub(crate) output: *mut u8,
    pub(crate) in_place: bool,
    /// At most so many channels; 0: as many as the communicator would take.
    pub(crate) channels: u16,
}

// SAFETY: a call is a description; whoever runs it vouches for the memory, which is not tied to a thread.
unsafe impl Send for Call {}

impl Call {
    /// A call of any kind with equal parts, from bare memory: for bindings to other languages. `rank` is the caller's. Elements
    /// have the type `T`; `op` is not looked at by kinds that reduce nothing.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::NotDivisible`], [`Error::Unaligned`], [`Error::Overlap`], [`Error::Rank`], [`Error::Op`].
    pub fn new<T: Element>(
        collective: Collective,
        rank: usize,
        input: Memory,
        output: Memory,
        op: ReduceOp<T>,
    ) -> Result<Call, Error> {
        check_roots(&collective, rank)?;
        if collective.kind.reduces() && !op.kind().applies_to(T::DATA_TYPE) {
            return Err(Error::Op { op: op.kind(), data_type: T::DATA_TYPE });
        }
        let count = even_count(&collective, rank, input.count, output.count)?;
        let call = Call {
            collective,
            data_type: T::DATA_TYPE,
            op: if collective.kind.reduces() { op.kind() } else { OpKind::Sum },
            factor_bits: if collective.kind.reduces() { op.factor_bits() } else { 0 },
            count,
            counts: None,
            input: if collective.has_input(rank) { input.address } else { std::ptr::null_mut() },
            output: if collective.has_output(rank) { output.address } else { std::ptr::null_mut() },
            in_place: collective.kind == Kind::AllToAll
                && input.address == output.address
                && count > 0,
            channels: 0,
        };
        call.check_memory(rank, input.count, output.count)?;
        Ok(call)
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
        let (ranks, need_input, need_output) = match (&counts, kind) {
            (Counts::PerRank(c), Kind::AllGather) => (c.len(), c[rank], c.iter().sum()),
            (Counts::PerRank(c), _) => (c.len(), c.iter().sum(), c[rank]),
            (Counts::Matrix(m), _) => {
                (m.len(), m[rank].iter().sum(), m.iter().map(|row| row[rank]).sum())
            }
            (Counts::Own { send, recv }, _) => (send.len(), send.iter().sum(), recv.iter().sum()),
        };
        length(kind, "input", input.count, need_input)?;
        length(kind, "output", output.count, need_output)?;
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
            input: input.address,
            output: output.address,
            in_place: false,
            channels: 0,
        };
        Ok(call)
    }

    /// Bytes of this rank's input and output.
    pub(crate) fn buffer_bytes(&self, rank: usize) -> (usize, usize) {
        let size = size_bytes(self.data_type);
        let n = self.collective.ranks;
        if let Some(counts) = &self.counts {
            return match (&**counts, self.collective.kind) {
                (Counts::PerRank(c), Kind::AllGather) => {
                    (c[rank] * size, c.iter().sum::<usize>() * size)
                }
                (Counts::PerRank(c), _) => (c.iter().sum::<usize>() * size, c[rank] * size),
                (Counts::Matrix(m), _) => {
                    let received: usize = m.iter().map(|row| row[rank]).sum();
                    (m[rank].iter().sum::<usize>() * size, received * size)
                }
                (Counts::Own { send, recv }, _) => {
                    (send.iter().sum::<usize>() * size, recv.iter().sum::<usize>() * size)
                }
            };
        }
        let (one, all) = (self.count * size, self.count * size * n);
        match self.collective.kind {
            Kind::AllGather | Kind::Gather => (one, all),
            Kind::ReduceScatter | Kind::Scatter => (all, one),
            Kind::AllToAll => (all, all),
            _ => (one, one),
        }
    }

    /// Bytes of the largest buffer on any rank: what the tuner looks at.
    pub(crate) fn total_bytes(&self) -> usize {
        match self.counts.as_deref() {
            None => {
                let (input, output) = self.buffer_bytes(0);
                input.max(output)
            }
            Some(Counts::PerRank(counts)) => {
                counts.iter().sum::<usize>() * size_bytes(self.data_type)
            }
            Some(Counts::Own { send, recv }) => {
                let (sent, received): (usize, usize) = (send.iter().sum(), recv.iter().sum());
                sent.max(received) * size_bytes(self.data_type)
            }
            Some(Counts::Matrix(_)) => (0..self.collective.ranks)
                .map(|rank| self.buffer_bytes(rank))
                .map(|(input, output)| input.max(output))
                .max()
                .unwrap_or(0),
        }
    }

    fn check_memory(
        &self,
        rank: usize,
        input_count: usize,
        output_count: usize,
    ) -> Result<(), Error> {
        let align = size_bytes(self.data_type);
        for (argument, address, count) in
            [("input", self.input, input_count), ("output", self.output, output_count)]
        {
            let unused = address.is_null() && count == 0;
            if !unused && !(address as usize).is_multiple_of(align) {
                return Err(Error::Unaligned { argument, address: address as usize, align });
            }
        }
        let (input_bytes, output_bytes) = self.buffer_bytes(rank);
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

fn length(kind: Kind, argument: &'static str, found: usize, expected: usize) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(Error::Length { kind, argument, found, expected }) }
}

fn check_roots(collective: &Collective, rank: usize) -> Result<(), Error> {
    let last = collective.ranks - 1;
    if collective.kind == Kind::SendRecv {
        let peer = if collective.root == rank { collective.receiver } else { collective.root };
        if peer > last || peer == rank {
            return Err(Error::Rank { argument: "peer", rank: peer, last, own: true });
        }
    } else if collective.root > last {
        return Err(Error::Rank { argument: "root", rank: collective.root, last, own: false });
    }
    Ok(())
}

/// The count of a call with equal parts, out of the lengths of the buffers that this rank's part uses.
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
    let (need_input, need_output) = match kind {
        Kind::AllGather | Kind::Gather => (count, count * n),
        Kind::ReduceScatter | Kind::Scatter => (count * n, count),
        Kind::AllToAll => (count * n, count * n),
        _ => (count, count),
    };
    if collective.has_input(rank) {
        length(kind, "input", input, need_input)?;
    }
    if collective.has_output(rank) {
        length(kind, "output", output, need_output)?;
    }
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
