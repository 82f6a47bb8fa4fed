//! Memory of GPUs, which adapters reach without the host where kernel and drivers let them.

use std::ffi::c_void;
use std::fmt;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::RdmaError;
use super::memory::{Domain, MemoryRegion};
use crate::cuda::sys::CUmemRangeHandleType;
use crate::cuda::{Context, CudaError, Pointer, PointerKind};
use crate::proxy::PortsMemory;

/// A way by which adapters reach memory of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuWay {
    /// It is exported as a dmabuf, which kernels since 5.12 take.
    Dmabuf,
    /// It is registered by its address, for which the GPU driver's peer-memory module is needed.
    PeerMemory,
}

impl GpuWay {
    /// All of them, the better one first.
    pub const ALL: [GpuWay; 2] = [GpuWay::Dmabuf, GpuWay::PeerMemory];
}

impl fmt::Display for GpuWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GpuWay::Dmabuf => "as a dmabuf",
            GpuWay::PeerMemory => "by its address",
        })
    }
}

/// Memory of a GPU, as adapters reach it until this is dropped.
#[derive(Debug)]
pub struct GpuReach {
    pub(super) way: GpuWay,
    /// One an adapter. What registers the range again gets these.
    pub(super) _registrations: Vec<Arc<MemoryRegion>>,
}

impl GpuReach {
    /// How.
    pub fn way(&self) -> GpuWay {
        self.way
    }
}

/// Whether an address is in a GPU's memory.
pub(super) fn is_device(context: &Context, start: *mut u8) -> Result<bool, CudaError> {
    Ok(Pointer::of(context, start)?.kind == PointerKind::Device)
}

/// Whether a read must follow what an adapter has written, before the GPU may look.
pub(super) fn needs_flush(context: &Context) -> Result<bool, CudaError> {
    Ok(!context.device().orders_adapters_writes()?)
}

impl Domain {
    /// Registers memory of a GPU.
    ///
    /// # Errors
    /// [`RdmaError::GpuMemory`].
    ///
    /// # Safety
    /// As [`register`](Domain::register).
    pub(super) unsafe fn register_device(
        self: &Arc<Domain>,
        context: &Context,
        PortsMemory { start, len_bytes }: PortsMemory,
        way: GpuWay,
    ) -> Result<Arc<MemoryRegion>, RdmaError> {
        let registered = match way {
            GpuWay::Dmabuf => {
                let exported = export(context, start as u64, len_bytes);
                exported.map_err(|error| error.to_string()).and_then(|buffer| {
                    let buffer = buffer.as_fd();
                    // SAFETY: as the caller promises.
                    unsafe { self.register_dmabuf(buffer, 0, start as u64, len_bytes) }
                        .map_err(|error| error.to_string())
                })
            }
            // SAFETY: as the caller promises.
            GpuWay::PeerMemory => unsafe { self.register(start, len_bytes) }
                .map_err(|error| format!("{error} (is nvidia-peermem loaded?)")),
        };
        registered.map_err(|why| RdmaError::GpuMemory {
            device: self.device().name().to_owned(),
            why: format!("{way}: {why}"),
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
