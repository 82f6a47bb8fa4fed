//! The abstract execution: every list runs until it waits for something that no other will ever do.
//!
//! Mostly each rank has one list, and a list's number is its rank's. Where ranks have several, all
//! lists of one share its memory, and nothing else of what follows.
//!
//! Where first ranks stand for all ([`Symmetry`]), they alone run, each for all that are turned
//! from it: an instruction is carried out by all of these at once. State is kept as the first rank
//! sees it: that of a rank with it, that of a route with its first sender. What comes from there or
//! goes there is turned on the way.

use super::clock::{Event, Knowledge};
use super::expect::{Expectation, Place};
use super::memory::Memory;
use super::rail::Contributions;
use super::route::{End, Route, Routes, Traffic};
use super::value::{Value, Values};
use super::violation::{Awaited, Stuck, Violation};
use crate::schedule::{
    Buffer, Distance, Flag, Instruction, Lane, Link, Operand, Schedule, Source, Symmetry, Tree,
};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

/// All ranks while they run. The more of what happens before what is known, the more is accepted;
/// nothing else depends on it.
#[derive(Debug)]
pub(super) struct Machine<'a, K: Knowledge> {
    pub(super) schedule: &'a Schedule,
    pub(super) expectation: Expectation,
    pub(super) symmetry: Symmetry,
    /// By list.
    pub(super) ranks: Vec<Rank<K>>,
    /// By rank.
    pub(super) memories: Vec<Memory>,
    /// By rank: chunks are places of an input.
    pub(super) scratch: Vec<Memory>,
    /// Chunks of scratch and the lists that write there, where ranks have several lists.
    pub(super) scratch_writers: BTreeSet<(usize, usize)>,
    pub(super) routes: &'a Routes,
    /// By the route's number.
    pub(super) traffic: Vec<Traffic<K>>,
    pub(super) contributions: Contributions,
    pub(super) values: Values,
    /// Which chunk it is that an instruction moves between slots and scratch.
    pub(super) origins: Origins,
    /// Whether, with separate buffers, a rank has read a chunk of its input after it had written
    /// something else to the chunk of its output that is in the same place when a call is in place.
    /// If not, every read would find the same there.
    pub(super) differs_in_place: bool,
    /// By rank, steps that reduce several values, with these; noted where ranks stand for others.
    pub(super) reductions: Vec<Vec<(usize, Vec<Value>)>>,
    /// Sources that are raw though the schedule does not say so; none where it must.
    pub(super) inferred: Option<Vec<(At, usize)>>,
    runnable: VecDeque<usize>,
    moments: Vec<Moments>,
    /// What the instruction at hand has read; here so that its memory is used again.
    read: Vec<(Value, bool)>,
}

/// After how many of its instructions a rank's buffers are ready, and done: the beginning and the
/// end of a call, but for groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moments {
    pub(super) ready: usize,
    pub(super) done: usize,
}

#[derive(Debug)]
pub(super) struct Rank<K> {
    step: usize,
    pub(super) clock: K,
    /// Peers whose tokens have come.
    pub(super) tokens: BTreeSet<usize>,
    /// How many sources of the step have been seen to be there: what has come stays.
    there: usize,
    blocked: Option<(Route, Awaited)>,
}

/// A list and its step.
pub(super) type At = (usize, usize);

/// By rank and step, in the order of steps: a rank's chunk.
pub(super) type Origins = Vec<Vec<(usize, Origin)>>;

/// A rank's chunk.
pub(super) type Origin = (usize, Buffer, usize);

