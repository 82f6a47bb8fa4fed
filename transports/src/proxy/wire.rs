//! What carries messages to one peer and back: the trait that each way of reaching another node
//! implements.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use nix::poll::PollFlags;

use super::ledger::Ledger;
use super::ports::{Content, PortNumber};

/// Which of a port's counters is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counter {
    /// How many messages have been consumed: credits for the other end.
    Consumed,
    /// The counter of a [`PortShape::Counter`](super::PortShape::Counter).
    Raised,
}

/// Why a wire carries nothing any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The peer ended it in order.
    #[error("it closed the connection")]
    Closed,
    /// The system or the network ended it, or it could not be made.
    #[error("{doing} failed: {source}")]
    Io {
        /// What was done.
        doing: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The peer sent what the protocol does not allow.
    #[error("it sent what oxccl never sends: {0}")]
    Protocol(String),
    /// What the peer sent came changed, incomplete or out of its turn: its seal is broken.
    #[error("what it sent was changed on its way (integrity)")]
    Changed,
    /// The two ends cannot work together, as they are set up.
    #[error("{0}")]
    Unfit(String),
    /// A network adapter's own failure.
    #[error("{0}")]
    Device(String),
}

impl WireError {
    /// For `map_err`: the system refused something.
    pub fn io(doing: &'static str) -> impl FnOnce(io::Error) -> WireError {
        move |source| WireError::Io { doing, source }
    }
}

impl WireError {
    /// Whether the peer is connected and has said nothing in time.
    pub(crate) fn is_silence(&self) -> bool {
        use io::ErrorKind::{TimedOut, WouldBlock};
        matches!(self, WireError::Io { source, .. } if matches!(source.kind(), TimedOut | WouldBlock))
    }

    /// Whether the connection has ended, in order or not.
    pub(crate) fn is_end(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match self {
            WireError::Closed => true,
            WireError::Io { source, .. } => {
                matches!(source.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
            }
            _ => false,
        }
    }
}

/// The way to one peer. It belongs to the proxy's thread and never waits.
///
/// What the proxy does with one:
///
/// 1. messages of a port are given to [`send`](Wire::send) in the order of their numbers, none
///    twice, and never more at a time than the peer has slots free: a wire need not ask whether
///    there is room at the other end;
/// 2. counters only grow, so a wire may leave out a value that a later one replaces, and values may
///    overtake each other;
/// 3. [`progress`](Wire::progress) is called often while a call is in flight, and otherwise when a
///    descriptor is ready.
///
/// What a wire owes, on the side that receives: before it lets a byte of a message into the inbox,
/// it asks [`Ledger::place`] (where memory is written by the peer's adapter, it checks the
/// message's number behind that, by [`Ledger::arrived`]); it reports a message when every byte of
/// its content is visible to this process (and, where the memory is a GPU's, to the GPU), each
/// message once, in any order.
///
/// After an error it is dropped.
pub trait Wire: Send {
    /// Takes a message to be sent: what is at `content` goes to the same message's place in the
    /// peer's inbox. It is read until the wire calls [`Ledger::sent`], which it does once for each
    /// message, in any order. `false`: there is no room now, and nothing was taken; it is offered
    /// again.
    ///
    /// # Errors
    /// The wire has ended.
    fn send(&mut self, port: PortNumber, message: u64, content: Content)
    -> Result<bool, WireError>;

    /// Takes a counter's value, for the peer's [`Ledger::told`]. `false`: there is no room now, and
    /// nothing was taken.
    ///
    /// # Errors
    /// The wire has ended.
    fn tell(&mut self, port: PortNumber, counter: Counter, value: u64) -> Result<bool, WireError>;

    /// Moves what can be moved without waiting, and reports what happened. Returns whether anything
    /// did.
    ///
    /// # Errors
    /// The wire has ended.
    fn progress(&mut self, ledger: &mut Ledger) -> Result<bool, WireError>;

    /// Prepares for sleep: after it, one of the descriptors becomes ready as soon as
    /// [`progress`](Wire::progress) has something to do. `false`: it has already.
    ///
    /// # Errors
    /// The wire has ended.
    fn arm(&mut self) -> Result<bool, WireError>;

    /// What the proxy sleeps on, after [`arm`](Wire::arm).
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)>;

    /// Whether everything that was taken has left for good: ending the wire now loses nothing of
    /// it.
    fn is_drained(&self) -> bool;

    /// When [`progress`](Wire::progress) has something to do without a descriptor's telling: only
    /// of links that are slowed down on purpose.
    fn due(&self) -> Option<Instant> {
        None
    }
}
