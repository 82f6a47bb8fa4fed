//! The messages of a group: send/recv, and all-to-alls of uneven parts. Pure, so that both ends of
//! a message think alike.
//!
//! All messages from one rank to another are concatenated in a virtual buffer and go out in
//! tiles, one a round (`algorithms/exchange.rs`). What fits into a message with flags has one
//! channel, and several share what is longer. A pair takes part in the rounds that it needs, so a
//! rank's rounds fall into phases, each with a program of its own: first those of short pairs, then
//! those of long ones.

use crate::call::{CheckedCall, Counts};
use oxccl_kernels::format::SEGMENT_ALIGN;
use oxccl_plans::collective::Kind;
use oxccl_plans::element::DataType;
use oxccl_plans::length::{Length, TooLong};
use oxccl_plans::lower::part_bytes;
use oxccl_plans::schedule::Lane;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

/// One message from or to this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// The call, by its place in the group.
    pub(super) call: usize,
    pub(super) sender: usize,
    pub(super) receiver: usize,
    pub(super) data_type: DataType,
    pub(super) count: usize,
    /// Where it begins in the sender's input and the receiver's output, in bytes.
    pub(super) input_at: usize,
    pub(super) output_at: usize,
}

/// All messages from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) sender: usize,
    pub(super) receiver: usize,
    /// By their place in the list of messages.
    pub(super) messages: Vec<usize>,
    /// Where it begins in the exchange's virtual buffer, in bytes, and its length.
    pub(super) start: usize,
    pub(super) len_bytes: usize,
    pub(super) lane: Lane,
    /// So many share it.
    pub(super) channels: usize,
}

/// Rounds in which the same pairs take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    pub(super) first_round: usize,
    pub(super) rounds: usize,
    pub(super) channels: usize,
    /// By their place in the list of stretches.
    pub(super) active: Vec<usize>,
}

/// Sizes on which all ranks agree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    /// Bytes of a channel's message in a round.
    pub(super) slot_bytes: usize,
    /// So many channels share long stretches.
    pub(super) channels: usize,
    /// Stretches of up to so many bytes go over the LL lane, in one round.
    pub(super) ll_bytes: usize,
}

impl Message {
    pub(super) fn len_bytes(&self) -> usize {
        self.count * self.data_type.len_bytes()
    }

    /// The other end.
    pub(super) fn peer(&self, rank: usize) -> usize {
        if self.sender == rank { self.receiver } else { self.sender }
    }
}

/// Whether a call is made of messages. Others are collectives.
pub(super) fn has_messages(call: &CheckedCall) -> bool {
    call.collective.kind == Kind::SendRecv || is_exchange(call)
}

/// Whether a call is made of messages to and from many ranks.
pub(super) fn is_exchange(call: &CheckedCall) -> bool {
    matches!(call.counts.as_deref(), Some(Counts::Own { .. }))
}

/// All messages of a group, call by call.
pub(super) fn messages(calls: &[CheckedCall], rank: usize) -> Vec<Message> {
    let mut messages = Vec::new();
    for (at, call) in calls.iter().enumerate().filter(|(_, call)| has_messages(call)) {
        let message = Message {
            call: at,
            sender: call.collective.root,
            receiver: call.collective.receiver,
            data_type: call.data_type,
            count: call.count,
            input_at: 0,
            output_at: 0,
        };
        let Some(Counts::Own { send, recv }) = call.counts.as_deref() else {
            messages.push(message);
            continue;
        };
        let size = call.data_type.len_bytes();
        let (mut input_at, mut output_at) = (0, 0);
        for (peer, (&sent, &received)) in send.iter().zip(recv).enumerate() {
            let places = Message { input_at, output_at, ..message };
            messages.push(Message { sender: rank, receiver: peer, count: sent, ..places });
            if peer != rank {
                messages.push(Message { sender: peer, receiver: rank, count: received, ..places });
            }
            (input_at, output_at) = (input_at + sent * size, output_at + received * size);
        }
    }
    messages
}

/// What goes from each rank to each other, one stretch behind the other in a virtual buffer.
/// `share` says whether two ranks reach each other's memory: the LL lane is for those.
///
/// # Errors
/// [`TooLong`]: all of it together is, which it can be where messages are sent from the same
/// memory.
pub(super) fn stretches(
    messages: &[Message],
    tiles: Tiles,
    share: impl Fn(usize, usize) -> bool,
) -> Result<Vec<Stretch>, TooLong> {
    let mut pairs = BTreeMap::<(usize, usize), Vec<usize>>::new();
    for (at, message) in messages.iter().enumerate() {
        pairs.entry((message.sender, message.receiver)).or_default().push(at);
    }
    let mut end = Length::of_bytes(0)?;
    let stretch = |((sender, receiver), list): ((usize, usize), Vec<usize>)| {
        let start = end.bytes();
        for at in &list {
            end = end.plus(messages[*at].len_bytes())?.padded(SEGMENT_ALIGN)?;
        }
        let len_bytes = end.bytes() - start;
        let is_short = len_bytes <= tiles.ll_bytes;
        let has_flags = is_short && share(sender, receiver);
        let lane = if has_flags { Lane::Ll } else { Lane::Slots };
        let channels = if is_short { 1 } else { tiles.channels };
        Ok(Stretch { sender, receiver, messages: list, start, len_bytes, lane, channels })
    };
    pairs.into_iter().map(stretch).collect()
}

