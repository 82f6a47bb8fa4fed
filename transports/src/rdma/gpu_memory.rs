//! Memory of GPUs, which adapters reach without the host where kernel and drivers let them.

use std::ffi::c_void;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::RdmaError;
use super::memory::{Domain, MemoryRegion};
use crate::cuda::sys::CUmemRangeHandleType;
use crate::cuda::{Context, CudaError, Pointer, PointerKind};

/// The oldest GPUs whose reads never overtake an adapter's writes, by their compute capability's first number.
const ORDERED_SINCE: u32 = 9;

/// Whether an address is in a GPU's memory.
pub(super) fn is_device(context: &Context, start: *mut u8) -> Result<bool, CudaError> {
    Ok(Pointer::of(context, start)?.kind == PointerKind::Device)
}

/// Whether a read must follow what an adapter has written, before the GPU may look.
pub(super) fn needs_flush(context: &Context) -> Result<bool, CudaError> {
    Ok(context.device().capability()?.0 < ORDERED_SINCE)
}

impl Domain {
    /// Registers memory of a GPU: as a dmabuf, which kernels since 5.12 take, or else by its address, for which the driver's
    /// peer-memory module is needed.
    ///
    /// # Errors
    /// [`RdmaError::GpuMemory`] says why both failed: then messages have to go through pinned memory of the host.
    ///
    /// # Safety
    /// As [`register`](Domain::register).
    pub unsafe fn register_device(
        self: &Arc<Domain>,
        context: &Context,
        start: *mut u8,
        len_bytes: usize,
    ) -> Result<Arc<MemoryRegion>, RdmaError> {
        let as_dmabuf =
            export(context, start as u64, len_bytes).map_err(|e| e.to_string()).and_then(
                // SAFETY: as the caller promises.
                |buffer| unsafe {
                    self.register_dmabuf(buffer.as_fd(), 0, start as u64, len_bytes)
                        .map_err(|error| error.to_string())
                },
            );
        let dmabuf = match as_dmabuf {
            Ok(region) => return Ok(region),
            Err(why) => why,
        };
        tracing::debug!(why = dmabuf, "no dmabuf, trying peer memory");
        // SAFETY: as the caller promises.
        unsafe { self.register(start, len_bytes) }.map_err(|peer| RdmaError::GpuMemory {
            device: self.device().name().to_owned(),
            why: format!(
                "as a dmabuf: {dmabuf}; by its address: {peer} (is nvidia-peermem loaded?)"
            ),
        })
    }
}

/// The range as a dmabuf.
fn export(context: &Context, start: u64, len_bytes: usize) -> Result<OwnedFd, CudaError> {
    let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    let mut file = -1;
    // SAFETY: for this type of handle the pointer is to an integer.
    context.scope(|| unsafe {
        let handle = (&raw mut file).cast::<c_void>();
        crate::cuda_call!(cuMemGetHandleForAddressRange(handle, start, len_bytes, kind, 0))
    })?;
    // SAFETY: the driver has just made it for this process, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}
