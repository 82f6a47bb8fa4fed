//! Proofs of large worlds in which all ranks do the same relative to their own rank.
//!
//! One maximal execution decides for all (see the module above), so it may be the one in which
//! ranks that are alike go in step: whatever a first rank does, all that are turned from it do at
//! once. Everything that is true of a first rank is then true of the others, turned: by induction
//! over the steps, what they hold, know and have been sent is what the first rank does. None of
//! what they do in a step depends on what another of them does in the same step, since whether a
//! step can be taken is asked before; and accesses of the same step to the same memory are not
//! ordered by anything, so they are found whichever comes first. So the first ranks alone are
//! executed ([`Symmetric::prove`]).
//!
//! That ranks are alike is proven too. Some algorithms say what rank 0 does and no more, and all
//! lists are made by turning that one: they are alike by construction
//! ([`Symmetric::is_by_construction`]). Of the others every single rank's instructions are made,
//! compared and dropped ([`Symmetric::compare`]). Two ranks may then list the sources of a
//! reduction in different orders, if none of these are messages of the same link: then their values
//! differ in that order. Where no order is promised, that is all the same. Where the order of the
//! tree is, every reduction on every rank must have as its sources, from left to right, the aligned
//! trees of neighbouring blocks that make up a larger one. Then each value is its block's aligned
//! tree, by induction.

mod compare;
#[cfg(test)]
mod tests;

pub use compare::{Difference, Unlike};

use super::structure::check_firsts;
use super::{Violation, prove_apart_and_in_place};
use crate::algorithms::{Entry, Pipeline, Unavailable};
use crate::collective::{Collective, Kind, Order};
use crate::schedule::{Schedule, Symmetry, Turning};
use crate::topology::Placement;
pub(super) use compare::Reductions;
use compare::{Firsts, compare};
use std::ops::Range;
use thiserror::Error;

/// A proof of the first ranks, which holds for all if each of them is found to be alike.
#[derive(Debug)]
pub struct Symmetric<'a> {
    entry: &'a Entry,
    collective: Collective,
    placement: Placement,
    promise: Order,
    pipeline: Pipeline,
    firsts: Firsts,
    single_rounding: bool,
    by_construction: bool,
}

/// Why an algorithm is not proven so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unproven {
    /// It does not exist for so many ranks, placed so.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// Its ranks are not alike, or not as far as this proof can see.
    #[error("ranks are not alike: {0}")]
    Unlike(#[from] Unlike),
    /// It is wrong.
    #[error(transparent)]
    Violation(#[from] Violation),
}

/// Ranks whose instructions are held at once while they are compared.
const AT_ONCE: usize = 16;

impl<'a> Symmetric<'a> {
    /// Proves an algorithm's first ranks. `promise` must be kept: see [`Entry::keeps`].
    ///
    /// # Errors
    /// [`Unproven`]: that ranks are not alike says nothing against the algorithm.
    pub fn prove(
        entry: &'a Entry,
        collective: Collective,
        placement: Placement,
        promise: Order,
        pipeline: impl Into<Pipeline>,
    ) -> Result<Symmetric<'a>, Unproven> {
        let pipeline = pipeline.into();
        let lists =
            |ranks| entry.schedule_of_ranks(collective, placement, promise, pipeline, ranks);
        let (schedule, symmetry) = find(collective, placement, promise, lists)?;
        let (firsts, single_rounding) = prove_firsts(schedule, symmetry, promise, entry.in_place)?;
        // By so many ranks lists are turned where they are made. The order of the tree is not
        // turned with them: it begins at rank 0.
        let period = entry.period(collective, placement, promise, pipeline)?;
        let by_construction = firsts.reductions.is_none()
            && symmetry.turning() == Turning::Add
            && period.is_some_and(|period| symmetry.firsts().is_multiple_of(period));
        Ok(Symmetric {
            entry,
            collective,
            placement,
            promise,
            pipeline,
            firsts,
            single_rounding,
            by_construction,
        })
    }

    /// How the ranks are alike.
    pub fn symmetry(&self) -> Symmetry {
        self.firsts.symmetry
    }

    /// What is carried out, with the first ranks' instructions alone.
    pub fn first(&self) -> &Schedule {
        &self.firsts.schedule
    }

    /// Whether input and output may be one buffer.
    pub fn in_place(&self) -> bool {
        self.entry.in_place
    }

    /// The order of reduction that is kept.
    pub fn promise(&self) -> Order {
        self.promise
    }

    /// As [`super::Verified::single_rounding`].
    pub fn single_rounding(&self) -> bool {
        self.single_rounding
    }

    /// Whether all lists are made by turning the first ones, by the function that is used here too:
    /// then the proof is complete. The next rank's and the last one's have been compared all the
    /// same.
    pub fn is_by_construction(&self) -> bool {
        self.by_construction
    }

    /// Makes these ranks' instructions, a few at a time, and compares them with those of the first
    /// ranks. If they are not alike by construction, the proof is complete once all ranks have been
    /// compared; they can be divided over threads.
    ///
    /// # Errors
    /// The first rank that is not alike.
    pub fn compare(&self, ranks: Range<usize>) -> Result<(), Unproven> {
        for begin in ranks.clone().step_by(AT_ONCE) {
            let some = begin..ranks.end.min(begin + AT_ONCE);
            let made = self.entry.schedule_of_ranks(
                self.collective,
                self.placement,
                self.promise,
                self.pipeline,
                some.clone(),
            )?;
            for (rank, list) in some.zip(&made.lists) {
                compare(&self.firsts, rank, list)?;
            }
        }
        Ok(())
    }
}