/// A stretch has at least one round, in which its ends find out that they mean the same.
fn rounds(stretch: &Stretch, tiles: Tiles) -> usize {
    part_bytes(stretch.len_bytes, stretch.channels).div_ceil(tiles.slot_bytes).max(1)
}

/// The numbers of channels that stretches have, each once, with those stretches.
pub(super) fn classes(stretches: &[Stretch]) -> BTreeMap<usize, Vec<usize>> {
    let mut classes = BTreeMap::<usize, Vec<usize>>::new();
    for (at, stretch) in stretches.iter().enumerate() {
        classes.entry(stretch.channels).or_default().push(at);
    }
    classes
}

/// This rank's phases.
pub(super) fn phases(stretches: &[Stretch], tiles: Tiles) -> Vec<Phase> {
    let of_class = |(channels, class): (usize, Vec<usize>)| {
        let mut ends: Vec<usize> = class.iter().map(|at| rounds(&stretches[*at], tiles)).collect();
        ends.sort_unstable();
        ends.dedup();
        let mut first_round = 0;
        let phase = move |end: usize| {
            let lasts = |at: &usize| rounds(&stretches[*at], tiles) >= end;
            let active = class.iter().copied().filter(lasts).collect();
            let phase = Phase { first_round, rounds: end - first_round, channels, active };
            first_round = end;
            phase
        };
        ends.into_iter().map(phase)
    };
    classes(stretches).into_iter().flat_map(of_class).collect()
}

/// For each rank what it and this one must agree on: both directions' types and counts, in order. 0
/// where there are no messages.
pub(super) fn signatures(
    stretches: &[Stretch],
    messages: &[Message],
    ranks: usize,
    hasher: impl Fn() -> Box<dyn Hasher>,
) -> Vec<u32> {
    let mut mixes: Vec<Option<Box<dyn Hasher>>> = (0..ranks).map(|_| None).collect();
    // Stretches are sorted, so both ends of a pair take its directions in the same order.
    for stretch in stretches {
        let ends = [stretch.sender, stretch.receiver];
        for peer in ends {
            let mut mix = &mut **mixes[peer].get_or_insert_with(&hasher);
            (ends, stretch.messages.len()).hash(&mut mix);
            for message in stretch.messages.iter().map(|at| &messages[*at]) {
                (message.data_type as u8, message.count).hash(&mut mix);
            }
        }
    }
    mixes.iter().map(|mix| mix.as_ref().map_or(0, |mix| (mix.finish() >> 32) as u32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILES: Tiles = Tiles { slot_bytes: 1024, channels: 1, ll_bytes: 256 };

    fn message(sender: usize, receiver: usize, count: usize) -> Message {
        let (call, data_type) = (0, DataType::F32);
        Message { call, sender, receiver, data_type, count, input_at: 0, output_at: 0 }
    }

    #[test]
    fn pairs_end_when_they_are_done() {
        let messages = [message(0, 1, 600), message(2, 0, 1), message(0, 1, 3), message(0, 3, 256)];
        let stretches = stretches(&messages, TILES, |_, other| other != 3).unwrap();
        let found: Vec<_> =
            stretches.iter().map(|s| (s.sender, s.receiver, s.start, s.len_bytes)).collect();
        assert_eq!(found, [(0, 1, 0, 2496), (0, 3, 2496, 1024), (2, 0, 3520, 64)]);
        assert_eq!(stretches[0].messages, [0, 2]);
        assert_eq!(
            stretches.iter().map(|s| s.lane).collect::<Vec<_>>(),
            [Lane::Slots, Lane::Slots, Lane::Ll]
        );
        let phases = phases(&stretches, TILES);
        let expected = [
            Phase { first_round: 0, rounds: 1, channels: 1, active: vec![0, 1, 2] },
            Phase { first_round: 1, rounds: 2, channels: 1, active: vec![0] },
        ];
        assert_eq!(phases, expected);
    }

    /// Both ends of a pair count its channels and rounds alike, whatever else they have.
    #[test]
    fn long_pairs_have_several_channels_and_come_behind_short_ones() {
        let tiles = Tiles { channels: 4, ..TILES };
        let messages = [message(0, 1, 2049), message(0, 2, 1024), message(3, 0, 64)];
        let all = stretches(&messages, tiles, |_, _| true).unwrap();
        assert_eq!(all.iter().map(|s| s.channels).collect::<Vec<_>>(), [4, 4, 1]);
        let expected = [
            Phase { first_round: 0, rounds: 1, channels: 1, active: vec![2] },
            Phase { first_round: 0, rounds: 1, channels: 4, active: vec![0, 1] },
            Phase { first_round: 1, rounds: 2, channels: 4, active: vec![0] },
        ];
        assert_eq!(phases(&all, tiles), expected);
        let other = stretches(&messages[..1], tiles, |_, _| true).unwrap();
        let expected = [Phase { first_round: 0, rounds: 3, channels: 4, active: vec![0] }];
        assert_eq!(phases(&other, tiles), expected);
    }

    #[test]
    fn nothing_to_say_takes_a_round() {
        let stretches = stretches(&[message(1, 0, 0)], TILES, |_, _| true).unwrap();
        assert_eq!(phases(&stretches, TILES).len(), 1);
        assert_eq!(phases(&[], TILES), []);
    }
}
