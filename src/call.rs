//! A call: what one rank asks for ([`Call`]), that checked, and what all ranks must agree on.

mod checked;
mod fit;
mod lengths;
mod list;
mod mix;
mod options;
mod record;
mod signature;

pub(crate) use checked::{CheckedCall, one_count_each};
pub(crate) use fit::Fit;
pub(crate) use lengths::{Counts, Lengths};
pub(crate) use list::{CallList, Placed, SpareList};
pub(crate) use mix::Mix;
pub use options::CallOptions;
pub(crate) use options::{Options, Terms};
pub(crate) use record::{GroupRecord, Meeting, Record, What};
pub(crate) use signature::{Difference, FREE_SHIFT, PLACE_OF_PARTS, SIGNATURE_WORDS, Signature};

use crate::error::Error;
use checked::length;
use oxccl_plans::collective::Kind;
use oxccl_plans::element::{DataType, Element, OpKind, ReduceOp, accumulator_bits};
use oxccl_plans::length::Length;

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

    /// A rank's part of a buffer that holds one for every rank.
    pub(crate) fn part(
        self,
        kind: Kind,
        data_type: DataType,
        rank: usize,
        ranks: usize,
    ) -> Result<Memory, Error> {
        let count = self.count;
        if !count.is_multiple_of(ranks) {
            return Err(Error::NotDivisible { kind, argument: "buffer", count, ranks });
        }
        let count = count / ranks;
        let address = self.address.wrapping_add(rank * count * data_type.len_bytes());
        Ok(Memory { address, count })
    }

    /// A rank's part of a buffer that holds so many elements for each rank, without gaps.
    pub(crate) fn uneven_part(
        self,
        kind: Kind,
        data_type: DataType,
        rank: usize,
        counts: &[usize],
    ) -> Result<Memory, Error> {
        let sum = |counts: &[usize]| Length::sum(counts.iter().copied(), data_type.len_bytes());
        let all = sum(counts).map_err(Error::too_long(kind.name(), "counts"))?;
        length(kind, "buffer", self.count, all)?;
        let before = sum(&counts[..rank]).map_err(Error::too_long(kind.name(), "counts"))?;
        let address = self.address.wrapping_add(before.bytes());
        Ok(Memory { address, count: counts[rank] })
    }
}

/// What one rank asks for, with types that are known at run time alone: for bindings to other
/// languages. The typed calls make these.
///
/// It knows neither rank nor world: [`Collectives::run`](crate::Collectives::run) checks it against
/// those of its communicator.
///
/// ```
/// use oxccl::{Call, Collectives, Communicator, DataType, Kind, Memory, OpKind};
/// # let ranks = Communicator::local(2)?;
/// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
/// let mut buffer = [1.0f32, 2.0];
/// let memory = Memory { address: buffer.as_mut_ptr().cast(), count: buffer.len() };
/// let call = Call::of(Kind::AllReduce, DataType::F32, memory, memory).op(OpKind::Max);
/// // SAFETY: the memory is this thread's, and the call has ended when `run` returns.
/// unsafe { comm.run(call) }?;
/// # Ok::<(), oxccl::Error>(()) }); });
/// # Ok::<(), oxccl::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call<'c> {
    pub(crate) kind: Kind,
    pub(crate) data_type: DataType,
    pub(crate) op: OpKind,
    pub(crate) factor_bits: u64,
    /// The factor is in the device's memory, and these bits are its address.
    pub(crate) factor_at: bool,
    pub(crate) ends: Ends,
    pub(crate) parts: Parts<'c>,
    pub(crate) input: Memory,
    pub(crate) output: Memory,
}

/// Which ranks it is from or to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// All alike.
    All,
    /// All and a root.
    Root(usize),
    /// This rank sends.
    To(usize),
    /// This rank receives.
    From(usize),
}

/// How long ranks' parts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts<'c> {
    /// All alike, as the memory's counts say.
    Even,
    /// Rank r's.
    PerRank(&'c [usize]),
    /// From this rank to rank r, and from that to this.
    Own { send: &'c [usize], recv: &'c [usize] },
}

