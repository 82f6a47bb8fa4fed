//! What can be seen without running anything: whether the schedule fits its collective, and
//! operands their instruction.

use super::expect::Expectation;
use super::rail::InTurn;
use super::route::{End, Route, Routes};
use super::violation::{Malformed, Misuse, Violation};
use crate::collective::Kind;
use crate::schedule::{
    Buffer, Chunking, Flag, Instruction, Lane, Link, Members, Operand, Rail, SEGMENTS, Schedule,
    Source, Symmetry, Tree,
};
use oxccl_format::{MAX_OPERANDS, MAX_TREE_SOURCES};
use std::collections::HashSet;

/// Most chunks of all ranks together: each has a number.
const CHUNKS_MAX: usize = 1 << 29;

/// Most lists of a rank: a link names one in 16 bits.
const LISTS_MAX: usize = 1 << 16;

/// Checks all of it. What comes later may index by ranks and chunks without fear.
/// Which routes there are is found on the way.
pub(super) fn check(schedule: &Schedule, in_place: bool) -> Result<Routes, Violation> {
    check_firsts(schedule, every_rank(schedule), in_place)
}

/// The symmetry of a schedule of which nothing is known.
pub(super) fn every_rank(schedule: &Schedule) -> Symmetry {
    let lists = schedule.collective.ranks.saturating_mul(schedule.lists_per_rank);
    Symmetry::none(lists, schedule.input, schedule.output)
}

/// As [`check`], of a schedule that has the lists of those ranks alone that stand for all.
pub(super) fn check_firsts(
    schedule: &Schedule,
    symmetry: Symmetry,
    in_place: bool,
) -> Result<Routes, Violation> {
    check_schedule(schedule, symmetry.firsts(), in_place).map_err(Violation::Schedule)?;
    let checker = Checker { schedule, expectation: Expectation::new(schedule, false) };
    let (mut routes, mut turns) = (Routes::new(symmetry), Turns::default());
    for (rank, list) in schedule.lists.iter().enumerate() {
        let mut on_rails = InTurn::default();
        for (step, instruction) in list.iter().enumerate() {
            checker.check(rank, instruction).map_err(|(operand, misuse)| match operand {
                Some(operand) => Violation::Operand { rank, step, operand, misuse },
                None => Violation::Instruction { rank, step, misuse },
            })?;
            turns.check((rank, schedule.lists_per_rank), instruction, &mut routes).map_err(
                |(operand, expected)| Violation::Message { rank, step, operand, expected },
            )?;
            on_rails.check((rank, step), instruction, schedule.slots.on(Lane::Slots))?;
        }
        on_rails.check_drained(rank)?;
    }
    Ok(routes)
}

fn check_schedule(schedule: &Schedule, firsts: usize, in_place: bool) -> Result<(), Malformed> {
    let collective = &schedule.collective;
    let (ranks, lists, of_each) = (collective.ranks, schedule.lists.len(), schedule.lists_per_rank);
    if ranks == 0 || of_each == 0 || of_each > LISTS_MAX || firsts != lists {
        return Err(Malformed::Ranks { ranks, lists });
    }
    if of_each > 1 && collective.kind == Kind::Barrier {
        return Err(Malformed::Lists(collective.kind));
    }
    let (root, receiver) = (collective.root, collective.receiver);
    let alone = collective.kind == Kind::SendRecv && root == receiver;
    if root >= ranks || receiver >= ranks || alone {
        return Err(Malformed::Root { root, receiver, ranks });
    }
    let chunking = (schedule.input, schedule.output);
    let fits = match collective.kind {
        Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::SendRecv => {
            chunking.0 == chunking.1
        }
        Kind::ReduceScatter | Kind::Scatter => are_parts(chunking.0, chunking.1),
        Kind::AllGather | Kind::Gather => are_parts(chunking.1, chunking.0),
        Kind::AllToAll => chunking.0 == chunking.1 && matches!(chunking.0, Chunking::PerRank(_)),
        Kind::Barrier => true,
    };
    if !fits {
        return Err(Malformed::Chunking(collective.kind));
    }
    if in_place && collective.kind == Kind::SendRecv {
        return Err(Malformed::InPlace(collective.kind));
    }
    let slots = [schedule.slots.ll, schedule.slots.slots];
    let is_empty = |of: Chunking| matches!(of, Chunking::Parts(0) | Chunking::PerRank(0));
    if is_empty(schedule.input) || is_empty(schedule.output) {
        return Err(Malformed::Chunking(collective.kind));
    }
    let buffers = [schedule.input, schedule.output].map(|buffer| buffer.chunks(ranks));
    let chunks = buffers[0].max(buffers[1]).max(schedule.scratch);
    if chunks.saturating_mul(ranks) > CHUNKS_MAX {
        return Err(Malformed::Chunks { ranks, chunks });
    }
    match slots.into_iter().find(|slots| !slots.is_power_of_two()) {
        Some(slots) => Err(Malformed::Slots(slots)),
        None => Ok(()),
    }
}

