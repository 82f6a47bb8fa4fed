//! A way of reaching other nodes: what makes wires.

use std::sync::Arc;
use std::time::Instant;

use super::ports::Ports;
use super::socket::Socket;
use super::wire::{Wire, WireError};
use crate::Adapter;

/// Makes this rank's wires: one a process or device, shared by all of its connections.
pub trait Fabric: Send + Sync {
    /// Its name, which both ends compare.
    fn name(&self) -> &'static str;

    /// How many sockets a wire is made of, at least one: they are connected and authenticated
    /// before [`open`](Fabric::open).
    fn sockets(&self) -> usize;

    /// The adapter that its wires go over, where that is not the one with the address at which the
    /// proxy is found: the proxy's thread stays near it.
    fn adapter(&self) -> Option<Adapter> {
        None
    }

    /// Makes this end of a wire, while the peer makes the other, in a thread of its own: it may
    /// wait until the link's deadline. What the two have to tell each other (addresses, keys) goes
    /// over the first socket by [`Socket::swap`].
    ///
    /// # Errors
    /// Why there is none; [`WireError::Unfit`] if the two ends are set up so that they do not go
    /// together.
    fn open(&self, link: Link) -> Result<Box<dyn Wire>, WireError>;
}

/// Two ranks that are about to have a wire.
pub struct Link {
    /// This rank.
    pub rank: usize,
    /// The other.
    pub peer: usize,
    /// Sockets to the peer, over which both ends have proven the job's secret. Number i is the same
    /// connection at both ends.
    pub sockets: Vec<Socket>,
    /// This end of their connections.
    pub ports: Arc<dyn Ports>,
    /// Until when the wire has to be there.
    pub deadline: Instant,
}
