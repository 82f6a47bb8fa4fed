//! What a call asks for, as one value: what it is prepared by, what ranks compare, and what the log
//! and the tuner are told.

use super::Options;
use oxccl_kernels::format::TOKEN_NUMBER_SHIFT;
use oxccl_plans::collective::{Kind, Order};
use oxccl_plans::element::{DataType, OpKind};

/// One rank's call, but for its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Signature {
    pub(crate) kind: Kind,
    pub(crate) data_type: DataType,
    pub(crate) op: OpKind,
    pub(crate) order: Order,
    pub(crate) in_place: bool,
    /// Peers reach its buffers.
    pub(crate) windows: bool,
    /// Copy engines carry it out. Where peers read its buffer then takes the factor's place.
    pub(crate) copies: bool,
    pub(crate) root: u32,
    pub(crate) receiver: u32,
    /// What the call asks for, but for the order.
    pub(crate) options: Options,
    /// As in `Layout::even`; of all parts together where counts differ.
    pub(crate) count: u64,
    /// 0 where counts are equal.
    pub(crate) counts_hash: u64,
    /// In the type in which values accumulate; 0 where there is none.
    pub(crate) factor_bits: u64,
}

/// Of a [place](Signature::copies): what peers read is a part of the buffer there, each their own.
pub(crate) const PLACE_OF_PARTS: u64 = 1 << 63;