impl<'c> Call<'c> {
    /// A call over memory of these. Lengths are those of the typed call of the same name; one with
    /// a root has root 0, and reductions sum, unless something else is said. In place, input and
    /// output are the same address, or one is this rank's part of the other.
    ///
    /// A message is made by [`send`](Call::send) or [`recv`](Call::recv).
    ///
    /// # Errors
    /// None yet. Running it fails for what is wrong: [`Error::Length`], [`Error::Overflow`],
    /// [`Error::NotDivisible`], [`Error::Unaligned`], [`Error::Overlap`], [`Error::Rank`],
    /// [`Error::Op`], [`Error::Counts`].
    #[inline]
    pub fn of(kind: Kind, data_type: DataType, input: Memory, output: Memory) -> Call<'c> {
        let ends = if kind.is_rooted() { Ends::Root(0) } else { Ends::All };
        let (op, parts) = (OpKind::Sum, Parts::Even);
        Call { kind, data_type, op, factor_bits: 0, factor_at: false, ends, parts, input, output }
    }

    /// A message to another rank.
    #[inline]
    pub fn send(data_type: DataType, input: Memory, peer: usize) -> Call<'c> {
        let call = Call::of(Kind::SendRecv, data_type, input, Memory::NONE);
        Call { ends: Ends::To(peer), ..call }
    }

    /// The next message from another rank.
    #[inline]
    pub fn recv(data_type: DataType, output: Memory, peer: usize) -> Call<'c> {
        let call = Call::of(Kind::SendRecv, data_type, Memory::NONE, output);
        Call { ends: Ends::From(peer), ..call }
    }

    /// Fails as running it as this rank of so many would, for what is seen before anything is sent.
    /// The memory is not touched.
    ///
    /// # Errors
    /// As [`of`](Call::of) lists them.
    pub fn check(&self, rank: usize, ranks: usize) -> Result<(), Error> {
        CheckedCall::new(self, rank, ranks).map(drop)
    }

    /// The same with this root.
    #[inline]
    #[must_use]
    pub fn root(self, root: usize) -> Call<'c> {
        Call { ends: Ends::Root(root), ..self }
    }

    /// The same, reducing so. Of [`OpKind::PreMulSum`] the factor is 0 until
    /// [`factor`](Call::factor) gives one.
    #[inline]
    #[must_use]
    pub fn op(self, op: OpKind) -> Call<'c> {
        Call { op, ..self }
    }

    /// The same, reducing so, with the operation's factor.
    #[inline]
    #[must_use]
    pub fn reduce_op<T: Element>(self, op: ReduceOp<T>) -> Call<'c> {
        Call { op: op.kind(), factor_bits: op.factor_bits(), factor_at: false, ..self }
    }

    /// The same with [`OpKind::PreMulSum`] and its factor: a value of the data type, as its bytes.
    ///
    /// # Errors
    /// [`Error::CopyLength`] for another number of bytes than a value has.
    pub fn factor(self, bytes: &[u8]) -> Result<Call<'c>, Error> {
        let expected = self.data_type.len_bytes();
        let wrong = Error::CopyLength { found: bytes.len(), expected };
        let factor_bits = accumulator_bits(self.data_type, bytes).ok_or(wrong)?;
        Ok(Call { op: OpKind::PreMulSum, factor_bits, factor_at: false, ..self })
    }

    /// The same with [`OpKind::PreMulSum`] and a factor in the device's memory: a value of the data
    /// type, which is read when the call is carried out, and each time that a captured call is.
    /// Ranks may apply factors to each other's input, and cannot compare these: so it is for
    /// communicators of one rank, which scale by it.
    #[must_use]
    pub fn factor_at(self, address: *const u8) -> Call<'c> {
        Call { op: OpKind::PreMulSum, factor_bits: address as u64, factor_at: true, ..self }
    }

    /// The same with parts that differ by rank, of an all-gather or a reduce-scatter.
    #[inline]
    #[must_use]
    pub fn counts(self, counts: &'c [usize]) -> Call<'c> {
        Call { parts: Parts::PerRank(counts), ..self }
    }

    /// The same with parts that differ by rank, of an all-to-all: this rank's to each, and each
    /// rank's to this one.
    #[inline]
    #[must_use]
    pub fn own_counts(self, send: &'c [usize], recv: &'c [usize]) -> Call<'c> {
        Call { parts: Parts::Own { send, recv }, ..self }
    }
}

/// All that a call with equal parts is made from, in a few words. A call with the arguments of the
/// one before needs no second check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked([u64; 7]);

/// An odd number whose multiples spread over all bits.
const CLASSES: u64 = 0x9e37_79b9_7f4a_7c15;

impl PartialEq for Asked {
    /// Word by word in registers: the words have just been written there, and a call of the
    /// system's comparison takes longer.
    #[inline]
    fn eq(&self, other: &Asked) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
    }
}

impl Asked {
    /// All but the memory's addresses.
    #[inline]
    fn but_memory(&self) -> [u64; 5] {
        let Asked([what, end, factor_bits, _, input_count, _, output_count]) = *self;
        [what, end, factor_bits, input_count, output_count]
    }

    /// Whether another has the same, but for its memory's addresses.
    #[inline]
    pub(crate) fn differs_in_memory(&self, other: &Asked) -> bool {
        let (ours, theirs) = (self.but_memory(), other.but_memory());
        ours.iter().zip(&theirs).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
    }

    /// A number that calls share which differ in memory or in factors.
    #[inline]
    pub(crate) fn class(&self) -> usize {
        let [what, end, _, input_count, output_count] = self.but_memory();
        let counts = input_count ^ output_count.rotate_left(32);
        let mixed = (what ^ end << 40).wrapping_mul(CLASSES) ^ counts;
        (mixed.wrapping_mul(CLASSES) >> 48) as usize
    }

    /// What no call is made from.
    pub(crate) const NOTHING: Asked = Asked([u64::MAX; 7]);

    /// What a call is made from; nothing, if its parts are not equal.
    #[inline]
    pub(crate) fn new(call: &Call<'_>) -> Asked {
        let Call { kind, data_type, op, factor_bits, factor_at, ends, parts, input, output } =
            *call;
        if parts != Parts::Even {
            return Asked::NOTHING;
        }
        let (role, end) = match ends {
            Ends::All => (0u64, 0),
            Ends::Root(root) => (1, root),
            Ends::To(peer) => (2, peer),
            Ends::From(peer) => (3, peer),
        };
        Asked([
            kind as u64
                | (data_type as u64) << 8
                | (op as u64) << 16
                | role << 24
                | u64::from(factor_at) << 32,
            end as u64,
            factor_bits,
            input.address as u64,
            input.count as u64,
            output.address as u64,
            output.count as u64,
        ])
    }
}
