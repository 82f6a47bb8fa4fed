//! What has gone over one direction of a connection.

use super::clock::{Event, Stamp};
use super::value::Value;
use crate::schedule::Lane;
use std::collections::VecDeque;

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Route {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) lane: Lane,
}

/// A message in its slot.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) value: Value,
    pub(super) written: Event,
    /// What comes with it, where a message announces itself.
    pub(super) stamp: Option<Stamp>,
    /// When it was consumed.
    pub(super) read: Option<Event>,
}

/// The traffic of one round.
#[derive(Debug)]
pub(super) struct Traffic {
    pub(super) messages: Vec<Message>,
    pub(super) received: usize,
    /// Counter-only links: waits for the tail.
    pub(super) sync_waits: i64,
    pub(super) tail: Counter,
    pub(super) head: Counter,
}

impl Traffic {
    pub(super) fn new() -> Traffic {
        Traffic {
            messages: Vec::new(),
            received: 0,
            sync_waits: 0,
            tail: Counter::new(),
            head: Counter::new(),
        }
    }
}

/// A counter, relative to the start of the round: up to 0 it has been raised by earlier rounds and calls.
#[derive(Debug)]
pub(super) struct Counter {
    /// Its last value.
    pub(super) value: i64,
    /// The value that its one reader has awaited.
    pub(super) awaited: i64,
    /// Signals that the reader has not awaited.
    signals: VecDeque<(i64, Stamp)>,
}

impl Counter {
    fn new() -> Counter {
        Counter { value: 0, awaited: i64::MIN, signals: VecDeque::new() }
    }

    /// Stores a higher value.
    pub(super) fn raise(&mut self, value: i64, stamp: Stamp) {
        self.value = value;
        self.signals.push_back((value, stamp));
    }

    /// The reader awaits a value that has been reached. It learns what came with the first signal that is high enough: which of the
    /// later ones it sees as well is left to chance.
    pub(super) fn reach(&mut self, value: i64) -> Option<Stamp> {
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
