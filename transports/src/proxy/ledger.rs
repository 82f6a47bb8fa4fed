//! What has gone to a peer and what has come from it, port by port: the proxy's books, and the
//! check on all that a peer says.

use std::sync::Arc;

use super::in_order::InOrder;
use super::ports::{PortNumber, PortShape, Ports};
use super::wire::{Counter, Wire, WireError};

/// The books of all ports to one peer. A wire reports to it what happened; what a peer says that
/// cannot be is refused here, before anything is written for it.
pub struct Ledger {
    ports: Arc<dyn Ports>,
    books: Box<[Book]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Book {
    /// Messages that the wire has taken.
    taken: u64,
    /// Those of them that it needs no more.
    sent: InOrder,
    /// Messages that the peer has consumed.
    consumed_there: u64,
    /// What of both the executor has been told.
    credited: u64,
    /// Messages that have come.
    arrived: InOrder,
    /// The last values that the wire has taken.
    told: [u64; 2],
    /// A counter's value at the other end.
    raised: u64,
}

impl Ledger {
    /// Nothing has happened yet.
    pub fn new(ports: Arc<dyn Ports>) -> Ledger {
        let books = vec![Book::default(); ports.count()].into_boxed_slice();
        Ledger { ports, books }
    }

    /// The ports that these are the books of.
    pub fn ports(&self) -> &Arc<dyn Ports> {
        &self.ports
    }

    /// The address where a message's content goes, if a message of this number and length may come:
    /// its slot is free, and it has not come yet.
    ///
    /// # Errors
    /// [`WireError::Protocol`] says what is wrong with it.
    pub fn place(
        &self,
        port: PortNumber,
        message: u64,
        len_bytes: usize,
    ) -> Result<*mut u8, WireError> {
        let PortShape::Slots { slots, content_bytes } = self.shape(port)? else {
            return Err(WireError::Protocol(format!("a message on port {port}, a counter's")));
        };
        if len_bytes > content_bytes as usize {
            let detail = format!("{len_bytes} bytes for a slot of {content_bytes}");
            return Err(WireError::Protocol(detail));
        }
        let consumed = self.ports.consumed(port);
        let free = message.checked_sub(consumed).is_some_and(|ahead| ahead < u64::from(slots));
        if !free || !self.books[usize::from(port)].arrived.expects(message) {
            let detail =
                format!("message {message} on port {port}, of which {consumed} are consumed");
            return Err(WireError::Protocol(detail));
        }
        Ok(self.ports.memory().start.wrapping_add(self.ports.inbox_offset(port, message)))
    }

    /// A message's content is in its [`place`](Ledger::place), every byte of it visible. It is
    /// delivered once all before it are.
    ///
    /// # Errors
    /// [`WireError::Protocol`] for one that may not come.
    pub fn arrived(&mut self, port: PortNumber, message: u64) -> Result<(), WireError> {
        self.place(port, message, 0)?;
        let arrived = &mut self.books[usize::from(port)].arrived;
        let first = arrived.next();
        arrived.note(message);
        for message in first..arrived.next() {
            self.ports.deliver(port, message);
        }
        Ok(())
    }

    /// The peer has told the value of a counter.
    ///
    /// # Errors
    /// [`WireError::Protocol`] for a value that cannot be.
    pub fn told(
        &mut self,
        port: PortNumber,
        counter: Counter,
        value: u64,
    ) -> Result<(), WireError> {
        let shape = self.shape(port)?;
        let book = &mut self.books[usize::from(port)];
        let (possible, before) = match (shape, counter) {
            (PortShape::Slots { .. }, Counter::Consumed) => {
                (value <= book.taken, &mut book.consumed_there)
            }
            (PortShape::Counter, Counter::Raised) => (true, &mut book.raised),
            _ => (false, &mut book.raised),
        };
        if !possible {
            let detail = format!("{counter:?} is {value} on port {port}, {shape:?}");
            return Err(WireError::Protocol(detail));
        }
        // One that was overtaken by a later one says nothing new.
        if value > *before {
            *before = value;
            match counter {
                Counter::Consumed => self.credit(port),
                Counter::Raised => self.ports.raise(port, value),
            }
        }
        Ok(())
    }

    /// The wire reads a message's outbox slot no more.
    ///
    /// # Panics
    /// If the wire has not taken that message, or says it twice: a fault of this program.
    pub fn sent(&mut self, port: PortNumber, message: u64) {
        let book = &mut self.books[usize::from(port)];
        assert!(message < book.taken && book.sent.expects(message), "message {message} was sent");
        book.sent.note(message);
        self.credit(port);
    }

    /// A slot of the outbox is free once its message has been consumed and is needed by the wire no
    /// more.
    fn credit(&mut self, port: PortNumber) {
        let book = &mut self.books[usize::from(port)];
        let free = book.consumed_there.min(book.sent.next());
        if free > book.credited {
            book.credited = free;
            self.ports.credit(port, free);
        }
    }

    fn shape(&self, port: PortNumber) -> Result<PortShape, WireError> {
        if usize::from(port) < self.books.len() {
            Ok(self.ports.shape(port))
        } else {
            Err(WireError::Protocol(format!("port {port} of {}", self.books.len())))
        }
    }

    /// Gives the wire what this rank's executor has announced, consumed and raised on a port, as
    /// far as it takes it. Returns whether there was anything new.
    ///
    /// # Errors
    /// The wire has ended.
    pub fn carry(&mut self, port: PortNumber, wire: &mut dyn Wire) -> Result<bool, WireError> {
        match self.ports.shape(port) {
            PortShape::Counter => self.tell(port, wire, Counter::Raised, self.ports.counter(port)),
            PortShape::Slots { slots, .. } => {
                let told = self.tell(port, wire, Counter::Consumed, self.ports.consumed(port))?;
                Ok(self.post(port, wire, u64::from(slots))? || told)
            }
        }
    }

    /// Whether this rank's executor has announced a message on a port that no wire has taken.
    pub(super) fn has_untaken(&self, port: PortNumber) -> bool {
        match self.ports.shape(port) {
            PortShape::Counter => {
                let told = self.books[usize::from(port)].told[Counter::Raised as usize];
                self.ports.counter(port) > told
            }
            PortShape::Slots { .. } => {
                self.ports.outgoing(port, self.books[usize::from(port)].taken).is_some()
            }
        }
    }

    /// The executor writes a message only when it has a credit for it, so the bound on those under
    /// way is its own.
    fn post(
        &mut self,
        port: PortNumber,
        wire: &mut dyn Wire,
        slots: u64,
    ) -> Result<bool, WireError> {
        let book = &mut self.books[usize::from(port)];
        let before = book.taken;
        while book.taken - book.credited < slots {
            let Some(content) = self.ports.outgoing(port, book.taken) else { break };
            if !wire.send(port, book.taken, content)? {
                break;
            }
            book.taken += 1;
        }
        Ok(book.taken > before)
    }

    fn tell(
        &mut self,
        port: PortNumber,
        wire: &mut dyn Wire,
        counter: Counter,
        value: u64,
    ) -> Result<bool, WireError> {
        let told = &mut self.books[usize::from(port)].told[counter as usize];
        let new = value > *told && wire.tell(port, counter, value)?;
        if new {
            *told = value;
        }
        Ok(new)
    }
}
