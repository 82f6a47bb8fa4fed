//! What ranks' groups differ in, found in the words that each keeps of its buckets where all can read them.

use crate::call::{Difference, FREE_SHIFT, GroupRecord, Record, SIGNATURE_WORDS, Signature};
use crate::device::{BUCKET_WORDS, Control, GroupWords};
use crate::error::Error;
use oxccl_plans::collective::Kind;
use std::sync::atomic::{Ordering, fence};

/// Where the bucket's place in its rank's group begins in its first word: ranks need not agree on that.
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
    let (mine, yours) = (mine.group()?, yours.group()?);
    let words = |rank, group: &GroupRecord| {
        control.bucket_words(rank, group.words_offset, group.collectives)
    };
    let (ours, theirs) = (words(own, mine)?, words(other, yours)?);
    (0..ours.len().max(theirs.len())).find_map(|at| {
        let (ours, theirs) = (ours.get(at), theirs.get(at));
        let found = difference(ours, theirs)?;
        Some((ours.or(theirs).map_or(at, place), found))
    })
}

/// A group under way and its messages.
struct Exchange {
    call: u64,
    record: Record,
    messages: Vec<Words>,
}

/// The group that a rank is inside of, if it is. It stays as it was read: a rank rewrites its words only between calls.
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

/// The words of the groups that a rank's log remembers, from the last one on, for those that cannot read them.
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

/// The first message of this rank's group that its other end does not have, or has otherwise. Which of the other's groups must have it is
/// known by the number of the exchange of the two, or because the group is one of all ranks.
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
        let (ours, theirs, argument, at) = pairs.iter().find_map(|(from, to)| {
            let (ours, theirs) = (of_pair(&mine, *from, *to), of_pair(&yours, *from, *to));
            (0..ours.len().max(theirs.len())).find_map(|at| {
                let (argument, us, them) = difference(ours.get(at), theirs.get(at))?;
                Some((us, them, argument, ours.get(at).map(place)))
            })
        })?;
        let call = match mine.record.collective {
            0 => mine.call,
            number => number,
        };
        let what = mine.record.text().into();
        Some(Error::Mismatch {
            call,
            bucket: at,
            argument,
            rank: peer,
            theirs,
            compared_with: own,
            ours,
            what,
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
