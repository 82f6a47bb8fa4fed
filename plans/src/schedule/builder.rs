//! Builds one rank's list of instructions and keeps count of messages, so that algorithms say only
//! what goes where.

use super::{Flag, Instruction, Link, Operand, Rail, SEGMENTS, Source, Tree};
use crate::hash::Map;
use oxccl_format::{Lane, MAX_OPERANDS};
use std::hash::Hash;

/// Slots per connection, by lane. Powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slots {
    /// On the LL lane.
    pub ll: u32,
    /// On the LL128 lane.
    pub ll128: u32,
    /// On the slots lane.
    pub slots: u32,
}

impl Slots {
    /// The number on this lane; 0 where the lane has none.
    pub fn on(self, lane: Lane) -> u32 {
        match lane {
            Lane::Ll => self.ll,
            Lane::Ll128 => self.ll128,
            Lane::Slots => self.slots,
            Lane::Sync => 0,
        }
    }
}

/// The builder of one rank's instructions for one round.
///
/// `transfer` is the one primitive: it waits for credits and arrivals, reduces or copies, and
/// signals. The rest are the field's usual names for its common forms. Messages of several segments
/// are opened, moved segment by segment, and closed.
#[derive(Debug)]
pub struct RankBuilder {
    rank: usize,
    slots: Slots,
    tree: Tree,
    sent: Counts,
    received: Counts,
    /// Messages that this rank has given to the switches of rails, and that it has read.
    contributed: Map<Rail, u32>,
    reduced: Map<Rail, u32>,
    /// Messages that the transfer at hand opens.
    opened: Vec<Operand>,
    one_by_one: bool,
    instructions: Vec<Instruction>,
}

/// What [`RankBuilder::transfer`] reads.
#[derive(Clone, Copy, Debug)]
pub enum Read {
    /// Memory or a segment, as it is.
    Plain(Operand),
    /// Memory or a segment: a rank's unscaled contribution.
    Raw(Operand),
    /// The next message on a link, as it is.
    Recv(Link),
    /// The next message on a link: a rank's unscaled contribution.
    RecvRaw(Link),
}

/// What [`RankBuilder::transfer`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Memory or a segment.
    To(Operand),
    /// The next message on a link.
    Send(Link),
}

/// A message that is read segment by segment.
#[derive(Debug)]
pub struct Incoming {
    link: Link,
    message: u32,
    next: u32,
}

impl Incoming {
    /// The next segment.
    pub fn segment(&mut self) -> Operand {
        self.next += 1;
        Operand::Slot { link: self.link, message: self.message, segment: self.next - 1 }
    }
}

/// A message that is written segment by segment.
#[derive(Debug)]
pub struct Outgoing {
    link: Link,
    message: u32,
    next: u32,
}

impl Outgoing {
    /// The next segment.
    pub fn segment(&mut self) -> Operand {
        self.next += 1;
        Operand::PeerSlot { link: self.link, message: self.message, segment: self.next - 1 }
    }
}

impl RankBuilder {
    /// An empty list; several sources are combined as `tree` says.
    pub fn new(rank: usize, slots: Slots, tree: Tree) -> RankBuilder {
        RankBuilder {
            rank,
            slots,
            tree,
            sent: Counts::default(),
            received: Counts::default(),
            contributed: Map::default(),
            reduced: Map::default(),
            opened: Vec::new(),
            one_by_one: false,
            instructions: Vec::new(),
        }
    }

    /// Messages to several peers are announced one by one, but for those that announce themselves:
    /// where they cross between nodes, one is on its way while the next is written.
    pub fn one_by_one(self, one_by_one: bool) -> RankBuilder {
        RankBuilder { one_by_one, ..self }
    }

