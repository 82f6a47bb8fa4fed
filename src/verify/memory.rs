//! The callers' buffers, and who may touch them when.

use super::clock::{Clock, Event};
use super::expect::Place;
use super::value::Value;
use std::collections::BTreeMap;

/// A rank's buffers during the call.
#[derive(Debug)]
pub(super) struct Memory {
    owner: usize,
    cells: BTreeMap<Place, Cell>,
    /// When the owner's user was done with it: its entry into the call, if nothing else is said.
    ready: Option<Event>,
    /// Whether the owner has left the call.
    left: bool,
}

/// One chunk.
#[derive(Debug)]
struct Cell {
    value: Option<Value>,
    /// The last write. At first the user's, before the call.
    written: Event,
    /// Reads since.
    read: Vec<Event>,
}

/// The rank whose access is not ordered with this one.
pub(super) type Conflict = usize;

impl Memory {
    pub(super) fn new(owner: usize) -> Memory {
        Memory { owner, cells: BTreeMap::new(), ready: Some(Event::start(owner)), left: false }
    }

    /// The owner's user is not done with it yet.
    pub(super) fn close(&mut self) {
        self.ready = None;
    }

    /// The owner's user is done with it, if it was not before.
    pub(super) fn open_at(&mut self, now: Event) {
        self.ready.get_or_insert(now);
    }

    /// Reads a place, which held `initial` when the call began. `clock` is what the reader knows, `now` the time of the read.
    pub(super) fn read(
        &mut self,
        place: Place,
        initial: impl FnOnce() -> Option<Value>,
        clock: &Clock,
        now: Event,
    ) -> Result<Option<Value>, Conflict> {
        let cell = self.open(place, initial, clock)?;
        match cell.read.iter_mut().find(|read| read.rank == now.rank) {
            Some(read) => *read = now,
            None => cell.read.push(now),
        }
        Ok(cell.value)
    }

    /// Writes to a place.
    pub(super) fn write(
        &mut self,
        place: Place,
        value: Value,
        clock: &Clock,
        now: Event,
    ) -> Result<(), Conflict> {
        let cell = self.open(place, || None, clock)?;
        if let Some(read) = cell.read.iter().find(|read| !clock.knows(**read)) {
            return Err(read.rank);
        }
        *cell = Cell { value: Some(value), written: now, read: Vec::new() };
        Ok(())
    }

    /// What a place holds, if it has been touched.
    pub(super) fn value(&self, place: Place) -> Option<Option<Value>> {
        self.cells.get(&place).map(|cell| cell.value)
    }

    /// The owner leaves: its user may now do with the buffers what it likes. An access that it does not know of is a conflict.
    pub(super) fn leave(&mut self, clock: &Clock) -> Result<(), (Place, Conflict)> {
        self.left = true;
        for (place, cell) in &self.cells {
            let accesses = std::iter::once(&cell.written).chain(&cell.read);
            if let Some(access) = accesses.into_iter().find(|access| !clock.knows(**access)) {
                return Err((*place, access.rank));
            }
        }
        Ok(())
    }

    fn open(
        &mut self,
        place: Place,
        initial: impl FnOnce() -> Option<Value>,
        clock: &Clock,
    ) -> Result<&mut Cell, Conflict> {
        let owner = self.owner;
        // Nobody can know that the owner has not yet left, once it has.
        let (false, Some(start)) = (self.left, self.ready) else {
            return Err(owner);
        };
        let cell = self.cells.entry(place).or_insert_with(|| Cell {
            value: initial(),
            written: start,
            read: Vec::new(),
        });
        if clock.knows(cell.written) { Ok(cell) } else { Err(cell.written.rank) }
    }
}
