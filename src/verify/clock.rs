//! Happens-before, by vector clocks.

use std::rc::Rc;

/// A point in a rank's own time. Times begin at [`Event::START`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) rank: usize,
    pub(super) time: u32,
}

impl Event {
    /// A rank's entry into the call: everything that it and its user did before.
    pub(super) fn start(rank: usize) -> Event {
        Event { rank, time: 1 }
    }
}

/// What a rank knew when it published something: all its own events until then, and those it had learned of.
#[derive(Clone, Debug)]
pub(super) struct Stamp {
    event: Event,
    known: Rc<[u32]>,
}

/// One rank's vector clock.
#[derive(Debug)]
pub(super) struct Clock {
    now: Event,
    /// For each other rank the latest of its events that happened before now. Shared with stamps until it changes.
    known: Rc<[u32]>,
}

impl Clock {
    pub(super) fn new(rank: usize, ranks: usize) -> Clock {
        Clock { now: Event::start(rank), known: vec![0; ranks].into() }
    }

    /// The present.
    pub(super) fn now(&self) -> Event {
        self.now
    }

    /// Whether the event happened before now.
    pub(super) fn knows(&self, event: Event) -> bool {
        event.rank == self.now.rank || self.known[event.rank] >= event.time
    }

    /// Makes known what has happened so far; what comes next is later.
    pub(super) fn publish(&mut self) -> Stamp {
        let stamp = Stamp { event: self.now, known: Rc::clone(&self.known) };
        self.now.time += 1;
        stamp
    }

    /// Learns what was known when the stamp was made.
    pub(super) fn join(&mut self, stamp: &Stamp) {
        if self.knows(stamp.event) {
            return;
        }
        let known = Rc::make_mut(&mut self.known);
        for (mine, theirs) in known.iter_mut().zip(stamp.known.iter()) {
            *mine = (*mine).max(*theirs);
        }
        known[stamp.event.rank] = stamp.event.time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knowledge_is_passed_on_and_what_comes_later_is_not_known() {
        let mut clocks: Vec<Clock> = (0..3).map(|rank| Clock::new(rank, 3)).collect();
        let first = clocks[0].now();
        let stamp = clocks[0].publish();
        let second = clocks[0].now();
        clocks[1].join(&stamp);
        let stamp = clocks[1].publish();
        clocks[2].join(&stamp);
        assert!(clocks[2].knows(first) && clocks[2].knows(Event::start(1)));
        assert!(!clocks[2].knows(second));
        assert!(!clocks[0].knows(Event::start(2)));
    }
}