/// What differs: its name, the one rank's, the other's.
pub(crate) type Difference = (&'static str, String, String);

/// Words that stand for a signature.
pub(crate) const SIGNATURE_WORDS: usize = 5;

/// Where in the first word the options begin, and what is free for others.
const OPTIONS_SHIFT: u32 = 28;
/// Above the number of the collective.
const COPIES_SHIFT: u32 = 7;
pub(crate) const FREE_SHIFT: u32 = 48;
const _: () = assert!(OPTIONS_SHIFT + Options::PLAN_BITS <= FREE_SHIFT);

impl Signature {
    /// A message from one rank to another.
    pub(crate) fn message(
        data_type: DataType,
        count: usize,
        sender: usize,
        receiver: usize,
    ) -> Signature {
        Signature {
            kind: Kind::SendRecv,
            data_type,
            op: OpKind::Sum,
            order: Order::Any,
            in_place: false,
            windows: false,
            copies: false,
            root: sender as u32,
            receiver: receiver as u32,
            options: Options::NONE,
            count: count as u64,
            counts_hash: 0,
            factor_bits: 0,
        }
    }

    /// Bytes of one rank's part, or of the whole where ranks have no parts; 0 where parts differ.
    pub(crate) fn len_bytes(&self) -> usize {
        if self.is_even() { self.count as usize * self.data_type.len_bytes() } else { 0 }
    }

    /// Whether it has parts of one length, so that it can lie in a virtual buffer with others.
    pub(crate) fn is_even(&self) -> bool {
        self.counts_hash == 0
    }

    pub(crate) fn encode(&self) -> [u64; SIGNATURE_WORDS] {
        let what = u64::from(self.kind as u8)
            | u64::from(self.copies) << COPIES_SHIFT
            | u64::from(self.data_type as u8) << 8
            | u64::from(self.op as u8) << 16
            | u64::from(self.order as u8) << 24
            | u64::from(self.in_place) << 26
            | u64::from(self.windows) << 27
            | u64::from(self.options.plan_bits()) << OPTIONS_SHIFT;
        let ends = u64::from(self.root) | u64::from(self.receiver) << 32;
        [what, self.count, ends, self.counts_hash, self.factor_bits]
    }

    /// `None` for words that no rank writes.
    pub(crate) fn decode(words: &[u64; SIGNATURE_WORDS]) -> Option<Signature> {
        let [what, count, ends, counts_hash, factor_bits] = *words;
        let byte = |shift: u32| (what >> shift) as u8;
        Some(Signature {
            kind: Kind::ALL.into_iter().find(|kind| *kind as u8 == byte(0) & 0x7f)?,
            data_type: DataType::ALL.into_iter().find(|of| *of as u8 == byte(8))?,
            op: OpKind::ALL.into_iter().find(|op| *op as u8 == byte(16))?,
            order: order(byte(24) & 3)?,
            in_place: what >> 26 & 1 == 1,
            windows: what >> 27 & 1 == 1,
            copies: what >> COPIES_SHIFT & 1 == 1,
            root: ends as u32,
            receiver: (ends >> 32) as u32,
            options: Options::of_plan_bits((what >> OPTIONS_SHIFT) as u32),
            count,
            counts_hash,
            factor_bits,
        })
    }

    /// The first thing in which two ranks' calls differ.
    pub(crate) fn difference(&self, other: &Signature) -> Option<Difference> {
        let memory = |windows: bool| {
            if windows { "memory that peers reach" } else { "private memory" }.to_string()
        };
        let mover = |copies: bool| if copies { "copy engines" } else { "kernels" }.to_string();
        let place = |in_place: bool| if in_place { "in place" } else { "out of place" }.to_string();
        let limit = |of: &Signature| match of.options.channels() {
            0 => "as configured".to_owned(),
            most => most.to_string(),
        };
        let algorithm = |of: &Signature| {
            of.options.algorithm().map_or("as configured", |algorithm| algorithm.name()).to_owned()
        };
        let encoding = |of: &Signature| {
            of.options.encoding().map_or("as configured", |encoding| encoding.name()).to_owned()
        };
        let (a, b) = (self, other);
        let rows = [
            ("the collective", a.kind.to_string(), b.kind.to_string()),
            ("the type", a.data_type.to_string(), b.data_type.to_string()),
            ("count", a.count.to_string(), b.count.to_string()),
            ("op", a.op.to_string(), b.op.to_string()),
            ("root", a.root.to_string(), b.root.to_string()),
            ("peer", a.receiver.to_string(), b.receiver.to_string()),
            ("order", a.order.to_string(), b.order.to_string()),
            ("most channels", limit(a), limit(b)),
            ("the algorithm", algorithm(a), algorithm(b)),
            ("the encoding", encoding(a), encoding(b)),
            ("counts", format!("hash {:x}", a.counts_hash), format!("hash {:x}", b.counts_hash)),
            ("in place", place(a.in_place), place(b.in_place)),
            ("what moves the data", mover(a.copies), mover(b.copies)),
            ("memory", memory(a.windows), memory(b.windows)),
            (
                if a.copies { "where peers read" } else { "the factor" },
                a.factor_text(),
                b.factor_text(),
            ),
        ];
        rows.into_iter().find(|(_, ours, theirs)| ours != theirs)
    }

    /// The factor as a number: it is kept in the type in which values accumulate. Or the place that
    /// stands there.
    fn factor_text(&self) -> String {
        let bits = self.factor_bits;
        if self.copies {
            let parts = if bits & PLACE_OF_PARTS != 0 { ", in place" } else { "" };
            let (number, offset) = (bits & !PLACE_OF_PARTS, bits & ((1 << TOKEN_NUMBER_SHIFT) - 1));
            let memory = match number >> TOKEN_NUMBER_SHIFT {
                0 => "its heap".to_owned(),
                number => format!("its registration {number}"),
            };
            return format!("{offset:#x} of {memory}{parts}");
        }
        match self.data_type {
            DataType::F64 => f64::from_bits(bits).to_string(),
            DataType::U8 | DataType::U32 | DataType::U64 => bits.to_string(),
            DataType::I8 | DataType::I32 | DataType::I64 => (bits as i64).to_string(),
            _ => f32::from_bits(bits as u32).to_string(),
        }
    }

    /// The call in a few words.
    pub(crate) fn text(&self) -> String {
        let Signature { count, data_type, root, receiver, .. } = self;
        match self.kind {
            Kind::Barrier => "barrier".into(),
            Kind::SendRecv => format!("send of {count} {data_type} from rank {root} to {receiver}"),
            kind => {
                let parts = if self.is_even() { "" } else { " in uneven parts" };
                format!("{kind} of {count} {data_type}{parts}")
            }
        }
    }
}

/// The order of this number.
pub(super) fn order(number: u8) -> Option<Order> {
    [Order::Any, Order::Rank, Order::Tree].into_iter().find(|order| *order as u8 == number)
}
