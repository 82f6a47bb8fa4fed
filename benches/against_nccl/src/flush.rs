//! What takes a call out of the GPU's caches: a fill of more memory than these hold, by a kernel of
//! the driver's, which comes between the calls. While it runs, the host puts the call into the
//! stream.

use oxccl::cuda::{Stream, fill};
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Context, DeviceMemory};

/// One rank's share of it: the ranks fill at the same time.
pub(crate) struct Flush {
    memory: DeviceMemory,
}

impl Flush {
    /// Of so many bytes, which so many ranks share.
    ///
    /// # Errors
    /// As [`DeviceMemory::allocate`].
    pub(crate) fn new(context: &Context, bytes: usize, ranks: usize) -> Result<Flush, CudaError> {
        Ok(Flush { memory: DeviceMemory::allocate(context, bytes.div_ceil(ranks))? })
    }

    /// Puts it into a stream.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn put(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: memory of this object's, which whoever measures keeps until the stream is done.
        unsafe { fill(stream, self.memory.as_ptr(), 0x5a, self.memory.len_bytes()) }
    }
}
