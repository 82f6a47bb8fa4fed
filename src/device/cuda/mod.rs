//! A GPU as a device: streams, events, graphs, the kernels, and the tables that a launch points to.
//!
//! The driver's memory and contexts are [`oxccl_transports::cuda`]'s. A launch is one kernel for
//! all channels of a call, a block each; it returns at once, and the stream's order is the call's.

mod cells;
mod copy;
mod crowd;
mod empty;
mod ended;
mod event;
mod gpu;
mod graph;
mod guests;
mod image;
mod kernels;
mod multicast;
mod programs;
mod registered;
mod stream;
mod suspend;
mod tables;
mod traced;
mod warm;
mod words;

pub(crate) use cells::Cells;
pub use copy::{copy, fill};
pub(crate) use crowd::{Seat, Turn};
pub use empty::EmptyKernel;
pub(crate) use ended::CallEnd;
pub use ended::Ended;
pub use event::Event;
pub use gpu::{Gpu, Prepared, Reached, Setup};
pub use graph::{CaptureMode, Graph};
pub use guests::{DeviceCommunicator, DeviceParameter, DeviceShape, DoneWords, ReadyWord};
pub use image::Image;
pub use kernels::{Kernel, Kernels};
pub use programs::{DeviceProgram, Programs};
pub use registered::Registered;
pub(crate) use stream::MemoryOp;
pub use stream::{CaptureState, Stream};
pub use tables::{Arguments, SLOTS, Tables};
pub(crate) use traced::Traced;
pub use words::{PinnedPool, PinnedWords};

/// The text of `oxccl/device.h`, for user kernels that are compiled at run time.
pub use oxccl_kernels::DEVICE_HEADER;
use oxccl_transports::cuda_call as call;
