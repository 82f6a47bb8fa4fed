//! A schedule's messages, for simulators of messages: each rank's sends and receives, in order.
//!
//! A message carries its chunk whole: rounds and channels, credits and counters are the executor's
//! own. Of a message with several segments each is a message. Empty ones are left out.

use std::collections::HashSet;

use oxccl::plans::schedule::{Instruction, Lane, Layout, Link, Operand};

use super::{Lists, bytes_of};
use crate::failure::Failure;

pub(super) struct Message {
    pub(super) peer: usize,
    pub(super) bytes: usize,
    /// Unlike those of all other messages between the same ranks.
    pub(super) tag: usize,
}

/// What one reduce-copy receives before it, and sends.
pub(super) struct Step {
    pub(super) received: Vec<Message>,
    pub(super) sent: Vec<Message>,
}

/// Each rank's steps that receive or send.
///
/// # Errors
/// A schedule that reaches into peers' buffers, or that sends nothing; `format` is the flag and the
/// format that was asked for.
pub(super) fn messages(
    format: &str,
    lists: &Lists,
    layout: &Layout,
    element_bytes: usize,
) -> Result<Vec<Vec<Step>>, Failure> {
    let refused =
        |why: &str| Failure::Usage(format!("{format} has sends and receives alone, and {why}"));
    if matches!(lists, Lists::Alone { .. }) {
        return Err(refused("of one rank there is no partner: leave --rank away"));
    }
    let schedule = lists.schedule();
    if schedule.lists.iter().flatten().any(reaches_in) {
        return Err(refused("this schedule reaches into peers' buffers: try --encoding slots"));
    }
    if schedule.lists_per_rank > 1 {
        return Err(refused("one list a rank, of which this schedule has several"));
    }
    let segments = schedule.most_segments().into_iter().map(|(_, most)| most).max().unwrap_or(1);
    let ranks: Vec<Vec<Step>> = (0..schedule.lists.len())
        .map(|rank| steps(lists, layout, element_bytes, segments, rank))
        .collect();
    match ranks.iter().flatten().all(|step| step.sent.is_empty()) {
        true => Err(refused("this schedule sends no data")),
        false => Ok(ranks),
    }
}

fn reaches_in(instruction: &Instruction) -> bool {
    match instruction {
        Instruction::ReduceCopy { sources, destinations, .. } => {
            let read = sources.iter().map(|source| &source.operand);
            read.chain(destinations).any(Operand::is_window)
        }
        _ => false,
    }
}

fn steps(
    lists: &Lists,
    layout: &Layout,
    element_bytes: usize,
    segments: usize,
    rank: usize,
) -> Vec<Step> {
    // A message that is read again is there.
    let mut there = HashSet::new();
    let mut steps = Vec::new();
    for (step, instruction) in lists.of(rank) {
        let Instruction::ReduceCopy { sources, destinations, .. } = instruction else { continue };
        let bytes = bytes_of(lists, layout, (rank, step), instruction, element_bytes);
        let message = |link: Link, message: u32, segment: u32| {
            let lane = match link.lane {
                Lane::Ll => 0,
                Lane::Ll128 => 1,
                Lane::Slots => 2,
                Lane::Sync => return None,
            };
            let tag = (message as usize * segments + segment as usize) * 3 + lane;
            (bytes > 0).then_some(Message { peer: link.peer, bytes, tag })
        };
        let received = sources.iter().filter_map(|source| match source.operand {
            Operand::Slot { link, message: number, segment } if there.insert(source.operand) => {
                message(link, number, segment)
            }
            _ => None,
        });
        let received: Vec<Message> = received.collect();
        let sent = destinations.iter().filter_map(|destination| match *destination {
            Operand::PeerSlot { link, message: number, segment } => message(link, number, segment),
            _ => None,
        });
        let sent: Vec<Message> = sent.collect();
        if !received.is_empty() || !sent.is_empty() {
            steps.push(Step { received, sent });
        }
    }
    steps
}
