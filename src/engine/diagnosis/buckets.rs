//! What ranks' groups differ in, found in the words that each keeps of its buckets where all can
//! read them.

use crate::call::{Difference, FREE_SHIFT, GroupRecord, Record, SIGNATURE_WORDS, Signature};
use crate::device::{BUCKET_WORDS, Control, GroupWords};
use crate::error::Error;
use oxccl_plans::collective::Kind;
use std::sync::atomic::{Ordering, fence};

/// Where the bucket's place in its rank's group begins in its first word: ranks need not agree on
/// that.
const PLACE_SHIFT: u32 = FREE_SHIFT;

/// The words of a bucket.
pub(in crate::engine) type Words = [u64; BUCKET_WORDS];
const _: () = assert!(BUCKET_WORDS == SIGNATURE_WORDS);

/// The words of a bucket that is a collective.
pub(in crate::engine) fn collective_words(place: usize, call: &Signature) -> Words {
    let mut words = call.encode();
    words[0] |= (place as u64) << PLACE_SHIFT;
    words
}

/// The words of a message, the `number`th exchange of its two ranks.
pub(in crate::engine) fn message_words(place: usize, call: &Signature, number: u64) -> Words {
    let [what, count, ends, ..] = call.encode();
    [what | (place as u64) << PLACE_SHIFT, count, ends, number, 0]
}

fn place([what, ..]: &Words) -> usize {
    (what >> PLACE_SHIFT) as usize
}

/// What a bucket is, without its place.
fn signature([what, count, ends, last, factor_bits]: &Words) -> Option<Signature> {
    let what = what & ((1 << PLACE_SHIFT) - 1);
    let is_message = what as u8 == Kind::SendRecv as u8;
    let hash = if is_message { 0 } else { *last };
    Signature::decode(&[what, *count, *ends, hash, *factor_bits])
}

fn text(call: Option<&Signature>) -> String {
    call.map_or("none".into(), Signature::text)
}

/// How two buckets differ, of which one rank may have none.
fn difference(ours: Option<&Words>, theirs: Option<&Words>) -> Option<Difference> {
    let (ours, theirs) = (ours.and_then(signature), theirs.and_then(signature));
    match (&ours, &theirs) {
        (Some(ours), Some(theirs)) => ours.difference(theirs),
        (None, None) => None,
        _ => Some(("the call", text(ours.as_ref()), text(theirs.as_ref()))),
    }
}

/// The first collective in which two groups differ, by its place in this rank's group, and how.
pub(super) fn collectives(
    control: &Control,
    (own, mine): (usize, &Record),
    (other, yours): (usize, &Record),
) -> Option<(usize, Difference)> {
    let words = |rank, record: &Record| collectives_words(control, rank, record.group()?);
    let (ours, theirs) = (words(own, mine)?, words(other, yours)?);
    (0..ours.len().max(theirs.len())).find_map(|at| {
        let (ours, theirs) = (ours.get(at), theirs.get(at));
        let found = difference(ours, theirs)?;
        Some((ours.or(theirs).map_or(at, place), found))
    })
}

/// The words of a group's collectives, if they are still those: a rank may have ended since, or
/// used them for another group.
fn collectives_words(control: &Control, rank: usize, group: &GroupRecord) -> Option<Vec<Words>> {
    let words = control.bucket_words(rank, group.words_offset, group.collectives)?;
    let signatures: Option<Vec<Signature>> = words.iter().map(signature).collect();
    (GroupRecord::hash_of(&signatures?) == group.hash).then_some(words)
}

/// A group under way and its messages.
struct Exchange {
    call: u64,
    record: Record,
    messages: Vec<Words>,
}

impl Exchange {
    /// The error that compares another rank with this group, which is `own`'s.
    fn differs(
        &self,
        own: usize,
        other: usize,
        bucket: Option<usize>,
        (argument, ours, theirs): Difference,
    ) -> Error {
        let call = match self.record.collective {
            0 => self.call,
            number => number,
        };
        let what = self.record.text().into();
        Error::Mismatch {
            call,
            bucket,
            argument,
            rank: other,
            theirs,
            compared_with: own,
            ours,
            what,
        }
    }
}

/// The group that a rank is inside of, if it is. It stays as it was read: a rank rewrites its words
/// only between calls.
fn under_way(control: &Control, rank: usize) -> Option<Exchange> {
    let log = control.log(rank);
    last(control, rank).filter(|_| log.is_inside())
}

/// The last call of a rank, if that is a group.
fn last(control: &Control, rank: usize) -> Option<Exchange> {
    let log = control.log(rank);
    let call = log.entered();
    let record = log.record(call).and_then(|record| Record::decode(&record))?;
    let group = record.group()?;
    let first = group.words_offset + group.collectives * size_of::<Words>() as u64;
    let messages = control.bucket_words(rank, first, group.messages)?;
    fence(Ordering::Acquire);
    (log.entered() == call).then_some(Exchange { call, record, messages })
}

