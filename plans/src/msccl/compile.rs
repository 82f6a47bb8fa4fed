//! From steps in their order to the lists of a schedule.

use super::Blocks;
use super::order::Event;
use super::parse::{Algorithm, At, Block, Buffer, Op, Span, Step};
use super::tell::Told;
use crate::collective::Kind;
use crate::schedule::{
    Chunking, Flag, Instruction, Link, Notes, Operand, SLOTS, Schedule, Source, Tree,
};
use oxccl_format::Lane;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Something that a rank holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) operand: Operand,
    /// Contributions that are reduced in it.
    pub(super) contributions: usize,
}

/// A list while it grows.
#[derive(Default)]
pub(super) struct List {
    instructions: Vec<Instruction>,
    notes: Vec<(usize, String)>,
    sent: HashMap<Link, u32>,
    received: HashMap<Link, u32>,
}

/// One rank's memory.
#[derive(Default)]
struct Memory {
    /// By place, what was last written there.
    held: HashMap<(Buffer, usize), Held>,
    /// How many chunks of scratch are given out, and by list those of them that it may use again.
    scratch: usize,
    free: HashMap<usize, Vec<usize>>,
    /// Of places in scratch and of those that the schedule cannot write: their chunk of scratch.
    kept: HashMap<(Buffer, usize), usize>,
    /// By chunk of scratch, the lists that read or write it, and whether they write.
    users: BTreeMap<usize, BTreeMap<usize, bool>>,
}

pub(super) struct Compiler<'a> {
    pub(super) algorithm: &'a Algorithm,
    lists_per_rank: usize,
    pub(super) lists: Vec<List>,
    memories: Vec<Memory>,
    /// By the lists between which they are under way: contributions of each chunk.
    messages: HashMap<(usize, usize), VecDeque<Vec<usize>>>,
    /// By ranks and channel: messages that were received early.
    early: HashMap<(usize, usize, usize), VecDeque<Vec<Held>>>,
}

/// The schedule, and where its steps come from.
pub(super) fn compile(
    algorithm: &Algorithm,
    events: &[Event],
    blocks: Blocks,
) -> (Schedule, Notes) {
    let ranks = algorithm.collective.ranks;
    let most_blocks = algorithm.ranks.iter().map(Vec::len).max().unwrap_or(1).max(1);
    let lists_per_rank = if blocks == Blocks::Lists { most_blocks } else { 1 };
    let mut compiler = Compiler::new(algorithm, lists_per_rank);
    // What steps of one list know of each other is their order.
    let told = (lists_per_rank > 1).then(|| Told::new(algorithm));
    for rank in 0..ranks {
        let lists = &mut compiler.lists[rank * lists_per_rank..][..lists_per_rank];
        told.iter().for_each(|told| told.begin(rank, lists));
    }
    for event in events {
        match *event {
            Event::Step { at, early } => {
                let list = compiler.number(at);
                told.iter().for_each(|told| told.before(at, &mut compiler.lists[list]));
                if algorithm.step(at).op != Op::Nop {
                    compiler.step(at, early);
                }
                told.iter().for_each(|told| told.behind(at, &mut compiler.lists[list]));
            }
            Event::Early { to, sent } => compiler.receive_early(to, sent),
        }
    }
    compiler.finish(told)
}

impl Algorithm {
    /// How buffers are divided.
    fn chunking(&self) -> (Chunking, Chunking) {
        let part = match self.chunks {
            1 => Chunking::Whole,
            chunks => Chunking::Parts(chunks),
        };
        let all = Chunking::PerRank(self.chunks);
        match self.collective.kind {
            Kind::AllGather | Kind::Gather => (part, all),
            Kind::ReduceScatter | Kind::Scatter => (all, part),
            Kind::AllToAll => (all, all),
            _ => (part, part),
        }
    }

    /// Whether what has so many sources is a result: it has all contributions, of which one rank's
    /// alone are never reduced.
    pub(super) fn finishes(&self, sources: usize, contributions: usize) -> bool {
        let ranks = self.collective.ranks;
        self.collective.kind.reduces() && contributions == ranks && (sources > 1 || ranks == 1)
    }

