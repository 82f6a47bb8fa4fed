//! The verifier: proves that a schedule does what its collective promises, however its ranks are
//! interleaved.
//!
//! Counters are monotonic, every rank's list is sequential, and every link has one sender and one
//! receiver, so the network of ranks is determinate: what one rank waits for either comes in every
//! interleaving or in none. So does what a fabric's switches reduce, which waits for all. One
//! maximal abstract execution therefore decides for all. It runs on symbolic values and with vector
//! clocks, and finds
//!
//! - **values** that are not what the collective promises, in the order that is promised,
//!   premultiplied and finished once;
//! - **deadlocks**, as a list of who waits for whom;
//! - **slots** that are overwritten before they are consumed, or read before they are written;
//! - **races** on the callers' buffers: between ranks, and between a rank and another's user,
//!   before or after the call;
//! - contributions to what a fabric's switches reduce of which nothing is read, or more than there
//!   is room for;
//! - counters that don't say what has happened, messages that nobody receives, and operands that no
//!   executor may get.
//!
//! # Why one round is enough
//!
//! The execution begins in the middle of a history of which nothing is known but this: every
//! earlier round and call, of whatever schedule, has left all links *drained*: as many messages
//! received as sent, all announced, all given back. So any slot may still hold a message whose
//! consumption its sender has not heard of: it must wait for the credit, or know that the receiver
//! has entered this round. The execution ends by proving that it leaves all links drained itself.
//! By induction, rounds of this schedule and calls of others can follow one another in any number:
//! a wait for a value up to zero is for an earlier round, which ends by induction; one above zero
//! is for this round. Buffers are divided by round, so rounds share no memory but the slots. A
//! schedule that reaches into peers' buffers has one round a call, and the user's accesses before
//! and after it take part in the search for races.
//!
//! # Several lists a rank
//!
//! Lists take the place of ranks in all of the above: each is sequential, each link has one list at
//! either end, and each has a clock of its own. Lists of one rank share its memory, so they can
//! race with each other. They are ordered by signals to their own rank, on the sync lane. No list
//! but the rank's own reaches its memory, and the rank leaves the call when all of them have ended.
//!
//! One round is enough here too. Input, output and slots of two rounds are different memory or
//! drained, as above. Scratch is the same, and a list may be a round ahead of another. So whoever
//! writes to a chunk of scratch must know, at the end of its round, of all accesses to it in that
//! round. What it writes in the next one is later than all of these. What others read there in the
//! next round is written there before, or the execution says that nothing has been. So accesses of
//! one round precede those of the next, and of all later ones.
//!
//! # Large worlds
//!
//! Where all ranks do the same relative to their own rank, the first ranks' proof is everybody's:
//! see [`Symmetric`].

pub(crate) mod clock;
mod expect;
mod group;
mod machine;
mod memory;
mod operand;
mod rail;
mod raw;
mod route;
mod sets;
mod story;
mod structure;
mod symmetric;
#[cfg(test)]
mod tests;
mod value;
mod violation;

pub use group::{GroupPart, GroupStep, GroupViolation, Span, verify_group};
pub use raw::infer_raw;
pub use symmetric::{Difference, Symmetric, Unlike, Unproven};
pub use violation::{Arithmetic, Awaited, Malformed, Misuse, Stuck, Violation};

use crate::collective::{Kind, Order};
use crate::hash::Map;
use crate::schedule::{Buffer, Distance, Lane, Link, Schedule, Tree};
use clock::{Clock, Knowledge, Own};
use machine::{Machine, Origins};
use route::{Route, Routes};
use sets::ConnectionSets;
use symmetric::Reductions;
use value::{Block, Part, Value, Values};

/// A schedule that has been proven. Only [`verify`] makes one.
#[derive(Clone, Debug)]
pub struct Verified {
    schedule: Schedule,
    promise: Order,
    in_place: bool,
    single_rounding: bool,
    origins: Origins,
    sets: ConnectionSets,
}

impl Verified {
    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The order of reduction that it keeps.
    pub fn promise(&self) -> Order {
        self.promise
    }

    /// Whether input and output may be one buffer; they need not be.
    pub fn in_place(&self) -> bool {
        self.in_place
    }

    /// A chunk that is as long as what an instruction of a list moves, where all its operands are
    /// messages and do not say.
    pub fn origin(&self, list: usize, step: usize) -> Option<(usize, Buffer, usize)> {
        let of_rank = self.origins.get(list)?;
        let index = of_rank.binary_search_by_key(&step, |(step, _)| *step).ok()?;
        Some(of_rank[index].1)
    }

    /// How many channels' connections the lists of a share use.
    pub(crate) fn sets(&self) -> usize {
        self.sets.count()
    }

    /// Which of them a list uses to send over a link, or to receive, and on which lane.
    pub(crate) fn set(&self, list: usize, link: Link, sends: bool) -> (usize, Lane) {
        let of_each = self.schedule.lists_per_rank;
        let route = if sends { Route::to } else { Route::from }(link, list, of_each);
        self.sets.of(route, of_each)
    }

