//! RDMA: network adapters that read and write memory of another node without its processor.
//!
//! The lower layer wraps libibverbs (`library.rs` loads it when it is first asked for), in the
//! order in which things are made: a [`Device`] has [`Port`]s; in a [`Domain`] of it memory is
//! registered; a [`QueuePair`] on a port is joined with one of another rank, and reports through a
//! [`CompletionQueue`]. Whatever fails is an [`RdmaError`].
//!
//! Above it [`RdmaFabric`] makes the wires of a proxy: `wire.rs` says how a message travels,
//! `path.rs` keeps the books of a queue pair, `immediate.rs` has the 32 bits that come with each
//! request.

mod address;
mod completion;
mod device;
mod error;
mod fabric;
mod flush;
mod gpu_memory;
mod immediate;
mod library;
mod memory;
mod near;
mod offer;
mod path;
mod port;
mod queue_pair;
mod survey;
mod sys;
mod wire;

pub use address::{Gid, LinkKind, PortAddress, QueuePairAddress};
pub use completion::{Completion, CompletionQueue, Failure, Outcome};
pub use device::{Device, DeviceEvent, device_names};
pub use error::RdmaError;
pub use fabric::{RdmaFabric, Settings};
pub use gpu_memory::{GpuReach, GpuWay};
pub use memory::{Domain, MemoryRegion, RemoteMemory, locked_memory_limit};
pub use near::PciPlace;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use offer::link_offers;
pub use port::{Port, share, usable_ports};
pub use queue_pair::{Class, Depth, Local, Operation, Patience, QueuePair, Request};
pub use survey::{FoundDevice, FoundGid, FoundPort, survey};
