//! From instructions to what the event loop runs: counters, ways and lengths by number.
//!
//! Everything that belongs to two ranks is numbered by (sender, distance to the receiver), with senders counted modulo the ranks that are simulated.
//! Where one node stands for all, a message to a rank of another node is thereby found where the equal message arrives.

use super::bundle::{Bundle, Length, Rounds, bundles};
use super::servers::{Time, from_ns};
use super::subject::Subject;
use super::{Fold, Options, RANK_BY_RANK, SimulationError, Statement};
use crate::schedule::{Buffer, Flag, Instruction, Lane, Layout, Link, Operand, SEGMENTS};
use crate::topology::{LinkId, Network};
use oxccl_kernels::format::{MAX_OPERANDS, Tokens};
use std::collections::{HashMap, HashSet};

/// Instructions that are held at once.
const LIMIT: u64 = 64 << 20;
/// From so many simulated ranks on fewer bundles must do.
const MANY: usize = 256;
/// Instructions that are made to prove ranks alike.
const COMPARED: u64 = 128 << 20;

/// The length of what is moved from slot to slot, until it is known.
const AS_IT_CAME: u32 = u32::MAX;

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Wait {
        counter: u32,
        value: i32,
    },
    Signal {
        counter: u32,
        value: i32,
    },
    /// `first` counts within the rank's accesses.
    Move {
        first: u32,
        sources: u16,
        destinations: u16,
        length: u32,
    },
}

/// An operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) kind: AccessKind,
    /// Its way is shared with another message to the same reduce-copy, by a switch that reduces.
    pub(super) merged: bool,
    /// The way, where it leads to a peer.
    pub(super) way: u32,
    /// LL: the counter of messages. Plain slots: the connection.
    pub(super) counter: u32,
    /// Which message of the round, and which segment of it: see [`Access::number`].
    pub(super) message: u32,
}

impl Access {
    /// The message of the round.
    pub(super) fn message(&self) -> u32 {
        self.message / SEGMENTS
    }

    /// The segment of the message.
    pub(super) fn segment(&self) -> u32 {
        self.message % SEGMENTS
    }

    /// What the counter of messages that announce themselves reaches with this one, from the start of the round. Every message counts as
    /// [`SEGMENTS`]: those that it has not are passed over.
    pub(super) fn number(&self) -> i64 {
        i64::from(self.message) + 1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum AccessKind {
    /// This rank's memory.
    Local,
    /// A message that has been announced.
    Slot,
    /// A message that announces itself.
    LlSlot,
    /// A peer's buffer, read.
    Pull,
    /// A peer's buffer, written.
    Push,
    /// A message.
    Send,
    /// A message that announces itself.
    SendLl,
}

/// From one rank to another.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Way {
    pub(super) links: Vec<LinkId>,
    pub(super) latency: Time,
    pub(super) posted: bool,
    pub(super) switch: Option<(usize, usize)>,
    pub(super) from_memory: LinkId,
    pub(super) to_memory: LinkId,
}

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counts {
    Tail,
    Head,
    /// LL messages, which announce themselves.
    Messages,
}

/// A counter, with one rank that raises it and one that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counter {
    pub(super) connection: u32,
    pub(super) counts: Counts,
}

/// One direction between two ranks on one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Connection {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) lane: Lane,
    /// Messages of a round, as the sender counts them, and as the receiver does.
    pub(super) sent: u32,
    pub(super) received: u32,
    /// The way of its data, and of what comes back.
    pub(super) way: u32,
    pub(super) back: u32,
    counters: [u32; 3],
}

/// All that the event loop needs.
#[derive(Debug)]
pub(super) struct Compiled {
    /// Each simulated rank's steps, and where its accesses begin.
    pub(super) programs: Vec<(Vec<Step>, Vec<Access>)>,
    pub(super) connections: Vec<Connection>,
    pub(super) counters: Vec<Counter>,
    pub(super) ways: Vec<Way>,
    pub(super) bundles: Vec<Bundle>,
    pub(super) rounds: Rounds,
    /// Nodes whose links are simulated.
    pub(super) nodes: usize,
    /// Whether switches that can reduce do.
    pub(super) merges: bool,
    pub(super) statement: Statement,
}

