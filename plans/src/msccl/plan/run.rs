//! One execution of a plan, and what each rank does in it.
//!
//! Thread blocks take turns, each as far as it gets. What a rank is told by another it does then:
//! all ranks' lists are parts of one order, in which each message is received as soon as it is
//! sent, so they end however they are interleaved. Vector clocks, one for each thread block, say
//! whether the plan's own signals order what this execution has ordered.

use super::super::compile::{Compiler, Held};
use super::super::memory::Memory;
use super::super::parse::Span;
use super::fault::{PlanFault, PlanPlace, PlanWaits};
use super::read::{Action, Cell, Channel, Plan, Step};
use crate::schedule::{Flag, Link, Notes, Operand, SEGMENTS, Schedule, Source};
use crate::verify::clock::{Clock, Knowledge};
use oxccl_format::Lane;
use std::collections::{HashMap, HashSet, VecDeque};

type Stamp = <Clock as Knowledge>::Stamp;

/// A thread block, and which of its steps.
type At = (usize, usize);

struct Run<'a> {
    plan: &'a Plan,
    compiler: Compiler<'a>,
    /// By thread block: its next step.
    next: Vec<usize>,
    clocks: Vec<Clock>,
    signals: HashMap<Channel, VecDeque<Stamp>>,
    /// By rank and number: who has come to a barrier, and what they knew.
    barriers: HashMap<(usize, usize), Vec<(usize, Stamp)>>,
    /// Thread blocks whose barrier is complete.
    passed: HashSet<usize>,
    /// By rank: of each semaphore what there is to acquire, with what was known at its release.
    semaphores: Vec<Vec<VecDeque<Option<Stamp>>>>,
    /// Packets that have been written.
    packets: HashMap<Cell, Stamp>,
    memory: Memory<Cell, At>,
}

/// Runs a plan to its end: the schedule, and where its steps come from.
pub(super) fn run(plan: &Plan) -> Result<(Schedule, Notes), PlanFault> {
    let free = |held: &i64| VecDeque::from(vec![None; usize::try_from(*held).unwrap_or(0)]);
    let mut run = Run {
        plan,
        compiler: Compiler::new(&plan.algorithm, 1),
        next: vec![0; plan.blocks.len()],
        clocks: Clock::all(plan.blocks.len()).collect(),
        signals: HashMap::new(),
        barriers: HashMap::new(),
        passed: HashSet::new(),
        semaphores: plan.semaphores.iter().map(|all| all.iter().map(free).collect()).collect(),
        packets: HashMap::new(),
        memory: Memory::new(),
    };
    while run.goes_on()? {}
    let waits: Vec<PlanWaits> =
        (0..plan.blocks.len()).filter_map(|block| run.waits(block)).collect();
    match waits.is_empty() {
        true => Ok(run.compiler.finish(None)),
        false => Err(PlanFault::Deadlock(waits)),
    }
}

