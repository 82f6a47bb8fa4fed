//! Whether everything that two thread blocks of a rank do with the same chunk is ordered, by what
//! they depend on and by messages: vector clocks, one for each thread block.
//!
//! That a slot must be free before it is written orders steps too, but how many slots there are is
//! no part of a file.

use super::fault::MscclFault;
use super::order::Event;
use super::parse::{Algorithm, At, Buffer, Op, chunks};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// A chunk of a rank's memory.
type Cell = (usize, Buffer, usize);

/// What a thread block knew when it did something, shared by all who learn it.
type Stamp = Rc<[u32]>;

/// From, to and channel.
type Channel = (usize, usize, usize);

/// A thread block's time, and what it was doing.
#[derive(Clone, Copy)]
struct Access {
    process: usize,
    time: u32,
    at: At,
}

#[derive(Default)]
struct Accesses {
    written: Option<Access>,
    /// Since then: the last of each thread block.
    read: Vec<Access>,
}

/// Checks an execution: what it finds unordered is so in all of them.
pub(super) fn check(algorithm: &Algorithm, events: &[Event]) -> Result<(), MscclFault> {
    let (mut starts, mut blocks) = (Vec::new(), 0);
    for rank in &algorithm.ranks {
        starts.push(blocks);
        blocks += rank.len();
    }
    let mut clocks: Vec<Vec<u32>> = (0..blocks).map(|_| vec![0; blocks]).collect();
    let mut awaited: HashSet<At> = HashSet::new();
    for (rank, blocks) in algorithm.ranks.iter().enumerate() {
        let steps = blocks.iter().flat_map(|block| &block.steps);
        let on = steps.filter_map(|step| step.dependency);
        awaited.extend(on.map(|(block, step)| (rank, block, step)));
    }
    let mut done: HashMap<At, Stamp> = HashMap::new();
    let mut sent: HashMap<Channel, Vec<Stamp>> = HashMap::new();
    let mut taken: HashMap<Channel, usize> = HashMap::new();
    let mut memory: HashMap<Cell, Accesses> = HashMap::new();
    // Of copies that are done before all thread blocks, by rank.
    let mut before: HashMap<usize, Stamp> = HashMap::new();
    for event in events {
        let Event::Step { at, .. } = *event else { continue };
        let (rank, block, _) = at;
        let (step, of) = (algorithm.step(at), &algorithm.ranks[rank][block]);
        let process = starts[rank] + block;
        let learn = |clock: &mut Vec<u32>, stamp: &[u32]| {
            clock.iter_mut().zip(stamp).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
        };
        clocks[process][process] += 1;
        if let Some(stamp) = before.get(&rank) {
            learn(&mut clocks[process], stamp);
        }
        if let Some(stamp) =
            step.dependency.and_then(|(block, step)| done.get(&(rank, block, step)))
        {
            learn(&mut clocks[process], stamp);
        }
        if let (true, Some(peer)) = (step.op.receives(), of.recv) {
            let channel = (peer, rank, of.channel);
            let number = taken.entry(channel).or_default();
            if let Some(stamp) = sent.get(&channel).and_then(|all| all.get(*number)) {
                learn(&mut clocks[process], stamp);
            }
            *number += 1;
        }
        let now = Access { process, time: clocks[process][process], at };
        for (cell, writes) in accesses(algorithm, at) {
            touch(
                algorithm,
                memory.entry(cell).or_default(),
                (now, writes),
                &clocks[process],
                cell,
            )?;
        }
        if of.is_first {
            before.insert(rank, clocks[process].as_slice().into());
        }
        if awaited.contains(&at) {
            done.insert(at, clocks[process].as_slice().into());
        }
        if let (true, Some(peer)) = (step.op.sends(), of.send) {
            let stamp = clocks[process].as_slice().into();
            sent.entry((rank, peer, of.channel)).or_default().push(stamp);
        }
    }
    Ok(())
}

/// What a step reads, and then what it writes.
fn accesses(algorithm: &Algorithm, at: At) -> Vec<(Cell, bool)> {
    let (rank, step) = (at.0, algorithm.step(at));
    let cells = |span: super::parse::Span, writes: bool| {
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

fn touch(
    algorithm: &Algorithm,
    accesses: &mut Accesses,
    (now, writes): (Access, bool),
    clock: &[u32],
    (_, buffer, chunk): Cell,
) -> Result<(), MscclFault> {
    let unordered = |other: &&Access| clock[other.process] < other.time;
    let reads = accesses.read.iter().filter(|_| writes);
    if let Some(other) = accesses.written.iter().chain(reads).find(unordered) {
        let place = |at: At| algorithm.step(at).place;
        let (one, other) = (place(other.at), place(now.at));
        return Err(MscclFault::Race { one, other, buffer: buffer.letter(), chunk });
    }
    if writes {
        *accesses = Accesses { written: Some(now), read: Vec::new() };
    } else {
        accesses.read.retain(|read| read.process != now.process);
        accesses.read.push(now);
    }
    Ok(())
}