pub(super) fn compile(
    subject: &Subject<'_>,
    layout: &Layout,
    network: &Network,
    options: &Options,
) -> Result<Compiled, SimulationError> {
    let ranks = subject.collective.ranks;
    if ranks != network.ranks() {
        return Err(SimulationError::Ranks { schedule: ranks, network: network.ranks() });
    }
    let longest = [Buffer::Input, Buffer::Output].map(|buffer| layout.largest_of(buffer));
    let new = |simulated: usize| Compiler {
        subject,
        layout,
        network,
        simulated,
        element_bytes: options.element_bytes,
        longest,
        numbers: HashMap::new(),
        ways_by_pair: HashMap::new(),
        lengths: HashMap::new(),
        connections: Vec::new(),
        counters: Vec::new(),
        ways: Vec::new(),
        windows: false,
        most_segments: [(Lane::Ll, 0), (Lane::Slots, 0)],
    };
    let (statement, mut compiler, mut programs) = match folded(subject, network, options, &new) {
        Some(Ok(done)) => done,
        other => {
            let statement = match other {
                Some(Err(why)) => Statement::NotFolded { why },
                _ => Statement::RankByRank,
            };
            let mut compiler = new(ranks);
            let programs = compiler.ranks(0..ranks)?;
            (statement, compiler, programs)
        }
    };
    follow_lengths(&mut compiler, &mut programs);
    if options.in_network {
        merge(&mut compiler, &mut programs);
    }
    let mut lengths = vec![Length::Fixed(0); compiler.lengths.len()];
    compiler.lengths.iter().for_each(|(length, at)| lengths[*at as usize] = *length);
    let largest = layout.largest() * options.element_bytes;
    let per_node = network.per_node();
    let most = options.bundles.unwrap_or(if compiler.simulated > MANY { 2 } else { 4 });
    Ok(Compiled {
        nodes: compiler.simulated.div_ceil(per_node),
        programs,
        connections: compiler.connections,
        counters: compiler.counters,
        ways: compiler.ways,
        bundles: bundles(&lengths, options.channels, most),
        rounds: Rounds::new(largest, compiler.windows, compiler.most_segments, options)?,
        merges: options.in_network,
        statement,
    })
}

type Programs = Vec<(Vec<Step>, Vec<Access>)>;

/// Only as many ranks as stand for all; why not, if they do not; nothing if that is not wanted.
fn folded<'a>(
    subject: &'a Subject<'a>,
    network: &'a Network,
    options: &Options,
    new: &impl Fn(usize) -> Compiler<'a>,
) -> Option<Result<(Statement, Compiler<'a>, Programs), String>> {
    let (ranks, per_node) = (subject.collective.ranks, network.per_node());
    let wanted = match options.fold {
        Fold::Never => false,
        Fold::Always => true,
        Fold::Auto => ranks > RANK_BY_RANK,
    };
    if !wanted {
        return None;
    }
    if !ranks.is_multiple_of(per_node) || ranks == per_node {
        return Some(Err(format!("{ranks} ranks are not several full nodes of {per_node}")));
    }
    if let Some(period) = subject.period {
        let simulated = per_node * period / greatest_common_divisor(per_node, period);
        if ranks.is_multiple_of(simulated) && simulated < ranks {
            let mut compiler = new(simulated);
            let programs = match compiler.ranks(0..simulated) {
                Ok(programs) => programs,
                Err(error) => return Some(Err(error.to_string())),
            };
            let why = format!(
                "the algorithm is made to turn by {period} rank(s), and equal nodes turn by {per_node}"
            );
            let statement = Statement::Folded { ranks: simulated, why };
            return Some(Ok((statement, compiler, programs)));
        }
    }
    Some(compared(ranks, new(per_node)))
}

