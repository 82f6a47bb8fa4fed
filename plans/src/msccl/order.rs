//! The order in which one execution of a file comes to its steps.
//!
//! It goes in waves: in each, every thread block takes a step whose message and dependency are from
//! an earlier wave. So the lists of ranks have early what others wait for.
//!
//! Merged, channels between two ranks share a connection here, so that a message may lie behind one
//! of another channel that nobody wants yet. And all slots may be full, while a thread block sends
//! more before it receives. Where nothing else goes on, messages are received early, into scratch.
//! How many may be under way is no part of a file, so what deadlocks here does so however many
//! there are.

use super::Blocks;
use super::fault::{Awaited, MscclFault, Unfit, Waits};
use super::parse::{Algorithm, At, Block, Op, Step};
use crate::schedule::SLOTS;
use std::collections::{HashMap, VecDeque};

/// What a rank does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A step, which takes its message out of scratch if that was received early.
    Step { at: At, early: bool },
    /// The next message between these ranks, in this direction, is received into scratch. It was
    /// sent by this step.
    Early { to: usize, sent: At },
}

/// From, to and channel.
type Channel = (usize, usize, usize);

struct Message {
    channel: usize,
    sent: At,
    wave: usize,
}

struct Execution<'a> {
    algorithm: &'a Algorithm,
    blocks: Blocks,
    slots: usize,
    /// By rank and thread block: its next step.
    next: Vec<Vec<usize>>,
    /// By rank, thread block and step: the wave in which it was done.
    done: Vec<Vec<Vec<Option<usize>>>>,
    /// By what is a connection.
    queues: HashMap<Channel, VecDeque<Message>>,
    early: HashMap<Channel, VecDeque<At>>,
    events: Vec<Event>,
}

/// Runs the file to its end.
pub(super) fn order(algorithm: &Algorithm, blocks: Blocks) -> Result<Vec<Event>, MscclFault> {
    let undone =
        |rank: &Vec<Block>| rank.iter().map(|block| vec![None; block.steps.len()]).collect();
    let mut execution = Execution {
        algorithm,
        blocks,
        slots: SLOTS.on(algorithm.lane) as usize,
        next: algorithm.ranks.iter().map(|rank| vec![0; rank.len()]).collect(),
        done: algorithm.ranks.iter().map(undone).collect(),
        queues: HashMap::new(),
        early: HashMap::new(),
        events: Vec::new(),
    };
    execution.copy_first();
    let mut wave = 1;
    while execution.wave(wave)? || execution.relieve() {
        wave += 1;
    }
    match execution.stuck() {
        waits if waits.is_empty() => Ok(execution.events),
        waits => Err(MscclFault::Deadlock(waits)),
    }
}

impl<'a> Execution<'a> {
    /// What is done before all thread blocks.
    fn copy_first(&mut self) {
        for (rank, blocks) in self.algorithm.ranks.iter().enumerate() {
            for (number, block) in blocks.iter().enumerate().filter(|(_, block)| block.is_first) {
                let steps = 0..block.steps.len();
                let event = |step| Event::Step { at: (rank, number, step), early: false };
                self.events.extend(steps.map(event));
                self.next[rank][number] = block.steps.len();
            }
        }
    }

    /// Whether anything was done.
    fn wave(&mut self, wave: usize) -> Result<bool, MscclFault> {
        let mut any = false;
        for rank in 0..self.next.len() {
            for block in 0..self.next[rank].len() {
                while let Some((at, step)) = self.current(rank, block)
                    && self.can_go(at, wave)
                {
                    any = true;
                    self.next[rank][block] += 1;
                    if step.op == Op::Nop {
                        self.done[rank][block][at.2] = Some(wave - 1);
                        self.events.push(Event::Step { at, early: false });
                        continue;
                    }
                    self.done[rank][block][at.2] = Some(wave);
                    self.go(at, wave)?;
                    break;
                }
            }
        }
        Ok(any)
    }

    /// The next step of a thread block.
    fn current(&self, rank: usize, block: usize) -> Option<(At, &'a Step)> {
        let at = self.next[rank][block];
        let step = self.algorithm.ranks[rank][block].steps.get(at)?;
        Some(((rank, block, at), step))
    }

