//! Events: points in streams.

use super::stream::is_ready;
use super::{Stream, call};
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Context, sys};

/// A point in a stream, once it has been recorded.
#[derive(Debug)]
pub struct Event {
    context: Context,
    raw: sys::CUevent,
}

// SAFETY: a handle, which the driver lets all threads use.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// Not for measuring, which costs.
const DISABLE_TIMING: u32 = 2;

impl Event {
    /// A new event.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Context) -> Result<Event, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver is loaded, the context current, and the pointer valid.
        context.scope(|| unsafe { call!(cuEventCreate(&raw mut raw, DISABLE_TIMING)) })?;
        Ok(Event { context: context.clone(), raw })
    }

    /// The context that it is of.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Makes it the end of what is in the stream now.
    ///
    /// # Errors
    /// The driver's.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live, in one context.
        self.context.scope(|| unsafe { call!(cuEventRecord(self.raw, stream.raw())) })
    }

    /// What comes later in the stream waits for it.
    ///
    /// # Errors
    /// The driver's.
    pub fn hold(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live.
        self.context.scope(|| unsafe { call!(cuStreamWaitEvent(stream.raw(), self.raw, 0)) })
    }

    /// Whether it has come.
    ///
    /// # Errors
    /// The driver's: also what went wrong on the GPU.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        // SAFETY: it lives.
        is_ready(self.context.scope(|| unsafe { call!(cuEventQuery(self.raw)) }))
    }

    /// Waits until it has come.
    ///
    /// # Errors
    /// As [`is_done`](Self::is_done).
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: it lives.
        self.context.scope(|| unsafe { call!(cuEventSynchronize(self.raw)) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by this object, given back once.
        self.context.give_back(|| unsafe { call!(cuEventDestroy_v2(self.raw)) });
    }
}
