//! What ranks' groups differ in, found in the words that each keeps of its buckets where all can read them.

use crate::call::{Described, FREE_SHIFT};
use crate::device::{BUCKET_WORDS, CallRecord, Control, GroupWords};
use crate::engine::logs::Difference;
use crate::error::Error;
use oxccl_plans::collective::Kind;
use std::sync::atomic::{Ordering, fence};

/// Where the bucket's place in its rank's group begins in its first word: ranks need not agree on that.
const PLACE_SHIFT: u32 = FREE_SHIFT;

/// The words of a bucket.
pub(super) type Words = [u64; BUCKET_WORDS];

/// The words of a bucket that is a collective.
pub(super) fn collective_words(place: usize, call: &Described) -> Words {
    let [what, count, roots, counts_hash, factor_bits, _] = call.encode();
    [what | (place as u64) << PLACE_SHIFT, count, roots, counts_hash, factor_bits]
}

/// The words of a message, the `number`th exchange of its two ranks.
pub(super) fn message_words(place: usize, call: &Described, number: u64) -> Words {
    let [what, count, roots, ..] = call.encode();
    [what | (place as u64) << PLACE_SHIFT, count, roots, number, 0]
}

fn place([what, ..]: &Words) -> usize {
    (what >> PLACE_SHIFT) as usize
}

/// What a bucket is, without its place.
fn described([what, count, roots, last, factor_bits]: &Words) -> Option<Described> {
    let what = what & ((1 << PLACE_SHIFT) - 1);
    let is_message = what as u8 == Kind::SendRecv as u8;
    let hash = if is_message { 0 } else { *last };
    Described::decode(&CallRecord {
        number: 0,
        words: [what, *count, *roots, hash, *factor_bits, 0],
    })
}

fn text(call: Option<&Described>) -> String {
    call.map_or("none".into(), Described::text)
}

/// How two buckets differ, of which one rank may have none.
fn difference(ours: Option<&Words>, theirs: Option<&Words>) -> Option<Difference> {
    let (ours, theirs) = (ours.and_then(described), theirs.and_then(described));
    match (&ours, &theirs) {
        (Some(ours), Some(theirs)) => ours.difference(theirs),
        (None, None) => None,
        _ => Some(("the call", text(ours.as_ref()), text(theirs.as_ref()))),
    }
}

/// The first collective in which two groups differ, by its place in this rank's group, and how.
pub(in crate::engine) fn collectives(
    control: &Control,
    (own, mine): (usize, &Described),
    (other, yours): (usize, &Described),
) -> Option<(usize, Difference)> {
    if !mine.is_group() || !yours.is_group() {
        return None;
    }
    let words =
        |rank, call: &Described| control.bucket_words(rank, call.words_offset, call.key.count);
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
    described: Described,
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
    let described = log.record(call).and_then(|record| Described::decode(&record))?;
    if !described.is_group() {
        return None;
    }
    let first = described.words_offset + described.key.count * size_of::<Words>() as u64;
    let messages = control.bucket_words(rank, first, described.messages())?;
    fence(Ordering::Acquire);
    (log.entered() == call).then_some(Exchange { call, described, messages })
}

/// The words of the groups that a rank's log remembers, from the last one on, for those that cannot read them.
pub(in crate::engine) fn words_of_groups(control: &Control, rank: usize) -> Vec<GroupWords> {
    let log = control.log(rank);
    let mut groups: Vec<GroupWords> = Vec::new();
    for number in (log.oldest()..=log.entered()).rev() {
        let Some(described) = log.record(number).and_then(|record| Described::decode(&record))
        else {
            continue;
        };
        let offset = described.words_offset;
        if !described.is_group() || groups.iter().any(|group| group.offset == offset) {
            continue;
        }
        let count = described.key.count + described.messages();
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
pub(in crate::engine) fn messages(control: &Control, own: usize) -> Option<Error> {
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
        let same_group = mine.described.collective != 0
            && mine.described.collective == yours.described.collective;
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
        let call = match mine.described.collective {
            0 => mine.call,
            number => number,
        };
        let what = mine.described.text().into();
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
pub(in crate::engine) fn first_message(
    control: &Control,
    own: usize,
    peer: usize,
    sends: bool,
) -> Option<(usize, String)> {
    let wanted = if sends { (own, peer) } else { (peer, own) };
    let mine = under_way(control, own)?;
    let words = mine.messages.iter().find(|words| ends(words) == wanted)?;
    Some((place(words), text(described(words).as_ref())))
}
