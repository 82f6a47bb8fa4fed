//! Plain device memory.

use super::driver::call;
use super::{Context, CudaError};

/// Memory of a GPU, of this process alone.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Context,
    at: u64,
    len_bytes: usize,
}

impl DeviceMemory {
    /// Allocates; the content is undefined.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], and the driver's.
    pub fn allocate(context: &Context, len_bytes: usize) -> Result<DeviceMemory, CudaError> {
        let len_bytes = len_bytes.max(1);
        let mut at = 0;
        context
            // SAFETY: the driver is loaded, the context current, and the pointer valid.
            .scope(|| unsafe { call!(cuMemAlloc_v2(&raw mut at, len_bytes)) })
            .map_err(|error: CudaError| {
                error.allocating("GPU memory", len_bytes, context.free_bytes().ok())
            })?;
        Ok(DeviceMemory { context: context.clone(), at, len_bytes })
    }

    /// Its address, which the host must not follow. Valid until this is dropped.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at as *mut u8
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated by this object, freed once. The driver waits for what still uses it.
        self.context.give_back(|| unsafe { call!(cuMemFree_v2(self.at)) });
    }
}
