//! Builds one rank's list of instructions and keeps count of messages, so that algorithms say only what goes where.

use super::{Flag, Instruction, Link, Operand, Source, Tree};
use oxccl_kernels::format::Lane;
use std::collections::BTreeMap;

/// Slots per connection, by lane. Powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slots {
    /// On the LL lane.
    pub ll: u32,
    /// On the slots lane.
    pub slots: u32,
}

impl Slots {
    /// The number on this lane; 0 where the lane has none.
    pub fn on(self, lane: Lane) -> u32 {
        match lane {
            Lane::Ll => self.ll,
            Lane::Slots => self.slots,
            Lane::Sync => 0,
        }
    }
}

/// The builder of one rank's instructions for one round.
///
/// `transfer` is the one primitive: it waits for credits and arrivals, reduces or copies, and signals.
/// The rest are the field's usual names for its common forms.
#[derive(Debug)]
pub struct RankBuilder {
    rank: usize,
    slots: Slots,
    tree: Tree,
    sent: BTreeMap<Link, u32>,
    received: BTreeMap<Link, u32>,
    instructions: Vec<Instruction>,
}

/// What [`RankBuilder::transfer`] reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Read {
    /// Memory, as it is.
    Plain(Operand),
    /// Memory: a rank's unscaled contribution.
    Raw(Operand),
    /// The next message on a link, as it is.
    Recv(Link),
    /// The next message on a link: a rank's unscaled contribution.
    RecvRaw(Link),
}

/// What [`RankBuilder::transfer`] writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Write {
    /// Memory.
    To(Operand),
    /// The next message on a link.
    Send(Link),
}

impl RankBuilder {
    /// An empty list; several sources are combined as `tree` says.
    pub fn new(rank: usize, slots: Slots, tree: Tree) -> RankBuilder {
        RankBuilder {
            rank,
            slots,
            tree,
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            instructions: Vec::new(),
        }
    }

    /// The finished list.
    pub fn finish(self) -> Vec<Instruction> {
        self.instructions
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Waits for what the operands need, reduces or copies, signals.
    pub(crate) fn transfer(&mut self, reads: &[Read], writes: &[Write], finish: bool) {
        let sources: Vec<Source> = reads.iter().map(|read| self.open_read(*read)).collect();
        let destinations: Vec<Operand> =
            writes.iter().map(|write| self.open_write(*write)).collect();
        let opened: Vec<Operand> = sources
            .iter()
            .map(|source| source.operand)
            .chain(destinations.iter().copied())
            .collect();
        let tree = self.tree;
        self.instructions.push(Instruction::ReduceCopy { sources, destinations, tree, finish });
        for operand in opened {
            self.close(operand);
        }
    }

    /// Copies one thing to others.
    pub(crate) fn copy(&mut self, source: Operand, destinations: &[Operand]) {
        let writes: Vec<Write> = destinations.iter().map(|to| Write::To(*to)).collect();
        self.transfer(&[Read::Plain(source)], &writes, false);
    }

    /// Sends memory over a link.
    pub(crate) fn send(&mut self, source: Operand, link: Link) {
        self.transfer(&[Read::Plain(source)], &[Write::Send(link)], false);
    }

    /// Receives into memory.
    pub(crate) fn recv_copy(&mut self, link: Link, destination: Operand) {
        self.transfer(&[Read::Recv(link)], &[Write::To(destination)], false);
    }

    /// Receives into memory and forwards.
    pub(crate) fn recv_copy_send(&mut self, from: Link, destination: Operand, to: Link) {
        self.transfer(&[Read::Recv(from)], &[Write::To(destination), Write::Send(to)], false);
    }

    /// Signals every peer and waits for every peer's signal: all earlier accesses of all of them are then done.
    pub(crate) fn barrier(&mut self, peers: &[usize]) {
        for &peer in peers {
            let link = Link { peer, lane: Lane::Sync };
            let sent = bump(&mut self.sent, link);
            self.instructions
                .push(Instruction::Signal { flag: Flag::Tail(link), value: i64::from(sent) + 1 });
        }
        for &peer in peers {
            let link = Link { peer, lane: Lane::Sync };
            let received = bump(&mut self.received, link);
            self.instructions
                .push(Instruction::Wait { flag: Flag::Tail(link), value: i64::from(received) + 1 });
        }
    }

    /// Exchanges tokens with every peer: windows may be used from here on, and every peer has entered the call.
    pub(crate) fn enter(&mut self, peers: &[usize]) {
        for &peer in peers {
            self.send(Operand::Tokens, Link { peer, lane: Lane::Ll });
        }
        for &peer in peers {
            self.recv_copy(Link { peer, lane: Lane::Ll }, Operand::PeerTokens(peer));
        }
    }

    fn open_read(&mut self, read: Read) -> Source {
        let (link, raw) = match read {
            Read::Plain(operand) => return Source::plain(operand),
            Read::Raw(operand) => return Source::raw(operand),
            Read::Recv(link) => (link, false),
            Read::RecvRaw(link) => (link, true),
        };
        let message = bump(&mut self.received, link);
        if link.lane == Lane::Slots {
            self.instructions
                .push(Instruction::Wait { flag: Flag::Tail(link), value: i64::from(message) + 1 });
        }
        Source { operand: Operand::Slot { link, message }, raw }
    }

    fn open_write(&mut self, write: Write) -> Operand {
        let link = match write {
            Write::To(operand) => return operand,
            Write::Send(link) => link,
        };
        let message = bump(&mut self.sent, link);
        let credit = i64::from(message) + 1 - i64::from(self.slots.on(link.lane));
        self.instructions.push(Instruction::Wait { flag: Flag::Head(link), value: credit });
        Operand::PeerSlot { link, message }
    }

    fn close(&mut self, operand: Operand) {
        match operand {
            Operand::Slot { link, message } => {
                self.instructions.push(Instruction::Signal {
                    flag: Flag::Head(link),
                    value: i64::from(message) + 1,
                });
            }
            Operand::PeerSlot { link, message } if link.lane == Lane::Slots => {
                self.instructions.push(Instruction::Signal {
                    flag: Flag::Tail(link),
                    value: i64::from(message) + 1,
                });
            }
            _ => {}
        }
    }
}

/// The count so far, which then grows by one.
fn bump(counts: &mut BTreeMap<Link, u32>, link: Link) -> u32 {
    let count = counts.entry(link).or_default();
    *count += 1;
    *count - 1
}
