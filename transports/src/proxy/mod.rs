//! Links to ranks of other nodes: a thread that carries messages out of this rank's memory and into
//! it.
//!
//! To the executor, a connection to another node is as any other: it writes slots, announces them,
//! and counts what it has consumed, all in its own rank's memory. The proxy watches those words and
//! does at the other end what a peer that shares memory would have done itself.
//!
//! | part | what it is |
//! | --- | --- |
//! | [`Ports`] | this rank's end of the connections to one peer: outboxes, inboxes, counters. Implemented above this crate |
//! | [`Wire`] | what carries messages and counters to one peer and back. One implementation a way of reaching others |
//! | [`Fabric`] | what makes wires |
//! | [`Ledger`] | what has gone and come, and the check on all that a peer says |
//! | [`Proxy`] | the thread; [`Listening`] is where its peers find it |
//! | [`Emulation`] | links that are slower, or less reliable, than the network, with the feature `emulation` |
//! | [`Socket`] | a connection whose two ends have proven the job's secret |

mod acceptor;
mod bell;
mod connector;
mod emulation;
mod fabric;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
mod handshake;
mod in_order;
mod ledger;
mod ports;
mod socket;
#[doc(hidden)]
pub mod testing;
mod thread;
mod wire;
mod worker;

pub use bell::Bell;
pub use emulation::{BadConditions, Conditions, Egress, Emulation};
pub use fabric::{Fabric, Link};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use fuzz::link_greetings;
pub use ledger::Ledger;
pub use ports::{Content, PortNumber, PortShape, Ports, PortsMemory, SLOTS_LIMIT};
pub use socket::{SWAP_LIMIT_BYTES, Socket};
pub use thread::{Listening, Proxy, ProxySetup};
pub use wire::{Counter, Wire, WireError};
