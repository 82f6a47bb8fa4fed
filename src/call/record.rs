//! What a rank's log says of one launch: the words of a [`CallRecord`], and back.

use super::mix::Mix;
use super::signature::{Difference, FREE_SHIFT, Signature, order};
use crate::device::{CallRecord, RECORD_WORDS};
use oxccl_plans::collective::{Kind, Order};
use std::hash::{Hash, Hasher};

/// One launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Number among the launches that all ranks make; 0 for those of messages alone.
    pub(crate) collective: u64,
    pub(crate) what: What,
}

/// What was launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// One call.
    Call(Signature),
    /// Another number of calls than one.
    Group(GroupRecord),
    /// What all ranks do beside the machine.
    Meeting(Meeting),
}

/// What all ranks do together beside the machine, over the connection to the rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Meeting {
    Close,
    Split,
    Barrier,
    Times,
    Grow,
    Suspend,
    Resume,
    Kernels,
}

impl Meeting {
    const ALL: [Meeting; 8] = [
        Meeting::Close,
        Meeting::Split,
        Meeting::Barrier,
        Meeting::Times,
        Meeting::Grow,
        Meeting::Suspend,
        Meeting::Resume,
        Meeting::Kernels,
    ];

    fn name(self) -> &'static str {
        match self {
            Meeting::Close => "close",
            Meeting::Split => "split",
            Meeting::Barrier => "monitored_barrier",
            Meeting::Times => "call_times",
            Meeting::Grow => "grow",
            Meeting::Suspend => "suspend",
            Meeting::Resume => "resume",
            Meeting::Kernels => "device_communicator",
        }
    }
}

/// A group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupRecord {
    pub(crate) order: Order,
    /// How many of its calls are collectives.
    pub(crate) collectives: u64,
    /// Its messages.
    pub(crate) messages: u64,
    /// Of the collectives.
    pub(crate) hash: u64,
    /// Where the words of its buckets begin in the rank's control memory.
    pub(crate) words_offset: u64,
}

impl GroupRecord {
    /// The hash of a group's collectives.
    pub(crate) fn hash_of(collectives: &[Signature]) -> u64 {
        let mut mix = Mix::default();
        collectives.hash(&mut mix);
        mix.finish()
    }
}

/// In the first word: what the others are of. Signatures leave these bits alone.
const GROUP: u64 = 1 << FREE_SHIFT;
const MEETING: u64 = 1 << (FREE_SHIFT + 1);
const ORDER_SHIFT: u32 = 24;

impl Record {
    pub(crate) fn new(what: What) -> Record {
        Record { collective: 0, what }
    }

    /// The group, if it is one.
    pub(crate) fn group(&self) -> Option<&GroupRecord> {
        match &self.what {
            What::Group(group) => Some(group),
            What::Call(_) | What::Meeting(_) => None,
        }
    }

    /// Whether all ranks make it, so that it has a number among the collectives.
    pub(crate) fn is_collective(&self) -> bool {
        match &self.what {
            What::Call(signature) => signature.kind != Kind::SendRecv,
            What::Group(group) => group.collectives > 0,
            What::Meeting(_) => true,
        }
    }

    pub(crate) fn encode(&self) -> [u64; RECORD_WORDS] {
        let [what, count, ends, hash, last] = match &self.what {
            What::Call(signature) => signature.encode(),
            What::Group(group) => [
                GROUP | (group.order as u64) << ORDER_SHIFT,
                group.collectives,
                group.words_offset,
                group.hash,
                group.messages,
            ],
            What::Meeting(meeting) => [MEETING, *meeting as u64, 0, 0, 0],
        };
        [what, count, ends, hash, last, self.collective]
    }

    /// Gives the launch its number, here and in its words.
    #[inline]
    pub(crate) fn number(&mut self, collective: u64, words: &mut [u64; RECORD_WORDS]) {
        self.collective = collective;
        words[RECORD_WORDS - 1] = collective;
    }

    /// `None` for words that no rank writes.
    pub(crate) fn decode(record: &CallRecord) -> Option<Record> {
        let [what, count, ends, hash, last, collective] = record.words;
        let what = match what & (GROUP | MEETING) {
            GROUP => What::Group(GroupRecord {
                order: order((what >> ORDER_SHIFT) as u8)?,
                collectives: count,
                messages: last,
                hash,
                words_offset: ends,
            }),
            MEETING => What::Meeting(*Meeting::ALL.get(count as usize)?),
            _ => What::Call(Signature::decode(&[what, count, ends, hash, last])?),
        };
        Some(Record { collective, what })
    }