    /// Channels without which it cannot run: one where each rank has one list.
    pub fn needed_channels(&self) -> usize {
        self.schedule.lists_per_rank.max(self.sets.count())
    }

    /// Into how many shares so many channels divide the work: none where there are too few.
    pub fn shares(&self, channels: usize) -> usize {
        channels / self.needed_channels()
    }

    /// Whether every result is made by one instruction from the inputs, so that it is rounded to
    /// the element type once. Otherwise partial results are stored: for 8- and 16-bit floats, which
    /// accumulate in f32, bits then depend on where.
    pub fn single_rounding(&self) -> bool {
        self.single_rounding
    }
}

/// Proves that a schedule carries out its collective and keeps the promised order of reduction,
/// with separate buffers and, if `in_place`, also with input and output in one.
///
/// # Errors
///
/// The first [`Violation`] found, the same for equal arguments.
pub fn verify(schedule: Schedule, promise: Order, in_place: bool) -> Result<Verified, Violation> {
    let proof = structure::check(&schedule, in_place).and_then(|routes| {
        let proof = prove_apart_and_in_place(&schedule, &routes, promise, in_place)?;
        Ok((proof, ConnectionSets::new(&routes, schedule.lists_per_rank)))
    });
    let (Proof { single_rounding, origins, .. }, sets) =
        proof.map_err(|found| found.of_lists(&schedule))?;
    Ok(Verified { schedule, promise, in_place, single_rounding, origins, sets })
}

fn prove_apart_and_in_place(
    schedule: &Schedule,
    routes: &Routes,
    promise: Order,
    in_place: bool,
) -> Result<Proof, Violation> {
    if let Some(proof) = from_below(schedule, routes, promise, in_place) {
        return Ok(proof);
    }
    let mut proof = prove::<Clock>(schedule, routes, promise, false)?;
    if in_place {
        let shared = prove::<Clock>(schedule, routes, promise, true)
            .map_err(|found| Violation::InPlace(Box::new(found)))?;
        proof.single_rounding &= shared.single_rounding;
        for (apart, shared) in proof.reductions.iter_mut().zip(shared.reductions) {
            apart.extend(shared);
        }
    }
    Ok(proof)
}

/// The proof without clocks, by one execution for buffers apart and in place, where that is enough:
/// knowing more refuses nothing. In place, ranks that only pass messages touch their own buffers
/// alone, so nobody races; and where each finds in its input what it would with separate buffers,
/// all values are the same, by induction over what is read.
fn from_below(
    schedule: &Schedule,
    routes: &Routes,
    promise: Order,
    in_place: bool,
) -> Option<Proof> {
    // Several lists share a rank's memory.
    let is_alone = schedule.lists_per_rank == 1;
    if schedule.collective.kind == Kind::Barrier || schedule.uses_windows() || !is_alone {
        return None;
    }
    let proof = prove::<Own>(schedule, routes, promise, false).ok()?;
    (!in_place || !proof.differs_in_place).then_some(proof)
}

/// Proves that a schedule over an all-to-all's buffers moves the chunks from `wanted` senders to
/// receivers, and no others.
///
/// # Errors
///
/// The first [`Violation`] found, the same for equal arguments.
pub fn verify_exchange(
    schedule: Schedule,
    wanted: impl Fn(usize, usize) -> bool,
) -> Result<Verified, Violation> {
    let routes = structure::check(&schedule, false)?;
    let mut machine = Machine::<Clock>::new(&schedule, &routes, false);
    machine.run()?;
    let mut promises = Promises::new(Order::Any);
    let ranks = schedule.collective.ranks;
    for (rank, sender) in (0..ranks).flat_map(|rank| (0..ranks).map(move |from| (rank, from))) {
        if wanted(sender, rank) {
            promises.check(&mut machine, rank, sender)?;
        } else if let Some(found) = machine.value(rank, Buffer::Output, sender) {
            let (expected, found) = ("nothing".to_string(), machine.values.text(found));
            return Err(Violation::WrongValue { rank, chunk: sender, expected, found });
        }
    }
    let origins = std::mem::take(&mut machine.origins);
    let (promise, in_place, single_rounding) = (Order::Any, false, true);
    let sets = ConnectionSets::new(&routes, schedule.lists_per_rank);
    Ok(Verified { schedule, promise, in_place, single_rounding, origins, sets })
}

/// Checks what needs no execution: after this, a schedule may be indexed by its ranks and chunks
/// without fear.
pub fn check_structure(schedule: &Schedule) -> Result<(), Violation> {
    needed_channels(schedule).map(|_| ())
}

/// As [`Verified::needed_channels`], after what [`check_structure`] checks.
pub(crate) fn needed_channels(schedule: &Schedule) -> Result<usize, Violation> {
    let routes = structure::check(schedule, false).map_err(|found| found.of_lists(schedule))?;
    let sets = ConnectionSets::new(&routes, schedule.lists_per_rank);
    Ok(sets.count().max(schedule.lists_per_rank))
}

