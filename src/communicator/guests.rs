//! User kernels, which talk to the other ranks' by themselves.

use super::Communicator;
use crate::device::cuda::{DeviceCommunicator, DeviceShape};
use crate::error::Error;

impl Communicator {
    /// What CUDA kernels of a user need to reach the other ranks' GPUs of this node: peers'
    /// memory, notices between thread blocks, and small messages in lines. A kernel takes
    /// [`DeviceCommunicator::parameter`] by value and includes `oxccl/device.h`, whose text is
    /// [`DEVICE_HEADER`](crate::cuda::DEVICE_HEADER). All ranks call this, between the same calls,
    /// with the same shape; any number of times.
    ///
    /// A kernel reaches memory of [`alloc`](Self::alloc), at the same place of a peer's heap as of
    /// its own: ranks that allocate alike have the same there. Memory is cleared when it is
    /// allocated, so all ranks have allocated theirs, behind a barrier, before a kernel writes to a
    /// peer's.
    ///
    /// It takes 64 bytes of the heap for each block and rank, and 32 for each line. Kernels that
    /// use it end before it goes, on all ranks, and it goes before the communicator does.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the host, or with ranks of several nodes; [`Error::Mismatch`], on
    /// all ranks, for shapes that differ; [`Error::OutOfMemory`] ends the communicator; otherwise
    /// as other calls of all ranks.
    pub fn device_communicator(&self, shape: DeviceShape) -> Result<DeviceCommunicator, Error> {
        // SAFETY: all issued tickets are done (`idle_engine`), and no other comes from this thread
        // meanwhile.
        unsafe { (*self.idle_engine()?).device_communicator(shape) }
    }
}
