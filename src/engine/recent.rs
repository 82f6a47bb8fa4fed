//! The calls that were last made by themselves, ready to be made again.

use crate::call::{Asked, CheckedCall, Placed};

/// How many. Calls of one kind, type, operation and length share a place, whatever their memory.
const PLACES: usize = 16;

/// A call that has been made.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) call: CheckedCall,
    /// Where it is placed.
    pub(super) at: Option<Placed>,
}

/// The table of them.
#[derive(Debug, Default)]
pub(super) struct Recent {
    places: [Option<Ready>; PLACES],
    last: usize,
}

impl Recent {
    /// The last call.
    #[inline]
    pub(super) fn last(&self) -> Option<&Ready> {
        self.places[self.last].as_ref()
    }

    /// Goes on to a call's place: what is there is the last call from here on.
    pub(super) fn turn_to(&mut self, asked: &Asked) -> &mut Option<Ready> {
        self.last = asked.class() % PLACES;
        &mut self.places[self.last]
    }
}