    /// Where a chunk lies: in place, some of input and output are the same.
    pub(super) fn cell(&self, rank: usize, buffer: Buffer, chunk: usize) -> (Buffer, usize) {
        match (buffer, self.twin(rank, chunk)) {
            (Buffer::Input, Some(twin)) if self.in_place => (Buffer::Output, twin),
            _ => (buffer, chunk),
        }
    }

    /// The chunk of the input that a place holds when the call begins.
    fn input_at(&self, rank: usize, (buffer, chunk): (Buffer, usize)) -> Option<usize> {
        if !self.collective.has_input(rank) {
            return None;
        }
        match buffer {
            Buffer::Input => Some(chunk),
            Buffer::Output if self.in_place => match self.collective.kind {
                Kind::AllGather | Kind::Gather => {
                    (chunk / self.chunks == rank).then_some(chunk % self.chunks)
                }
                Kind::ReduceScatter | Kind::Scatter => Some(rank * self.chunks + chunk),
                _ => Some(chunk),
            },
            _ => None,
        }
    }
}

impl Memory {
    fn new_scratch(&mut self) -> usize {
        self.scratch += 1;
        self.scratch - 1
    }

    /// What a list has used, or a new one.
    fn take_scratch(&mut self, list: usize) -> usize {
        let free = self.free.get_mut(&list).and_then(Vec::pop);
        free.unwrap_or_else(|| self.new_scratch())
    }

    /// A list uses what may be scratch.
    fn note(&mut self, list: usize, operand: Operand, writes: bool) {
        if let Operand::Scratch(chunk) = operand {
            *self.users.entry(chunk).or_default().entry(list).or_default() |= writes;
        }
    }
}

impl List {
    pub(super) fn move_chunk(
        &mut self,
        sources: Vec<Source>,
        destinations: Vec<Operand>,
        finish: bool,
        note: &str,
    ) {
        self.notes.push((self.instructions.len(), note.to_owned()));
        let tree = Tree::Left;
        self.instructions.push(Instruction::ReduceCopy { sources, destinations, tree, finish });
    }

    /// The next message over a link, which is there behind this.
    pub(super) fn await_message(&mut self, link: Link) -> u32 {
        let message = *self.received.entry(link).or_default();
        if link.lane == Lane::Slots {
            self.wait(Flag::Tail(link), i64::from(message) + 1);
        }
        message
    }

    pub(super) fn close_message(&mut self, link: Link) {
        let received = self.received.entry(link).or_default();
        *received += 1;
        let value = i64::from(*received);
        self.signal(Flag::Head(link), value);
    }

    /// The next message over a link, whose slot is free behind this.
    pub(super) fn open_slot(&mut self, link: Link) -> (Link, u32) {
        let sent = self.sent.entry(link).or_default();
        let message = *sent;
        *sent += 1;
        let slots = i64::from(SLOTS.on(link.lane));
        self.wait(Flag::Head(link), i64::from(message) + 1 - slots);
        (link, message)
    }

    pub(super) fn wait(&mut self, flag: Flag, value: i64) {
        self.instructions.push(Instruction::Wait { flag, value });
    }

    pub(super) fn signal(&mut self, flag: Flag, value: i64) {
        self.instructions.push(Instruction::Signal { flag, value });
    }
}

