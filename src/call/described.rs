//! What a call is found by and compared by: its key, and the words that stand for it in a rank's log.

use crate::device::CallRecord;
use oxccl_plans::collective::{Kind, Order};
use oxccl_plans::element::{DataType, OpKind};

/// What identifies a prepared call on this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) data_type: DataType,
    pub(crate) op: OpKind,
    pub(crate) in_place: bool,
    pub(crate) windows: bool,
    pub(crate) root: u32,
    pub(crate) receiver: u32,
    /// At most so many channels; 0: as many as the communicator would take.
    pub(crate) channels: u16,
    /// As in `Layout::even`; of all parts together where counts differ.
    pub(crate) count: u64,
    /// 0 where counts are equal.
    pub(crate) counts_hash: u64,
}

impl Key {
    /// Of what is no call.
    const NOTHING: Key = Key {
        kind: Kind::Barrier,
        data_type: DataType::U8,
        op: OpKind::Sum,
        in_place: false,
        windows: false,
        root: 0,
        receiver: 0,
        channels: 0,
        count: 0,
        counts_hash: 0,
    };
}

/// The words of a [`CallRecord`], and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) key: Key,
    pub(crate) order: Order,
    pub(crate) factor_bits: u64,
    /// Number among the calls that all ranks make; 0 for send/recv.
    pub(crate) collective: u64,
    pub(crate) form: Form,
    /// Where a group's words begin in the rank's heap.
    pub(crate) words_offset: u64,
}

/// What a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One call.
    Call,
    /// A group of `key.count` collectives; the rest of the key says nothing but `counts_hash`, which is theirs. `factor_bits` is the number
    /// of its messages.
    Group,
    /// The communicator's end; the key says nothing.
    Close,
}

/// The bits of a record's first word that say so.
const GROUP: u64 = 1 << 34;
const CLOSE: u64 = 1 << 35;
/// Where the bits begin there that say how many channels at most, and where those that are free for others.
const CHANNELS_SHIFT: u32 = 36;
pub(crate) const FREE_SHIFT: u32 = 48;
const CHANNELS_MASK: u64 = (1 << (FREE_SHIFT - CHANNELS_SHIFT)) - 1;

impl Described {
    /// A group.
    pub(crate) fn group(order: Order, calls: usize, messages: usize, hash: u64) -> Described {
        let key = Key { count: calls as u64, counts_hash: hash, ..Key::NOTHING };
        let factor_bits = messages as u64;
        let form = Form::Group;
        Described { key, order, factor_bits, collective: 0, form, words_offset: 0 }
    }

    /// The communicator's end.
    pub(crate) fn close() -> Described {
        let (key, order) = (Key::NOTHING, Order::Any);
        Described { key, order, factor_bits: 0, collective: 0, form: Form::Close, words_offset: 0 }
    }

    /// Whether it is a group.
    pub(crate) fn is_group(&self) -> bool {
        self.form == Form::Group
    }

    /// Messages of a group.
    pub(crate) fn messages(&self) -> u64 {
        if self.is_group() { self.factor_bits } else { 0 }
    }

    /// Whether all ranks make it, so that it has a number among the collectives.
    pub(crate) fn is_collective(&self) -> bool {
        if self.is_group() { self.key.count > 0 } else { self.key.kind != Kind::SendRecv }
    }

    /// One call.
    pub(crate) fn call(key: Key, order: Order, factor_bits: u64) -> Described {
        let form = Form::Call;
        Described { key, order, factor_bits, collective: 0, form, words_offset: 0 }
    }

    pub(crate) fn encode(&self) -> [u64; 6] {
        let key = &self.key;
        let what = u64::from(key.kind as u8)
            | u64::from(key.data_type as u8) << 8
            | u64::from(key.op as u8) << 16
            | u64::from(self.order as u8) << 24
            | u64::from(key.in_place) << 32
            | u64::from(key.windows) << 33
            | u64::from(key.channels) << CHANNELS_SHIFT
            | match self.form {
                Form::Call => 0,
                Form::Group => GROUP,
                Form::Close => CLOSE,
            };
        let roots = match self.is_group() {
            true => self.words_offset,
            false => u64::from(key.root) | u64::from(key.receiver) << 32,
        };
        [what, key.count, roots, key.counts_hash, self.factor_bits, self.collective]
    }

    /// Gives the call its number, here and in its words.
    #[inline]
    pub(crate) fn number(&mut self, collective: u64, words: &mut [u64; 6]) {
        self.collective = collective;
        words[5] = collective;
    }

