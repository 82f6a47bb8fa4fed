//! From steps in their order to the lists of a schedule.

use super::order::Event;
use super::parse::{Algorithm, At, Buffer, Op, Span, Step};
use crate::collective::Kind;
use crate::schedule::{
    Chunking, Flag, Instruction, Link, Notes, Operand, SLOTS, Schedule, Source, Tree,
};
use oxccl_format::Lane;
use std::collections::{HashMap, VecDeque};

/// Something that a rank holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    operand: Operand,
    /// Contributions that are reduced in it.
    contributions: usize,
}

/// One rank's list while it grows.
#[derive(Default)]
struct List {
    instructions: Vec<Instruction>,
    notes: Vec<(usize, String)>,
    /// By place, what was last written there.
    held: HashMap<(Buffer, usize), Held>,
    /// Chunks of scratch that are given out, and those of them that are free again.
    scratch: usize,
    free: Vec<usize>,
    /// Of places in scratch and of those that the schedule cannot write: their chunk of scratch.
    kept: HashMap<(Buffer, usize), usize>,
    sent: HashMap<usize, u32>,
    received: HashMap<usize, u32>,
}

struct Compiler<'a> {
    algorithm: &'a Algorithm,
    lists: Vec<List>,
    /// By the ranks between which they are under way: contributions of each chunk.
    messages: HashMap<(usize, usize), VecDeque<Vec<usize>>>,
    /// By ranks and channel: messages that were received early.
    early: HashMap<(usize, usize, usize), VecDeque<Vec<Held>>>,
}