/// The first node's ranks stand for all if every other rank's program is the same, seen from where it stands.
fn compared<'a>(
    ranks: usize,
    mut compiler: Compiler<'a>,
) -> Result<(Statement, Compiler<'a>, Programs), String> {
    let simulated = compiler.simulated;
    let programs = compiler.ranks(0..simulated).map_err(|error| error.to_string())?;
    let first: u64 = programs.iter().map(|(steps, _)| steps.len() as u64).sum();
    let all = first.saturating_mul((ranks / simulated) as u64);
    if all > COMPARED {
        return Err(format!(
            "about {all} instructions would have to be compared, more than {COMPARED}"
        ));
    }
    for rank in simulated..ranks {
        let program = compiler.rank(rank, false).map_err(|error| error.to_string())?;
        if program != programs[rank % simulated] {
            let first = rank % simulated;
            return Err(format!("rank {rank} does not do what rank {first} does, turned"));
        }
    }
    let why = format!("the programs of all {ranks} ranks were compared");
    Ok((Statement::Folded { ranks: simulated, why }, compiler, programs))
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

struct Compiler<'a> {
    subject: &'a Subject<'a>,
    layout: &'a Layout,
    network: &'a Network,
    /// Ranks that are simulated; the others are found modulo this.
    simulated: usize,
    element_bytes: usize,
    /// The longest chunk of inputs, and of outputs.
    longest: [usize; 2],
    numbers: HashMap<(u32, u32, Lane), u32>,
    ways_by_pair: HashMap<(u32, u32), u32>,
    lengths: HashMap<Length, u32>,
    connections: Vec<Connection>,
    counters: Vec<Counter>,
    ways: Vec<Way>,
    windows: bool,
    /// Segments of the longest message of each lane.
    most_segments: [(Lane, usize); 2],
}

