//! A group's list of calls, over bare memory.

use super::{Asked, Call, CheckedCall, Options, Parts};
use crate::error::Error;
use std::cell::Cell;
use std::fmt;

/// The calls of a group while it is made. A list can be used again: where the next group asks for
/// the same, its calls are there already.
#[derive(Debug)]
pub(crate) struct CallList {
    rank: usize,
    world: usize,
    /// The group's so far, and behind them those of the group before it.
    calls: Vec<CheckedCall>,
    /// The group's calls so far.
    len: usize,
    /// What these ask for.
    options: Options,
    /// Where the engine has these calls, as long as they stay the same.
    placed: Option<Placed>,
}

/// A list that the next group can use, unless a group inside of another has it.
#[derive(Default)]
pub(crate) struct SpareList(pub(crate) Cell<Option<Box<CallList>>>);

impl fmt::Debug for SpareList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpareList")
    }
}

/// Where the engine has placed calls: until it has given their place to others, they can be
/// launched again without a look at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// The launch, and what tells it from other buffers that this launch has had.
    pub(crate) at: usize,
    pub(crate) placing: u64,
}

impl CallList {
    /// A list of this rank.
    pub(crate) fn new(rank: usize, world: usize) -> CallList {
        CallList { rank, world, calls: Vec::new(), len: 0, options: Options::NONE, placed: None }
    }

    /// The rank whose calls they are.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub(crate) fn world_size(&self) -> usize {
        self.world
    }

    /// Begins a group whose calls ask for this.
    #[inline]
    pub(crate) fn begin(&mut self, options: Options) {
        self.len = 0;
        if options != self.options {
            self.truncate();
            self.options = options;
        }
    }

    /// Ends the list here. Its calls, and where the engine has them.
    #[inline]
    pub(crate) fn finish(&mut self) -> (&[CheckedCall], &mut Option<Placed>) {
        if self.len < self.calls.len() {
            self.truncate();
        }
        (&self.calls, &mut self.placed)
    }

    /// Forgets what the group before it had from here on.
    #[cold]
    fn truncate(&mut self) {
        self.calls.truncate(self.len);
        self.placed = None;
    }

    /// Adds a call. Returns its place in the group.
    #[inline(always)]
    pub(crate) fn push(&mut self, call: &Call<'_>) -> Result<usize, Error> {
        if call.parts == Parts::Even {
            let asked = Asked::new(call);
            if self.calls.get(self.len).is_some_and(|call| call.asked == asked) {
                self.len += 1;
                return Ok(self.len - 1);
            }
        }
        self.keep(CheckedCall::new(call, self.rank, self.world)?)
    }

    #[cold]
    fn keep(&mut self, call: CheckedCall) -> Result<usize, Error> {
        self.truncate();
        self.calls.push(CheckedCall { options: self.options, ..call });
        self.len += 1;
        Ok(self.len - 1)
    }
}
