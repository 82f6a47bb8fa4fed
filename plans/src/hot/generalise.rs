//! From a rank's instructions to a shape.

use super::{Chunk, Counter, Move, Place, Role, Shape, Step, Times, Turn, chunks};
use crate::schedule::{Buffer, Flag, Instruction, Link, Members, Operand, Schedule, Tree};

/// The shape that a rank's part of a schedule has, of three ranks or more; none if it is not the
/// same for all of its peers.
pub(super) fn generalise(schedule: &Schedule, rank: usize, role: Role) -> Option<Shape> {
    let one = Rank { schedule, rank, ranks: schedule.collective.ranks, role };
    let mut rest = schedule.lists[rank].as_slice();
    let mut steps = Vec::new();
    while !rest.is_empty() {
        let (step, taken) = one.next(rest)?;
        steps.push(step);
        rest = &rest[taken..];
    }
    let shape = Shape { role, steps };
    shape.is_of(schedule, rank).then_some(shape)
}

struct Rank<'a> {
    schedule: &'a Schedule,
    rank: usize,
    ranks: usize,
    role: Role,
}

impl Rank<'_> {
    /// The first step, and how many instructions it is.
    fn next(&self, list: &[Instruction]) -> Option<(Step, usize)> {
        let others = self.peers(Turn::Rotated).len();
        let turn = || self.turn(list.get(..others)?);
        let counter = |flag: &Flag, value: &i64| {
            let (is_head, link) = match flag {
                Flag::Head(link) => (true, link),
                Flag::Tail(link) => (false, link),
            };
            Some(Counter { is_head, lane: link.lane, value: *value, turn: turn()? })
        };
        match &list[0] {
            Instruction::Wait { flag, value } => Some((Step::Wait(counter(flag, value)?), others)),
            Instruction::Signal { flag, value } => {
                Some((Step::Signal(counter(flag, value)?), others))
            }
            Instruction::ReduceCopy { sources, destinations, tree: Tree::Left, finish } => {
                let raw = sources.iter().any(|source| source.raw);
                let mut read: Vec<Operand> = sources.iter().map(|source| source.operand).collect();
                let mut written = destinations.clone();
                let is_each = matches!((&*read, &*written), ([from], [to])
                    if self.peer(from).or(self.peer(to)).is_some());
                let times = if is_each { Times::Each(turn()?) } else { Times::Once };
                // One peer stands for all.
                let own = |all: &mut Vec<Operand>| {
                    let at = all.iter().position(|operand| self.peer(operand).is_none());
                    at.map(|at| all.remove(at))
                };
                let (own, to_own) = (own(&mut read), own(&mut written));
                let (from, to) = (read.first(), written.first());
                let peer = from.and_then(|one| self.peer(one));
                let peer = peer.or_else(|| to.and_then(|one| self.peer(one)));
                let place = |operand: Option<&Operand>| match operand {
                    Some(operand) => Some(Some(self.place(operand, peer)?)),
                    None => Some(None),
                };
                let of = Move {
                    times,
                    own: place(own.as_ref())?,
                    peers: place(from)?,
                    to_own: place(to_own.as_ref())?,
                    to_peers: place(to)?,
                    raw,
                    finish: *finish,
                };
                let taken = if is_each { others } else { 1 };
                Some((Step::Move(of), taken))
            }
            Instruction::ReduceCopy { tree: Tree::Aligned, .. } => None,
        }
    }

    /// In which order the peers come that these instructions are for.
    fn turn(&self, list: &[Instruction]) -> Option<Turn> {
        let of_flag = |flag: &Flag| match flag {
            Flag::Head(Link { peer, .. }) | Flag::Tail(Link { peer, .. }) => *peer,
        };
        let of = |instruction: &Instruction| match instruction {
            Instruction::Wait { flag, .. } | Instruction::Signal { flag, .. } => {
                Some(of_flag(flag))
            }
            Instruction::ReduceCopy { sources, destinations, .. } => {
                let sources = sources.iter().map(|source| source.operand);
                sources.chain(destinations.iter().copied()).find_map(|operand| self.peer(&operand))
            }
        };
        let order: Vec<usize> = list.iter().map(of).collect::<Option<_>>()?;
        let turns = [Turn::Rotated, Turn::Ranked].into_iter();
        turns.into_iter().find(|turn| self.peers(*turn) == order)
    }

    fn peers(&self, turn: Turn) -> Vec<usize> {
        self.role.peers(self.schedule, self.rank, turn)
    }

    /// Whose operand it is, if a peer's.
    fn peer(&self, operand: &Operand) -> Option<usize> {
        match operand {
            Operand::Slot { link, .. } | Operand::PeerSlot { link, .. } => Some(link.peer),
            Operand::Window { peer, .. } | Operand::PeerTokens(peer) => Some(*peer),
            _ => None,
        }
    }

    fn place(&self, operand: &Operand, peer: Option<usize>) -> Option<Place> {
        Some(match operand {
            Operand::Input(chunk) => Place::Input(self.chunk(Buffer::Input, *chunk, peer)?),
            Operand::Output(chunk) => Place::Output(self.chunk(Buffer::Output, *chunk, peer)?),
            Operand::Slot { link, message, .. } | Operand::PeerSlot { link, message, .. } => {
                Place::Message(link.lane, *message)
            }
            Operand::Window { buffer, chunk, .. } => {
                Place::Window(*buffer, self.chunk(*buffer, *chunk, peer)?)
            }
            Operand::Tokens | Operand::PeerTokens(_) => Place::Tokens,
            Operand::Multicast { of: Members::All, buffer, chunk } => {
                Place::All(*buffer, self.chunk(*buffer, *chunk, peer)?)
            }
            Operand::Multicast { .. }
            | Operand::Scratch(_)
            | Operand::Contribution { .. }
            | Operand::Reduced { .. } => return None,
        })
    }

    fn chunk(&self, buffer: Buffer, chunk: usize, peer: Option<usize>) -> Option<Chunk> {
        match chunks(self.schedule, buffer) {
            1 => Some(Chunk::Only),
            count if count != self.ranks => None,
            _ if chunk == self.rank => Some(Chunk::Own),
            _ if Some(chunk) == peer => Some(Chunk::Peers),
            _ => None,
        }
    }
}
