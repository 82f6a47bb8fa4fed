//! Calls of a communicator, put into streams.

use std::ffi::c_void;

use super::{NcclCommunicator, NcclError};

/// NCCL's element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)]
pub(crate) enum DataType {
    I8 = 0,
    U8 = 1,
    I32 = 2,
    U32 = 3,
    I64 = 4,
    U64 = 5,
    F16 = 6,
    F32 = 7,
    F64 = 8,
    BF16 = 9,
    F8E4M3 = 10,
    F8E5M2 = 11,
}

/// NCCL's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)]
pub(crate) enum RedOp {
    Sum = 0,
    Prod = 1,
    Max = 2,
    Min = 3,
    Avg = 4,
}

/// A call's buffers in device memory, and the stream that it is put into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    /// Where the input begins.
    pub(crate) input: *const c_void,
    /// Where the output begins.
    pub(crate) output: *mut c_void,
    /// Elements, as NCCL counts them for the collective.
    pub(crate) count: usize,
    /// Their type.
    pub(crate) data_type: DataType,
    /// The stream: a `CUstream`.
    pub(crate) stream: *mut c_void,
}

/// # Safety
/// Of all of them: the buffers are device memory of the lengths that the collective needs, and the stream is one of the
/// communicator's GPU; all live until the stream has come that far. All ranks make the same calls in the same order.
impl NcclCommunicator {
    /// `ncclAllReduce`.
    ///
    /// # Errors
    /// NCCL's.
    ///
    /// # Safety
    /// As all of them.
    pub(crate) unsafe fn all_reduce(&self, on: Buffers, op: RedOp) -> Result<(), NcclError> {
        let Buffers { input, output, count, data_type, stream } = on;
        let call = self.functions().all_reduce;
        // SAFETY: by this function's contract; the communicator lives.
        self.check("ncclAllReduce", unsafe {
            call(input, output, count, data_type as i32, op as i32, self.raw(), stream)
        })
    }

    /// `ncclReduceScatter`; `count` is one rank's part.
    ///
    /// # Errors
    /// NCCL's.
    ///
    /// # Safety
    /// As all of them.
    pub(crate) unsafe fn reduce_scatter(&self, on: Buffers, op: RedOp) -> Result<(), NcclError> {
        let Buffers { input, output, count, data_type, stream } = on;
        let call = self.functions().reduce_scatter;
        // SAFETY: as above.
        self.check("ncclReduceScatter", unsafe {
            call(input, output, count, data_type as i32, op as i32, self.raw(), stream)
        })
    }

    /// `ncclAllGather`; `count` is one rank's part.
    ///
    /// # Errors
    /// NCCL's.
    ///
    /// # Safety
    /// As all of them.
    pub(crate) unsafe fn all_gather(&self, on: Buffers) -> Result<(), NcclError> {
        let Buffers { input, output, count, data_type, stream } = on;
        let call = self.functions().all_gather;
        // SAFETY: as above.
        self.check("ncclAllGather", unsafe {
            call(input, output, count, data_type as i32, self.raw(), stream)
        })
    }

    /// `ncclAlltoAll`; `count` is what each pair exchanges.
    ///
    /// # Errors
    /// NCCL's.
    ///
    /// # Safety
    /// As all of them.
    pub(crate) unsafe fn all_to_all(&self, on: Buffers) -> Result<(), NcclError> {
        let Buffers { input, output, count, data_type, stream } = on;
        let call = self.functions().all_to_all;
        // SAFETY: as above.
        self.check("ncclAlltoAll", unsafe {
            call(input, output, count, data_type as i32, self.raw(), stream)
        })
    }

    /// `ncclBroadcast`.
    ///
    /// # Errors
    /// NCCL's.
    ///
    /// # Safety
    /// As all of them.
    pub(crate) unsafe fn broadcast(&self, on: Buffers, root: usize) -> Result<(), NcclError> {
        let Buffers { input, output, count, data_type, stream } = on;
        let call = self.functions().broadcast;
        // SAFETY: as above.
        self.check("ncclBroadcast", unsafe {
            call(input, output, count, data_type as i32, root as i32, self.raw(), stream)
        })
    }

    /// `ncclReduce`.
    ///
    /// # Errors
    /// NCCL's.
    ///
    /// # Safety
    /// As all of them.
    pub(crate) unsafe fn reduce(
        &self,
        on: Buffers,
        op: RedOp,
        root: usize,
    ) -> Result<(), NcclError> {
        let Buffers { input, output, count, data_type, stream } = on;
        let call = self.functions().reduce;
        let (data_type, op, root) = (data_type as i32, op as i32, root as i32);
        // SAFETY: as above.
        self.check("ncclReduce", unsafe {
            call(input, output, count, data_type, op, root, self.raw(), stream)
        })
    }

    /// `ncclGather`; `count` is one rank's part.
    ///
    /// # Errors
    /// NCCL's.
    ///
    /// # Safety
    /// As all of them.
    pub(crate) unsafe fn gather(&self, on: Buffers, root: usize) -> Result<(), NcclError> {
        let Buffers { input, output, count, data_type, stream } = on;
        let call = self.functions().gather;
        // SAFETY: as above.
        self.check("ncclGather", unsafe {
            call(input, output, count, data_type as i32, root as i32, self.raw(), stream)
        })
    }

    /// `ncclScatter`; `count` is one rank's part.
    ///
    /// # Errors
    /// NCCL's.
    ///
    /// # Safety
    /// As all of them.
    pub(crate) unsafe fn scatter(&self, on: Buffers, root: usize) -> Result<(), NcclError> {
        let Buffers { input, output, count, data_type, stream } = on;
        let call = self.functions().scatter;
        // SAFETY: as above.
        self.check("ncclScatter", unsafe {
            call(input, output, count, data_type as i32, root as i32, self.raw(), stream)
        })
    }

    /// Makes the calls of `calls` one group, which is launched at its end.
    ///
    /// # Errors
    /// What `calls` fails with; NCCL's.
    pub(crate) fn group(
        &self,
        calls: impl FnOnce() -> Result<(), NcclError>,
    ) -> Result<(), NcclError> {
        let functions = self.functions();
        // SAFETY: it may be called at any time.
        self.check("ncclGroupStart", unsafe { (functions.group_start)() })?;
        let called = calls();
        // SAFETY: one has been started above, and ends whatever came of it.
        let ended = self.check("ncclGroupEnd", unsafe { (functions.group_end)() });
        called.and(ended)
    }
}