impl<'a> Compiler<'a> {
    /// Nothing has been done yet.
    pub(super) fn new(algorithm: &'a Algorithm, lists_per_rank: usize) -> Compiler<'a> {
        let ranks = algorithm.collective.ranks;
        Compiler {
            algorithm,
            lists_per_rank,
            lists: (0..ranks * lists_per_rank).map(|_| List::default()).collect(),
            memories: (0..ranks).map(|_| Memory::default()).collect(),
            messages: HashMap::new(),
            early: HashMap::new(),
        }
    }

    /// All is done: the schedule, and where its steps come from.
    pub(super) fn finish(mut self, mut told: Option<Told>) -> (Schedule, Notes) {
        let (algorithm, lists_per_rank) = (self.algorithm, self.lists_per_rank);
        (0..algorithm.collective.ranks).for_each(|rank| self.bring_home(rank));
        for (rank, memory) in self.memories.iter().enumerate() {
            let lists = &mut self.lists[rank * lists_per_rank..][..lists_per_rank];
            told.iter_mut().for_each(|told| told.give_back(rank, &memory.users, lists));
        }
        let mut notes = Notes { name: algorithm.name.clone(), ..Notes::default() };
        let scratch = self.memories.iter().map(|memory| memory.scratch).max().unwrap_or(0);
        let (mut lists, mut first) = (Vec::new(), 0);
        for (number, list) in self.lists.into_iter().enumerate() {
            let rank = number / lists_per_rank;
            first = if number % lists_per_rank == 0 { 0 } else { first };
            let steps = list.notes.into_iter().map(|(step, text)| ((rank, first + step), text));
            notes.steps.extend(steps);
            first += list.instructions.len();
            lists.push(list.instructions);
        }
        let (input, output) = algorithm.chunking();
        let (collective, slots) = (algorithm.collective, SLOTS);
        (Schedule { collective, input, output, scratch, slots, lists_per_rank, lists }, notes)
    }

    /// The number of a step's list.
    fn number(&self, (rank, block, _): At) -> usize {
        rank * self.lists_per_rank + if self.lists_per_rank > 1 { block } else { 0 }
    }

    /// A link to a peer, and the number of the list there: of the thread block of which that is
    /// said.
    fn link(&self, peer: usize, is_it: impl Fn(&Block) -> bool) -> (Link, usize) {
        let list = match self.lists_per_rank {
            1 => 0,
            _ => self.algorithm.ranks[peer].iter().position(is_it).unwrap_or(0),
        };
        let lane = self.algorithm.lane;
        (Link { peer, list: list as u16, lane }, peer * self.lists_per_rank + list)
    }

    fn from(&self, (rank, block, _): At, from: usize) -> (Link, usize) {
        let channel = self.algorithm.ranks[rank][block].channel;
        self.link(from, |other| other.send == Some(rank) && other.channel == channel)
    }

    fn to(&self, (rank, block, _): At, to: usize) -> (Link, usize) {
        let channel = self.algorithm.ranks[rank][block].channel;
        self.link(to, |other| other.recv == Some(rank) && other.channel == channel)
    }

    fn step(&mut self, at: At, early: bool) {
        let (rank, algorithm, list) = (at.0, self.algorithm, self.number(at));
        let (step, block) = (algorithm.step(at), &algorithm.ranks[rank][at.1]);
        let note = step.place.to_string();
        let kept = block.recv.filter(|_| early).map(|from| (from, rank, block.channel));
        let kept = kept.and_then(|channel| self.early.get_mut(&channel)?.pop_front());
        let from = block.recv.filter(|_| step.op.receives() && !early);
        let from = from.map(|from| self.from(at, from));
        let incoming = match (from, &kept) {
            (Some(from), _) => self.open_message(list, from),
            (None, Some(kept)) => kept.clone(),
            (None, None) => Vec::new(),
        };
        let to = block.send.filter(|_| step.op.sends()).map(|to| self.to(at, to));
        let outgoing = to.map(|(link, there)| (self.lists[list].open_slot(link), there));
        let mut contents = Vec::new();
        for part in 0..step.count {
            let held = self.sources(rank, step, part, incoming.get(part).copied());
            let contributions: usize = held.iter().map(|one| one.contributions).sum();
            let finish = algorithm.finishes(held.len(), contributions);
            let mut destinations = Vec::new();
            if step.op.writes() {
                destinations.push(self.write(rank, step.destination, part, contributions));
            }
            if let Some(((link, message), _)) = outgoing {
                destinations.push(Operand::PeerSlot { link, message, segment: part as u32 });
            }
            let memory = &mut self.memories[rank];
            let own = list % self.lists_per_rank;
            held.iter().for_each(|one| memory.note(own, one.operand, false));
            destinations.iter().for_each(|to| memory.note(own, *to, true));
            let sources = held.iter().map(|one| Source::plain(one.operand)).collect();
            self.lists[list].move_chunk(sources, destinations, finish, &note);
            contents.push(contributions);
        }
        if let Some((link, _)) = from {
            self.lists[list].close_message(link);
        }
        for held in kept.into_iter().flatten() {
            if let Operand::Scratch(chunk) = held.operand {
                self.memories[rank].free.entry(list).or_default().push(chunk);
            }
        }
        if let Some(((link, message), there)) = outgoing {
            if link.lane == Lane::Slots {
                self.lists[list].signal(Flag::Tail(link), i64::from(message) + 1);
            }
            self.messages.entry((list, there)).or_default().push_back(contents);
        }
    }

    /// The next message's chunks, which are there behind this.
    fn open_message(&mut self, list: usize, (link, there): (Link, usize)) -> Vec<Held> {
        let contents = self.messages.get_mut(&(there, list)).and_then(VecDeque::pop_front);
        let message = self.lists[list].await_message(link);
        let held = |(segment, contributions)| {
            let operand = Operand::Slot { link, message, segment: segment as u32 };
            Held { operand, contributions }
        };
        contents.unwrap_or_default().into_iter().enumerate().map(held).collect()
    }

    fn receive_early(&mut self, rank: usize, sent: At) {
        let algorithm = self.algorithm;
        let channel = algorithm.ranks[sent.0][sent.1].channel;
        let note = format!("early, for what comes behind it: {}", algorithm.step(sent).place);
        let receives = |block: &Block| block.recv == Some(sent.0) && block.channel == channel;
        let at = (rank, algorithm.ranks[rank].iter().position(receives).unwrap_or(0), 0);
        let (list, from) = (self.number(at), self.from(at, sent.0));
        let mut kept = Vec::new();
        for held in self.open_message(list, from) {
            let memory = &mut self.memories[rank];
            let operand = Operand::Scratch(memory.take_scratch(list));
            memory.note(list % self.lists_per_rank, operand, true);
            let sources = vec![Source::plain(held.operand)];
            self.lists[list].move_chunk(sources, vec![operand], false, &note);
            kept.push(Held { operand, ..held });
        }
        self.lists[list].close_message(from.0);
        self.early.entry((sent.0, rank, channel)).or_default().push_back(kept);
    }

    /// What a part of a step reads, in order.
    fn sources(
        &mut self,
        rank: usize,
        step: &Step,
        part: usize,
        incoming: Option<Held>,
    ) -> Vec<Held> {
        let mut sources = Vec::new();
        if step.op == Op::Reduce {
            sources.push(self.read(rank, step.destination, part));
        }
        if step.op.reads() {
            sources.push(self.read(rank, step.source, part));
        }
        sources.extend(incoming);
        sources
    }

    pub(super) fn read(&mut self, rank: usize, span: Span, part: usize) -> Held {
        let place = self.algorithm.cell(rank, span.buffer, span.first + part);
        if let Some(held) = self.memories[rank].held.get(&place) {
            return *held;
        }
        match self.algorithm.input_at(rank, place) {
            Some(chunk) => Held { operand: Operand::Input(chunk), contributions: 1 },
            // Nothing has been written there: the verifier says so.
            None => Held { operand: self.home(rank, place), contributions: 0 },
        }
    }

    pub(super) fn write(
        &mut self,
        rank: usize,
        span: Span,
        part: usize,
        contributions: usize,
    ) -> Operand {
        let place = self.algorithm.cell(rank, span.buffer, span.first + part);
        let operand = self.home(rank, place);
        self.memories[rank].held.insert(place, Held { operand, contributions });
        operand
    }

    /// Where a place is written: in the output, or in scratch.
    fn home(&mut self, rank: usize, (buffer, chunk): (Buffer, usize)) -> Operand {
        if buffer == Buffer::Output && self.algorithm.collective.has_output(rank) {
            return Operand::Output(chunk);
        }
        let memory = &mut self.memories[rank];
        if let Some(kept) = memory.kept.get(&(buffer, chunk)) {
            return Operand::Scratch(*kept);
        }
        let kept = memory.new_scratch();
        memory.kept.insert((buffer, chunk), kept);
        Operand::Scratch(kept)
    }

    /// Copies what has its place in the output from the beginning: onto itself, in place.
    fn bring_home(&mut self, rank: usize) {
        let algorithm = self.algorithm;
        if !algorithm.collective.has_output(rank) {
            return;
        }
        for chunk in 0..algorithm.len_of(Buffer::Output) {
            let place = (Buffer::Output, chunk);
            let input = algorithm.input_at(rank, place);
            let held = self.memories[rank].held.get(&place);
            if let (None, Some(input)) = (held, input) {
                let list = &mut self.lists[rank * self.lists_per_rank];
                let sources = vec![Source::plain(Operand::Input(input))];
                let note = "what is in place from the beginning";
                let finish = algorithm.finishes(1, 1);
                list.move_chunk(sources, vec![Operand::Output(chunk)], finish, note);
            }
        }
    }
}
