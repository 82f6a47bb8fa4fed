//! Host memory as a device: the staging memory behind connections, the heap that peers reach, and the threads that run channels.
//! And GPUs: [`cuda`].

mod buffer;
mod channels;
pub mod cuda;
mod heap;
mod log;
mod processor;
mod staging;

pub use buffer::DeviceBuffer;
pub(crate) use buffer::InFlight;
pub(crate) use channels::Channels;
pub(crate) use heap::{Heap, HeapBlock};
pub(crate) use log::{CallRecord, RECORD_WORDS};
pub(crate) use processor::{last_level_cache_bytes, usable_cores};
pub use staging::StagingShape;
pub(crate) use staging::{BUCKET_WORDS, Staging};
