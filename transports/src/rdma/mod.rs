//! RDMA: network adapters that read and write memory of another node without its processor.
//!
//! The lower layer wraps libibverbs (`library.rs` loads it when it is first asked for), in the
//! order in which things are made: a [`Device`] has [`Port`]s; in a [`Domain`] of it memory is
//! registered; a [`QueuePair`] on a port is joined with one of another rank, and reports through a
//! [`CompletionQueue`]. Whatever fails is an [`RdmaError`].

mod address;
mod completion;
mod device;
mod error;
mod library;
mod memory;
mod port;
mod queue_pair;
mod sys;

pub use address::{Gid, LinkKind, PortAddress, QueuePairAddress};
pub use completion::{Completion, CompletionQueue, Failure, Outcome};
pub use device::{Device, DeviceEvent, device_names};
pub use error::RdmaError;
pub use memory::{Domain, MemoryRegion, RemoteMemory};
pub use port::{Port, usable_ports};
pub use queue_pair::{Depth, Local, Operation, Patience, QueuePair, Request};