impl Compiler<'_> {
    fn ranks(&mut self, ranks: std::ops::Range<usize>) -> Result<Programs, SimulationError> {
        let mut programs = Programs::with_capacity(ranks.len());
        let mut total = 0u64;
        for rank in ranks.clone() {
            programs.push(self.rank(rank, true)?);
            total += programs[programs.len() - 1].0.len() as u64;
            // The first ranks may be unlike the others, but not by much.
            let expected = total / programs.len() as u64 * ranks.len() as u64;
            if total > LIMIT || (programs.len() >= 16 && expected > 2 * LIMIT) {
                return Err(SimulationError::TooLarge {
                    instructions: expected,
                    limit: LIMIT,
                    remedy:
                        "choose fewer ranks, or an algorithm with fewer steps or with ranks alike"
                            .into(),
                });
            }
        }
        Ok(programs)
    }

    /// A rank's program; messages are counted unless it is only to be compared.
    fn rank(
        &mut self,
        rank: usize,
        count: bool,
    ) -> Result<(Vec<Step>, Vec<Access>), SimulationError> {
        let list = self.subject.list(rank)?;
        let (mut steps, mut accesses) = (Vec::with_capacity(list.len()), Vec::new());
        for (at, instruction) in list.iter().enumerate() {
            steps.push(match instruction {
                Instruction::Wait { flag, value } => {
                    let counter = self.flag(rank, *flag, false, count);
                    Step::Wait { counter, value: *value as i32 }
                }
                Instruction::Signal { flag, value } => {
                    let counter = self.flag(rank, *flag, true, count);
                    Step::Signal { counter, value: *value as i32 }
                }
                Instruction::ReduceCopy { sources, destinations, .. } => {
                    let operands = sources.len() + destinations.len();
                    if operands > MAX_OPERANDS {
                        let limit = MAX_OPERANDS;
                        return Err(SimulationError::Operands { rank, step: at, operands, limit });
                    }
                    let first = accesses.len() as u32;
                    let mut length = None;
                    let sources_then_destinations = sources
                        .iter()
                        .map(|source| (source.operand, true))
                        .chain(destinations.iter().map(|operand| (*operand, false)));
                    for (operand, reads) in sources_then_destinations {
                        length = length.or_else(|| self.length(rank, operand));
                        accesses.push(self.access((rank, at), operand, reads, count)?);
                    }
                    Step::Move {
                        first,
                        sources: sources.len() as u16,
                        destinations: destinations.len() as u16,
                        length: length.map_or(AS_IT_CAME, |length| self.number_of(length)),
                    }
                }
            });
        }
        Ok((steps, accesses))
    }

    /// The counter behind a flag that this rank raises, or waits for.
    fn flag(&mut self, rank: usize, flag: Flag, raises: bool, count: bool) -> u32 {
        let (link, counts) = match flag {
            Flag::Tail(link) => (link, Counts::Tail),
            Flag::Head(link) => (link, Counts::Head),
        };
        // Tails are raised by senders, heads by receivers.
        let sends = raises == (counts == Counts::Tail);
        let connection = self.connection(rank, link, sends);
        if count && link.lane == Lane::Sync {
            let connection = &mut self.connections[connection as usize];
            if raises { connection.sent += 1 } else { connection.received += 1 }
        }
        self.counter(connection, counts)
    }

    fn access(
        &mut self,
        (rank, step): (usize, usize),
        operand: Operand,
        reads: bool,
        count: bool,
    ) -> Result<Access, SimulationError> {
        let local =
            Access { kind: AccessKind::Local, merged: false, way: 0, counter: 0, message: 0 };
        match operand {
            Operand::Slot { link, message, segment }
            | Operand::PeerSlot { link, message, segment } => {
                let at = self.connection(rank, link, !reads);
                let connection = &mut self.connections[at as usize];
                let way = connection.way;
                // The segments of a message are announced and given back together.
                if count && segment == 0 {
                    if reads { connection.received += 1 } else { connection.sent += 1 }
                }
                let (kind, counter) = match (link.lane, reads) {
                    (Lane::Ll, true) => (AccessKind::LlSlot, self.counter(at, Counts::Messages)),
                    (Lane::Ll, false) => (AccessKind::SendLl, self.counter(at, Counts::Messages)),
                    (_, true) => (AccessKind::Slot, at),
                    (_, false) => (AccessKind::Send, at),
                };
                for (lane, most) in &mut self.most_segments {
                    if *lane == link.lane {
                        *most = (*most).max(segment as usize + 1);
                    }
                }
                let message = message * SEGMENTS + segment;
                Ok(Access { kind, way, counter, message, ..local })
            }
            Operand::Window { peer, .. } => {
                self.windows = true;
                let (from, to) = if reads { (peer, rank) } else { (rank, peer) };
                let way = self.way(from, to);
                if self.ways[way as usize].posted {
                    return Err(SimulationError::WindowAcross { rank, step, peer });
                }
                let kind = if reads { AccessKind::Pull } else { AccessKind::Push };
                Ok(Access { kind, way, ..local })
            }
            _ => Ok(local),
        }
    }

    /// Length of an operand that has one of its own. Where one node stands for all, chunks are as long as the longest.
    fn length(&self, rank: usize, operand: Operand) -> Option<Length> {
        let (rank, buffer, chunk) = match operand {
            Operand::Input(chunk) => (rank, Buffer::Input, chunk),
            Operand::Output(chunk) => (rank, Buffer::Output, chunk),
            Operand::Window { peer, buffer, chunk } => (peer, buffer, chunk),
            Operand::Tokens | Operand::PeerTokens(_) => {
                return Some(Length::Fixed(std::mem::size_of::<Tokens>()));
            }
            Operand::Slot { .. } | Operand::PeerSlot { .. } => return None,
        };
        let elements = if self.simulated < self.subject.collective.ranks {
            self.longest[buffer as usize]
        } else {
            self.layout.extent(rank, buffer, chunk).count
        };
        Some(Length::Chunk(elements * self.element_bytes))
    }

    fn number_of(&mut self, length: Length) -> u32 {
        let next = self.lengths.len() as u32;
        *self.lengths.entry(length).or_insert(next)
    }

    /// The connection on which this rank sends to a peer, or receives from it.
    fn connection(&mut self, rank: usize, link: Link, sends: bool) -> u32 {
        let (from, to) = if sends { (rank, link.peer) } else { (link.peer, rank) };
        let (sender, distance) = self.pair(from, to);
        if let Some(known) = self.numbers.get(&(sender, distance, link.lane)) {
            return *known;
        }
        let (way, back) = (self.way(from, to), self.way(to, from));
        let number = self.connections.len() as u32;
        self.connections.push(Connection {
            from: sender,
            to: (to % self.simulated) as u32,
            lane: link.lane,
            sent: 0,
            received: 0,
            way,
            back,
            counters: [u32::MAX; 3],
        });
        self.numbers.insert((sender, distance, link.lane), number);
        number
    }

    fn counter(&mut self, connection: u32, counts: Counts) -> u32 {
        let known = &mut self.connections[connection as usize].counters[counts as usize];
        if *known == u32::MAX {
            *known = self.counters.len() as u32;
            self.counters.push(Counter { connection, counts });
        }
        *known
    }

    fn way(&mut self, from: usize, to: usize) -> u32 {
        let pair = self.pair(from, to);
        if let Some(known) = self.ways_by_pair.get(&pair) {
            return *known;
        }
        let nodes = self.simulated.div_ceil(self.network.per_node()) as u32;
        let links = nodes * self.network.links_per_node();
        let route = self.network.route(from, to);
        let number = self.ways.len() as u32;
        self.ways.push(Way {
            links: route.links.iter().map(|link| link % links).collect(),
            latency: from_ns(route.latency_ns),
            posted: route.posted,
            switch: route.switch,
            from_memory: self.network.memory(from) % links,
            to_memory: self.network.memory(to) % links,
        });
        self.ways_by_pair.insert(pair, number);
        number
    }

    fn pair(&self, from: usize, to: usize) -> (u32, u32) {
        let ranks = self.subject.collective.ranks;
        ((from % self.simulated) as u32, ((to + ranks - from) % ranks) as u32)
    }
}

