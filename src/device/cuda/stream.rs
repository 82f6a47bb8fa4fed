//! Streams, our own and others'.

use super::call;
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Context, sys};
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A stream of a GPU: what is put into it happens in order.
#[derive(Debug)]
pub struct Stream {
    context: Context,
    raw: sys::CUstream,
    /// Made here, and to be given back.
    own: bool,
}

// SAFETY: a handle, which the driver lets all threads use.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// What a stream does with a 64-bit word.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MemoryOp {
    /// Writes it behind all that was put in, and makes that visible first.
    Write(*mut u64, u64),
    /// Waits until it has this value.
    WaitEqual(*const u64, u64),
}

/// Whether a stream is being captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureState {
    /// What is put into it happens.
    None,
    /// What is put into it is recorded, in the capture of this number.
    Active(u64),
    /// The capture has been spoiled.
    Invalid,
}

/// No order between it and the legacy default stream.
const NON_BLOCKING: u32 = 1;

/// The streams that this process knows of: context, handle, and how many objects stand for it.
static KNOWN: Mutex<Vec<(usize, usize, usize)>> = Mutex::new(Vec::new());

fn known() -> MutexGuard<'static, Vec<(usize, usize, usize)>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream {
    /// A new stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Context) -> Result<Stream, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver is loaded, the context current, and the pointer valid.
        context.scope(|| unsafe { call!(cuStreamCreate(&raw mut raw, NON_BLOCKING)) })?;
        Ok(Stream::enter(context, raw, true))
    }

    fn enter(context: &Context, raw: sys::CUstream, own: bool) -> Stream {
        let (of, handle) = (context.raw() as usize, raw as usize);
        let mut all = known();
        match all.iter_mut().find(|(its, other, _)| (*its, *other) == (of, handle)) {
            Some((_, _, count)) => *count += 1,
            None => all.push((of, handle, 1)),
        }
        Stream { context: context.clone(), raw, own }
    }

    /// The same stream, which must not be used any more once this one has gone.
    pub(crate) fn alias(&self) -> Stream {
        Stream::enter(&self.context, self.raw, false)
    }

    /// Fails unless each stream of this GPU that is known has a connection to itself, of so many:
    /// then none keeps back another.
    ///
    /// # Errors
    /// [`CudaError::TooFewConnections`].
    pub(crate) fn check_connections(&self, connections: usize) -> Result<(), CudaError> {
        let of = self.context.raw() as usize;
        let streams = known().iter().filter(|(context, ..)| *context == of).count();
        if streams <= connections {
            return Ok(());
        }
        Err(CudaError::TooFewConnections { streams, connections })
    }

    /// Another library's stream, by its handle (`CUstream` and `cudaStream_t` are the same); null
    /// is the legacy default stream.
    ///
    /// # Errors
    /// The driver's, if it does not know the stream; [`CudaError::NotPrimary`] if it is not one of
    /// this context's.
    ///
    /// # Safety
    /// The handle is that of a stream which lives as long as the result is used.
    pub unsafe fn foreign(context: &Context, raw: *mut c_void) -> Result<Stream, CudaError> {
        let raw: sys::CUstream = raw.cast();
        let mut theirs = std::ptr::null_mut();
        // SAFETY: by this function's contract; the pointer is valid.
        context.scope(|| unsafe { call!(cuStreamGetCtx(raw, &raw mut theirs)) })?;
        if theirs != context.raw() {
            return Err(CudaError::NotPrimary { ordinal: context.device().ordinal() });
        }
        Ok(Stream::enter(context, raw, false))
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The driver's handle.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Waits until all that was put in has happened.
    ///
    /// # Errors
    /// The driver's: also what went wrong on the GPU.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: a stream that lives, of the context that is current.
        self.context.scope(|| unsafe { call!(cuStreamSynchronize(self.raw)) })
    }

    /// Whether all that was put in has happened.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize).
    pub fn is_done(&self) -> Result<bool, CudaError> {
        // SAFETY: as above.
        is_ready(self.context.scope(|| unsafe { call!(cuStreamQuery(self.raw)) }))
    }

    /// What comes later waits until the 64-bit word is at least `value`, as signed distance.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// `word` is aligned memory that the GPU reaches, as long as the wait may last.
    pub unsafe fn wait_value(&self, word: *const u64, value: u64) -> Result<(), CudaError> {
        const AT_LEAST: u32 = 0;
        // SAFETY: as above, and the word is the caller's promise.
        self.context.scope(|| unsafe {
            call!(cuStreamWaitValue64_v2(self.raw, word as u64, value, AT_LEAST))
        })
    }

    /// Writes a 64-bit word behind all that was put in, and makes that visible first.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// As [`wait_value`](Self::wait_value).
    pub unsafe fn write_value(&self, word: *mut u64, value: u64) -> Result<(), CudaError> {
        const WITH_BARRIER: u32 = 0;
        // SAFETY: as above.
        self.context.scope(|| unsafe {
            call!(cuStreamWriteValue64_v2(self.raw, word as u64, value, WITH_BARRIER))
        })
    }

    /// Writes and waits, one behind the other, by as few operations as can be.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// As [`wait_value`](Self::wait_value), for all of them.
    pub(crate) unsafe fn memory_ops(&self, all: &[MemoryOp]) -> Result<(), CudaError> {
        // What one operation may hold is less than 256.
        const AT_ONCE: usize = 255;
        const EQUAL: u32 = 1;
        let parameter = |one: &MemoryOp| {
            use sys::CUstreamBatchMemOpType as Type;
            let mut parameter = sys::CUstreamBatchMemOpParams_union { pad: Default::default() };
            match *one {
                // No flags: this version of the call has none but the default.
                MemoryOp::Write(word, value) => {
                    parameter.operation = Type::CU_STREAM_MEM_OP_WRITE_VALUE_64;
                    parameter.writeValue.address = word as u64;
                    parameter.writeValue.__bindgen_anon_1.value64 = value;
                }
                MemoryOp::WaitEqual(word, value) => {
                    parameter.operation = Type::CU_STREAM_MEM_OP_WAIT_VALUE_64;
                    parameter.waitValue.address = word as u64;
                    parameter.waitValue.__bindgen_anon_1.value64 = value;
                    parameter.waitValue.flags = EQUAL;
                }
            }
            parameter
        };
        let mut all: Vec<_> = all.iter().map(parameter).collect();
        all.chunks_mut(AT_ONCE).try_for_each(|some| {
            // SAFETY: as above.
            self.context.scope(|| unsafe {
                call!(cuStreamBatchMemOp_v2(self.raw, some.len() as u32, some.as_mut_ptr(), 0))
            })
        })
    }

    /// Whether it is being captured.
    ///
    /// # Errors
    /// The driver's.
    pub fn capture_state(&self) -> Result<CaptureState, CudaError> {
        use sys::CUstreamCaptureStatus::*;
        if self.raw.is_null() {
            return Ok(CaptureState::None);
        }
        let (mut status, mut number) = (CU_STREAM_CAPTURE_STATUS_NONE, 0);
        let (graph, nodes, count) =
            (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: as above; answers that are not wanted may be null.
        self.context.scope(|| unsafe {
            call!(cuStreamGetCaptureInfo_v2(
                self.raw,
                &raw mut status,
                &raw mut number,
                graph,
                nodes,
                count,
            ))
        })?;
        Ok(match status {
            CU_STREAM_CAPTURE_STATUS_NONE => CaptureState::None,
            CU_STREAM_CAPTURE_STATUS_ACTIVE => CaptureState::Active(number),
            CU_STREAM_CAPTURE_STATUS_INVALIDATED => CaptureState::Invalid,
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let (of, handle) = (self.context.raw() as usize, self.raw as usize);
        let mut all = known();
        if let Some(at) = all.iter().position(|(its, other, _)| (*its, *other) == (of, handle)) {
            all[at].2 -= 1;
            if all[at].2 == 0 {
                all.swap_remove(at);
            }
        }
        drop(all);
        if self.own {
            // SAFETY: made by this object, given back once; the driver lets what is in it happen.
            self.context.give_back(|| unsafe { call!(cuStreamDestroy_v2(self.raw)) });
        }
    }
}

/// A question that is answered by success, or by "not ready".
pub(super) fn is_ready(answer: Result<(), CudaError>) -> Result<bool, CudaError> {
    const NOT_READY: u32 = sys::CUresult::CUDA_ERROR_NOT_READY as u32;
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error.code() == Some(NOT_READY) => Ok(false),
        Err(error) => Err(error),
    }
}
