//! Host memory as a device: the staging memory behind connections, the heap that peers reach, and
//! the threads that run channels. And GPUs: [`cuda`].

mod badge;
mod buffer;
mod channels;
mod control;
mod convert;
mod copy;
pub mod cuda;
mod heap;
mod heaps;
mod host;
mod lent;
mod links;
mod log;
mod processor;
mod report;
mod rooms;
mod signals;
mod staging;

pub(crate) use badge::{Facts, Label, now_ns};
pub(crate) use buffer::InFlight;
pub use buffer::{Buffer, DeviceBuffer, HostBuffer};
pub(crate) use control::{BUCKET_WORDS, CONTROL, Control, ControlShape, GroupWords};
pub(crate) use convert::{bytes, bytes_mut, narrow, widen};
pub(crate) use copy::{ControlCopy, NoCopy};
pub(crate) use heap::{Heap, HeapBlock};
pub(crate) use heaps::{ByRank, Heaps};
pub(crate) use host::{Host, Waiting};
pub(crate) use lent::{Edge, Lent, Reached};
pub(crate) use links::{LinkPorts, NotOpen, Reaching};
pub(crate) use log::{CallRecord, RECORD_WORDS};
pub(crate) use processor::{allow_fences, have_own_cores, last_level_cache_bytes, usable_cores};
pub(crate) use rooms::{CONTROLS, NO_ROOM, Rooms, have_addresses, sections};
pub(crate) use signals::Signals;
pub(crate) use staging::REGISTRATIONS;
pub use staging::StagingShape;