    /// `None` for words that no rank writes.
    pub(crate) fn decode(record: &CallRecord) -> Option<Described> {
        let [what, count, roots, counts_hash, factor_bits, collective] = record.words;
        let byte = |shift: u32| (what >> shift) as u8;
        let key = Key {
            kind: Kind::ALL.into_iter().find(|kind| *kind as u8 == byte(0))?,
            data_type: oxccl_plans::element::DataType::ALL
                .into_iter()
                .find(|t| *t as u8 == byte(8))?,
            op: OpKind::ALL.into_iter().find(|op| *op as u8 == byte(16))?,
            in_place: what >> 32 & 1 == 1,
            windows: what >> 33 & 1 == 1,
            root: roots as u32,
            receiver: (roots >> 32) as u32,
            channels: (what >> CHANNELS_SHIFT & CHANNELS_MASK) as u16,
            count,
            counts_hash,
        };
        let order =
            [Order::Any, Order::Rank, Order::Tree].into_iter().find(|o| *o as u8 == byte(24))?;
        let form = match (what & GROUP != 0, what & CLOSE != 0) {
            (true, _) => Form::Group,
            (false, true) => Form::Close,
            (false, false) => Form::Call,
        };
        let words_offset = if form == Form::Group { roots } else { 0 };
        Some(Described { key, order, factor_bits, collective, form, words_offset })
    }

    /// The first thing in which two ranks' calls differ: its name, ours, theirs.
    pub(crate) fn difference(&self, other: &Described) -> Option<(&'static str, String, String)> {
        let memory = |windows: bool| {
            if windows { "memory that peers reach" } else { "private memory" }.to_string()
        };
        let place = |in_place: bool| if in_place { "in place" } else { "out of place" }.to_string();
        let limit = |most: u16| if most == 0 { "as configured".into() } else { most.to_string() };
        let (a, b) = (&self.key, &other.key);
        if self.form != Form::Call || other.form != Form::Call {
            let rows = [
                ("the call", self.common_text(), other.common_text()),
                ("order", self.order.to_string(), other.order.to_string()),
                (
                    "a bucket",
                    format!("hash {:x}", a.counts_hash),
                    format!("hash {:x}", b.counts_hash),
                ),
            ];
            return rows.into_iter().find(|(_, ours, theirs)| ours != theirs);
        }
        let rows = [
            ("the collective", a.kind.to_string(), b.kind.to_string()),
            ("the type", a.data_type.name().into(), b.data_type.name().into()),
            ("count", a.count.to_string(), b.count.to_string()),
            ("op", a.op.to_string(), b.op.to_string()),
            ("root", a.root.to_string(), b.root.to_string()),
            ("peer", a.receiver.to_string(), b.receiver.to_string()),
            ("order", self.order.to_string(), other.order.to_string()),
            ("most channels", limit(a.channels), limit(b.channels)),
            ("counts", format!("hash {:x}", a.counts_hash), format!("hash {:x}", b.counts_hash)),
            ("the factor", self.factor_text(), other.factor_text()),
            ("in place", place(a.in_place), place(b.in_place)),
            ("memory", memory(a.windows), memory(b.windows)),
        ];
        rows.into_iter().find(|(_, ours, theirs)| ours != theirs)
    }

    /// What all ranks call, in a few words.
    fn common_text(&self) -> String {
        if self.is_group() {
            format!("group of {}", counted(self.key.count, "collective"))
        } else {
            self.text()
        }
    }

    /// The factor as a number: it is kept in the type in which values accumulate.
    fn factor_text(&self) -> String {
        let bits = self.factor_bits;
        match self.key.data_type {
            DataType::F64 => f64::from_bits(bits).to_string(),
            DataType::U8 | DataType::U32 | DataType::U64 => bits.to_string(),
            DataType::I8 | DataType::I32 | DataType::I64 => (bits as i64).to_string(),
            _ => f32::from_bits(bits as u32).to_string(),
        }
    }

    /// The call in a few words.
    pub(crate) fn text(&self) -> String {
        let key = &self.key;
        match key.kind {
            _ if self.form == Form::Close => "close".into(),
            _ if self.is_group() => match (key.count, self.messages()) {
                (_, 0) => self.common_text(),
                (0, messages) => format!("group of {}", counted(messages, "message")),
                (_, messages) => {
                    format!("{} and {}", self.common_text(), counted(messages, "message"))
                }
            },
            Kind::Barrier => "barrier".into(),
            Kind::SendRecv => {
                format!(
                    "send of {} {} from rank {} to {}",
                    key.count,
                    key.data_type.name(),
                    key.root,
                    key.receiver
                )
            }
            kind => {
                let parts = if key.counts_hash == 0 { "" } else { " in uneven parts" };
                format!("{kind} of {} {}{parts}", key.count, key.data_type.name())
            }
        }
    }
}

fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back() {
        let key = Key {
            kind: Kind::Broadcast,
            data_type: DataType::BF16,
            op: OpKind::Avg,
            in_place: false,
            windows: true,
            root: 3,
            receiver: 0,
            channels: 64,
            count: 99,
            counts_hash: 7,
        };
        let described = Described { collective: 12, ..Described::call(key, Order::Tree, 5) };
        let record = CallRecord { number: 12, words: described.encode() };
        assert_eq!(Described::decode(&record), Some(described));
        let other = Described { key: Key { count: 100, ..key }, ..described };
        assert_eq!(described.difference(&other).unwrap().0, "count");
        let other = Described { key: Key { channels: 0, ..key }, ..described };
        let (what, ours, theirs) = described.difference(&other).unwrap();
        assert_eq!((what, &ours[..], &theirs[..]), ("most channels", "64", "as configured"));
        assert_eq!(described.difference(&described), None);
    }
}
