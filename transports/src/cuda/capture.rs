//! Set-up beside stream captures.

use super::driver::call;
use super::{CudaError, Driver, sys};

/// Does something that has nothing to do with what is being captured, such as allocating, though a
/// capture of this thread or of another forbids it. It must not touch a stream that is captured.
///
/// # Errors
/// What `act` fails with; the driver's.
pub fn beside_captures<T, E: From<CudaError>>(
    _driver: Driver,
    act: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the driver is loaded, and the pointer valid; the mode is this thread's.
    unsafe { call!(cuThreadExchangeStreamCaptureMode(&raw mut mode)) }?;
    let done = act();
    // SAFETY: as above; this is the mode that was before.
    let restored = unsafe { call!(cuThreadExchangeStreamCaptureMode(&raw mut mode)) };
    done.and_then(|done| restored.map(|()| done).map_err(E::from))
}
