//! Captured work, to be launched again and again.

use super::{Stream, call};
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Context, sys};

/// What other calls of the process a capture forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Unsafe ones, in all threads.
    Global,
    /// Unsafe ones, in the capturing thread.
    ThreadLocal,
    /// None.
    Relaxed,
}

/// What a stream was told while it was captured, ready to be launched.
#[derive(Debug)]
pub struct Graph {
    context: Context,
    executable: sys::CUgraphExec,
}

// SAFETY: a handle, which the driver lets all threads use.
unsafe impl Send for Graph {}

impl Graph {
    /// Captures what `record` puts into the stream. Nothing of it happens before a launch.
    ///
    /// # Errors
    /// What `record` fails with; the driver's.
    pub fn capture<E: From<CudaError>>(
        stream: &Stream,
        mode: CaptureMode,
        record: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        use sys::CUstreamCaptureMode::*;
        let mode = match mode {
            CaptureMode::Global => CU_STREAM_CAPTURE_MODE_GLOBAL,
            CaptureMode::ThreadLocal => CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CaptureMode::Relaxed => CU_STREAM_CAPTURE_MODE_RELAXED,
        };
        let context = stream.context();
        // SAFETY: the stream lives, in the context that is current.
        context.scope(|| unsafe { call!(cuStreamBeginCapture_v2(stream.raw(), mode)) })?;
        let recorded = record();
        let mut raw = std::ptr::null_mut();
        // SAFETY: the capture has begun above, and ends whatever came of it.
        let ended =
            context.scope(|| unsafe { call!(cuStreamEndCapture(stream.raw(), &raw mut raw)) });
        let captured = Captured { context, raw };
        recorded?;
        ended?;
        let graph = captured.instantiate()?;
        // So that a launch allocates nothing, for which the driver may wait for kernels.
        // SAFETY: both live.
        context.scope(|| unsafe { call!(cuGraphUpload(graph.executable, stream.raw())) })?;
        Ok(graph)
    }

    /// Puts all of it into a stream.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// What it does is still sound: the memory that it was captured with lives until it is done.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live; the rest is the caller's promise.
        self.context.scope(|| unsafe { call!(cuGraphLaunch(self.executable, stream.raw())) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by this object, given back once; the driver lets what runs end.
        self.context.give_back(|| unsafe { call!(cuGraphExecDestroy(self.executable)) });
    }
}

/// A graph that cannot be launched yet. Null where the capture failed.
struct Captured<'a> {
    context: &'a Context,
    raw: sys::CUgraph,
}

impl Captured<'_> {
    fn instantiate(&self) -> Result<Graph, CudaError> {
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph lives, the context is current, and the pointer valid.
        self.context.scope(|| unsafe {
            call!(cuGraphInstantiateWithFlags(&raw mut executable, self.raw, 0))
        })?;
        Ok(Graph { context: self.context.clone(), executable })
    }
}

impl Drop for Captured<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: made by the capture, given back once.
            self.context.give_back(|| unsafe { call!(cuGraphDestroy(self.raw)) });
        }
    }
}
