//! Copies that the host waits for: for set-up and for tests. What is fast goes through streams.

use super::driver::call;
use super::{Context, CudaError};

/// Copies host memory to a GPU, and waits until it is there.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// `to` is device memory of `from`'s length, which nobody uses meanwhile.
pub unsafe fn copy_in(context: &Context, to: *mut u8, from: &[u8]) -> Result<(), CudaError> {
    // SAFETY: the driver is loaded and the context current; for the memory the caller vouches.
    context.scope(|| unsafe {
        call!(cuMemcpyHtoD_v2(to as u64, from.as_ptr().cast(), from.len()))?;
        // The call may come back when the driver has the bytes, and the GPU not yet.
        call!(cuStreamSynchronize(std::ptr::null_mut()))
    })
}

/// Copies from a GPU to host memory.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// `from` is device memory of `to`'s length, which nobody writes meanwhile.
pub unsafe fn copy_out(context: &Context, to: &mut [u8], from: *const u8) -> Result<(), CudaError> {
    // SAFETY: as in `copy_in`.
    context
        .scope(|| unsafe { call!(cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from as u64, to.len())) })
}
