//! What the switches of a rail reduce. Each rank's contributions are told apart by their number, so
//! nothing else has to be said: a result is there when every rank of the rail has contributed.
//!
//! Whether there is room is a matter of one list alone. Contributions lie in as many slots as the
//! slots lane has, and so do results. A result comes only once its rank has contributed to it, and
//! by then the rank has read what was in both slots before.
//!
//! A result brings nothing but its values: whoever reads it knows no more of what others have done
//! to their memory. Ranks of a rail are on different nodes, and reach none of each other's.

use super::clock::Knowledge;
use super::machine::{At, Machine};
use super::route::Route;
use super::value::Value;
use super::violation::{Awaited, Violation};
use crate::hash::Map;
use crate::schedule::{Instruction, Lane, Operand, Rail};

/// By first rank and rail, in order.
pub(super) type Contributions = Map<(usize, Rail), Vec<Value>>;

/// How many contributions a list has given and how many results it has read, by rail.
#[derive(Default)]
pub(super) struct InTurn(Map<Rail, (u32, u32)>);

impl InTurn {
    /// Checks an instruction of a list for which there are so many slots.
    pub(super) fn check(
        &mut self,
        (rank, step): At,
        instruction: &Instruction,
        slots: u32,
    ) -> Result<(), Violation> {
        // What it reads comes first: it has come before anything is written.
        for operand in instruction.operands() {
            let (rail, message, gives) = match operand {
                Operand::Contribution { rail, message } => (rail, message, true),
                Operand::Reduced { rail, message } => (rail, message, false),
                _ => continue,
            };
            let (given, read) = self.0.entry(rail).or_default();
            let next = if gives { &mut *given } else { &mut *read };
            if message != *next {
                return Err(Violation::Message { rank, step, operand, expected: *next });
            }
            *next += 1;
            if given.saturating_sub(*read) > slots {
                return Err(Violation::Unfetched { rank, step, operand, slots });
            }
        }
        Ok(())
    }

    /// At the end of a round all results have been read.
    pub(super) fn check_drained(&self, rank: usize) -> Result<(), Violation> {
        let mut left = self.0.iter().filter(|(_, (given, read))| given != read);
        match left.next() {
            Some((&rail, &(given, read))) => Err(Violation::Left { rank, rail, given, read }),
            None => Ok(()),
        }
    }
}

impl<K: Knowledge> Machine<'_, K> {
    /// Gives a value to the switches of a rail.
    pub(super) fn contribute(
        &mut self,
        (rank, step): At,
        operand: Operand,
        rail: Rail,
        value: Value,
    ) -> Result<(), Violation> {
        if self.values.part(value).is_none() {
            let value = self.values.text(value);
            return Err(Violation::Misplaced { rank, step, operand, value });
        }
        self.contributions.entry((rank, rail)).or_default().push(value);
        for peer in rail.members(rank, self.symmetry.ranks()) {
            self.wake(peer, awaited_from(rank, peer));
        }
        Ok(())
    }

    /// The first rank of the rail that has not contributed to a message, if there is one, as it is
    /// waited for.
    pub(super) fn missing_on_rail(
        &self,
        rank: usize,
        operand: Operand,
    ) -> Option<(Route, Awaited)> {
        let Operand::Reduced { rail, message } = operand else { return None };
        let has_given = |peer: &usize| {
            let (first, _) = self.symmetry.home(*peer);
            let given = self.contributions.get(&(first, rail));
            given.is_some_and(|given| given.len() > message as usize)
        };
        let missing = rail.members(rank, self.symmetry.ranks()).find(|peer| !has_given(peer))?;
        Some((awaited_from(missing, rank), Awaited::Message(operand)))
    }

    /// All ranks' contributions to a message: none is missing.
    pub(super) fn contributed(
        &self,
        rank: usize,
        rail: Rail,
        message: u32,
    ) -> impl Iterator<Item = Value> {
        rail.members(rank, self.symmetry.ranks()).filter_map(move |peer| {
            let (first, by) = self.symmetry.home(peer);
            let value = self.contributions.get(&(first, rail))?.get(message as usize)?;
            Some(value.turned(&self.symmetry, by))
        })
    }
}

/// By what a rank is woken that waits for another's contribution. These are plain, as what is in
/// slots is.
fn awaited_from(from: usize, to: usize) -> Route {
    Route { from, to, lane: Lane::Slots }
}
