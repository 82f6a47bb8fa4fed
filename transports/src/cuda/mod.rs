//! The CUDA driver: devices, contexts, and memory, each given back when it is dropped.
//!
//! The driver is loaded when it is first asked for ([`Driver::load`]), so that one binary serves
//! machines with and without a GPU; nothing here can be had without a [`Driver`]. Streams, modules
//! and launches are the device layer's.
//!
//! What GPUs' NVLinks lead to, the management library knows ([`nvlinks`]), which is loaded
//! likewise.
//!
//! | memory | who makes it | how others reach it |
//! | --- | --- | --- |
//! | [`DeviceRegion`] | this crate, by the virtual-memory API | as a file descriptor |
//! | [`DeviceMemory`] | this crate | legacy IPC |
//! | any device pointer | another library | legacy IPC ([`IpcHandle`]), where it came from `cudaMalloc` |
//! | [`MulticastMemory`] | an NVSwitch's address for regions of several GPUs | each maps its own, over a team that is a file descriptor |
//! | [`PinnedMemory`] | this crate | not |
//! | [`RegisteredRegion`] | a host [`Region`](crate::Region) | as the region; devices reach it besides |

mod capture;
mod context;
mod copy;
mod device;
mod driver;
mod error;
mod ipc;
mod memory;
mod multicast;
mod nvml;
mod pinned;
mod pointer;
mod region;

pub use capture::beside_captures;
pub use context::Context;
pub use copy::{copy_in, copy_out};
pub use device::{Device, Uuid};
pub use driver::{Driver, Version};
pub use error::CudaError;
pub use ipc::{Exports, Imports, IpcHandle, IpcMemory};
pub use memory::DeviceMemory;
pub use multicast::{MulticastMemory, MulticastTeam};
pub use nvml::{NVML, NvLink, NvLinkEnd, NvmlError, nvlinks};
pub use pinned::{PinnedMemory, RegisteredRegion};
pub use pointer::{KnownPointers, Pointer, PointerKind};
pub use region::DeviceRegion;

/// The driver's raw API, for the layer above.
#[doc(hidden)]
pub use cudarc::driver::sys;
#[doc(hidden)]
pub use driver::{check, has};
