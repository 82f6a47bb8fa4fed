//! Who has touched the memory of an execution: accesses of thread blocks that nothing orders.

use crate::verify::clock::{Clock, Event, View};
use std::collections::HashMap;
use std::hash::Hash;

/// When a thread block did something, and in which step.
struct Access<At> {
    event: Event,
    at: At,
}

/// The accesses to a chunk.
struct Accesses<At> {
    written: Option<Access<At>>,
    /// Since then: the last of each thread block.
    read: Vec<Access<At>>,
}

/// The accesses to all chunks. Clocks are those of thread blocks.
pub(super) struct Memory<Chunk, At>(HashMap<Chunk, Accesses<At>>);

impl<Chunk: Eq + Hash, At: Copy> Memory<Chunk, At> {
    pub(super) fn new() -> Memory<Chunk, At> {
        Memory(HashMap::new())
    }

    /// A step, which the clock is at, reads or writes a chunk.
    ///
    /// # Errors
    /// The step of an earlier access that the clock does not know of: the two race.
    pub(super) fn touch(
        &mut self,
        clock: &Clock,
        at: At,
        chunk: Chunk,
        writes: bool,
    ) -> Result<(), At> {
        let none = Accesses { written: None, read: Vec::new() };
        let accesses = self.0.entry(chunk).or_insert(none);
        let reads = accesses.read.iter().filter(|_| writes);
        let mut before = accesses.written.iter().chain(reads);
        if let Some(other) = before.find(|other| !clock.knows(other.event)) {
            return Err(other.at);
        }
        let now = Access { event: clock.now(), at };
        if writes {
            *accesses = Accesses { written: Some(now), read: Vec::new() };
        } else {
            accesses.read.retain(|read| read.event.rank() != now.event.rank());
            accesses.read.push(now);
        }
        Ok(())
    }
}