/// What an execution has shown, besides that all is well.
struct Proof {
    /// Whether results are rounded once.
    single_rounding: bool,
    /// What is moved from slot to slot.
    origins: Origins,
    /// As the machine has it.
    differs_in_place: bool,
    /// By first rank, where first ranks stand for all and the order of the tree is promised: steps
    /// that reduce several values, and of which blocks these are.
    reductions: Reductions,
}

fn prove<K: Knowledge>(
    schedule: &Schedule,
    routes: &Routes,
    promise: Order,
    in_place: bool,
) -> Result<Proof, Violation> {
    let mut machine = Machine::<K>::new(schedule, routes, in_place);
    machine.run()?;
    let firsts = routes.symmetry().firsts() / schedule.lists_per_rank;
    if schedule.collective.kind == Kind::Barrier {
        let early = (0..firsts).find_map(|rank| Some((rank, machine.unheard(rank)?)));
        if let Some((rank, peer)) = early {
            return Err(Violation::LeavesBarrier { rank, peer });
        }
    }
    let mut promises = Promises::new(promise);
    if routes.symmetry().is_proper() && promise == Order::Tree {
        promises.blocks = Some(machine.values.blocks());
    }
    let mut single_rounding = true;
    for rank in (0..firsts).filter(|&rank| schedule.collective.has_output(rank)) {
        for chunk in 0..machine.expectation.chunks(Buffer::Output) {
            single_rounding &= promises.check(&mut machine, rank, chunk)? <= 1;
        }
    }
    let reductions = match &promises.blocks {
        Some(blocks) => blocks_of(&machine.values, blocks, &machine.reductions),
        None => Vec::new(),
    };
    let Machine { origins, differs_in_place, .. } = machine;
    Ok(Proof { single_rounding, origins, differs_in_place, reductions })
}

/// By rank and step, of which blocks the values are that are reduced.
fn blocks_of(
    values: &Values,
    blocks: &[Option<Block>],
    reductions: &[Vec<(usize, Vec<Value>)>],
) -> Reductions {
    let block = |value: &Value| values.block(blocks, value.id, value.by);
    let of_step = |(step, sources): &(usize, Vec<Value>)| {
        (*step, sources.iter().map(block).collect::<Vec<Option<Block>>>())
    };
    reductions.iter().map(|of_rank| of_rank.iter().map(of_step).collect()).collect()
}

/// What has been promised of outputs.
struct Promises {
    promise: Order,
    /// Values found right before: ranks that hold the same result hold the same value. A value
    /// knows which elements it has.
    accepted: Map<(value::Id, Distance), ()>,
    /// Of everything that is made, where the order of the tree is promised by first ranks. These
    /// see it in an order that depends on where they stand; that all ranks keep the right one is
    /// found when they are compared.
    blocks: Option<Vec<Option<Block>>>,
}

impl Promises {
    fn new(promise: Order) -> Promises {
        Promises { promise, accepted: Map::default(), blocks: None }
    }

    /// Checks an output chunk; how often it has been rounded.
    fn check<K: Knowledge>(
        &mut self,
        machine: &mut Machine<'_, K>,
        rank: usize,
        chunk: usize,
    ) -> Result<u32, Violation> {
        let found =
            machine.value(rank, Buffer::Output, chunk).ok_or(Violation::Missing { rank, chunk })?;
        let part = machine.expectation.part(rank, Buffer::Output, chunk);
        // Whoever has every rank's contribution once has it seen from anywhere.
        let by = if self.promise == Order::Any { 0 } else { found.by };
        let key = (found.id, by);
        if machine.values.part(found) != Some(part) || !self.accepted.contains_key(&key) {
            self.compare(machine, found, part).map_err(|expected| Violation::WrongValue {
                rank,
                chunk,
                expected,
                found: machine.values.text(found),
            })?;
            self.accepted.insert(key, ());
        }
        Ok(found.roundings)
    }

    /// Compares; what is expected where it is something else.
    fn compare<K: Knowledge>(
        &self,
        machine: &mut Machine<'_, K>,
        found: Value,
        part: Part,
    ) -> Result<(), String> {
        let collective = machine.expectation.collective;
        let values = &mut machine.values;
        let expected = if !collective.kind.reduces() {
            let (rank, _, chunk) = machine.expectation.origin_of(part);
            let leaf = values.leaf(rank, chunk);
            (leaf.id, leaf.by)
        } else {
            let tree = match self.promise {
                Order::Any => {
                    return values
                        .is_result_of_all(found.id, collective.ranks)
                        .map_err(|why| format!("every rank's contribution once ({why})"));
                }
                Order::Rank => Tree::Left,
                Order::Tree => Tree::Aligned,
            };
            values.result(collective.ranks, part, tree)
        };
        let is_expected = match &self.blocks {
            Some(blocks) if collective.kind.reduces() => {
                let whole = Block { first: 0, len: collective.ranks };
                values.is_finished(found.id) && values.block(blocks, found.id, 0) == Some(whole)
            }
            _ => expected == (found.id, found.by),
        };
        if is_expected { Ok(()) } else { Err(values.text_of(expected)) }
    }
}