    /// The first thing in which what two ranks launched differs.
    pub(crate) fn difference(&self, other: &Record) -> Option<Difference> {
        if let (What::Call(one), What::Call(other)) = (&self.what, &other.what) {
            return one.difference(other);
        }
        let hash = |record: &Record| match record.group() {
            Some(group) => format!("hash {:x}", group.hash),
            None => String::new(),
        };
        let mut rows = vec![("the call", self.common_text(), other.common_text())];
        if let (Some(one), Some(two)) = (self.group(), other.group()) {
            rows.push(("order", one.order.to_string(), two.order.to_string()));
            rows.push(("a bucket", hash(self), hash(other)));
        }
        rows.into_iter().find(|(_, ours, theirs)| ours != theirs)
    }

    /// What all ranks launch, in a few words.
    fn common_text(&self) -> String {
        match self.group() {
            Some(group) => format!("group of {}", counted(group.collectives, "collective")),
            None => self.text(),
        }
    }

    /// The launch in a few words.
    pub(crate) fn text(&self) -> String {
        match &self.what {
            What::Call(signature) => signature.text(),
            What::Meeting(meeting) => meeting.name().into(),
            What::Group(group) => match (group.collectives, group.messages) {
                (_, 0) => self.common_text(),
                (0, messages) => format!("group of {}", counted(messages, "message")),
                (_, messages) => {
                    format!("{} and {}", self.common_text(), counted(messages, "message"))
                }
            },
        }
    }
}

fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{CallOptions, Options};
    use oxccl_plans::algorithms::{Algorithm, Encoding};
    use oxccl_plans::element::{DataType, OpKind};

    const SIGNATURE: Signature = Signature {
        kind: Kind::Broadcast,
        data_type: DataType::BF16,
        op: OpKind::Avg,
        order: Order::Tree,
        in_place: false,
        windows: true,
        copies: false,
        root: 3,
        receiver: 0,
        options: Options::of_plan_bits(64 << 9),
        count: 99,
        counts_hash: 7,
        factor_bits: 5,
    };

    fn call(signature: Signature) -> Record {
        Record { collective: 12, what: What::Call(signature) }
    }

    #[test]
    fn a_record_comes_back() {
        let group = GroupRecord {
            order: Order::Rank,
            collectives: 3,
            messages: 2,
            hash: u64::MAX,
            words_offset: 1 << 40,
        };
        let meetings = Meeting::ALL.map(What::Meeting);
        for what in [What::Call(SIGNATURE), What::Group(group)].into_iter().chain(meetings) {
            let record = Record { collective: 12, what };
            let written = CallRecord { number: 12, words: record.encode() };
            assert_eq!(Record::decode(&written), Some(record));
            assert_eq!(record.difference(&record), None);
        }
    }

    #[test]
    fn whatever_a_call_asks_for_it_is_taken_for_a_call() {
        let options = |algorithm, encoding, channels| {
            let given = CallOptions { algorithm, encoding, channels, ..CallOptions::default() };
            Options::of_plan_bits(given.terms(64).unwrap().options.plan_bits())
        };
        for algorithm in Algorithm::ALL.into_iter().filter(|one| *one != Algorithm::Custom) {
            for encoding in [None].into_iter().chain(Encoding::ALL.map(Some)) {
                for (channels, copies) in [(None, false), (Some(64), true)] {
                    let options = options(Some(algorithm), encoding, channels);
                    let record = call(Signature { options, copies, ..SIGNATURE });
                    let written = CallRecord { number: 1, words: record.encode() };
                    assert_eq!(Record::decode(&written), Some(record));
                }
            }
        }
    }

    #[test]
    fn what_differs_is_named() {
        let one = call(SIGNATURE);
        let other = call(Signature { count: 100, ..SIGNATURE });
        assert_eq!(one.difference(&other).unwrap().0, "count");
        let copied = Signature { copies: true, ..SIGNATURE };
        let (what, ours, theirs) = one.difference(&call(copied)).unwrap();
        assert_eq!(
            (what, &ours[..], &theirs[..]),
            ("what moves the data", "kernels", "copy engines")
        );
        let (a, b) = (call(copied), call(Signature { factor_bits: 4096, ..copied }));
        let (what, ours, theirs) = a.difference(&b).unwrap();
        let places = ("0x5 of its heap", "0x1000 of its heap");
        assert_eq!((what, (&ours[..], &theirs[..])), ("where peers read", places));
        let other = call(Signature { options: Options::NONE, ..SIGNATURE });
        let (what, ours, theirs) = one.difference(&other).unwrap();
        assert_eq!((what, &ours[..], &theirs[..]), ("most channels", "64", "as configured"));
        let (what, ours, theirs) =
            one.difference(&Record::new(What::Meeting(Meeting::Close))).unwrap();
        let text = "broadcast of 99 bfloat16 in uneven parts";
        assert_eq!((what, &ours[..], &theirs[..]), ("the call", text, "close"));
    }
}