    /// The finished list.
    pub fn finish(self) -> Vec<Instruction> {
        self.instructions
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Waits for what the operands need, reduces or copies, signals. `finish`: the result is final.
    pub fn transfer(&mut self, reads: &[Read], writes: &[Write], finish: bool) {
        self.transfer_as(self.tree, reads, writes, finish);
    }

    /// As [`RankBuilder::transfer`], with sources combined as `tree` says.
    pub fn transfer_as(&mut self, tree: Tree, reads: &[Read], writes: &[Write], finish: bool) {
        let mut opened = std::mem::take(&mut self.opened);
        let sources = reads.iter().map(|read| self.open_read(*read, &mut opened)).collect();
        let destinations =
            writes.iter().map(|write| self.open_write(*write, &mut opened)).collect();
        self.instructions.push(Instruction::ReduceCopy { sources, destinations, tree, finish });
        for operand in opened.drain(..) {
            self.close(operand);
        }
        self.opened = opened;
    }

    /// Copies one thing to others.
    pub fn copy(&mut self, source: Operand, destinations: &[Operand]) {
        let writes: Vec<Write> = destinations.iter().map(|to| Write::To(*to)).collect();
        self.transfer(&[Read::Plain(source)], &writes, false);
    }

    /// Sends memory over a link.
    pub fn send(&mut self, source: Operand, link: Link) {
        self.transfer(&[Read::Plain(source)], &[Write::Send(link)], false);
    }

    /// How many messages over such links are opened, and closed, together.
    fn together(&self, link: Option<Link>) -> usize {
        let has_flags = link.is_none_or(|link| link.lane.has_flags());
        if self.one_by_one && !has_flags { 1 } else { usize::MAX }
    }

    /// Sends memory over several links, together: it is read once.
    pub fn send_all(&mut self, source: Operand, links: &[Link]) {
        let together = self.together(links.first().copied()).min(MAX_OPERANDS - 1);
        for links in links.chunks(together) {
            let writes: Vec<Write> = links.iter().copied().map(Write::Send).collect();
            self.transfer(&[Read::Plain(source)], &writes, false);
        }
    }

    /// Sends to each peer something of its own, together: all credits are awaited first, and all
    /// messages announced last, so that the copies follow one another. A GPU makes them one step,
    /// and whoever receives from everybody waits for the last one anyway.
    pub fn send_each(&mut self, sends: impl IntoIterator<Item = (Operand, Link)>) {
        let sends: Vec<(Operand, Link)> = sends.into_iter().collect();
        let together = self.together(sends.first().map(|send| send.1));
        for sends in sends.chunks(together) {
            let mut messages: Vec<Outgoing> =
                sends.iter().map(|send| self.open_outgoing(send.1)).collect();
            for ((source, _), message) in sends.iter().zip(&mut messages) {
                self.copy(*source, &[message.segment()]);
            }
            messages.into_iter().for_each(|message| self.close_outgoing(message));
        }
    }

    /// Receives a message from each peer into memory, together: all are awaited first, and all
    /// credits given last.
    pub fn recv_each(&mut self, receives: impl IntoIterator<Item = (Link, Operand)>) {
        let receives: Vec<(Link, Operand)> = receives.into_iter().collect();
        let together = self.together(receives.first().map(|receive| receive.0));
        for receives in receives.chunks(together) {
            let mut messages: Vec<Incoming> =
                receives.iter().map(|receive| self.open_incoming(receive.0)).collect();
            for ((_, destination), message) in receives.iter().zip(&mut messages) {
                self.copy(message.segment(), &[*destination]);
            }
            messages.into_iter().for_each(|message| self.close_incoming(message));
        }
    }

    /// Receives into memory.
    pub fn recv_copy(&mut self, link: Link, destination: Operand) {
        self.transfer(&[Read::Recv(link)], &[Write::To(destination)], false);
    }

    /// Receives into memory and forwards.
    pub fn recv_copy_send(&mut self, from: Link, destination: Operand, to: Link) {
        self.transfer(&[Read::Recv(from)], &[Write::To(destination), Write::Send(to)], false);
    }

    /// The next message to come, to be read segment by segment.
    pub fn open_incoming(&mut self, link: Link) -> Incoming {
        let message = self.await_arrival(link);
        Incoming { link, message, next: 0 }
    }

    /// All segments have been read.
    pub fn close_incoming(&mut self, incoming: Incoming) {
        let Incoming { link, message, .. } = incoming;
        self.close(Operand::Slot { link, message, segment: 0 });
    }

    /// The next message to be sent, to be written segment by segment.
    pub fn open_outgoing(&mut self, link: Link) -> Outgoing {
        let message = self.await_credit(link);
        Outgoing { link, message, next: 0 }
    }

    /// All segments have been written.
    pub fn close_outgoing(&mut self, outgoing: Outgoing) {
        let Outgoing { link, message, .. } = outgoing;
        self.close(Operand::PeerSlot { link, message, segment: 0 });
    }

    /// Sends what these read and receives `expected` segments, each of which `take` handles, in as
    /// few messages as can be. The other rank does the same the other way round, so neither waits
    /// for slots that the other holds.
    pub fn exchange(
        &mut self,
        to: Link,
        reads: &[Read],
        from: Link,
        expected: usize,
        mut take: impl FnMut(&mut RankBuilder, usize, Operand),
    ) {
        let most = SEGMENTS as usize;
        for first in (0..reads.len().max(expected)).step_by(most) {
            if let Some(reads) = reads.get(first..).filter(|reads| !reads.is_empty()) {
                let mut message = self.open_outgoing(to);
                for read in reads.iter().take(most) {
                    let write = Write::To(message.segment());
                    self.transfer(&[*read], &[write], false);
                }
                self.close_outgoing(message);
            }
            if first < expected {
                let mut message = self.open_incoming(from);
                for index in first..expected.min(first + most) {
                    take(self, index, message.segment());
                }
                self.close_incoming(message);
            }
        }
    }

    /// This rank's next contribution to what the switches of its rail reduce, to be written. What
    /// comes of it is to be read before it has as many on their way as there are slots.
    pub fn contribution(&mut self, rail: Rail) -> Operand {
        Operand::Contribution { rail, message: bump(&mut self.contributed, rail) }
    }

    /// What they make of the contributions of all ranks of the rail, the next one, to be read.
    pub fn reduced(&mut self, rail: Rail) -> Operand {
        Operand::Reduced { rail, message: bump(&mut self.reduced, rail) }
    }

    /// Signals every peer and waits for every peer's signal: all earlier accesses of all of them
    /// are then done.
    pub fn barrier(&mut self, peers: &[usize]) {
        peers.iter().for_each(|peer| self.notify(*peer));
        peers.iter().for_each(|peer| self.await_notice(*peer));
    }

    /// Tells a peer that all earlier accesses are done, such as to its buffer.
    pub fn notify(&mut self, peer: usize) {
        let link = Link::new(peer, Lane::Sync);
        let value = i64::from(self.sent.bump(link)) + 1;
        self.instructions.push(Instruction::Signal { flag: Flag::Tail(link), value });
    }

    /// Waits for a peer's next notice.
    pub fn await_notice(&mut self, peer: usize) {
        let link = Link::new(peer, Lane::Sync);
        let value = i64::from(self.received.bump(link)) + 1;
        self.instructions.push(Instruction::Wait { flag: Flag::Tail(link), value });
    }

    /// Exchanges tokens with every peer: windows may be used from here on, and every peer has
    /// entered the call.
    pub fn enter(&mut self, peers: &[usize]) {
        let links: Vec<Link> = peers.iter().map(|&peer| Link::new(peer, Lane::Ll)).collect();
        self.send_all(Operand::Tokens, &links);
        self.recv_each(links.into_iter().map(|link| (link, Operand::PeerTokens(link.peer))));
    }

    fn open_read(&mut self, read: Read, opened: &mut Vec<Operand>) -> Source {
        let (link, raw) = match read {
            Read::Plain(operand) => return Source::plain(operand),
            Read::Raw(operand) => return Source::raw(operand),
            Read::Recv(link) => (link, false),
            Read::RecvRaw(link) => (link, true),
        };
        let operand = Operand::Slot { link, message: self.await_arrival(link), segment: 0 };
        opened.push(operand);
        Source { operand, raw }
    }

    fn open_write(&mut self, write: Write, opened: &mut Vec<Operand>) -> Operand {
        let link = match write {
            Write::To(operand) => return operand,
            Write::Send(link) => link,
        };
        let operand = Operand::PeerSlot { link, message: self.await_credit(link), segment: 0 };
        opened.push(operand);
        operand
    }

    /// Messages with flags announce themselves.
    fn await_arrival(&mut self, link: Link) -> u32 {
        let message = self.received.bump(link);
        if link.lane == Lane::Slots {
            self.instructions
                .push(Instruction::Wait { flag: Flag::Tail(link), value: i64::from(message) + 1 });
        }
        message
    }

    fn await_credit(&mut self, link: Link) -> u32 {
        let message = self.sent.bump(link);
        let credit = i64::from(message) + 1 - i64::from(self.slots.on(link.lane));
        self.instructions.push(Instruction::Wait { flag: Flag::Head(link), value: credit });
        message
    }

    fn close(&mut self, operand: Operand) {
        let (flag, message) = match operand {
            Operand::Slot { link, message, .. } => (Flag::Head(link), message),
            Operand::PeerSlot { link, message, .. } if link.lane == Lane::Slots => {
                (Flag::Tail(link), message)
            }
            _ => return,
        };
        self.instructions.push(Instruction::Signal { flag, value: i64::from(message) + 1 });
    }
}

/// Messages by peer and lane: a rank of many thousands has few peers.
#[derive(Debug, Default)]
struct Counts(Map<(usize, Lane), u32>);

impl Counts {
    /// The count so far, which then grows by one.
    fn bump(&mut self, Link { peer, lane, .. }: Link) -> u32 {
        bump(&mut self.0, (peer, lane))
    }
}

/// The count so far, which then grows by one.
fn bump<K: Hash + Eq>(counts: &mut Map<K, u32>, of: K) -> u32 {
    let count = counts.entry(of).or_default();
    *count += 1;
    *count - 1
}