/// Whether a buffer with a part for each rank is divided as the other is, which is one part.
fn are_parts(all: Chunking, one: Chunking) -> bool {
    match (all, one) {
        (Chunking::PerRank(chunks), Chunking::Whole) => chunks == 1,
        (Chunking::PerRank(chunks), Chunking::Parts(parts)) => chunks == parts,
        _ => false,
    }
}

/// The next message and segment of each route, as its sender and its receiver count: links are
/// first in, first out.
#[derive(Default)]
struct Turns {
    sent: Vec<(u32, u32)>,
    received: Vec<(u32, u32)>,
}

impl Turns {
    fn check(
        &mut self,
        (list, lists_per_rank): (usize, usize),
        instruction: &Instruction,
        routes: &mut Routes,
    ) -> Result<(), (Operand, u32)> {
        let (sources, destinations) = match instruction {
            Instruction::Wait { flag, .. } | Instruction::Signal { flag, .. } => {
                let waits = matches!(instruction, Instruction::Wait { .. });
                let end = if waits { End::Waiter } else { End::Signaller };
                routes.add(Route::of(list, *flag, end, lists_per_rank));
                return Ok(());
            }
            Instruction::ReduceCopy { sources, destinations, .. } => (sources, destinations),
        };
        for operand in sources.iter().map(|source| &source.operand).chain(destinations) {
            match *operand {
                Operand::Slot { link, message, segment } => {
                    let number = routes.add(Route::from(link, list, lists_per_rank));
                    take_turn(&mut self.received, number, (message, segment))
                        .map_err(|expected| (*operand, expected))?;
                }
                Operand::PeerSlot { link, message, segment } => {
                    let number = routes.add(Route::to(link, list, lists_per_rank));
                    take_turn(&mut self.sent, number, (message, segment))
                        .map_err(|expected| (*operand, expected))?;
                    routes.add_segment(number, message, segment);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The next segment of the same message, or the next message; otherwise the message that would be
/// next.
fn take_turn(turns: &mut Vec<(u32, u32)>, number: usize, now: (u32, u32)) -> Result<(), u32> {
    if turns.len() <= number {
        turns.resize(number + 1, (0, 0));
    }
    let next = &mut turns[number];
    let new = next.0 + u32::from(next.1 > 0);
    if now != *next && now != (new, 0) {
        return Err(new);
    }
    *next = (now.0, now.1 + 1);
    Ok(())
}

/// The operand at fault, or none where it is the instruction.
type Fault = (Option<Operand>, Misuse);

struct Checker<'a> {
    schedule: &'a Schedule,
    expectation: Expectation,
}

/// A rank, and which of its lists.
type At = (usize, usize);

impl Checker<'_> {
    fn check(&self, list: usize, instruction: &Instruction) -> Result<(), Fault> {
        let lists_per_rank = self.schedule.lists_per_rank;
        let at = (list / lists_per_rank, list % lists_per_rank);
        match instruction {
            Instruction::Wait { flag, .. } | Instruction::Signal { flag, .. } => {
                self.flag(at, *flag).map_err(|misuse| (None, misuse))
            }
            Instruction::ReduceCopy { sources, destinations, tree, finish } => {
                let ranks = self.schedule.collective.ranks;
                shape(ranks, sources, destinations, *tree).map_err(|misuse| (None, misuse))?;
                if instruction.uses_multicast() {
                    multicast(sources, destinations)?;
                }
                let by_rail = |source: &&Source| matches!(source.operand, Operand::Reduced { .. });
                if let Some(reduced) = sources.iter().find(by_rail)
                    && (sources.len() > 1 || reduced.raw)
                {
                    return Err((Some(reduced.operand), Misuse::BesideReduced));
                }
                for source in sources {
                    self.source(at, source.operand)
                        .map_err(|misuse| (Some(source.operand), misuse))?;
                }
                for &operand in destinations {
                    self.destination(at, operand).map_err(|misuse| (Some(operand), misuse))?;
                }
                if let Some(twice) = repeated(destinations) {
                    return Err((Some(twice), Misuse::Twice));
                }
                let combines = |source: &Source| source.raw || source.operand.is_reduced();
                let reduces = sources.len() > 1 || *finish || sources.iter().any(combines);
                if reduces && !self.schedule.collective.kind.reduces() {
                    return Err((None, Misuse::DoesNotReduce));
                }
                Ok(())
            }
        }
    }

    fn source(&self, at: At, operand: Operand) -> Result<(), Misuse> {
        let (rank, _) = at;
        self.reach(operand)?;
        match operand {
            Operand::Input(chunk) => self.chunk(rank, Buffer::Input, chunk),
            Operand::Output(chunk) => self.chunk(rank, Buffer::Output, chunk),
            Operand::Scratch(chunk) => self.scratch(chunk),
            Operand::Slot { link, segment, .. } => self.slot(at, link, segment),
            Operand::Window { peer, buffer, chunk } => self.window(rank, peer, buffer, chunk),
            Operand::Multicast { of, buffer, chunk } => self.everywhere(rank, of, buffer, chunk),
            Operand::Reduced { rail, .. } => self.rail(rail),
            Operand::Tokens => Ok(()),
            Operand::PeerSlot { .. } | Operand::PeerTokens(_) | Operand::Contribution { .. } => {
                Err(Misuse::WriteOnly)
            }
        }
    }

    fn destination(&self, at: At, operand: Operand) -> Result<(), Misuse> {
        let (rank, _) = at;
        self.reach(operand)?;
        match operand {
            Operand::Output(chunk) => self.chunk(rank, Buffer::Output, chunk),
            Operand::Scratch(chunk) => self.scratch(chunk),
            Operand::PeerSlot { link, segment, .. } => self.slot(at, link, segment),
            Operand::Window { buffer: Buffer::Input, .. }
            | Operand::Multicast { buffer: Buffer::Input, .. } => Err(Misuse::ReadOnly),
            Operand::Multicast { of, buffer, chunk } => self.everywhere(rank, of, buffer, chunk),
            Operand::Window { peer, buffer, chunk } => self.window(rank, peer, buffer, chunk),
            Operand::PeerTokens(peer) => self.peer(rank, peer),
            Operand::Contribution { rail, .. } => self.rail(rail),
            Operand::Input(_)
            | Operand::Slot { .. }
            | Operand::Reduced { .. }
            | Operand::Tokens => Err(Misuse::ReadOnly),
        }
    }

    /// What lists of ranks that have several do not reach.
    fn reach(&self, operand: Operand) -> Result<(), Misuse> {
        let is_whole = operand.is_window()
            || operand.is_of_rail()
            || matches!(operand, Operand::Tokens | Operand::PeerTokens(_));
        match self.schedule.lists_per_rank {
            2.. if is_whole => Err(Misuse::OfSeveralLists),
            _ => Ok(()),
        }
    }

    fn flag(&self, at: At, flag: Flag) -> Result<(), Misuse> {
        let (Flag::Tail(link) | Flag::Head(link)) = flag;
        self.link(at, link)?;
        match (flag, link.lane) {
            // Messages with flags announce themselves, and counters that go with no messages are
            // not given back.
            (Flag::Tail(_), lane) if lane.has_flags() => Err(Misuse::NoCounter),
            (Flag::Head(_), Lane::Sync) => Err(Misuse::NoCounter),
            _ => Ok(()),
        }
    }

    fn slot(&self, at: At, link: Link, segment: u32) -> Result<(), Misuse> {
        if segment >= SEGMENTS {
            return Err(Misuse::TooManySegments);
        }
        if link.lane == Lane::Sync {
            return Err(Misuse::NoSlots);
        }
        self.link(at, link)
    }

    /// Lists of one rank tell each other how far they are, and share its memory for the rest.
    fn link(&self, (rank, list): At, link: Link) -> Result<(), Misuse> {
        if usize::from(link.list) >= self.schedule.lists_per_rank {
            return Err(Misuse::NoSuchList);
        }
        if link.peer != rank || self.schedule.lists_per_rank == 1 {
            return self.peer(rank, link.peer);
        }
        match link.lane {
            _ if usize::from(link.list) == list => Err(Misuse::OwnList),
            Lane::Sync => Ok(()),
            _ => Err(Misuse::OwnMessage),
        }
    }

    fn rail(&self, Rail(local): Rail) -> Result<(), Misuse> {
        let ranks = self.schedule.collective.ranks;
        let several = (1..ranks).contains(&local) && ranks.is_multiple_of(local);
        if several { Ok(()) } else { Err(Misuse::NoSuchRail) }
    }

    fn window(&self, rank: usize, peer: usize, buffer: Buffer, chunk: usize) -> Result<(), Misuse> {
        self.peer(rank, peer)?;
        self.chunk(peer, buffer, chunk)
    }

    fn everywhere(
        &self,
        rank: usize,
        of: Members,
        buffer: Buffer,
        chunk: usize,
    ) -> Result<(), Misuse> {
        let ranks = self.schedule.collective.ranks;
        let mut members = of.beside(rank, ranks);
        if members.end > ranks || !members.contains(&rank) {
            return Err(Misuse::NoSuchRank);
        }
        members.try_for_each(|owner| self.chunk(owner, buffer, chunk))
    }

    fn chunk(&self, owner: usize, buffer: Buffer, chunk: usize) -> Result<(), Misuse> {
        if !self.expectation.has(owner, buffer) {
            return Err(Misuse::NoSuchBuffer);
        }
        if chunk < self.expectation.chunks(buffer) { Ok(()) } else { Err(Misuse::NoSuchChunk) }
    }

    fn scratch(&self, chunk: usize) -> Result<(), Misuse> {
        if chunk < self.schedule.scratch { Ok(()) } else { Err(Misuse::NoSuchChunk) }
    }

    fn peer(&self, rank: usize, peer: usize) -> Result<(), Misuse> {
        if peer == rank {
            return Err(Misuse::OwnPeer);
        }
        if peer < self.schedule.collective.ranks { Ok(()) } else { Err(Misuse::NoSuchRank) }
    }
}

fn repeated(destinations: &[Operand]) -> Option<Operand> {
    /// So few are compared one by one.
    const FEW: usize = 16;
    if destinations.len() <= FEW {
        let before = |(index, operand)| destinations[..index].contains(operand);
        return destinations.iter().enumerate().find(|one| before(*one)).map(|(_, one)| *one);
    }
    let mut seen = HashSet::with_capacity(destinations.len());
    destinations.iter().copied().find(|operand| !seen.insert(*operand))
}

/// One operand on each side, memory of this rank's or of several ranks.
fn multicast(sources: &[Source], destinations: &[Operand]) -> Result<(), Fault> {
    let mut all = sources.iter().map(|source| source.operand).chain(destinations.iter().copied());
    let is_memory = |operand: &Operand| {
        matches!(operand, Operand::Input(_) | Operand::Output(_) | Operand::Multicast { .. })
    };
    match all.find(|operand| !is_memory(operand)) {
        Some(other) => Err((Some(other), Misuse::BesideMulticast)),
        None if sources.len() + destinations.len() > 2 => Err((None, Misuse::BesideMulticast)),
        None => Ok(()),
    }
}

/// A multicast counts as what it is where no switch does it: an operand of each of its ranks.
fn shape(
    ranks: usize,
    sources: &[Source],
    destinations: &[Operand],
    tree: Tree,
) -> Result<(), Misuse> {
    let count = |operand: Operand| match operand {
        Operand::Multicast { of, .. } => of.count(ranks),
        _ => 1,
    };
    let read: usize = sources.iter().map(|source| count(source.operand)).sum();
    let written: usize = destinations.iter().map(|operand| count(*operand)).sum();
    if sources.is_empty() || destinations.is_empty() {
        Err(Misuse::NoOperands)
    } else if read.saturating_add(written) > MAX_OPERANDS {
        Err(Misuse::TooManyOperands)
    } else if tree == Tree::Aligned && read > MAX_TREE_SOURCES {
        Err(Misuse::TooManyTreeSources)
    } else {
        Ok(())
    }
}
