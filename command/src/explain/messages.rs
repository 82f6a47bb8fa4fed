//! A schedule's messages, for simulators of messages: each rank's sends and receives, in order.
//!
//! A message carries its chunk whole: rounds and channels, credits and counters are the executor's
//! own. Of a message with several segments each is a message. Empty ones are left out.
//!
//! Lists of a rank run side by side, so messages of two of them are in order only where a signal
//! between the lists says so.

use std::collections::{HashMap, HashSet};

use oxccl::plans::schedule::{Flag, Instruction, Lane, Layout, Link, Operand, Schedule};

use super::{Lists, bytes_of};
use crate::failure::Failure;

/// A send or a receive of a rank.
pub(super) struct Transfer {
    pub(super) sends: bool,
    pub(super) peer: usize,
    pub(super) bytes: usize,
    /// Unlike those of all other messages between the same ranks.
    pub(super) tag: usize,
    /// Which of the rank's lists it is of.
    pub(super) list: usize,
    /// Numbers of the rank's transfers before it: receives have to end, and sends to start.
    pub(super) after: Vec<usize>,
}

/// Each rank's sends and receives, which come after what they are `after`.
///
/// # Errors
/// A schedule that reaches into peers' buffers, has the fabric reduce, or sends nothing; `format`
/// is the flag and the format that was asked for.
pub(super) fn messages(
    format: &str,
    lists: &Lists,
    layout: &Layout,
    element_bytes: usize,
) -> Result<Vec<Vec<Transfer>>, Failure> {
    let refused =
        |why: &str| Failure::Usage(format!("{format} has sends and receives alone, and {why}"));
    if matches!(lists, Lists::Alone { .. }) {
        return Err(refused("of one rank there is no partner: leave --rank away"));
    }
    let schedule = lists.schedule();
    if schedule.lists.iter().flatten().any(reaches_in) {
        return Err(refused("this schedule reaches into peers' buffers: try --encoding slots"));
    }
    if schedule.uses_rails() {
        return Err(refused("this schedule has the fabric's switches reduce"));
    }
    let segments = schedule.most_segments().into_iter().map(|(_, most)| most).max().unwrap_or(1);
    let bytes = |rank: usize, step: usize, instruction: &Instruction| {
        bytes_of(lists, layout, (rank, step), instruction, element_bytes)
    };
    let of_rank = |rank| Walk::new(schedule, segments, rank).run(&bytes);
    let ranks: Vec<Vec<Transfer>> = (0..schedule.collective.ranks).map(of_rank).collect();
    match ranks.iter().flatten().all(|transfer| !transfer.sends) {
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

/// One list of the rank, on the way through it.
#[derive(Default)]
struct Progress {
    /// The next of its steps.
    next: usize,
    /// What its next transfer comes after.
    last: Vec<usize>,
    /// Messages that it has read: one that is read again is there.
    there: HashSet<Operand>,
}

/// A signal's value, and the transfers that came before it.
type Told = (i64, Vec<usize>);

/// On the way through a rank's lists.
struct Walk<'a> {
    schedule: &'a Schedule,
    segments: usize,
    rank: usize,
    lists: Vec<Progress>,
    /// Signals from a list to another of the rank.
    signals: HashMap<(usize, usize), Vec<Told>>,
    transfers: Vec<Transfer>,
}

impl<'a> Walk<'a> {
    fn new(schedule: &'a Schedule, segments: usize, rank: usize) -> Walk<'a> {
        let lists = (0..schedule.lists_per_rank).map(|_| Progress::default()).collect();
        Walk { schedule, segments, rank, lists, signals: HashMap::new(), transfers: Vec::new() }
    }

    /// Each list goes on until it waits for a signal that another has not reached. The schedule is
    /// proven: so all end.
    fn run(mut self, bytes: &impl Fn(usize, usize, &Instruction) -> usize) -> Vec<Transfer> {
        loop {
            let mut goes_on = false;
            for list in 0..self.lists.len() {
                let number = self.schedule.lists_of(self.rank).start + list;
                while let Some(instruction) = self.schedule.lists[number].get(self.lists[list].next)
                {
                    let step = self.schedule.first_step(number) + self.lists[list].next;
                    let rank = self.rank;
                    if !self.step(list, instruction, || bytes(rank, step, instruction)) {
                        break;
                    }
                    self.lists[list].next += 1;
                    goes_on = true;
                }
            }
            if !goes_on {
                return self.transfers;
            }
        }
    }

    /// Whether a list gets past this instruction.
    fn step(
        &mut self,
        list: usize,
        instruction: &Instruction,
        bytes: impl FnOnce() -> usize,
    ) -> bool {
        match instruction {
            Instruction::Wait { flag, value } => match self.other_list(*flag) {
                Some(other) => self.await_signal((other, list), *value),
                None => true,
            },
            Instruction::Signal { flag, value } => {
                if let Some(other) = self.other_list(*flag) {
                    let told = (*value, self.lists[list].last.clone());
                    self.signals.entry((list, other)).or_default().push(told);
                }
                true
            }
            Instruction::ReduceCopy { sources, destinations, .. } => {
                let bytes = bytes();
                let there = &mut self.lists[list].there;
                let read = sources.iter().map(|source| source.operand);
                let read = read.filter(|operand| operand.is_slot() && there.insert(*operand));
                let read: Vec<Operand> = read.collect();
                self.add(list, bytes, &read);
                self.add(list, bytes, destinations);
                true
            }
        }
    }

    /// The rank's list at the other end, if the flag is between two of its lists.
    fn other_list(&self, flag: Flag) -> Option<usize> {
        let (Flag::Tail(link) | Flag::Head(link)) = flag;
        (link.peer == self.rank).then_some(usize::from(link.list))
    }

    /// Whether the signal has come. What was before it is before the next of the list's.
    fn await_signal(&mut self, (from, to): (usize, usize), value: i64) -> bool {
        if value <= 0 {
            return true;
        }
        let mut told = self.signals.get(&(from, to)).into_iter().flatten();
        let Some((_, before)) = told.find(|(told, _)| *told >= value) else {
            return false;
        };
        let last = &mut self.lists[to].last;
        last.extend(before);
        last.sort_unstable();
        last.dedup();
        true
    }

    /// Adds the messages among these operands, after what comes before them; what comes next in the
    /// list is after these.
    fn add(&mut self, list: usize, bytes: usize, operands: &[Operand]) {
        let before = self.transfers.len();
        for operand in operands {
            let (sends, link, message, segment) = match *operand {
                Operand::Slot { link, message, segment } => (false, link, message, segment),
                Operand::PeerSlot { link, message, segment } => (true, link, message, segment),
                _ => continue,
            };
            let Some(tag) = self.tag(list, sends, link, (message, segment)).filter(|_| bytes > 0)
            else {
                continue;
            };
            let after = self.lists[list].last.clone();
            self.transfers.push(Transfer { sends, peer: link.peer, bytes, tag, list, after });
        }
        if self.transfers.len() > before {
            self.lists[list].last = (before..self.transfers.len()).collect();
        }
    }

    /// None of what carries no data.
    fn tag(
        &self,
        list: usize,
        sends: bool,
        link: Link,
        (message, segment): (u32, u32),
    ) -> Option<usize> {
        let lane = match link.lane {
            Lane::Ll => 0,
            Lane::Ll128 => 1,
            Lane::Slots => 2,
            Lane::Sync => return None,
        };
        let other = usize::from(link.list);
        let (from, to) = if sends { (list, other) } else { (other, list) };
        let number = (message as usize * self.segments + segment as usize) * 3 + lane;
        Some((number * self.lists.len() + from) * self.lists.len() + to)
    }
}
