//! Copies and fills in a stream.

use super::{Stream, call};
use oxccl_transports::CudaError;

/// Copies between any two of host and GPU memory.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// Both ranges are valid until the stream has come that far; nobody uses them otherwise meanwhile.
pub unsafe fn copy(
    stream: &Stream,
    to: *mut u8,
    from: *const u8,
    len_bytes: usize,
) -> Result<(), CudaError> {
    // SAFETY: the stream lives, in the context that is current; the ranges are the caller's
    // promise.
    stream
        .context()
        .scope(|| unsafe { call!(cuMemcpyAsync(to as u64, from as u64, len_bytes, stream.raw())) })
}

/// Fills GPU memory with a byte.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// As [`copy`].
pub unsafe fn fill(
    stream: &Stream,
    to: *mut u8,
    value: u8,
    len_bytes: usize,
) -> Result<(), CudaError> {
    // SAFETY: as in `copy`.
    stream
        .context()
        .scope(|| unsafe { call!(cuMemsetD8Async(to as u64, value, len_bytes, stream.raw())) })
}