impl<'a, K: Knowledge> Machine<'a, K> {
    pub(super) fn new(
        schedule: &'a Schedule,
        routes: &'a Routes,
        in_place: bool,
    ) -> Machine<'a, K> {
        let symmetry = routes.symmetry();
        let firsts = symmetry.firsts();
        let rank =
            |clock| Rank { step: 0, clock, tokens: BTreeSet::new(), there: 0, blocked: None };
        let expectation = Expectation::new(schedule, in_place);
        let (clocks, owners) = match schedule.lists_per_rank {
            1 => (K::all(symmetry.ranks()).take(firsts).collect(), 0..firsts),
            several => clocks_of_lists(schedule.collective.ranks, several),
        };
        Machine {
            schedule,
            expectation,
            symmetry,
            ranks: clocks.into_iter().map(rank).collect(),
            memories: owners.clone().map(|owner| Memory::new(owner, &expectation)).collect(),
            scratch: owners.map(|owner| Memory::scratch(owner, schedule.scratch)).collect(),
            scratch_writers: BTreeSet::new(),
            routes,
            traffic: (0..routes.len()).map(|_| Traffic::new()).collect(),
            contributions: Contributions::default(),
            values: Values::new(expectation, symmetry),
            origins: vec![Vec::new(); firsts],
            differs_in_place: false,
            reductions: vec![Vec::new(); firsts],
            inferred: None,
            runnable: (0..firsts).collect(),
            read: Vec::new(),
            moments: schedule
                .lists
                .iter()
                .map(|list| Moments { ready: 0, done: list.len() })
                .collect(),
        }
    }

    /// Has a rank's buffers ready and done at other moments.
    pub(super) fn set_moments(&mut self, rank: usize, moments: Moments) {
        self.moments[rank] = moments;
        if moments.ready > 0 {
            self.memories[rank].close();
        }
    }

    /// Runs all ranks to their ends.
    pub(super) fn run(&mut self) -> Result<(), Violation> {
        while let Some(rank) = self.runnable.pop_front() {
            self.advance(rank)?;
        }
        let stuck = |(rank, state): (usize, &Rank<K>)| {
            let (route, awaited) = state.blocked?;
            let peer = if route.from == rank { route.to } else { route.from };
            let (list, peer_list) = (0, 0);
            Some(Stuck { rank, list, step: state.step, peer, peer_list, awaited })
        };
        let stuck: Vec<Stuck> = self.ranks.iter().enumerate().filter_map(stuck).collect();
        if stuck.is_empty() {
            self.check_scratch()?;
            return self.check_drained();
        }
        let all = self.symmetry.distances().flat_map(|by| stuck.iter().map(move |one| (one, by)));
        Err(Violation::Deadlock(all.map(|(one, by)| self.turned_stuck(one, by)).collect()))
    }

    /// The same of a rank so far away.
    fn turned_stuck(&self, stuck: &Stuck, by: Distance) -> Stuck {
        let symmetry = &self.symmetry;
        let [rank, peer] = [stuck.rank, stuck.peer].map(|rank| symmetry.rank(rank, by));
        let awaited = match stuck.awaited {
            Awaited::Counter { flag, value, reached } => {
                Awaited::Counter { flag: symmetry.flag(flag, by), value, reached }
            }
            Awaited::Message(operand) => Awaited::Message(symmetry.operand(operand, by)),
        };
        Stuck { rank, peer, awaited, ..*stuck }
    }

    /// What a rank's chunk holds at the end.
    pub(super) fn value(&self, rank: usize, buffer: Buffer, chunk: usize) -> Option<Value> {
        let place = self.expectation.place(rank, buffer, chunk);
        match self.memories[rank].value(place) {
            Some(value) => value,
            None => initial(&self.values, &self.expectation, rank, place),
        }
    }

    /// The first rank of which this one has not heard when it leaves.
    pub(super) fn unheard(&self, rank: usize) -> Option<usize> {
        (0..self.symmetry.ranks()).find(|&peer| !self.ranks[rank].clock.knows(Event::start(peer)))
    }

    /// Runs one rank until it ends or blocks.
    fn advance(&mut self, rank: usize) -> Result<(), Violation> {
        let list = &self.schedule.lists[rank];
        while let Some(instruction) = list.get(self.ranks[rank].step) {
            self.pass_moments(rank)?;
            let at = (rank, self.ranks[rank].step);
            let blocked = match instruction {
                Instruction::Wait { flag, value } => self.wait(at, *flag, *value)?,
                Instruction::Signal { flag, value } => {
                    self.signal(at, *flag, *value).map(|()| None)?
                }
                Instruction::ReduceCopy { sources, destinations, tree, finish } => {
                    self.reduce_copy(at, sources, destinations, *tree, *finish)?
                }
            };
            self.ranks[rank].blocked = blocked;
            if blocked.is_some() {
                return Ok(());
            }
            self.ranks[rank].step += 1;
        }
        self.pass_moments(rank)
    }

    /// Opens and leaves the rank's buffers when it is time.
    fn pass_moments(&mut self, rank: usize) -> Result<(), Violation> {
        let (step, Moments { ready, done }) = (self.ranks[rank].step, self.moments[rank]);
        if step == ready && ready > 0 {
            // What the rank has told before does not tell that its buffers are ready.
            self.ranks[rank].clock.publish();
            self.memories[rank].open_at(self.ranks[rank].clock.now());
        }
        // Several lists of a rank reach its memory alone, and it leaves when all have ended.
        if step != done || self.schedule.lists_per_rank > 1 {
            return Ok(());
        }
        self.memories[rank]
            .leave(&self.ranks[rank].clock)
            .map_err(|((buffer, chunk), peer)| Violation::Leaves { rank, peer, buffer, chunk })
    }

    fn wait(
        &mut self,
        (rank, step): At,
        flag: Flag,
        value: i64,
    ) -> Result<Option<(Route, Awaited)>, Violation> {
        let route = Route::of(rank, flag, End::Waiter, self.schedule.lists_per_rank);
        let (number, by) = self.routes.number(route);
        let traffic = &mut self.traffic[number];
        let counter = match flag {
            Flag::Tail(_) => &mut traffic.tail,
            Flag::Head(_) => &mut traffic.head,
        };
        if counter.value < value {
            return Ok(Some((route, Awaited::Counter { flag, value, reached: counter.value })));
        }
        // The head of a lane whose messages announce themselves gives a credit, and nothing else:
        // see `store_credit` in kernels/machine/shared/contract.h.
        let is_credit = matches!(flag, Flag::Head(_)) && route.lane.has_flags();
        if let Some(stamp) = counter.reach(value).filter(|_| !is_credit) {
            self.ranks[rank].clock.join(&K::turned(&stamp, &self.symmetry, by));
        }
        if route.lane == Lane::Sync {
            // A counter-only link moves on by one for each of its waits.
            traffic.sync_waits += 1;
            let expected = traffic.sync_waits;
            if value != expected {
                return Err(Violation::SyncWait { rank, step, flag, value, expected });
            }
        }
        Ok(None)
    }

    fn signal(&mut self, (rank, step): At, flag: Flag, value: i64) -> Result<(), Violation> {
        let route = Route::of(rank, flag, End::Signaller, self.schedule.lists_per_rank);
        let (number, by) = self.routes.number(route);
        let traffic = &mut self.traffic[number];
        let (counter, done, waiter) = match flag {
            Flag::Tail(_) if route.lane == Lane::Sync => (&mut traffic.tail, None, route.to),
            Flag::Tail(_) => (&mut traffic.tail, Some(traffic.sent), route.to),
            Flag::Head(_) => (&mut traffic.head, Some(traffic.received), route.from),
        };
        let announced = counter.value;
        // A tail lies in the slot of the message that it announces, so messages are announced one
        // by one. Signals of a counter-only link are its messages.
        let done = done.map_or(announced + 1, |done| done as i64);
        let done = if matches!(flag, Flag::Tail(_)) { done.min(announced + 1) } else { done };
        if value <= announced || value > done {
            return Err(Violation::Signal { rank, step, flag, value, done, announced });
        }
        let stamp = self.ranks[rank].clock.publish();
        counter.raise(value, K::turned(&stamp, &self.symmetry, self.symmetry.back(by)));
        self.wake(waiter, route);
        Ok(())
    }

    /// An instruction is not atomic: it handles its operands block by block. So its accesses are
    /// ordered only by what was known before it; what its messages with flags bring is known
    /// afterwards, and what they send was known before.
    fn reduce_copy(
        &mut self,
        at: At,
        sources: &[Source],
        destinations: &[Operand],
        tree: Tree,
        finish: bool,
    ) -> Result<Option<(Route, Awaited)>, Violation> {
        let (rank, step) = at;
        let there = self.ranks[rank].there;
        for (index, source) in sources.iter().enumerate().skip(there) {
            if let Some(missing) = self.missing(rank, source.operand) {
                self.ranks[rank].there = index;
                return Ok(Some(missing));
            }
        }
        self.ranks[rank].there = 0;
        let destinations = self.without_itself(at, sources, destinations, finish);
        if destinations.is_empty() {
            return Ok(None);
        }
        let sends_flags = destinations.iter().any(
            |operand| matches!(operand, Operand::PeerSlot { link, .. } if link.lane.has_flags()),
        );
        let stamp = sends_flags.then(|| self.ranks[rank].clock.publish());
        let mut brought = Vec::new();
        let mut read = std::mem::take(&mut self.read);
        read.clear();
        let ranks = self.schedule.collective.ranks;
        let by_a_switch = sources.iter().any(|source| source.operand.is_reduced());
        // What a switch is given it reduces.
        let gives = destinations.iter().any(Operand::is_of_rail);
        let reduces = sources.len() > 1 || by_a_switch || gives || finish;
        for (index, source) in sources.iter().enumerate() {
            let mut raw = source.raw;
            if let Operand::Reduced { rail, message } = source.operand {
                read.extend(self.contributed(rank, rail, message).map(|value| (value, false)));
                continue;
            }
            for operand in source.operand.members(rank, ranks) {
                let value = self.read(at, operand, &mut brought)?;
                if let Some(inferred) = self.inferred.as_mut().filter(|_| reduces && !raw) {
                    raw = self.values.is_unscaled(value);
                    inferred.extend(raw.then_some((at, index)));
                }
                read.push((value, raw));
            }
        }
        let value = match by_a_switch {
            true => self.values.reduce_unordered(&read, finish),
            false => self.values.reduce(&read, tree, finish),
        };
        let value = value.map_err(|fault| Violation::Arithmetic { rank, step, fault })?;
        if self.symmetry.is_proper() && read.len() > 1 && !by_a_switch {
            let values = read.iter().map(|(value, _)| *value).collect();
            self.reductions[rank].push((step, values));
        }
        self.read = read;
        let all = sources.iter().map(|source| &source.operand).chain(destinations);
        if all.clone().all(Operand::takes_any_length) {
            let part = self.values.part(value);
            self.origins[rank].extend(part.map(|part| (step, self.expectation.origin_of(part))));
        }
        for operand in destinations.iter().flat_map(|operand| operand.members(rank, ranks)) {
            self.write(at, operand, value, stamp.as_ref())?;
        }
        for stamp in &brought {
            self.ranks[rank].clock.join(stamp);
        }
        Ok(None)
    }

    /// The message that announces itself and has not come, if the operand is one.
    fn missing(&self, rank: usize, operand: Operand) -> Option<(Route, Awaited)> {
        let Operand::Slot { link, message, segment } = operand else {
            return self.missing_on_rail(rank, operand);
        };
        if !link.lane.has_flags() {
            return None;
        }
        let route = Route::from(link, rank, self.schedule.lists_per_rank);
        let (number, _) = self.routes.number(route);
        let (first, segments) = self.routes.segments(number, message);
        let there = self.traffic[number].segments.len();
        let sent = segment < segments && first + (segment as usize) < there;
        (!sent).then_some((route, Awaited::Message(operand)))
    }

    /// At the end of a round every message has been announced, received and given back: each round
    /// begins as the one before.
    fn check_drained(&self) -> Result<(), Violation> {
        let routes = self.routes.sorted();
        routes
            .into_iter()
            .try_for_each(|(route, number)| self.check_route(route, &self.traffic[number]))
    }

    /// Whoever writes to scratch does so again in the next round: all that others do there in this
    /// one must be known by then. (What is read in the next round is written there before.)
    fn check_scratch(&self) -> Result<(), Violation> {
        for &(chunk, list) in &self.scratch_writers {
            let rank = list / self.schedule.lists_per_rank;
            let unknown =
                self.scratch[rank].unknown((Buffer::Input, chunk), &self.ranks[list].clock);
            if let Some(other) = unknown {
                let of_rank = |list| list % self.schedule.lists_per_rank;
                let (list, other) = (of_rank(list), of_rank(other));
                return Err(Violation::Kept { rank, list, chunk, other });
            }
        }
        Ok(())
    }

    fn check_route(
        &self,
        Route { from, to, lane }: Route,
        traffic: &Traffic<K>,
    ) -> Result<(), Violation> {
        let (sent, received) = match lane {
            Lane::Sync => (traffic.tail.value, traffic.sync_waits),
            _ => (traffic.sent as i64, traffic.received as i64),
        };
        if sent != received {
            return Err(Violation::Unread { from, to, lane, sent, received });
        }
        let of_each = self.schedule.lists_per_rank;
        let link = |list| Link { peer: list / of_each, list: (list % of_each) as u16, lane };
        let (tail, head) = (Flag::Tail(link(to)), Flag::Head(link(from)));
        if lane == Lane::Slots && traffic.tail.value != sent {
            return Err(Violation::Unannounced {
                rank: from,
                flag: tail,
                announced: traffic.tail.value,
                done: sent,
            });
        }
        if lane != Lane::Sync && traffic.head.value != sent {
            return Err(Violation::Unannounced {
                rank: to,
                flag: head,
                announced: traffic.head.value,
                done: sent,
            });
        }
        Ok(())
    }

    pub(super) fn wake(&mut self, rank: usize, route: Route) {
        let (rank, by) = self.symmetry.home(rank);
        let route = route.turned(&self.symmetry, self.symmetry.back(by));
        if self.ranks[rank].blocked.is_some_and(|(on, _)| on == route) {
            self.ranks[rank].blocked = None;
            self.runnable.push_back(rank);
        }
    }
}

/// Of each list, and who owns the memory of each rank: its user, whom its lists know from the
/// beginning. They do not know each other.
fn clocks_of_lists<K: Knowledge>(ranks: usize, lists_per_rank: usize) -> (Vec<K>, Range<usize>) {
    let lists = ranks * lists_per_rank;
    let mut clocks: Vec<K> = K::all(lists + ranks).collect();
    let mut users = clocks.split_off(lists);
    for (lists, user) in clocks.chunks_mut(lists_per_rank).zip(&mut users) {
        let entered = user.publish();
        lists.iter_mut().for_each(|list| list.join(&entered));
    }
    (clocks, lists..lists + ranks)
}

/// What a place holds when the call begins.
pub(super) fn initial(
    values: &Values,
    expectation: &Expectation,
    rank: usize,
    place: Place,
) -> Option<Value> {
    Some(values.leaf(rank, expectation.input_at(rank, place)?))
}
