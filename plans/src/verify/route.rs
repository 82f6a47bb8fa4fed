//! What goes over one direction of a connection.

use super::clock::{Event, Knowledge};
use super::value::Value;
use crate::hash::Map;
use crate::schedule::{Distance, Flag, Lane, Link, Symmetry};
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

/// One direction of a connection between two lists, by their numbers among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) lane: Lane,
}

/// Who uses a flag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Waiter,
    Signaller,
}

impl Route {
    /// The direction to which a list's flag belongs.
    pub(super) fn of(list: usize, flag: Flag, end: End, lists_per_rank: usize) -> Route {
        // Tails are raised by senders and awaited by receivers; heads the other way round.
        let (link, sends) = match flag {
            Flag::Tail(link) => (link, end == End::Signaller),
            Flag::Head(link) => (link, end == End::Waiter),
        };
        match sends {
            true => Route::to(link, list, lists_per_rank),
            false => Route::from(link, list, lists_per_rank),
        }
    }

    /// Over a link of a list, to the other end.
    pub(super) fn to(link: Link, list: usize, lists_per_rank: usize) -> Route {
        Route {
            from: list,
            to: link.peer * lists_per_rank + usize::from(link.list),
            lane: link.lane,
        }
    }

    /// Over a link of a list, from the other end.
    pub(super) fn from(link: Link, list: usize, lists_per_rank: usize) -> Route {
        Route {
            from: link.peer * lists_per_rank + usize::from(link.list),
            to: list,
            lane: link.lane,
        }
    }

    /// The route that it becomes when ranks are turned.
    pub(super) fn turned(self, symmetry: &Symmetry, by: Distance) -> Route {
        let [from, to] = [self.from, self.to].map(|rank| symmetry.rank(rank, by));
        Route { from, to, ..self }
    }
}

impl Hash for Route {
    /// As one word: it is looked up for every instruction.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64((self.from as u64) << 33 ^ (self.to as u64) << 2 ^ self.lane as u64);
    }
}

/// The directions that a schedule uses, numbered, and how many segments their messages have. Those
/// that are turned into each other are one: that of a first rank that sends.
#[derive(Debug)]
pub(super) struct Routes {
    symmetry: Symmetry,
    numbers: Map<Route, usize>,
    /// By route, the number of segments before each message and behind the last; nothing where all
    /// messages have one.
    firsts: Vec<Vec<u32>>,
}

impl Routes {
    /// None yet, of ranks that are alike so.
    pub(super) fn new(symmetry: Symmetry) -> Routes {
        Routes { symmetry, numbers: Map::default(), firsts: Vec::new() }
    }

    /// How ranks are alike.
    pub(super) fn symmetry(&self) -> Symmetry {
        self.symmetry
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.firsts.len()
    }

    /// All of them, in order, with their numbers.
    pub(super) fn sorted(&self) -> Vec<(Route, usize)> {
        let mut all: Vec<(Route, usize)> = self.numbers.iter().map(|(a, b)| (*a, *b)).collect();
        all.sort_unstable();
        all
    }

    /// The number of a route that the schedule uses, and how far what is noted of it is turned to
    /// be seen from the route's sender.
    pub(super) fn number(&self, route: Route) -> (usize, Distance) {
        let (first, by) = self.of_first(route);
        (self.numbers[&first], by)
    }

    fn of_first(&self, route: Route) -> (Route, Distance) {
        match self.symmetry.home(route.from) {
            (_, 0) => (route, 0),
            (_, by) => (route.turned(&self.symmetry, self.symmetry.back(by)), by),
        }
    }

    /// The number of a route, which may be new.
    pub(super) fn add(&mut self, route: Route) -> usize {
        let (route, _) = self.of_first(route);
        *self.numbers.entry(route).or_insert_with(|| {
            self.firsts.push(Vec::new());
            self.firsts.len() - 1
        })
    }

