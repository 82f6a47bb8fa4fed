//! From instructions to what the event loop runs: counters, ways and lengths by number.
//!
//! Everything that belongs to two ranks is numbered by (sender, receiver), turned so that the
//! sender is one of those that are simulated ([`Turns::pair`]). Where few ranks stand for all, a
//! message to another one is thereby found where the equal message arrives.

use super::beside::Copies;
use super::bundle::{Length, Rounds, bundles};
use super::fold::folded;
use super::messages::{follow_lengths, merge};
use super::program::{
    AS_IT_CAME, Access, AccessKind, Compiled, Connection, Counter, Counts, Flags, Programs, Step,
    Way,
};
use super::rails::Rails;
use super::servers::from_ns;
use super::subject::Subject;
use super::turns::Turns;
use super::{Options, SimulationError, Statement};
use crate::hash::Map;
use crate::lower::part_bytes;
use crate::schedule::{
    Buffer, Flag, Instruction, Lane, Layout, Link, MostSegments, NO_SEGMENTS, Operand, SEGMENTS,
};
use crate::topology::{LinkId, Network};
use oxccl_format::{MAX_OPERANDS, Tokens};

/// How long tokens are.
const TOKENS: Length = Length::Fixed(std::mem::size_of::<Tokens>());

/// Instructions that are held at once: about 2 GiB, with what each rank has besides.
pub(super) const LIMIT: u64 = 24 << 20;
/// The same of few ranks, which stand for all.
pub(super) const LIMIT_OF_FEW: u64 = 96 << 20;
/// From so many simulated ranks on fewer bundles must do.
const MANY: usize = 256;
/// From so many on, one.
pub(super) const VERY_MANY: usize = 8192;

/// How many instructions of so many simulated ranks are held at once.
pub(super) fn limit(simulated: usize) -> u64 {
    if simulated > MANY { LIMIT } else { LIMIT_OF_FEW }
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
    let new = |turns: Turns, links: Option<Vec<LinkId>>| Compiler {
        subject,
        layout,
        network,
        turns,
        standing: links.filter(|_| turns.turns_places()),
        element_bytes: options.element_bytes,
        in_network: options.in_network,
        longest,
        numbers: Map::default(),
        ways_by_pair: Map::default(),
        lengths: Map::default(),
        connections: Vec::new(),
        counters: Vec::new(),
        ways: Vec::new(),
        rails: Rails::default(),
        windows: false,
        most_segments: NO_SEGMENTS,
    };
    let (statement, mut compiler, mut programs) = match folded(subject, network, options, &new) {
        Some(Ok(done)) => done,
        other => {
            let statement = match other {
                Some(Err(why)) => Statement::NotFolded { why },
                _ => Statement::RankByRank,
            };
            let none = Turns::none(ranks, network.per_node());
            let mut compiler = new(none, None);
            subject.refuse_too_large(none)?;
            let programs = compiler.lists(0..ranks * subject.lists_per_rank)?;
            (statement, compiler, programs)
        }
    };
    follow_lengths(&mut compiler, &mut programs);
    if options.in_network {
        merge(&mut compiler, &mut programs);
    }
    compiler.settle_counters();
    let mut lengths = vec![Length::Fixed(0); compiler.lengths.len()];
    compiler.lengths.iter().for_each(|(length, at)| lengths[*at as usize] = *length);
    let largest = layout.largest() * options.element_bytes;
    let shares = options.channels / subject.needed_channels;
    if shares == 0 {
        let (needed, channels) = (subject.needed_channels, options.channels);
        return Err(SimulationError::TooManyLists { needed, channels });
    }
    let (tile, windows) = (options.tile_bytes, compiler.windows);
    let instructions: u64 = programs.iter().map(|(steps, _)| steps.len() as u64).sum();
    let usual = match compiler.turns.simulated() {
        simulated if simulated > VERY_MANY || instructions > LIMIT => 1,
        simulated if simulated > MANY => 2,
        _ => 4,
    };
    let most = options.bundles.unwrap_or(usual);
    Ok(Compiled {
        lists_per_rank: subject.lists_per_rank,
        turns: compiler.turns,
        pods: compiler.pods(),
        programs,
        connections: compiler.connections,
        counters: compiler.counters,
        ways: compiler.ways,
        rails: compiler.rails.all,
        bundles: bundles(&lengths, shares, most),
        rounds: Rounds::new(part_bytes(largest, shares), windows, compiler.most_segments, tile)?,
        merges: options.in_network,
        statement,
    })
}