impl<'a> Run<'a> {
    fn step(&self, block: usize) -> Option<&'a Step> {
        self.plan.blocks[block].steps.get(self.next[block])
    }

    /// Each thread block takes the steps that it gets to. Whether any has taken one.
    fn goes_on(&mut self) -> Result<bool, PlanFault> {
        let mut goes_on = false;
        for block in 0..self.plan.blocks.len() {
            while let Some(step) = self.step(block) {
                if !self.take(block, step)? {
                    break;
                }
                self.next[block] += 1;
                goes_on = true;
            }
        }
        Ok(goes_on)
    }

    /// Whether a thread block gets past this step, which is then done.
    fn take(&mut self, block: usize, step: &Step) -> Result<bool, PlanFault> {
        let rank = self.plan.blocks[block].rank;
        match &step.action {
            Action::Signal(channel) => {
                let stamp = self.clocks[block].publish();
                self.signals.entry(*channel).or_default().push_back(stamp);
            }
            Action::Wait(channel) => {
                let come = self.signals.get_mut(channel).and_then(VecDeque::pop_front);
                let Some(stamp) = come else { return Ok(false) };
                self.clocks[block].join(&stamp);
            }
            Action::Barrier(number, count) => {
                return Ok(self.barrier(block, (rank, *number), *count));
            }
            Action::Acquire(number) => {
                let Some(free) = self.semaphores[rank][*number].pop_front() else {
                    return Ok(false);
                };
                free.iter().for_each(|stamp| self.clocks[block].join(stamp));
            }
            Action::Release(number) => {
                let stamp = self.clocks[block].publish();
                self.semaphores[rank][*number].push_back(Some(stamp));
            }
            Action::Move { sources, destinations, packets } => {
                if self.missing(step).is_some() {
                    return Ok(false);
                }
                for source in sources.iter().skip(packets.0) {
                    if let Some(stamp) = self.packets.get(source) {
                        self.clocks[block].join(stamp);
                    }
                }
                let at = (block, self.next[block]);
                sources.iter().try_for_each(|cell| self.touch(at, *cell, false))?;
                destinations.iter().try_for_each(|cell| self.touch(at, *cell, true))?;
                if destinations.len() > packets.1 {
                    let stamp = self.clocks[block].publish();
                    let written = destinations.iter().skip(packets.1);
                    self.packets.extend(written.map(|cell| (*cell, stamp.clone())));
                }
                self.carry_out(rank, sources, destinations, &step.place)?;
            }
        }
        Ok(true)
    }

    /// A packet that a step reads, and that nobody has written.
    fn missing(&self, step: &Step) -> Option<Cell> {
        let Action::Move { sources, packets, .. } = &step.action else { return None };
        let mut packets = sources.iter().skip(packets.0);
        packets.find(|cell| !self.packets.contains_key(cell)).copied()
    }

    /// Whether all have come to the barrier, one of whom is this thread block.
    fn barrier(&mut self, block: usize, which: (usize, usize), count: usize) -> bool {
        if self.passed.remove(&block) {
            return true;
        }
        let come = self.barriers.entry(which).or_default();
        if come.iter().any(|(other, _)| *other == block) {
            return false;
        }
        come.push((block, self.clocks[block].publish()));
        if come.len() < count {
            return false;
        }
        let come = std::mem::take(come);
        for (other, _) in &come {
            come.iter().for_each(|(_, stamp)| self.clocks[*other].join(stamp));
            self.passed.insert(*other);
        }
        self.passed.remove(&block)
    }

    fn touch(&mut self, at: At, cell: Cell, writes: bool) -> Result<(), PlanFault> {
        let algorithm = &self.plan.algorithm;
        let (buffer, chunk) = algorithm.cell(cell.rank, cell.buffer, cell.chunk);
        let meant = Cell { buffer, chunk, ..cell };
        self.memory.touch(&self.clocks[at.0], at, meant, writes).map_err(|other| {
            let place = |(block, step): At| self.plan.blocks[block].steps[step].place.clone();
            let (one, other, gpu) = (place(other), place(at), cell.rank);
            let (buffer, chunk) = (cell.buffer.letter(), cell.chunk);
            PlanFault::Race { one, other, gpu, buffer, chunk }
        })
    }

    /// What a rank reads and writes, where that of others is a message.
    fn carry_out(
        &mut self,
        rank: usize,
        sources: &[Cell],
        destinations: &[Cell],
        place: &PlanPlace,
    ) -> Result<(), PlanFault> {
        let (note, lane) = (place.to_string(), self.plan.algorithm.lane);
        for cells in [sources, destinations] {
            let most = peers(rank, cells).into_iter().map(|(_, cells)| cells.len()).max();
            if most.unwrap_or(0) > SEGMENTS as usize {
                let unfit = format!("more than {SEGMENTS} chunks of one peer at once");
                return Err(PlanFault::Operation { place: place.clone(), unfit });
            }
        }
        // What others have is sent by them.
        let mut held: HashMap<Cell, Held> = HashMap::new();
        let senders = peers(rank, sources);
        for (peer, cells) in &senders {
            let contents: Vec<Held> = cells.iter().map(|cell| self.read(*cell)).collect();
            let (link, message) = self.compiler.lists[*peer].open_slot(Link::new(rank, lane));
            for (segment, one) in contents.iter().enumerate() {
                let to = Operand::PeerSlot { link, message, segment: segment as u32 };
                self.compiler.lists[*peer].move_chunk(
                    vec![Source::plain(one.operand)],
                    vec![to],
                    false,
                    &note,
                );
            }
            self.sent(*peer, link, message);
            let link = Link::new(*peer, lane);
            let message = self.compiler.lists[rank].await_message(link);
            for ((segment, cell), one) in cells.iter().enumerate().zip(contents) {
                let operand = Operand::Slot { link, message, segment: segment as u32 };
                held.insert(*cell, Held { operand, ..one });
            }
        }
        let read =
            sources.iter().map(|cell| held.get(cell).copied().unwrap_or_else(|| self.read(*cell)));
        let read: Vec<Held> = read.collect();
        let contributions = read.iter().map(|one| one.contributions).sum();
        let finish = self.plan.algorithm.finishes(read.len(), contributions);
        let receivers = peers(rank, destinations);
        let mut operands = Vec::new();
        for cell in destinations.iter().filter(|cell| cell.rank == rank) {
            operands.push(self.write(*cell, contributions));
        }
        let mut opened = Vec::new();
        for (peer, cells) in &receivers {
            let (link, message) = self.compiler.lists[rank].open_slot(Link::new(*peer, lane));
            let segments = 0..cells.len() as u32;
            operands.extend(segments.map(|segment| Operand::PeerSlot { link, message, segment }));
            opened.push((link, message));
        }
        let read = read.iter().map(|one| Source::plain(one.operand)).collect();
        self.compiler.lists[rank].move_chunk(read, operands, finish, &note);
        for (peer, _) in &senders {
            self.compiler.lists[rank].close_message(Link::new(*peer, lane));
        }
        opened.into_iter().for_each(|(link, message)| self.sent(rank, link, message));
        for (peer, cells) in &receivers {
            let link = Link::new(rank, lane);
            let message = self.compiler.lists[*peer].await_message(link);
            for (segment, cell) in cells.iter().enumerate() {
                let from = Operand::Slot { link, message, segment: segment as u32 };
                let to = self.write(*cell, contributions);
                self.compiler.lists[*peer].move_chunk(
                    vec![Source::plain(from)],
                    vec![to],
                    false,
                    &note,
                );
            }
            self.compiler.lists[*peer].close_message(link);
        }
        Ok(())
    }

    /// Messages without flags are announced.
    fn sent(&mut self, rank: usize, link: Link, message: u32) {
        if link.lane == Lane::Slots {
            let flag = Flag::Tail(link);
            self.compiler.lists[rank].signal(flag, i64::from(message) + 1);
        }
    }

    fn read(&mut self, cell: Cell) -> Held {
        self.compiler.read(cell.rank, Span { buffer: cell.buffer, first: cell.chunk }, 0)
    }

    fn write(&mut self, cell: Cell, contributions: usize) -> Operand {
        let span = Span { buffer: cell.buffer, first: cell.chunk };
        self.compiler.write(cell.rank, span, 0, contributions)
    }

    /// What a thread block waits for that has not come to its end.
    fn waits(&self, block: usize) -> Option<PlanWaits> {
        let step = self.step(block)?;
        let awaited = match &step.action {
            Action::Wait(Channel { from, .. }) => {
                format!("a signal of gpu {from}, which sends no more")
            }
            Action::Barrier(number, count) => {
                let come =
                    self.barriers.get(&(self.plan.blocks[block].rank, *number)).map_or(0, Vec::len);
                format!("{count} thread blocks to come to barrier {number}, where {come} are")
            }
            Action::Acquire(number) => format!("semaphore {number}, which nobody releases"),
            Action::Move { .. } => match self.missing(step) {
                Some(Cell { buffer, chunk, .. }) => {
                    format!("packets of {}[{chunk}], which nobody writes", buffer.letter())
                }
                None => "nothing".to_owned(),
            },
            Action::Signal(_) | Action::Release(_) => "nothing".to_owned(),
        };
        Some(PlanWaits { place: step.place.clone(), awaited })
    }
}

/// Other ranks' cells, by rank, in the order in which they are named.
fn peers(rank: usize, cells: &[Cell]) -> Vec<(usize, Vec<Cell>)> {
    let mut all: Vec<(usize, Vec<Cell>)> = Vec::new();
    for cell in cells.iter().filter(|cell| cell.rank != rank) {
        match all.iter_mut().find(|(peer, _)| *peer == cell.rank) {
            Some((_, cells)) => cells.push(*cell),
            None => all.push((cell.rank, vec![*cell])),
        }
    }
    all
}
