//! What has gone over one direction of a connection.

use super::clock::{Event, Stamp};
use super::hash::Map;
use super::value::Value;
use crate::schedule::Lane;
use std::collections::VecDeque;

/// How many segments messages have, by route and number, where it is more than one.
pub(super) type Sizes = Map<(Route, u32), u32>;

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Route {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) lane: Lane,
}

/// A segment of a message in its slot. Most messages have one.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) value: Value,
    pub(super) written: Event,
    /// What comes with it, where messages announce themselves.
    pub(super) stamp: Option<Stamp>,
    /// When it was consumed.
    pub(super) read: Option<Event>,
}

/// The traffic of one round.
#[derive(Debug)]
pub(super) struct Traffic {
    /// Of all messages, in order.
    segments: Vec<Segment>,
    /// Each message's first segment.
    firsts: Vec<u32>,
    /// Messages of which all segments are written.
    pub(super) sent: usize,
    /// Messages of which all segments are read.
    pub(super) received: usize,
    /// Counter-only links: waits for the tail.
    pub(super) sync_waits: i64,
    pub(super) tail: Counter,
    pub(super) head: Counter,
}

impl Traffic {
    pub(super) fn new() -> Traffic {
        Traffic {
            segments: Vec::new(),
            firsts: Vec::new(),
            sent: 0,
            received: 0,
            sync_waits: 0,
            tail: Counter::new(),
            head: Counter::new(),
        }
    }

    /// A segment, if it has been written.
    pub(super) fn segment(&mut self, message: u32, segment: u32) -> Option<&mut Segment> {
        let index = self.index(message, segment)?;
        self.segments.get_mut(index)
    }

    /// Whether a segment has been written.
    pub(super) fn has(&self, message: u32, segment: u32) -> bool {
        self.index(message, segment).is_some_and(|index| index < self.segments.len())
    }

    /// The last segment written of a message.
    pub(super) fn last_segment(&self, message: usize) -> Option<&Segment> {
        let next = self.firsts.get(message + 1).map_or(self.segments.len(), |next| *next as usize);
        self.segments.get(next.checked_sub(1)?)
    }

    /// Writes the next segment.
    pub(super) fn push(&mut self, segment: u32, written: Segment) {
        if segment == 0 {
            self.firsts.push(self.segments.len() as u32);
        }
        self.segments.push(written);
    }

    fn index(&self, message: u32, segment: u32) -> Option<usize> {
        let index = *self.firsts.get(message as usize)? + segment;
        let within = self.firsts.get(message as usize + 1).is_none_or(|next| index < *next);
        within.then_some(index as usize)
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
