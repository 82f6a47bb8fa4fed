//! NCCL, loaded at run time: as much of it as a benchmark beside it needs. Nothing of oxccl's collectives uses it.
//!
//! Signatures and values are those of NCCL's public header, of release 2.30 (`nccl.h` in the package nvidia-nccl-cu13).

mod call;
mod communicator;
mod error;
mod library;
mod raw;

pub(crate) use call::{Buffers, DataType, RedOp};
pub(crate) use communicator::{Ctas, Memory, NcclCommunicator};
pub(crate) use error::NcclError;
pub(crate) use library::{NcclLibrary, UniqueId, Version};