pub(super) struct Compiler<'a> {
    pub(super) subject: &'a Subject<'a>,
    layout: &'a Layout,
    pub(super) network: &'a Network,
    /// Which ranks are simulated, and how they stand for the others.
    pub(super) turns: Turns,
    /// Where places of a node do: for each link of a pod, the one that stands for it.
    standing: Option<Vec<LinkId>>,
    element_bytes: usize,
    /// Whether switches that can reduce do.
    in_network: bool,
    /// The longest chunk of inputs, and of outputs.
    longest: [usize; 2],
    numbers: Map<(u32, u32, Lane), u32>,
    ways_by_pair: Map<(u32, u32), u32>,
    lengths: Map<Length, u32>,
    pub(super) connections: Vec<Connection>,
    counters: Vec<Counter>,
    pub(super) ways: Vec<Way>,
    pub(super) rails: Rails,
    windows: bool,
    /// Segments of the longest message of each lane.
    most_segments: MostSegments,
}

impl Compiler<'_> {
    /// The programs of these lists of those ranks that are simulated.
    pub(super) fn lists(
        &mut self,
        lists: std::ops::Range<usize>,
    ) -> Result<Programs, SimulationError> {
        let mut programs = Programs::with_capacity(lists.len());
        let (mut total, limit) = (0u64, limit(self.turns.simulated()));
        let of_each = self.subject.lists_per_rank;
        for list in lists.clone() {
            let number = self.turns.rank(list / of_each) * of_each + list % of_each;
            programs.push(self.list(number, true)?);
            total += programs[programs.len() - 1].0.len() as u64;
            if total > limit {
                let instructions = total / programs.len() as u64 * lists.len() as u64;
                return Err(SimulationError::too_large(instructions, limit));
            }
        }
        Ok(programs)
    }

    /// A list's program; messages are counted unless it is only to be compared.
    pub(super) fn list(
        &mut self,
        number: usize,
        count: bool,
    ) -> Result<(Vec<Step>, Vec<Access>), SimulationError> {
        let list = self.subject.list(number)?;
        let rank = number / self.subject.lists_per_rank;
        let (mut steps, mut accesses) = (Vec::with_capacity(list.len()), Vec::new());
        let mut copies = Copies::default();
        for (at, instruction) in list.iter().enumerate() {
            let beside = copies.take(instruction);
            steps.push(match instruction {
                Instruction::Wait { flag, value } => {
                    let counter = self.flag(number, *flag, false, count);
                    Step::Wait { counter, value: *value as i32 }
                }
                Instruction::Signal { flag, value } => {
                    let counter = self.flag(number, *flag, true, count);
                    Step::Signal { counter, value: *value as i32 }
                }
                Instruction::ReduceCopy { sources, destinations, .. } => {
                    let ranks = self.subject.collective.ranks;
                    let members = |operand: Operand| operand.members(rank, ranks);
                    let sources: Vec<Operand> =
                        sources.iter().flat_map(|from| members(from.operand)).collect();
                    let destinations: Vec<Operand> =
                        destinations.iter().flat_map(|to| members(*to)).collect();
                    let operands = sources.len() + destinations.len();
                    if operands > MAX_OPERANDS {
                        let limit = MAX_OPERANDS;
                        return Err(SimulationError::Operands { rank, step: at, operands, limit });
                    }
                    let first = accesses.len();
                    let split = first + sources.len();
                    let mut length = None;
                    let reads = sources.iter().map(|operand| (*operand, true));
                    let writes = destinations.iter().map(|operand| (*operand, false));
                    for (operand, reads) in reads.chain(writes) {
                        length = length.or_else(|| self.length(rank, operand));
                        accesses.push(self.access((number, at), operand, reads, count)?);
                    }
                    // What only leaves scratch is taken to be as long as the longest chunk.
                    let leaves = |from: &Operand| matches!(from, Operand::Scratch(_));
                    if length.is_none()
                        && sources.iter().any(leaves)
                        && !sources.iter().any(|from| from.is_slot() || from.is_of_rail())
                    {
                        let longest = self.longest.into_iter().max().unwrap_or(0);
                        length = Some(Length::Chunk(longest * self.element_bytes));
                    }
                    if self.in_network || instruction.uses_multicast() {
                        self.switch(rank, &sources, &mut accesses[first..split]);
                        self.switch(rank, &destinations, &mut accesses[split..]);
                    }
                    Step::Move {
                        first: first as u32,
                        sources: sources.len() as u16,
                        destinations: destinations.len() as u16,
                        length: length.map_or(AS_IT_CAME, |length| self.number_of(length)),
                        beside,
                    }
                }
            });
        }
        Ok((steps, accesses))
    }

    /// The counter behind a flag that this list raises, or waits for.
    fn flag(&mut self, list: usize, flag: Flag, raises: bool, count: bool) -> u32 {
        let (link, counts) = match flag {
            Flag::Tail(link) => (link, Counts::Tail),
            Flag::Head(link) => (link, Counts::Head),
        };
        // Tails are raised by senders, heads by receivers.
        let sends = raises == (counts == Counts::Tail);
        let connection = self.connection(list, link, sends);
        if count && link.lane == Lane::Sync {
            let connection = &mut self.connections[connection as usize];
            if raises { connection.sent += 1 } else { connection.received += 1 }
        }
        self.counter(connection, counts)
    }

    fn access(
        &mut self,
        (list, step): (usize, usize),
        operand: Operand,
        reads: bool,
        count: bool,
    ) -> Result<Access, SimulationError> {
        let local = Access {
            kind: AccessKind::Local,
            merged: false,
            switched: false,
            way: 0,
            counter: 0,
            message: 0,
        };
        match operand {
            Operand::Slot { link, message, segment }
            | Operand::PeerSlot { link, message, segment } => {
                let at = self.connection(list, link, !reads);
                let connection = &mut self.connections[at as usize];
                let way = connection.way;
                // The segments of a message are announced and given back together.
                if count && segment == 0 {
                    if reads { connection.received += 1 } else { connection.sent += 1 }
                }
                let counter = match link.lane.has_flags() {
                    true => self.counter(at, Counts::Messages),
                    false => at,
                };
                let flags = Flags::of(link.lane);
                let kind = if reads { AccessKind::Slot(flags) } else { AccessKind::Send(flags) };
                self.note_segment(link.lane, segment);
                let message = message * SEGMENTS + segment;
                Ok(Access { kind, way, counter, message, ..local })
            }
            Operand::Window { peer, .. } => {
                self.windows = true;
                let rank = list / self.subject.lists_per_rank;
                let (from, to) = if reads { (peer, rank) } else { (rank, peer) };
                let way = self.way(from, to);
                if self.ways[way as usize].posted {
                    return Err(SimulationError::WindowAcross { rank, step, peer });
                }
                let kind = if reads { AccessKind::Pull } else { AccessKind::Push };
                Ok(Access { kind, way, ..local })
            }
            Operand::Contribution { rail, message } | Operand::Reduced { rail, message } => {
                let (at, way) = self
                    .on_rail(list, rail)
                    .ok_or(SimulationError::FabricDoesNotReduce { rank: list, step })?;
                let connection = &mut self.connections[at as usize];
                if count {
                    if reads { connection.received += 1 } else { connection.sent += 1 }
                }
                self.note_segment(Lane::Slots, 0);
                let kind = if reads { AccessKind::Reduced } else { AccessKind::Contribution };
                let counter = self.counter(at, Counts::Messages);
                Ok(Access { kind, way, counter, message: message * SEGMENTS, ..local })
            }
            _ => Ok(local),
        }
    }

    fn note_segment(&mut self, of: Lane, segment: u32) {
        for (_, most) in self.most_segments.iter_mut().filter(|(lane, _)| *lane == of) {
            *most = (*most).max(segment as usize + 1);
        }
    }

    /// What an instruction reads of several peers in place, or writes there, is one access of their
    /// switch to all of them, this rank among them, if the switch can reduce.
    fn switch(&mut self, rank: usize, operands: &[Operand], accesses: &mut [Access]) {
        let is_window = |kind| matches!(kind, AccessKind::Pull | AccessKind::Push);
        let switch_of = |access: &Access| {
            let way = is_window(access.kind).then(|| &self.ways[access.way as usize]);
            way.and_then(|way| way.switch).map(|(_, switch)| switch)
        };
        let Some(first) = accesses.iter().position(|access| switch_of(access).is_some()) else {
            return;
        };
        let shared = switch_of(&accesses[first]);
        let switched: Vec<bool> = accesses.iter().map(|one| switch_of(one) == shared).collect();
        if switched.iter().filter(|switched| **switched).count() < 2 {
            return;
        }
        // Whichever peer is taken, the links between this rank and the switch are the same.
        let peers =
            operands.iter().zip(&switched).filter_map(|(operand, switched)| match operand {
                Operand::Window { peer, .. } if *switched => Some(*peer),
                _ => None,
            });
        let Some(peer) = peers.min_by_key(|peer| self.turns.pair(rank, *peer)) else { return };
        let own = match accesses[first].kind {
            AccessKind::Pull => self.way(rank, peer),
            _ => self.way(peer, rank),
        };
        for ((access, operand), switched) in accesses.iter_mut().zip(operands).zip(switched) {
            let is_own = matches!(operand, Operand::Input(_) | Operand::Output(_));
            access.switched = switched || is_own;
            if is_own {
                (access.kind, access.way) = (AccessKind::Own, own);
            }
        }
    }

    /// Length of an operand that has one of its own. Where few ranks stand for all, chunks are as
    /// long as the longest.
    fn length(&self, rank: usize, operand: Operand) -> Option<Length> {
        let (rank, buffer, chunk) = match operand {
            Operand::Input(chunk) => (rank, Buffer::Input, chunk),
            Operand::Output(chunk) => (rank, Buffer::Output, chunk),
            Operand::Window { peer, buffer, chunk } => (peer, buffer, chunk),
            Operand::Tokens | Operand::PeerTokens(_) => {
                return Some(TOKENS);
            }
            // Of a multicast its members have been asked.
            Operand::Slot { .. }
            | Operand::PeerSlot { .. }
            | Operand::Contribution { .. }
            | Operand::Reduced { .. }
            | Operand::Scratch(_)
            | Operand::Multicast { .. } => {
                return None;
            }
        };
        let elements = if self.turns.is_none() {
            self.layout.extent(rank, buffer, chunk).count
        } else {
            self.longest[buffer as usize]
        };
        Some(Length::Chunk(elements * self.element_bytes))
    }

    pub(super) fn number_of(&mut self, length: Length) -> u32 {
        let next = self.lengths.len() as u32;
        *self.lengths.entry(length).or_insert(next)
    }

    /// The connection on which this list sends to a peer's, or receives from it.
    fn connection(&mut self, list: usize, link: Link, sends: bool) -> u32 {
        let of_each = self.subject.lists_per_rank;
        let peer = link.peer * of_each + usize::from(link.list);
        let (from, to) = if sends { (list, peer) } else { (peer, list) };
        let ranks = (from / of_each, to / of_each);
        let (sender, receiver) = self.turns.pair(ranks.0, ranks.1);
        let sender = (sender * of_each + from % of_each) as u32;
        let key = (sender, (receiver * of_each + to % of_each) as u32, link.lane);
        if let Some(known) = self.numbers.get(&key) {
            return *known;
        }
        let (way, back) = (self.way(ranks.0, ranks.1), self.way(ranks.1, ranks.0));
        let number = self.connections.len() as u32;
        self.connections.push(Connection {
            from: sender,
            to: (self.turns.home(ranks.1) * of_each + to % of_each) as u32,
            lane: link.lane,
            sent: 0,
            received: 0,
            way,
            back,
            counters: [u32::MAX; 3],
        });
        self.numbers.insert(key, number);
        number
    }

    fn counter(&mut self, connection: u32, counts: Counts) -> u32 {
        let known = &mut self.connections[connection as usize].counters[counts as usize];
        if *known == u32::MAX {
            *known = self.counters.len() as u32;
            let (a_round, latency) = ([0; 2], 0);
            self.counters.push(Counter { connection, counts, a_round, latency });
        }
        *known
    }

    /// What is known of counters once all messages have been counted.
    fn settle_counters(&mut self) {
        for counter in &mut self.counters {
            let connection = &self.connections[counter.connection as usize];
            // Tails and messages are raised by senders and awaited by receivers; heads the other
            // way round.
            let (way, a_round) = match counter.counts {
                Counts::Head => (connection.back, [connection.sent, connection.received]),
                _ => (connection.way, [connection.received, connection.sent]),
            };
            let counted = if counter.counts == Counts::Messages { SEGMENTS } else { 1 };
            counter.a_round = a_round.map(|messages| messages * counted);
            counter.latency = self.ways[way as usize].latency;
        }
    }

    fn way(&mut self, from: usize, to: usize) -> u32 {
        let pair = self.turns.pair(from, to);
        let pair = (pair.0 as u32, pair.1 as u32);
        if let Some(known) = self.ways_by_pair.get(&pair) {
            return *known;
        }
        let route = self.network.route(from, to);
        let number = self.ways.len() as u32;
        self.ways.push(Way {
            links: self.here(&route.links),
            latency: from_ns(route.latency_ns),
            posted: route.posted,
            switch: route.switch,
            switch_efficiency: route.switch_efficiency,
            from_memory: self.link(self.network.memory(from)),
            to_memory: self.link(self.network.memory(to)),
        });
        self.ways_by_pair.insert(pair, number);
        number
    }

    /// Pods whose links are simulated.
    fn pods(&self) -> usize {
        self.turns.firsts.div_ceil(self.network.per_node() * self.network.nodes_per_pod())
    }

    /// The simulated links that stand for these.
    pub(super) fn here(&self, links: &[LinkId]) -> Vec<LinkId> {
        links.iter().map(|link| self.link(*link)).collect()
    }

    /// The simulated link that stands for this one.
    pub(super) fn link(&self, link: LinkId) -> LinkId {
        let per_pod = self.network.links_per_pod();
        let link = link % (self.pods() as u32 * per_pod);
        let at = link % per_pod;
        link - at + self.standing.as_ref().map_or(at, |standing| standing[at as usize])
    }
}