/// The words of the groups that a rank's log remembers, from the last one on, for those that cannot
/// read them.
pub(in crate::engine) fn words_of_groups(control: &Control, rank: usize) -> Vec<GroupWords> {
    let log = control.log(rank);
    let mut groups: Vec<GroupWords> = Vec::new();
    for number in (log.oldest()..=log.entered()).rev() {
        let record = log.record(number).and_then(|record| Record::decode(&record));
        let Some(group) = record.as_ref().and_then(Record::group) else { continue };
        let offset = group.words_offset;
        if groups.iter().any(|group| group.offset == offset) {
            continue;
        }
        let count = group.collectives + group.messages;
        if let Some(words) = control.bucket_words(rank, offset, count) {
            groups.push(GroupWords { offset, words });
        }
    }
    groups
}

/// Sender and receiver.
fn ends([_, _, roots, ..]: &Words) -> (usize, usize) {
    (*roots as u32 as usize, (*roots >> 32) as usize)
}

/// The first message of this rank's group that its other end does not have, or has otherwise. Which
/// of the other's groups must have it is known by the number of the exchange of the two, or because
/// the group is one of all ranks.
pub(super) fn messages(control: &Control, own: usize) -> Option<Error> {
    let mine = under_way(control, own)?;
    let peer_of = |words: &Words| {
        let (sender, receiver) = ends(words);
        if sender == own { receiver } else { sender }
    };
    let mut peers: Vec<usize> = mine.messages.iter().map(peer_of).collect();
    peers.dedup();
    peers.into_iter().filter(|peer| *peer != own).find_map(|peer| {
        let yours = under_way(control, peer)?;
        let number = mine.messages.iter().find(|words| peer_of(words) == peer)?[3];
        let of_pair = |exchange: &Exchange, from: usize, to: usize| -> Vec<Words> {
            let fits = |words: &&Words| ends(words) == (from, to) && words[3] == number;
            exchange.messages.iter().filter(fits).copied().collect()
        };
        let pairs = [(own, peer), (peer, own)];
        let same_group =
            mine.record.collective != 0 && mine.record.collective == yours.record.collective;
        let has_any = pairs.iter().any(|(from, to)| !of_pair(&yours, *from, *to).is_empty());
        if !same_group && !has_any {
            return None;
        }
        pairs.iter().find_map(|(from, to)| {
            let (ours, theirs) = (of_pair(&mine, *from, *to), of_pair(&yours, *from, *to));
            (0..ours.len().max(theirs.len())).find_map(|at| {
                let (us, them) = (ours.get(at), theirs.get(at));
                let found = difference(us, them)?;
                // Whoever lacks a message is named, whichever of the two looks.
                Some(match us {
                    Some(us) => mine.differs(own, peer, Some(place(us)), found),
                    None => {
                        let (argument, ours, theirs) = found;
                        yours.differs(peer, own, them.map(place), (argument, theirs, ours))
                    }
                })
            })
        })
    })
}

/// This rank's first message to or from another, with its bucket, in words.
pub(super) fn first_message(
    control: &Control,
    own: usize,
    peer: usize,
    sends: bool,
) -> Option<(usize, String)> {
    let wanted = if sends { (own, peer) } else { (peer, own) };
    let mine = under_way(control, own)?;
    let words = mine.messages.iter().find(|words| ends(words) == wanted)?;
    Some((place(words), text(signature(words).as_ref())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::What;
    use crate::device::ControlShape;
    use oxccl_plans::collective::Order;
    use oxccl_plans::element::DataType;
    use oxccl_transports::Region;
    use std::sync::Arc;

    fn call(count: usize) -> Signature {
        Signature { kind: Kind::Scatter, ..Signature::message(DataType::F32, count, 0, 0) }
    }

    #[test]
    fn words_that_have_become_others_tell_nothing() {
        let shape = ControlShape { channels: 1 };
        let region = Arc::new(Region::create("test", shape.len_bytes()).unwrap());
        let control = Control::new(shape, 0, vec![Some(region)]).unwrap();
        let group = |calls: &[Signature]| {
            let block = control.groups().alloc(calls.len() * size_of::<Words>()).unwrap();
            for (at, call) in calls.iter().enumerate() {
                let to = block.as_ptr().cast::<Words>().wrapping_add(at);
                // SAFETY: within the block, which nobody else uses.
                unsafe { to.write(collective_words(at, call)) };
            }
            let group = GroupRecord {
                order: Order::Any,
                collectives: calls.len() as u64,
                messages: 0,
                hash: GroupRecord::hash_of(calls),
                words_offset: block.offset() as u64,
            };
            (block, Record::new(What::Group(group)))
        };
        let ((_mine, mine), (yours, other)) =
            (group(&[call(7), call(8)]), group(&[call(7), call(9)]));
        let found = || collectives(&control, (0, &mine), (0, &other));
        let (bucket, (argument, ..)) = found().unwrap();
        assert_eq!((bucket, argument), (1, "count"));
        drop(yours);
        assert_eq!(found(), None, "its pages have been given back");
    }
}
