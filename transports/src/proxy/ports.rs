//! This rank's end of all connections to one peer, as the proxy and its wires see it.

use super::wire::WireError;

/// A connection's number among those to a peer. Both ends number alike.
pub type PortNumber = u16;

/// What travels through a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortShape {
    /// Messages in slots, with credits.
    Slots {
        /// Number of slots each way: at most [`SLOTS_LIMIT`].
        slots: u32,
        /// The longest content of a message.
        content_bytes: u32,
    },
    /// A counter each way, and nothing else.
    Counter,
}

/// The most slots that a port has each way.
pub const SLOTS_LIMIT: u32 = 64;

/// What a message brings: bytes of an outbox slot.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    /// Where they begin.
    pub start: *const u8,
    /// How many there are: at least one, and at most the port's
    /// [`content_bytes`](PortShape::Slots::content_bytes).
    pub len_bytes: usize,
}

// SAFETY: an address and a length. Whoever reads there does so by the contract of
// `Ports::outgoing`.
unsafe impl Send for Content {}

/// All inboxes and outboxes of the connections to one peer: what a network adapter registers. It
/// may be a GPU's memory, which the host does not reach, if the fabric can do that.
#[derive(Clone, Copy, Debug)]
pub struct PortsMemory {
    /// Where it begins: at a page.
    pub start: *mut u8,
    /// Its length.
    pub len_bytes: usize,
}

// SAFETY: an address and a length, as above.
unsafe impl Send for PortsMemory {}
// SAFETY: as above.
unsafe impl Sync for PortsMemory {}

/// This rank's end of all connections to one peer.
///
/// A connection has an **outbox**, into which this rank's executor writes messages, and an
/// **inbox**, from which it reads them: slot `m % slots` of each holds message m. The executor
/// announces a message in its outbox and counts what it has consumed; the proxy carries both to the
/// peer, and does there what a peer that shares memory would have done: it announces the message in
/// the inbox, or raises the count of what was consumed, and rings the executor's doorbell.
///
/// The layout is a function of shapes that all ranks share: what lies at an offset of
/// [`memory`](Ports::memory) here lies at the same offset of the peer's.
///
/// # Safety
///
/// Wires read and write where this says. [`memory`](Ports::memory) is readable and writable as long
/// as the object lives; inboxes lie within it, each at least as long as the port's content; a
/// content is readable and does not change until it is credited; and nobody reads the content of an
/// inbox slot before its message is delivered.
pub unsafe trait Ports: Send + Sync {
    /// Ports have the numbers from 0 up to this, excluded.
    fn count(&self) -> usize;

    /// What goes through a port.
    fn shape(&self, port: PortNumber) -> PortShape;

    /// Sees to it that there is memory behind the ports, before a wire is made; again changes
    /// nothing.
    ///
    /// # Errors
    /// Why there is none.
    fn open(&self) -> Result<(), WireError>;

    /// Where inboxes and outboxes lie, once there is [memory](Ports::open). They stay there as long
    /// as this object lives. Counters and tails need not be there.
    fn memory(&self) -> PortsMemory;

    /// Where in [`memory`](Ports::memory) the content of a message from the peer goes.
    fn inbox_offset(&self, port: PortNumber, message: u64) -> usize;

    /// The content of a message in the outbox, once the executor has announced it (acquire). It
    /// stays as it is until the message has been [credited](Ports::credit).
    fn outgoing(&self, port: PortNumber, message: u64) -> Option<Content>;

    /// How many messages of the inbox the executor has consumed (acquire).
    fn consumed(&self, port: PortNumber) -> u64;

    /// Announces a message whose content is in the inbox (release), and wakes the executor.
    fn deliver(&self, port: PortNumber, message: u64);

    /// Tells the executor how many messages of its outbox the peer has consumed (release), and
    /// wakes it.
    fn credit(&self, port: PortNumber, consumed: u64);

    /// What the executor has raised its counter of a [`PortShape::Counter`] to (acquire).
    fn counter(&self, port: PortNumber) -> u64;

    /// Raises the counter that the executor waits for to what the peer has raised its own to
    /// (release), and wakes it.
    fn raise(&self, port: PortNumber, value: u64);
}
