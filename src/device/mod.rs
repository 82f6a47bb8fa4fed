//! Host memory as a device: the staging memory behind connections, the heap that peers reach, and the threads that run channels.
//! And GPUs: [`cuda`].

mod buffer;
mod channels;
pub mod cuda;
mod heap;
mod log;
mod staging;

pub use buffer::DeviceBuffer;
pub(crate) use buffer::InFlight;
pub(crate) use channels::Channels;
pub(crate) use heap::Heap;
pub(crate) use log::CallRecord;
pub(crate) use staging::Staging;
pub use staging::StagingShape;
