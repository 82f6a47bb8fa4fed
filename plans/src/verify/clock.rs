//! Happens-before: what a rank knows of what others have done, exactly, by vector clocks, or from
//! below.
//!
//! What a clock knows of the others is kept in pages, which clocks and stamps share until they
//! differ: most of what two ranks know they have learned from the same messages, so a message costs
//! what is new in it, not the number of ranks.

use crate::schedule::{Distance, Symmetry};
use std::fmt::Debug;
use std::num::NonZeroU32;
use std::rc::Rc;

/// Whoever has a present, and knows of some of what happened before.
pub(crate) trait View {
    /// The present.
    fn now(&self) -> Event;

    /// Whether the event happened before now.
    fn knows(&self, event: Event) -> bool;
}

/// What a rank knows of what has happened.
pub(crate) trait Knowledge: View + Sized + Debug {
    /// What a rank knew when it published something: all its own events until then, and those it
    /// had learned of.
    type Stamp: Clone + Debug;

    /// That of each rank at the beginning.
    fn all(ranks: usize) -> impl Iterator<Item = Self>;

    /// Makes known what has happened so far; what comes next is later.
    fn publish(&mut self) -> Self::Stamp;

    /// Learns what was known when the stamp was made.
    fn join(&mut self, stamp: &Self::Stamp);

    /// The stamp that another rank has made, who stands so far from the one that made this.
    fn turned(stamp: &Self::Stamp, symmetry: &Symmetry, by: Distance) -> Self::Stamp;
}

/// What a first rank knows, as one sees it who stands for all ranks `by` from there: ranks in what
/// is asked and answered are turned.
pub(crate) struct Seen<'a, V> {
    pub(crate) of: &'a V,
    pub(crate) symmetry: &'a Symmetry,
    pub(crate) by: Distance,
}

impl<V: View> View for Seen<'_, V> {
    fn now(&self) -> Event {
        self.of.now().turned(self.symmetry, self.symmetry.back(self.by))
    }

    fn knows(&self, event: Event) -> bool {
        self.of.knows(event.turned(self.symmetry, self.by))
    }
}

/// Ranks of a page.
const PAGE: usize = 64;

type Page = [u32; PAGE];

/// A point in a rank's own time. Times begin at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    rank: u32,
    time: NonZeroU32,
}

impl Event {
    /// A rank's entry into the call: everything that it and its user did before.
    pub(crate) fn start(rank: usize) -> Event {
        Event { rank: rank as u32, time: NonZeroU32::MIN }
    }

    /// Whose it is.
    pub(crate) fn rank(self) -> usize {
        self.rank as usize
    }

    /// The same event of a rank so far away.
    pub(crate) fn turned(self, symmetry: &Symmetry, by: Distance) -> Event {
        Event { rank: symmetry.rank(self.rank(), by) as u32, ..self }
    }
}

/// A clock's stamp.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    event: Event,
    known: Rc<[Rc<Page>]>,
}

/// One rank's vector clock.
#[derive(Debug)]
pub(crate) struct Clock {
    now: Event,
    /// For each other rank the latest of its events that happened before now. Shared with stamps
    /// until it changes.
    known: Rc<[Rc<Page>]>,
}

impl View for Clock {
    fn now(&self) -> Event {
        self.now
    }

    fn knows(&self, event: Event) -> bool {
        event.rank == self.now.rank
            || self.known[event.rank() / PAGE][event.rank() % PAGE] >= event.time.get()
    }
}

impl Knowledge for Clock {
    type Stamp = Stamp;

    fn all(ranks: usize) -> impl Iterator<Item = Clock> {
        let page = Rc::new([0; PAGE]);
        let nothing: Rc<[Rc<Page>]> = (0..ranks.div_ceil(PAGE)).map(|_| Rc::clone(&page)).collect();
        (0..ranks).map(move |rank| Clock { now: Event::start(rank), known: Rc::clone(&nothing) })
    }

    fn publish(&mut self) -> Stamp {
        let stamp = Stamp { event: self.now, known: Rc::clone(&self.known) };
        self.now.time = self.now.time.saturating_add(1);
        stamp
    }

