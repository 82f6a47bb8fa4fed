//! The calls that were last made by themselves, ready to be made again.

use crate::call::{Asked, CheckedCall, Fit, Placed};

/// Sets of places, and places in a set. Calls of one kind, type, operation and length share a
/// place, whatever their memory; a set has those whose classes are alike.
const SETS: usize = 16;
const WAYS: usize = 4;

/// A call that has been made.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) call: CheckedCall,
    /// What other memory fits it.
    pub(super) fit: Fit,
    /// Where it is placed.
    pub(super) at: Option<Placed>,
}

/// The table of them.
#[derive(Debug)]
pub(super) struct Recent {
    places: Box<[Option<Ready>]>,
    last: usize,
    /// By set: which of its places is taken next.
    oldest: [u8; SETS],
}

impl Default for Recent {
    fn default() -> Recent {
        let places = std::iter::repeat_with(|| None).take(SETS * WAYS).collect();
        Recent { places, last: 0, oldest: [0; SETS] }
    }
}

impl Recent {
    /// The last call.
    #[inline]
    pub(super) fn last(&self) -> Option<&Ready> {
        self.places[self.last].as_ref()
    }

    /// A call that differs from this one in its memory at most; it is the last one from here on.
    #[inline]
    pub(super) fn find(&mut self, asked: &Asked) -> Option<&mut Ready> {
        if !self.is_at(self.last, asked) {
            let first = set_of(asked) * WAYS;
            self.last = (first..first + WAYS).find(|place| self.is_at(*place, asked))?;
        }
        self.places[self.last].as_mut()
    }

    /// Whether a call like this one has that place.
    #[inline]
    fn is_at(&self, place: usize, asked: &Asked) -> bool {
        let ready = self.places[place].as_ref();
        ready.is_some_and(|ready| ready.call.asked.differs_in_memory(asked))
    }

    /// Keeps a call, in the place of one like it or of the oldest of its set. It is the last one.
    pub(super) fn keep(&mut self, asked: &Asked, ready: Ready) {
        if self.find(asked).is_none() {
            let set = set_of(asked);
            self.last = set * WAYS + usize::from(self.oldest[set]);
            self.oldest[set] = (self.oldest[set] + 1) % WAYS as u8;
        }
        self.places[self.last] = Some(ready);
    }

    /// No longer knows the last call.
    pub(super) fn forget_last(&mut self) {
        self.places[self.last] = None;
    }
}

fn set_of(asked: &Asked) -> usize {
    asked.class() % SETS
}