/// The schedule, and where its steps come from.
pub(super) fn compile(algorithm: &Algorithm, events: &[Event]) -> (Schedule, Notes) {
    let ranks = algorithm.collective.ranks;
    let mut compiler = Compiler {
        algorithm,
        lists: (0..ranks).map(|_| List::default()).collect(),
        messages: HashMap::new(),
        early: HashMap::new(),
    };
    for event in events {
        match *event {
            Event::Step { at, early } if algorithm.step(at).op != Op::Nop => {
                compiler.step(at, early)
            }
            Event::Step { .. } => {}
            Event::Early { to, sent } => compiler.receive_early(to, sent),
        }
    }
    (0..ranks).for_each(|rank| compiler.bring_home(rank));
    let mut notes = Notes { name: algorithm.name.clone(), ..Notes::default() };
    let scratch = compiler.lists.iter().map(|list| list.scratch).max().unwrap_or(0);
    let mut lists = Vec::new();
    for (rank, list) in compiler.lists.into_iter().enumerate() {
        notes.steps.extend(list.notes.into_iter().map(|(step, text)| ((rank, step), text)));
        lists.push(list.instructions);
    }
    let (input, output) = algorithm.chunking();
    let collective = algorithm.collective;
    let (slots, lists_per_rank) = (SLOTS, 1);
    (Schedule { collective, input, output, scratch, slots, lists_per_rank, lists }, notes)
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
    fn finishes(&self, sources: usize, contributions: usize) -> bool {
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

impl List {
    fn take_scratch(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.scratch += 1;
            self.scratch - 1
        })
    }

    fn move_chunk(
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

    fn wait(&mut self, flag: Flag, value: i64) {
        self.instructions.push(Instruction::Wait { flag, value });
    }

    fn signal(&mut self, flag: Flag, value: i64) {
        self.instructions.push(Instruction::Signal { flag, value });
    }
}

impl Compiler<'_> {
    fn step(&mut self, at: At, early: bool) {
        let (rank, algorithm) = (at.0, self.algorithm);
        let (step, block) = (algorithm.step(at), &algorithm.ranks[rank][at.1]);
        let note = step.place.to_string();
        let kept = block.recv.filter(|_| early).map(|from| (from, rank, block.channel));
        let kept = kept.and_then(|channel| self.early.get_mut(&channel)?.pop_front());
        let from = block.recv.filter(|_| step.op.receives() && !early);
        let incoming = match (from, &kept) {
            (Some(from), _) => self.open_message(rank, from),
            (None, Some(kept)) => kept.clone(),
            (None, None) => Vec::new(),
        };
        let outgoing = block.send.filter(|_| step.op.sends()).map(|to| self.open_slot(rank, to));
        let mut contents = Vec::new();
        for part in 0..step.count {
            let held = self.sources(rank, step, part, incoming.get(part).copied());
            let contributions: usize = held.iter().map(|one| one.contributions).sum();
            let finish = algorithm.finishes(held.len(), contributions);
            let mut destinations = Vec::new();
            if step.op.writes() {
                destinations.push(self.write(rank, step.destination, part, contributions));
            }
            if let Some((link, message)) = outgoing {
                destinations.push(Operand::PeerSlot { link, message, segment: part as u32 });
            }
            let sources = held.iter().map(|one| Source::plain(one.operand)).collect();
            self.lists[rank].move_chunk(sources, destinations, finish, &note);
            contents.push(contributions);
        }
        if let Some(from) = from {
            self.close_message(rank, from);
        }
        for held in kept.into_iter().flatten() {
            if let Operand::Scratch(chunk) = held.operand {
                self.lists[rank].free.push(chunk);
            }
        }
        if let Some((link, message)) = outgoing {
            if link.lane == Lane::Slots {
                self.lists[rank].signal(Flag::Tail(link), i64::from(message) + 1);
            }
            self.messages.entry((rank, link.peer)).or_default().push_back(contents);
        }
    }

    /// The next message's chunks, which are there behind this.
    fn open_message(&mut self, rank: usize, from: usize) -> Vec<Held> {
        let link = Link::new(from, self.algorithm.lane);
        let list = &mut self.lists[rank];
        let message = *list.received.entry(from).or_default();
        if link.lane == Lane::Slots {
            list.wait(Flag::Tail(link), i64::from(message) + 1);
        }
        let contents = self.messages.get_mut(&(from, rank)).and_then(VecDeque::pop_front);
        let held = |(segment, contributions)| {
            let operand = Operand::Slot { link, message, segment: segment as u32 };
            Held { operand, contributions }
        };
        contents.unwrap_or_default().into_iter().enumerate().map(held).collect()
    }

    fn close_message(&mut self, rank: usize, from: usize) {
        let link = Link::new(from, self.algorithm.lane);
        let list = &mut self.lists[rank];
        let received = list.received.entry(from).or_default();
        *received += 1;
        let value = i64::from(*received);
        list.signal(Flag::Head(link), value);
    }

    /// The next message to a rank, whose slot is free behind this.
    fn open_slot(&mut self, rank: usize, to: usize) -> (Link, u32) {
        let link = Link::new(to, self.algorithm.lane);
        let list = &mut self.lists[rank];
        let sent = list.sent.entry(to).or_default();
        let message = *sent;
        *sent += 1;
        let slots = i64::from(SLOTS.on(link.lane));
        list.wait(Flag::Head(link), i64::from(message) + 1 - slots);
        (link, message)
    }

    fn receive_early(&mut self, rank: usize, sent: At) {
        let algorithm = self.algorithm;
        let channel = algorithm.ranks[sent.0][sent.1].channel;
        let note = format!("early, for what comes behind it: {}", algorithm.step(sent).place);
        let incoming = self.open_message(rank, sent.0);
        let list = &mut self.lists[rank];
        let mut kept = Vec::new();
        for held in incoming {
            let operand = Operand::Scratch(list.take_scratch());
            list.move_chunk(vec![Source::plain(held.operand)], vec![operand], false, &note);
            kept.push(Held { operand, ..held });
        }
        self.close_message(rank, sent.0);
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

    fn read(&mut self, rank: usize, span: Span, part: usize) -> Held {
        let place = self.algorithm.cell(rank, span.buffer, span.first + part);
        if let Some(held) = self.lists[rank].held.get(&place) {
            return *held;
        }
        match self.algorithm.input_at(rank, place) {
            Some(chunk) => Held { operand: Operand::Input(chunk), contributions: 1 },
            // Nothing has been written there: the verifier says so.
            None => Held { operand: self.home(rank, place), contributions: 0 },
        }
    }

    fn write(&mut self, rank: usize, span: Span, part: usize, contributions: usize) -> Operand {
        let place = self.algorithm.cell(rank, span.buffer, span.first + part);
        let operand = self.home(rank, place);
        self.lists[rank].held.insert(place, Held { operand, contributions });
        operand
    }

    /// Where a place is written: in the output, or in scratch.
    fn home(&mut self, rank: usize, (buffer, chunk): (Buffer, usize)) -> Operand {
        if buffer == Buffer::Output && self.algorithm.collective.has_output(rank) {
            return Operand::Output(chunk);
        }
        let list = &mut self.lists[rank];
        if let Some(kept) = list.kept.get(&(buffer, chunk)) {
            return Operand::Scratch(*kept);
        }
        let kept = list.take_scratch();
        list.kept.insert((buffer, chunk), kept);
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
            let list = &mut self.lists[rank];
            if let (None, Some(input)) = (list.held.get(&place), input) {
                let sources = vec![Source::plain(Operand::Input(input))];
                let note = "what is in place from the beginning";
                let finish = algorithm.finishes(1, 1);
                list.move_chunk(sources, vec![Operand::Output(chunk)], finish, note);
            }
        }
    }
}