    /// Notes the next segment that is sent over a route.
    pub(super) fn add_segment(&mut self, number: usize, message: u32, segment: u32) {
        let firsts = &mut self.firsts[number];
        if segment > 0 && firsts.is_empty() {
            firsts.extend(0..=message + 1);
        }
        match firsts.last().copied() {
            Some(end) if segment == 0 => firsts.push(end + 1),
            Some(end) => firsts[message as usize + 1] = end + 1,
            None => {}
        }
    }

    /// How many segments of a route precede a message, and how many it has. A message that is not
    /// sent has one behind all others.
    pub(super) fn segments(&self, number: usize, message: u32) -> (usize, u32) {
        let (firsts, message) = (&self.firsts[number], message as usize);
        match (firsts.get(message), firsts.get(message + 1), firsts.last()) {
            (Some(first), Some(next), _) => (*first as usize, next - first),
            (_, _, Some(end)) => (*end as usize + message + 1 - firsts.len(), 1),
            _ => (message, 1),
        }
    }
}

/// A segment of a message in its slot. Most messages have one.
#[derive(Debug)]
pub(super) struct Segment<K: Knowledge> {
    pub(super) value: Value,
    pub(super) written: Event,
    /// What comes with it, where messages announce themselves.
    pub(super) stamp: Option<K::Stamp>,
    /// When it was consumed.
    pub(super) read: Option<Event>,
}

/// The traffic of one round on a route.
#[derive(Debug)]
pub(super) struct Traffic<K: Knowledge> {
    /// Of all messages, in order.
    pub(super) segments: Vec<Segment<K>>,
    /// Messages of which all segments are written.
    pub(super) sent: usize,
    /// Messages of which all segments are read.
    pub(super) received: usize,
    /// Counter-only links: waits for the tail.
    pub(super) sync_waits: i64,
    pub(super) tail: Counter<K>,
    pub(super) head: Counter<K>,
}

impl<K: Knowledge> Traffic<K> {
    pub(super) fn new() -> Traffic<K> {
        Traffic {
            segments: Vec::new(),
            sent: 0,
            received: 0,
            sync_waits: 0,
            tail: Counter::new(),
            head: Counter::new(),
        }
    }
}

/// A counter, relative to the start of the round: up to 0 it has been raised by earlier rounds and
/// calls.
#[derive(Debug)]
pub(super) struct Counter<K: Knowledge> {
    /// Its last value.
    pub(super) value: i64,
    /// The value that its one reader has awaited.
    pub(super) awaited: i64,
    /// Signals that the reader has not awaited.
    signals: VecDeque<(i64, K::Stamp)>,
}

impl<K: Knowledge> Counter<K> {
    fn new() -> Counter<K> {
        Counter { value: 0, awaited: i64::MIN, signals: VecDeque::new() }
    }

    /// Stores a higher value.
    pub(super) fn raise(&mut self, value: i64, stamp: K::Stamp) {
        self.value = value;
        self.signals.push_back((value, stamp));
    }

    /// The reader awaits a value that has been reached. It learns what came with the first signal
    /// that is high enough: which of the later ones it sees as well is left to chance.
    pub(super) fn reach(&mut self, value: i64) -> Option<K::Stamp> {
        let mut seen = None;
        while self.awaited < value {
            match self.signals.front() {
                Some(_) if value > 0 => {
                    let (reached, stamp) = self.signals.pop_front()?;
                    self.awaited = self.awaited.max(reached);
                    seen = Some(stamp);
                }
                _ => self.awaited = value,
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_found_by_message_and_number() {
        let whole = crate::schedule::Chunking::Whole;
        let mut routes = Routes::new(Symmetry::none(2, whole, whole));
        let number = routes.add(Route { from: 1, to: 0, lane: Lane::Slots });
        assert_eq!(routes.segments(number, 3), (3, 1));
        for (message, segments) in [1, 1, 3, 1, 2].into_iter().enumerate() {
            (0..segments).for_each(|s| routes.add_segment(number, message as u32, s));
        }
        let found: Vec<(usize, u32)> = (0..7).map(|m| routes.segments(number, m)).collect();
        assert_eq!(found, [(0, 1), (1, 1), (2, 3), (5, 1), (6, 2), (8, 1), (9, 1)]);
    }
}
