//! Memory that another rank can reach, and the rendezvous through which ranks find each other.
//!
//! A [`Bootstrap`] is what a communicator needs of its transport: exchange a few bytes with every
//! rank, hand out [`Region`]s of memory and get those of the ranks on the same node ([`Nodes`]),
//! and hear of failures through [`Liveness`]. There is one for threads of one process ([`local()`])
//! and one for processes, of one machine or of several ([`shm`]). Both hand out memory of GPUs, too
//! ([`cuda`]). Ranks of a launcher find their place in its [`Environment`]; others are given a
//! [`UniqueId`].
//!
//! Nothing here knows of schedules, collectives or kernels. Linux only.

mod adapter;
mod alias;
pub mod bootstrap;
mod cancel;
mod claims;
mod cma;
pub mod cuda;
mod cuda_ipc;
mod deadline;
#[cfg(feature = "emulation")]
pub mod disturb;
mod door;
pub mod environment;
pub mod error;
pub mod exit;
pub mod fork;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod identity;
mod interface;
pub mod liveness;
pub mod local;
mod mailbox;
mod memory;
pub mod nodes;
mod process;
pub mod proxy;
pub mod rdma;
pub mod region;
pub mod rendezvous;
mod reports;
mod seal;
pub mod shm;
pub mod silence;
pub mod split;
mod sync;
pub mod tcp;
pub mod unique_id;
pub mod user_signal;

pub use adapter::{Adapter, SYSFS};
pub use alias::Alias;
pub use bootstrap::{Bootstrap, Offer, Part, Reach, Shared};
pub use cancel::Cancel;
pub use claims::Claims;
pub use cma::{read_process, share_memory_with_siblings, tracing_scope};
pub use cuda::CudaError;
pub use deadline::deadline_in;
pub use environment::{Environment, EnvironmentError, Launcher};
pub use error::Error;
pub use liveness::{Cause, Liveness};
pub use local::{LocalBootstrap, local, local_on};
pub use nodes::{NodeId, Nodes, Seat};
pub use region::{HUGE_PAGE, Region};
pub use rendezvous::{LauncherChannel, Secret, Server, random_bytes};
pub use shm::ShmBootstrap;
pub use split::Side;
pub use unique_id::{UniqueId, UniqueIdError};