    fn join(&mut self, stamp: &Stamp) {
        if self.knows(stamp.event) {
            return;
        }
        let known = Rc::make_mut(&mut self.known);
        for (mine, theirs) in known.iter_mut().zip(stamp.known.iter()) {
            if !Rc::ptr_eq(mine, theirs) {
                join_page(mine, theirs);
            }
        }
        let page = Rc::make_mut(&mut known[stamp.event.rank() / PAGE]);
        page[stamp.event.rank() % PAGE] = stamp.event.time.get();
    }

    fn turned(stamp: &Stamp, symmetry: &Symmetry, by: Distance) -> Stamp {
        if by == 0 {
            return stamp.clone();
        }
        let nothing = Rc::new([0; PAGE]);
        let mut known: Vec<Rc<Page>> = stamp.known.iter().map(|_| Rc::clone(&nothing)).collect();
        for (first, page) in (0..).step_by(PAGE).zip(stamp.known.iter()) {
            for (offset, time) in page.iter().enumerate().filter(|(_, time)| **time > 0) {
                let rank = symmetry.rank(first + offset, by);
                Rc::make_mut(&mut known[rank / PAGE])[rank % PAGE] = *time;
            }
        }
        Stamp { event: stamp.event.turned(symmetry, by), known: known.into() }
    }
}

/// Knowledge from below: a rank knows its own events, and nothing of others but what their counters
/// say. It costs nothing, and is enough wherever ranks only pass messages.
#[derive(Debug)]
pub(crate) struct Own {
    rank: usize,
}

impl View for Own {
    /// All its events are one: none is asked about by others.
    fn now(&self) -> Event {
        Event::start(self.rank)
    }

    fn knows(&self, event: Event) -> bool {
        event.rank() == self.rank
    }
}

impl Knowledge for Own {
    type Stamp = ();

    fn all(ranks: usize) -> impl Iterator<Item = Own> {
        (0..ranks).map(|rank| Own { rank })
    }

    fn publish(&mut self) {}

    fn join(&mut self, (): &()) {}

    fn turned((): &(), _: &Symmetry, _: Distance) {}
}

/// The later of both, entry by entry; a page that has them all already is shared.
fn join_page(mine: &mut Rc<Page>, theirs: &Rc<Page>) {
    let mut joined = **mine;
    for (mine, theirs) in joined.iter_mut().zip(theirs.iter()) {
        *mine = (*mine).max(*theirs);
    }
    if joined == **theirs {
        *mine = Rc::clone(theirs);
    } else if joined != **mine {
        *Rc::make_mut(mine) = joined;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knowledge_is_passed_on_and_what_comes_later_is_not_known() {
        for ranks in [3, 200] {
            let mut clocks: Vec<Clock> = Clock::all(ranks).collect();
            let (a, b, c) = (0, ranks / 2, ranks - 1);
            let first = clocks[a].now();
            let stamp = clocks[a].publish();
            let second = clocks[a].now();
            clocks[b].join(&stamp);
            let stamp = clocks[b].publish();
            clocks[c].join(&stamp);
            assert!(clocks[c].knows(first) && clocks[c].knows(Event::start(b)));
            assert!(!clocks[c].knows(second));
            assert!(!clocks[a].knows(Event::start(c)));
        }
    }

    #[test]
    fn what_is_known_from_below_is_known() {
        let mut clocks: Vec<Clock> = Clock::all(3).collect();
        let mut below: Vec<Own> = Own::all(3).collect();
        let stamp = clocks[0].publish();
        below[0].publish();
        clocks[1].join(&stamp);
        below[1].join(&());
        for (clock, own) in clocks.iter().zip(&below) {
            for event in (0..3).map(Event::start) {
                assert!(!own.knows(event) || clock.knows(event));
            }
        }
        assert!(below[1].knows(below[1].now()) && !below[1].knows(below[0].now()));
    }

    #[test]
    fn what_is_learned_from_two_sides_is_known_together() {
        let mut clocks: Vec<Clock> = Clock::all(130).collect();
        let stamps: Vec<Stamp> = [1, 129].map(|rank| clocks[rank].publish()).into();
        let before = clocks[5].publish();
        stamps.iter().for_each(|stamp| clocks[5].join(stamp));
        assert!(clocks[5].knows(Event::start(1)) && clocks[5].knows(Event::start(129)));
        // Stamps keep what was known when they were made.
        clocks[64].join(&before);
        assert!(clocks[64].knows(Event::start(5)) && !clocks[64].knows(Event::start(1)));
    }
}