/// Gives what is moved from slot to slot the length with which it was sent.
fn follow_lengths(compiler: &mut Compiler<'_>, programs: &mut Programs) {
    let mut sent: HashMap<(AccessKind, u32, u32), u32> = HashMap::new();
    let mut open: Vec<(usize, usize)> = Vec::new();
    for (rank, (steps, accesses)) in programs.iter().enumerate() {
        for (at, step) in steps.iter().enumerate() {
            let &Step::Move { length, .. } = step else { continue };
            if length == AS_IT_CAME {
                open.push((rank, at));
            } else {
                sent.extend(sends(step, accesses).map(|key| (key, length)));
            }
        }
    }
    loop {
        let before = open.len();
        open.retain(|&(rank, at)| {
            let (steps, accesses) = &mut programs[rank];
            let Some(length) = received(&steps[at], accesses).and_then(|key| sent.get(&key)) else {
                return true;
            };
            let found = *length;
            if let Step::Move { length, .. } = &mut steps[at] {
                *length = found;
            }
            sent.extend(sends(&steps[at], accesses).map(|key| (key, found)));
            false
        });
        if open.len() == before {
            break;
        }
    }
    // What nobody sends never comes: the deadlock is found when it is simulated.
    for (rank, at) in open {
        let nothing = compiler.number_of(Length::Fixed(0));
        if let Step::Move { length, .. } = &mut programs[rank].0[at] {
            *length = nothing;
        }
    }
}

/// The messages that a step sends, as their receivers know them.
fn sends<'a>(
    step: &Step,
    accesses: &'a [Access],
) -> impl Iterator<Item = (AccessKind, u32, u32)> + use<'a> {
    let (first, count) = match *step {
        Step::Move { first, sources, destinations, .. } => {
            (first as usize + sources as usize, destinations as usize)
        }
        _ => (0, 0),
    };
    accesses[first..first + count].iter().filter_map(|access| match access.kind {
        AccessKind::Send => Some((AccessKind::Slot, access.counter, access.message)),
        AccessKind::SendLl => Some((AccessKind::LlSlot, access.counter, access.message)),
        _ => None,
    })
}

/// The first message that a step receives.
fn received(step: &Step, accesses: &[Access]) -> Option<(AccessKind, u32, u32)> {
    let &Step::Move { first, sources, .. } = step else { return None };
    let sources = &accesses[first as usize..first as usize + sources as usize];
    let slot = |access: &&Access| matches!(access.kind, AccessKind::Slot | AccessKind::LlSlot);
    sources.iter().find(slot).map(|access| (access.kind, access.counter, access.message))
}

/// Messages that one reduce-copy reads come through a switch that reduces as one: all but the first are marked.
fn merge(compiler: &mut Compiler<'_>, programs: &mut Programs) {
    let mut merged = HashSet::new();
    for (steps, accesses) in programs.iter() {
        for step in steps {
            let &Step::Move { first, sources, .. } = step else { continue };
            let mut switches = HashSet::new();
            let sources = &accesses[first as usize..first as usize + sources as usize];
            for access in sources.iter().filter(|access| access.kind == AccessKind::Slot) {
                let Some((_, switch)) = compiler.ways[access.way as usize].switch else { continue };
                if !switches.insert(switch) {
                    merged.insert((access.counter, access.message));
                }
            }
        }
    }
    for (_, accesses) in programs {
        for access in accesses.iter_mut().filter(|access| access.kind == AccessKind::Send) {
            access.merged = merged.contains(&(access.counter, access.message));
        }
    }
}
