//! A schedule as GOAL, the text of which LogGOPSim and ATLAHS make simulations (Hoefler, Siebert
//! and Lumsdaine 2009): each rank's sends and receives, and which of them come after which.
//!
//! A message carries its chunk whole: rounds and channels, credits and counters are the executor's
//! own. Steps of a rank are in order: what comes after a receive needs its end (`requires`), and
//! after a send its start alone (`irequires`), since a send returns before it is received. Of a
//! message with several segments each is a message. Empty ones are left out.

use std::collections::HashSet;
use std::fmt::Write as _;

use oxccl::plans::schedule::{Instruction, Lane, Layout, Link, Operand};

use super::{Lists, bytes_of};
use crate::failure::Failure;

/// The file's text, with the name of the call in front.
///
/// # Errors
/// A schedule that reaches into peers' buffers, or that sends nothing.
pub(super) fn goal(
    call: &str,
    lists: &Lists,
    layout: &Layout,
    element_bytes: usize,
) -> Result<String, Failure> {
    let refused =
        |why: &str| Failure::Usage(format!("--goal: GOAL has sends and receives alone, and {why}"));
    if matches!(lists, Lists::Alone { .. }) {
        return Err(refused("of one rank there is no partner: leave --rank away"));
    }
    let schedule = lists.schedule();
    if schedule.ranks.iter().flatten().any(reaches_in) {
        return Err(refused("this schedule reaches into peers' buffers: try --encoding slots"));
    }
    let segments = schedule.most_segments().into_iter().map(|(_, most)| most).max().unwrap_or(1);
    let mut text = format!("// {call}\nnum_ranks {}\n", schedule.ranks.len());
    let mut sends = 0;
    for rank in 0..schedule.ranks.len() {
        let mut list = List::new(segments);
        for (step, instruction) in schedule.ranks[rank].iter().enumerate() {
            if let Instruction::ReduceCopy { sources, destinations, .. } = instruction {
                let bytes = bytes_of(lists, layout, rank, step, element_bytes);
                let sources = sources.iter().map(|source| source.operand);
                list.step(bytes, sources, destinations.iter().copied());
            }
        }
        sends += list.sends;
        let _ = write!(text, "\nrank {rank} {{\n{}}}\n", list.text);
    }
    if sends == 0 {
        return Err(refused("this schedule sends no data"));
    }
    Ok(text)
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

/// One rank's sends and receives.
struct List {
    text: String,
    segments: usize,
    /// Labels that are given.
    labels: usize,
    sends: usize,
    /// Messages that have been received: one that is read again is there.
    received: HashSet<Operand>,
    /// What the next step comes after.
    last: Vec<(&'static str, usize)>,
}

impl List {
    fn new(segments: usize) -> List {
        let (text, received) = (String::new(), HashSet::new());
        List { text, segments, labels: 0, sends: 0, received, last: Vec::new() }
    }

    /// Receives what a reduce-copy reads, then sends what it writes.
    fn step(
        &mut self,
        bytes: usize,
        sources: impl Iterator<Item = Operand>,
        destinations: impl Iterator<Item = Operand>,
    ) {
        if bytes == 0 {
            return;
        }
        let mut received = Vec::new();
        for source in sources {
            if let Operand::Slot { link, message, segment } = source
                && link.lane != Lane::Sync
                && self.received.insert(source)
            {
                let what = format!("recv {bytes}b from {}", link.peer);
                received.push(("requires", self.add(&what, link, message, segment)));
            }
        }
        self.follow(received);
        let mut sent = Vec::new();
        for destination in destinations {
            if let Operand::PeerSlot { link, message, segment } = destination
                && link.lane != Lane::Sync
            {
                let what = format!("send {bytes}b to {}", link.peer);
                sent.push(("irequires", self.add(&what, link, message, segment)));
                self.sends += 1;
            }
        }
        self.follow(sent);
    }

    /// Adds a line, after what comes before it. Its label.
    fn add(&mut self, what: &str, link: Link, message: u32, segment: u32) -> usize {
        self.labels += 1;
        let lane = match link.lane {
            Lane::Ll => 0,
            Lane::Ll128 => 1,
            Lane::Slots | Lane::Sync => 2,
        };
        let tag = (message as usize * self.segments + segment as usize) * 3 + lane;
        let label = self.labels;
        let _ = writeln!(self.text, "l{label}: {what} tag {tag}");
        for (kind, before) in &self.last {
            let _ = writeln!(self.text, "l{label} {kind} l{before}");
        }
        label
    }

    /// What comes next is after these, if there are any.
    fn follow(&mut self, labels: Vec<(&'static str, usize)>) {
        if !labels.is_empty() {
            self.last = labels;
        }
    }
}
