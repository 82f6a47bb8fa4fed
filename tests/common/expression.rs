//! In which order an algorithm reduces where it promises none: read off its schedule, rank by rank, with nothing but queues of messages.
//! That this order has each contribution once is the verifier's business; here it says which bits must come out.

use oxccl::schedule::{Instruction, Lane, Operand, Schedule, Tree};
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

/// Runs a schedule that goes through slots.
pub fn expressions(schedule: &Schedule) -> Expressions {
    let n = schedule.collective.ranks;
    let mut run = Run { outputs: HashMap::new(), messages: HashMap::new() };
    let mut steps = vec![0; n];
    loop {
        let before = steps.clone();
        for (rank, step) in steps.iter_mut().enumerate() {
            while let Some(instruction) = schedule.ranks[rank].get(*step) {
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
    let ended = |(rank, step): (usize, &usize)| *step == schedule.ranks[rank].len();
    assert!(steps.iter().enumerate().all(ended), "it does not end");
    run.outputs
}

struct Run {
    outputs: Expressions,
    /// By sender, receiver, lane, message and segment.
    messages: HashMap<(usize, usize, Lane, u32, u32), Arc<Expression>>,
}

impl Run {
    /// Whether the instruction could be carried out.
    fn step(&mut self, rank: usize, instruction: &Instruction) -> bool {
        let Instruction::ReduceCopy { sources, destinations, tree, .. } = instruction else {
            return true;
        };
        let read = sources.iter().map(|source| self.read(rank, source.operand));
        let Some(terms) = read.collect::<Option<Vec<_>>>() else { return false };
        let is_copy = sources.len() == 1 && !sources[0].raw;
        let value = match is_copy {
            true => terms[0].clone(),
            false => Arc::new(Expression::Fold { terms, aligned: *tree == Tree::Aligned }),
        };
        for operand in destinations {
            match *operand {
                Operand::Output(chunk) => {
                    self.outputs.insert((rank, chunk), value.clone());
                }
                Operand::PeerSlot { link, message, segment } => {
                    let place = (rank, link.peer, link.lane, message, segment);
                    self.messages.insert(place, value.clone());
                }
                _ => panic!("{operand} is not for slots"),
            }
        }
        true
    }

    fn read(&self, rank: usize, operand: Operand) -> Option<Arc<Expression>> {
        match operand {
            Operand::Input(_) => Some(Arc::new(Expression::Leaf(rank))),
            Operand::Output(chunk) => self.outputs.get(&(rank, chunk)).cloned(),
            Operand::Slot { link, message, segment } => {
                self.messages.get(&(link.peer, rank, link.lane, message, segment)).cloned()
            }
            _ => panic!("{operand} is not for slots"),
        }
    }
}
