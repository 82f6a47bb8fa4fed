//! What C sees: numbers, handles and structures, as NCCL's header has them.

use std::ffi::{c_char, c_int};

/// What `ncclGetVersion` says: the newest version whose behaviour this library has.
pub(crate) const VERSION: c_int = 23007;

/// `ncclResult_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Success = 0,
    UnhandledCudaError = 1,
    SystemError = 2,
    InternalError = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
    RemoteError = 6,
    InProgress = 7,
}

/// `ncclUniqueId`, which goes by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Id {
    pub(crate) bytes: [c_char; Id::LEN],
}

impl Id {
    pub(crate) const LEN: usize = 128;
}

/// `ncclComm_t`: a number that is never used twice.
pub(crate) type CommHandle = usize;

/// `cudaStream_t`.
pub(crate) type StreamHandle = usize;

/// An integer of a configuration that nobody has set.
pub(crate) const UNDEFINED: c_int = c_int::MIN;

/// What a configuration begins with.
pub(crate) const MAGIC: u32 = 0xcafe_beef;

/// What says that a rank is in no part.
pub(crate) const NO_COLOR: c_int = -1;

/// `ncclTeam_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Team {
    pub(crate) ranks: c_int,
    pub(crate) rank: c_int,
    pub(crate) stride: c_int,
}
