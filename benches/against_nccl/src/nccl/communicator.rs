//! A rank's communicator, its windows and its calls.

use std::ffi::c_int;

use oxccl::cuda::Stream;
use oxccl::{DataType, Kind, OpKind};

use super::error::NcclError;
use super::library::NcclLibrary;
use super::raw::{Comm, Config, Functions, Id};
use crate::buffers::Buffer;
use crate::contestant::Placed;

/// How many thread blocks ("CTAs") a rank's calls may have; none: as NCCL likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ctas {
    /// At least.
    pub(super) min: Option<usize>,
    /// At most.
    pub(super) max: Option<usize>,
}

/// One rank of NCCL's. It is never destroyed: that may wait for what never ends, and the process
/// ends anyway.
pub(super) struct NcclCommunicator {
    library: NcclLibrary,
    raw: Comm,
}

impl NcclCommunicator {
    /// Makes this rank's communicator, on the GPU whose context is current in this thread. All
    /// ranks do so at the same time.
    ///
    /// # Errors
    /// NCCL's.
    pub(super) fn connect(
        library: &NcclLibrary,
        id: Id,
        (rank, ranks): (usize, usize),
        ctas: Ctas,
    ) -> Result<NcclCommunicator, NcclError> {
        let mut config = Config::undefined();
        let set = |field: &mut i32, wanted: Option<usize>| {
            if let Some(count) = wanted {
                *field = count as i32;
            }
        };
        set(&mut config.min_ctas, ctas.min);
        set(&mut config.max_ctas, ctas.max);
        let mut raw = std::ptr::null_mut();
        let init = library.functions().init;
        // SAFETY: the pointers are valid, and the configuration is as NCCL's initialiser leaves it.
        library.check("ncclCommInitRankConfig", std::ptr::null_mut(), unsafe {
            init(&raw mut raw, ranks as i32, id, rank as i32, &raw mut config)
        })?;
        Ok(NcclCommunicator { library: *library, raw })
    }

    /// Lets the other ranks use a buffer in place. All ranks do so together, with buffers of the
    /// same length.
    ///
    /// # Errors
    /// NCCL's; [`NcclError::NoWindow`].
    pub(super) fn register(&self, buffer: &Buffer) -> Result<(), NcclError> {
        const SYMMETRIC: c_int = 1;
        let mut window = std::ptr::null_mut();
        let register = self.library.functions().window_register;
        // SAFETY: memory of that length, which is never freed.
        self.check("ncclCommWindowRegister", unsafe {
            register(self.raw, buffer.at.cast(), buffer.len_bytes, &raw mut window, SYMMETRIC)
        })?;
        // Where NCCL cannot use memory so, it succeeds without.
        if window.is_null() { Err(NcclError::NoWindow) } else { Ok(()) }
    }

    /// Makes the calls of `calls` one group, which is launched at its end.
    ///
    /// # Errors
    /// What `calls` fails with; NCCL's.
    pub(super) fn group(
        &self,
        calls: impl FnOnce() -> Result<(), NcclError>,
    ) -> Result<(), NcclError> {
        let functions = self.library.functions();
        // SAFETY: it may be called at any time.
        self.check("ncclGroupStart", unsafe { (functions.group_start)() })?;
        let called = calls();
        // SAFETY: one has been started above, and ends whatever came of it.
        let ended = self.check("ncclGroupEnd", unsafe { (functions.group_end)() });
        called.and(ended)
    }

    /// Puts a call into a stream.
    ///
    /// # Errors
    /// NCCL's.
    ///
    /// # Safety
    /// The buffers are device memory of the call's shape, and the stream is one of the
    /// communicator's GPU; all live until the stream has come that far. All ranks make the same
    /// calls in the same order.
    pub(super) unsafe fn call(&self, call: &Placed, stream: &Stream) -> Result<(), NcclError> {
        let (input, output, count) = (call.input.cast(), call.output.cast(), call.shape.count);
        let (of, op) = (number_of(call.case.data_type), number_of_op(call.case.op).unwrap_or(0));
        let (root, comm, stream) = (call.case.root as c_int, self.raw, stream.raw().cast());
        let &Functions {
            all_reduce,
            reduce_scatter,
            all_gather,
            all_to_all,
            broadcast,
            reduce,
            gather,
            scatter,
            ..
        } = self.library.functions();
        // SAFETY: by this function's contract; the communicator lives.
        let (function, code) = unsafe {
            match call.case.kind {
                Kind::AllReduce => {
                    ("ncclAllReduce", all_reduce(input, output, count, of, op, comm, stream))
                }
                Kind::ReduceScatter => {
                    let code = reduce_scatter(input, output, count, of, op, comm, stream);
                    ("ncclReduceScatter", code)
                }
                Kind::AllGather => {
                    ("ncclAllGather", all_gather(input, output, count, of, comm, stream))
                }
                Kind::AllToAll => {
                    ("ncclAlltoAll", all_to_all(input, output, count, of, comm, stream))
                }
                Kind::Broadcast => {
                    ("ncclBroadcast", broadcast(input, output, count, of, root, comm, stream))
                }
                Kind::Reduce => {
                    ("ncclReduce", reduce(input, output, count, of, op, root, comm, stream))
                }
                Kind::Gather => {
                    ("ncclGather", gather(input, output, count, of, root, comm, stream))
                }
                Kind::Scatter => {
                    ("ncclScatter", scatter(input, output, count, of, root, comm, stream))
                }
                Kind::SendRecv | Kind::Barrier => unreachable!("refused before"),
            }
        };
        self.check(function, code)
    }

    fn check(&self, function: &'static str, code: c_int) -> Result<(), NcclError> {
        self.library.check(function, self.raw, code)
    }
}

/// NCCL's number of an element type.
fn number_of(data_type: DataType) -> c_int {
    match data_type {
        DataType::I8 => 0,
        DataType::U8 => 1,
        DataType::I32 => 2,
        DataType::U32 => 3,
        DataType::I64 => 4,
        DataType::U64 => 5,
        DataType::F16 => 6,
        DataType::F32 => 7,
        DataType::F64 => 8,
        DataType::BF16 => 9,
        DataType::F8E4M3 => 10,
        DataType::F8E5M2 => 11,
    }
}

/// NCCL's number of an operation, if it has that, set up alike.
pub(super) fn number_of_op(op: OpKind) -> Option<c_int> {
    match op {
        OpKind::Sum => Some(0),
        OpKind::Prod => Some(1),
        OpKind::Max => Some(2),
        OpKind::Min => Some(3),
        OpKind::Avg => Some(4),
        _ => None,
    }
}