/// Proves ranks that stand for all; whether all results are rounded once, too.
fn prove_firsts(
    schedule: Schedule,
    symmetry: Symmetry,
    promise: Order,
    in_place: bool,
) -> Result<(Firsts, bool), Violation> {
    let routes = check_firsts(&schedule, symmetry, in_place)?;
    let proof = prove_apart_and_in_place(&schedule, &routes, promise, in_place)?;
    let reductions = (promise == Order::Tree).then_some(proof.reductions);
    Ok((Firsts { schedule, symmetry, reductions }, proof.single_rounding))
}

/// The first ranks' instructions, and how they stand for others: the first way that holds for the
/// next rank and for the last.
fn find(
    collective: Collective,
    placement: Placement,
    promise: Order,
    lists: impl Fn(Range<usize>) -> Result<Schedule, Unavailable>,
) -> Result<(Schedule, Symmetry), Unproven> {
    use Kind::{AllGather, AllReduce, AllToAll, Barrier, ReduceScatter};
    let Collective { kind, ranks, .. } = collective;
    let nature =
        Unlike { rank: 1, first: 0, difference: Difference::Nature { kind, order: promise } };
    // The aligned tree is the same from everywhere if it has a power of two of leaves, but for the
    // order of halves.
    let in_order = match promise {
        Order::Any => false,
        Order::Rank => kind.reduces(),
        Order::Tree => kind.reduces() && !ranks.is_power_of_two(),
    };
    if !matches!(kind, AllReduce | ReduceScatter | AllGather | AllToAll | Barrier) || in_order {
        return Err(nature.into());
    }
    let local = placement.ranks_per_node();
    let mut why = nature;
    for (firsts, turning) in [(1, Turning::Add), (local, Turning::Add), (1, Turning::Xor)] {
        if firsts >= ranks {
            continue;
        }
        let schedule = lists(0..firsts)?;
        let chunking = (schedule.input, schedule.output);
        let Some(symmetry) = Symmetry::new(ranks, firsts, turning, chunking) else { continue };
        let samples = lists(firsts..firsts + 1)?.lists.into_iter().zip([firsts]);
        let samples = samples.chain(lists(ranks - 1..ranks)?.lists.into_iter().zip([ranks - 1]));
        let firsts = Firsts { schedule, symmetry, reductions: None };
        match samples.map(|(list, rank)| compare(&firsts, rank, &list)).find(Result::is_err) {
            Some(Err(differs)) if differs.step() >= why.step() => why = differs,
            Some(Err(_)) => {}
            _ => return Ok((firsts.schedule, symmetry)),
        }
    }
    Err(why.into())
}
