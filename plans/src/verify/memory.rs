//! The callers' buffers, and who may touch them when.

use super::clock::{Event, View};
use super::expect::{Expectation, Place};
use super::value::Value;
use crate::schedule::Buffer;

/// Cells of a page. Pages are made when they are touched: a file may speak of many chunks and touch
/// few.
const PAGE: usize = 32;

/// A rank's buffers during the call.
#[derive(Debug)]
pub(super) struct Memory {
    owner: usize,
    /// Chunks of the input; those of the output lie behind them.
    inputs: usize,
    pages: Vec<Option<Box<[Cell; PAGE]>>>,
    /// When the owner's user was done with it: its entry into the call, if nothing else is said.
    ready: Option<Event>,
    /// Whether the owner has left the call.
    left: bool,
}

/// One chunk.
#[derive(Debug, Default)]
struct Cell {
    value: Option<Value>,
    /// The last write, at first the user's, before the call. None as long as nobody has touched it.
    written: Option<Event>,
    /// Reads since.
    reads: Reads,
}

impl Cell {
    /// The last write, and reads since.
    fn accesses(&self) -> impl Iterator<Item = &Event> {
        self.written.iter().chain(self.reads.iter())
    }
}

/// Reads of a chunk: the last of each rank. Mostly one rank reads.
#[derive(Debug, Default)]
enum Reads {
    #[default]
    None,
    One(Event),
    Several(Vec<Event>),
}

/// The rank whose access is not ordered with this one.
pub(super) type Conflict = usize;

impl Memory {
    /// Buffers that an owner's user leaves to the call by entering it.
    pub(super) fn new(owner: usize, expectation: &Expectation) -> Memory {
        let [inputs, outputs] = [Buffer::Input, Buffer::Output].map(|of| expectation.chunks(of));
        Memory::of(owner, inputs, inputs + outputs)
    }

    /// An owner's scratch, whose chunks are places of an input.
    pub(super) fn scratch(owner: usize, chunks: usize) -> Memory {
        Memory::of(owner, chunks, chunks)
    }

    fn of(owner: usize, inputs: usize, chunks: usize) -> Memory {
        let mut pages = Vec::new();
        pages.resize_with(chunks.div_ceil(PAGE), || None);
        Memory { owner, inputs, pages, ready: Some(Event::start(owner)), left: false }
    }

    /// The owner's user is not done with it yet.
    pub(super) fn close(&mut self) {
        self.ready = None;
    }

    /// The owner's user is done with it, if it was not before.
    pub(super) fn open_at(&mut self, now: Event) {
        self.ready.get_or_insert(now);
    }

    /// Reads a place, which held `initial` when the call began.
    pub(super) fn read(
        &mut self,
        place: Place,
        initial: impl FnOnce() -> Option<Value>,
        reader: &impl View,
    ) -> Result<Option<Value>, Conflict> {
        let cell = self.open(place, initial, reader)?;
        cell.reads.add(reader.now());
        Ok(cell.value)
    }

    /// Writes to a place.
    pub(super) fn write(
        &mut self,
        place: Place,
        value: Value,
        writer: &impl View,
    ) -> Result<(), Conflict> {
        let cell = self.open(place, || None, writer)?;
        if let Some(read) = cell.reads.iter().find(|read| !writer.knows(**read)) {
            return Err(read.rank());
        }
        *cell = Cell { value: Some(value), written: Some(writer.now()), reads: Reads::default() };
        Ok(())
    }

    /// What a place holds, if it has been touched.
    pub(super) fn value(&self, place: Place) -> Option<Option<Value>> {
        let index = self.index(place);
        let cell = &self.pages[index / PAGE].as_ref()?[index % PAGE];
        cell.written.is_some().then_some(cell.value)
    }

    /// The access to a place that this one does not know of, if there is one.
    pub(super) fn unknown(&self, place: Place, to: &impl View) -> Option<Conflict> {
        let index = self.index(place);
        let cell = &self.pages[index / PAGE].as_ref()?[index % PAGE];
        let access = cell.accesses().find(|access| !to.knows(**access))?;
        Some(access.rank())
    }

    /// The owner leaves: its user may now do with the buffers what it likes. An access that it does
    /// not know of is a conflict.
    pub(super) fn leave(&mut self, owner: &impl View) -> Result<(), (Place, Conflict)> {
        self.left = true;
        let pages = self.pages.iter().enumerate();
        let pages = pages.filter_map(|(page, cells)| Some((page * PAGE, cells.as_ref()?)));
        for (first, cells) in pages {
            for (offset, cell) in cells.iter().enumerate() {
                if let Some(access) = cell.accesses().find(|access| !owner.knows(**access)) {
                    return Err((self.place(first + offset), access.rank()));
                }
            }
        }
        Ok(())
    }

    fn open(
        &mut self,
        place: Place,
        initial: impl FnOnce() -> Option<Value>,
        clock: &impl View,
    ) -> Result<&mut Cell, Conflict> {
        let owner = self.owner;
        // Nobody can know that the owner has not yet left, once it has.
        let (false, Some(start)) = (self.left, self.ready) else {
            return Err(owner);
        };
        let index = self.index(place);
        let page = self.pages[index / PAGE].get_or_insert_with(Box::default);
        let cell = &mut page[index % PAGE];
        let written = *cell.written.get_or_insert_with(|| {
            cell.value = initial();
            start
        });
        if clock.knows(written) { Ok(cell) } else { Err(written.rank()) }
    }

    fn index(&self, (buffer, chunk): Place) -> usize {
        if buffer == Buffer::Input { chunk } else { self.inputs + chunk }
    }

    fn place(&self, index: usize) -> Place {
        match index.checked_sub(self.inputs) {
            None => (Buffer::Input, index),
            Some(chunk) => (Buffer::Output, chunk),
        }
    }
}

impl Reads {
    fn iter(&self) -> impl Iterator<Item = &Event> {
        match self {
            Reads::None => [].iter(),
            Reads::One(event) => std::slice::from_ref(event).iter(),
            Reads::Several(events) => events.iter(),
        }
    }

    /// Adds one, in the place of the same rank's last.
    fn add(&mut self, now: Event) {
        match self {
            Reads::None => *self = Reads::One(now),
            Reads::One(event) if event.rank() == now.rank() => *event = now,
            Reads::One(event) => *self = Reads::Several(vec![*event, now]),
            Reads::Several(events) => {
                match events.iter_mut().find(|event| event.rank() == now.rank()) {
                    Some(event) => *event = now,
                    None => events.push(now),
                }
            }
        }
    }
}
