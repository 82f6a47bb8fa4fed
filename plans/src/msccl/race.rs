//! Whether everything that two thread blocks of a rank do with the same chunk is ordered, by what
//! they depend on and by messages: vector clocks, one for each thread block.
//!
//! That a slot must be free before it is written orders steps too, but how many slots there are is
//! no part of a file.

use super::fault::MscclFault;
use super::memory::Memory;
use super::order::Event as Done;
use super::parse::{Algorithm, At, Buffer, Op, Span, chunks};
use crate::verify::clock::{Clock, Knowledge};
use std::collections::{HashMap, HashSet, VecDeque};

/// A chunk of a rank's memory.
type Cell = (usize, Buffer, usize);

/// From, to and channel.
type Channel = (usize, usize, usize);

type Stamp = <Clock as Knowledge>::Stamp;

/// What an execution has led to so far.
struct Execution<'a> {
    algorithm: &'a Algorithm,
    /// By rank: the number of its first thread block among all.
    starts: Vec<usize>,
    /// By thread block.
    clocks: Vec<Clock>,
    /// Steps that others depend on, and what was known when they were done.
    awaited: HashSet<At>,
    done: HashMap<At, Stamp>,
    sent: HashMap<Channel, VecDeque<Stamp>>,
    /// By rank: of what is done before all thread blocks.
    first: HashMap<usize, Stamp>,
    memory: Memory<Cell, At>,
}

/// Checks an execution: what it finds unordered is so in all of them.
pub(super) fn check(algorithm: &Algorithm, events: &[Done]) -> Result<(), MscclFault> {
    let (mut starts, mut blocks) = (Vec::new(), 0);
    let mut awaited = HashSet::new();
    for (rank, of_rank) in algorithm.ranks.iter().enumerate() {
        starts.push(blocks);
        blocks += of_rank.len();
        let steps = of_rank.iter().flat_map(|block| &block.steps);
        let on = steps.filter_map(|step| step.dependency);
        awaited.extend(on.map(|(block, step)| (rank, block, step)));
    }
    let mut execution = Execution {
        algorithm,
        starts,
        clocks: Clock::all(blocks).collect(),
        awaited,
        done: HashMap::new(),
        sent: HashMap::new(),
        first: HashMap::new(),
        memory: Memory::new(),
    };
    // When a message is received early, nothing is done with it yet.
    events.iter().try_for_each(|event| match *event {
        Done::Step { at, .. } => execution.step(at),
        Done::Early { .. } => Ok(()),
    })
}

impl Execution<'_> {
    fn step(&mut self, at: At) -> Result<(), MscclFault> {
        let (rank, number, _) = at;
        let (step, block) = (self.algorithm.step(at), &self.algorithm.ranks[rank][number]);
        let channel = |from, to| (from, to, block.channel);
        let come = block.recv.filter(|_| step.op.receives()).map(|from| channel(from, rank));
        let come = come.and_then(|channel| self.sent.get_mut(&channel)?.pop_front());
        let on = step.dependency.and_then(|(of, index)| self.done.get(&(rank, of, index)));
        let clock = &mut self.clocks[self.starts[rank] + number];
        for stamp in self.first.get(&rank).into_iter().chain(on).chain(&come) {
            clock.join(stamp);
        }
        for (cell, writes) in accesses(self.algorithm, at) {
            self.touch(at, cell, writes)?;
        }
        let clock = &mut self.clocks[self.starts[rank] + number];
        if block.is_first {
            self.first.insert(rank, clock.publish());
        }
        if self.awaited.contains(&at) {
            self.done.insert(at, clock.publish());
        }
        if let Some(to) = block.send.filter(|_| step.op.sends()) {
            self.sent.entry(channel(rank, to)).or_default().push_back(clock.publish());
        }
        Ok(())
    }

    fn touch(&mut self, at: At, cell: Cell, writes: bool) -> Result<(), MscclFault> {
        let clock = &self.clocks[self.starts[at.0] + at.1];
        self.memory.touch(clock, at, cell, writes).map_err(|other| {
            let place = |at: At| self.algorithm.step(at).place;
            let (_, buffer, chunk) = cell;
            let (one, other, buffer) = (place(other), place(at), buffer.letter());
            MscclFault::Race { one, other, buffer, chunk }
        })
    }
}

/// What a step reads, and then what it writes.
fn accesses(algorithm: &Algorithm, at: At) -> Vec<(Cell, bool)> {
    let (rank, step) = (at.0, algorithm.step(at));
    let cells = |span: Span, writes: bool| {
        let chunks = chunks(span, step.count);
        chunks.map(move |chunk| {
            let (buffer, chunk) = algorithm.cell(rank, span.buffer, chunk);
            ((rank, buffer, chunk), writes)
        })
    };
    let mut all = Vec::new();
    if step.op.reads() {
        all.extend(cells(step.source, false));
    }
    if step.op == Op::Reduce {
        all.extend(cells(step.destination, false));
    }
    if step.op.writes() {
        all.extend(cells(step.destination, true));
    }
    all
}