    fn block(&self, (rank, block, _): At) -> &'a Block {
        &self.algorithm.ranks[rank][block]
    }

    fn incoming(&self, at: At) -> Option<Channel> {
        let block = self.block(at);
        let receives = self.algorithm.step(at).op.receives();
        block.recv.filter(|_| receives).map(|peer| (peer, at.0, block.channel))
    }

    fn outgoing(&self, at: At) -> Option<Channel> {
        let block = self.block(at);
        let sends = self.algorithm.step(at).op.sends();
        block.send.filter(|_| sends).map(|peer| (at.0, peer, block.channel))
    }

    /// The connection of a channel.
    fn connection(&self, (from, to, channel): Channel) -> Channel {
        match self.blocks {
            Blocks::Merged => (from, to, 0),
            Blocks::Lists => (from, to, channel),
        }
    }

    fn can_go(&self, at: At, wave: usize) -> bool {
        self.is_free(at, wave)
            && self.incoming(at).is_none_or(|channel| self.has_come(channel, wave))
            && self.outgoing(at).is_none_or(|channel| self.has_slot(channel))
    }

    /// Whether what it depends on is done.
    fn is_free(&self, at: At, wave: usize) -> bool {
        let done = |(block, step): (usize, usize)| self.done[at.0][block][step];
        self.algorithm.step(at).dependency.is_none_or(|on| done(on).is_some_and(|done| done < wave))
    }

    fn has_come(&self, channel: Channel, wave: usize) -> bool {
        self.early.get(&channel).is_some_and(|early| !early.is_empty())
            || self
                .queues
                .get(&self.connection(channel))
                .and_then(VecDeque::front)
                .is_some_and(|first| first.channel == channel.2 && first.wave < wave)
    }

    fn has_slot(&self, channel: Channel) -> bool {
        let queue = self.queues.get(&self.connection(channel));
        queue.is_none_or(|queue| queue.len() < self.slots)
    }

    fn go(&mut self, at: At, wave: usize) -> Result<(), MscclFault> {
        let mut early = false;
        if let Some(channel) = self.incoming(at) {
            let kept = self.early.get_mut(&channel).and_then(VecDeque::pop_front);
            early = kept.is_some();
            let queue = self.queues.entry(self.connection(channel)).or_default();
            let sent = kept.or_else(|| queue.pop_front().map(|message| message.sent));
            if let Some(sent) = sent {
                self.check_length(at, sent)?;
            }
        }
        if let Some(channel) = self.outgoing(at) {
            let message = Message { channel: channel.2, sent: at, wave };
            self.queues.entry(self.connection(channel)).or_default().push_back(message);
        }
        self.events.push(Event::Step { at, early });
        Ok(())
    }

    fn check_length(&self, at: At, sent: At) -> Result<(), MscclFault> {
        let (step, other) = (self.algorithm.step(at), self.algorithm.step(sent));
        if step.count == other.count {
            return Ok(());
        }
        let (received, line, sent) = (step.count, other.place.line, other.count);
        Err(MscclFault::Line {
            line: step.place.line,
            unfit: Unfit::Length { received, line, sent },
        })
    }

    /// Receives messages early that others wait behind. Whether there were any.
    fn relieve(&mut self) -> bool {
        let mut hindered = Vec::new();
        for (rank, blocks) in self.next.iter().enumerate() {
            for block in 0..blocks.len() {
                let Some((at, _)) = self.current(rank, block) else { continue };
                if !self.is_free(at, usize::MAX) {
                    continue;
                }
                hindered.extend(self.incoming(at).filter(|channel| {
                    let queue = self.queues.get(&self.connection(*channel));
                    !self.has_come(*channel, usize::MAX)
                        && queue.is_some_and(|all| all.iter().any(|one| one.channel == channel.2))
                }));
                hindered.extend(self.outgoing(at).filter(|channel| !self.has_slot(*channel)));
            }
        }
        hindered.iter_mut().for_each(|channel| *channel = self.connection(*channel));
        hindered.sort_unstable();
        hindered.dedup();
        for connection in &hindered {
            let (from, to, _) = *connection;
            let queue = self.queues.get_mut(connection);
            let Some(message) = queue.and_then(VecDeque::pop_front) else { continue };
            self.early.entry((from, to, message.channel)).or_default().push_back(message.sent);
            self.events.push(Event::Early { to, sent: message.sent });
        }
        !hindered.is_empty()
    }

    /// The steps that wait for ever: from the first one on that leads to the cause, each waits for
    /// the next.
    fn stuck(&self) -> Vec<Waits> {
        let all = self.next.iter().enumerate();
        let mut all = all.flat_map(|(rank, blocks)| (0..blocks.len()).map(move |at| (rank, at)));
        let Some(mut at) = all.find(|(rank, block)| self.current(*rank, *block).is_some()) else {
            return Vec::new();
        };
        // The first ones may only lead to the circle.
        for _ in 0..self.next.iter().map(Vec::len).sum() {
            at = self.waits(at).and_then(|(_, next)| next).unwrap_or(at);
        }
        let (mut chain, mut seen) = (Vec::new(), Vec::new());
        while let Some((waits, next)) = self.waits(at) {
            chain.push(waits);
            seen.push(at);
            match next {
                Some(next) if !seen.contains(&next) => at = next,
                _ => break,
            }
        }
        chain
    }

    /// For what a thread block waits, and for which, if that waits too.
    fn waits(&self, (rank, block): (usize, usize)) -> Option<(Waits, Option<(usize, usize)>)> {
        let (at, step) = self.current(rank, block)?;
        let waits = |awaited| Waits { place: step.place, awaited };
        let waiting = |at: (usize, usize)| self.current(at.0, at.1).map(|_| at);
        if let Some((of, index)) = step.dependency.filter(|_| !self.is_free(at, usize::MAX)) {
            let place = self.algorithm.step((rank, of, index)).place;
            return Some((waits(Awaited::Step(place)), waiting((rank, of))));
        }
        if let Some((from, to, channel)) = self.incoming(at)
            && !self.has_come((from, to, channel), usize::MAX)
        {
            let sends = |one: &Block| one.send == Some(to) && one.channel == channel;
            let sender = self.algorithm.ranks[from].iter().position(sends);
            let next = sender.and_then(|sender| {
                let steps = &self.algorithm.ranks[from][sender].steps[self.next[from][sender]..];
                Some((sender, steps.iter().find(|step| step.op.sends())?.place))
            });
            return Some(match next {
                Some((sender, place)) => (waits(Awaited::Message(place)), waiting((from, sender))),
                None => (waits(Awaited::Unsent(from, channel)), None),
            });
        }
        None
    }
}
