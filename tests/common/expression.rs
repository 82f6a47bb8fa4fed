//! In which order an algorithm reduces where it promises none: read off its schedule, rank by rank,
//! with nothing but queues of messages. That this order has each contribution once is the
//! verifier's business; here it says which bits must come out.

use oxccl::plans::schedule::{Buffer, Flag, Instruction, Lane, Operand, Schedule, Tree};
use std::collections::HashMap;
use std::sync::Arc;

/// What an output chunk is made of.
#[derive(Clone, Debug)]
pub enum Expression {
    /// A rank's contribution.
    Leaf(usize),
    /// Folded by one instruction, and then rounded.
    Fold { terms: Vec<Arc<Expression>>, aligned: bool },
}

/// The expressions of output chunks, by rank and chunk.
pub type Expressions = HashMap<(usize, usize), Arc<Expression>>;

/// Runs a schedule.
pub fn expressions(schedule: &Schedule) -> Expressions {
    let n = schedule.collective.ranks;
    let mut run = Run { ranks: n, ..Run::default() };
    let mut steps = vec![0; n];
    loop {
        let before = steps.clone();
        for (rank, step) in steps.iter_mut().enumerate() {
            while let Some(instruction) = schedule.lists[rank].get(*step) {
                if !run.step(rank, instruction) {
                    break;
                }
                *step += 1;
            }
        }
        if steps == before {
            break;
        }
    }
    let ended = |(rank, step): (usize, &usize)| *step == schedule.lists[rank].len();
    assert!(steps.iter().enumerate().all(ended), "it does not end");
    run.outputs
}

#[derive(Default)]
struct Run {
    ranks: usize,
    outputs: Expressions,
    /// Arrivals by sender, receiver and lane.
    tails: HashMap<(usize, usize, Lane), i64>,
    /// What has been consumed, by receiver, sender and lane.
    heads: HashMap<(usize, usize, Lane), i64>,
    /// By sender, receiver, lane, message and segment.
    messages: HashMap<(usize, usize, Lane, u32, u32), Arc<Expression>>,
}

impl Run {
    /// Whether the instruction could be carried out.
    fn step(&mut self, rank: usize, instruction: &Instruction) -> bool {
        let (sources, destinations, tree) = match instruction {
            Instruction::Wait { flag, value } => return *value <= self.counter(rank, *flag),
            Instruction::Signal { flag, value } => {
                match flag {
                    Flag::Tail(link) => self.tails.insert((rank, link.peer, link.lane), *value),
                    Flag::Head(link) => self.heads.insert((rank, link.peer, link.lane), *value),
                };
                return true;
            }
            Instruction::ReduceCopy { sources, destinations, tree, .. } => {
                (sources, destinations, tree)
            }
        };
        // What a switch does, executors without one do rank by rank.
        let members = |operand: Operand| operand.members(rank, self.ranks);
        let read = sources.iter().flat_map(|source| members(source.operand));
        let read = read.map(|operand| self.read(rank, operand));
        let Some(terms) = read.collect::<Option<Vec<_>>>() else { return false };
        let destinations: Vec<_> = destinations.iter().flat_map(|one| members(*one)).collect();
        let is_copy = sources.len() == 1 && !sources[0].raw;
        let value = match is_copy {
            true => terms[0].clone(),
            false => Arc::new(Expression::Fold { terms, aligned: *tree == Tree::Aligned }),
        };
        for operand in destinations {
            match operand {
                Operand::Output(chunk) => {
                    self.outputs.insert((rank, chunk), value.clone());
                }
                Operand::PeerSlot { link, message, segment } => {
                    let place = (rank, link.peer, link.lane, message, segment);
                    self.messages.insert(place, value.clone());
                }
                Operand::Window { peer, buffer: Buffer::Output, chunk } => {
                    self.outputs.insert((peer, chunk), value.clone());
                }
                Operand::PeerTokens(_) => (),
                _ => panic!("{operand} is not written"),
            }
        }
        true
    }

    /// What a rank sees of a counter that it waits for.
    fn counter(&self, rank: usize, flag: Flag) -> i64 {
        let seen = match flag {
            Flag::Tail(link) => self.tails.get(&(link.peer, rank, link.lane)),
            Flag::Head(link) => self.heads.get(&(link.peer, rank, link.lane)),
        };
        seen.copied().unwrap_or(0)
    }

    fn read(&self, rank: usize, operand: Operand) -> Option<Arc<Expression>> {
        match operand {
            // Tokens go the way of contributions, and end nowhere.
            Operand::Input(_) | Operand::Tokens => Some(Arc::new(Expression::Leaf(rank))),
            Operand::Window { peer, buffer: Buffer::Input, .. } => {
                Some(Arc::new(Expression::Leaf(peer)))
            }
            Operand::Window { peer, buffer: Buffer::Output, chunk } => {
                self.outputs.get(&(peer, chunk)).cloned()
            }
            Operand::Output(chunk) => self.outputs.get(&(rank, chunk)).cloned(),
            Operand::Slot { link, message, segment } => {
                self.messages.get(&(link.peer, rank, link.lane, message, segment)).cloned()
            }
            _ => panic!("{operand} is not read"),
        }
    }
}
