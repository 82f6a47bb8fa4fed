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
    /// What the last call was made from, and where it is placed: apart, so that one that comes
    /// again looks at nothing else.
    last: Asked,
    last_at: Option<Placed>,
    places: Box<[Option<Ready>]>,
    /// Where the last one is.
    place: usize,
    /// By set: which of its places is taken next.
    oldest: [u8; SETS],
}

impl Default for Recent {
    fn default() -> Recent {
        let places = std::iter::repeat_with(|| None).take(SETS * WAYS).collect();
        Recent { last: Asked::NOTHING, last_at: None, places, place: 0, oldest: [0; SETS] }
    }
}

impl Recent {
    /// Where the last call is placed, if this is the same.
    #[inline]
    pub(super) fn again(&self, asked: &Asked) -> Option<Placed> {
        if self.last == *asked { self.last_at } else { None }
    }

    /// A call that differs from this one in its memory at most.
    #[inline]
    pub(super) fn find(&mut self, asked: &Asked) -> Option<&mut Ready> {
        if !self.is_at(self.place, asked) {
            let first = set_of(asked) * WAYS;
            self.place = (first..first + WAYS).find(|place| self.is_at(*place, asked))?;
        }
        self.places[self.place].as_mut()
    }

    /// What has been found is now this call, and the last one.
    #[inline]
    pub(super) fn found(&mut self, asked: &Asked, at: Placed) {
        (self.last, self.last_at) = (*asked, Some(at));
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
            self.place = set * WAYS + usize::from(self.oldest[set]);
            self.oldest[set] = (self.oldest[set] + 1) % WAYS as u8;
        }
        (self.last, self.last_at) = (*asked, ready.at);
        self.places[self.place] = Some(ready);
    }

    /// No longer knows what has been found.
    pub(super) fn forget(&mut self) {
        self.places[self.place] = None;
        (self.last, self.last_at) = (Asked::NOTHING, None);
    }
}

fn set_of(asked: &Asked) -> usize {
    asked.class() % SETS
}
