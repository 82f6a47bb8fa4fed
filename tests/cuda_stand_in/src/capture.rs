//! Stream capture, and what it forbids meanwhile.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use cudarc::driver::sys::{
    CUgraph, CUgraphNode, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use crate::call::{Answer, driver_calls, put};
use crate::graph::{GRAPHS, Graph, Node};
use crate::registry::lock;
use crate::stream::{Operation, Stream};

/// A capture under way.
pub(crate) struct Capture {
    id: u64,
    mode: CUstreamCaptureMode,
    thread: ThreadId,
    context: usize,
    /// Whether a stream that is ordered with the legacy one takes part.
    blocking: AtomicBool,
    invalid: AtomicBool,
    nodes: Mutex<Vec<Node>>,
}

/// A stream's part in a capture.
pub(crate) struct Joined {
    pub(crate) capture: Arc<Capture>,
    /// What the stream's next node depends on.
    pub(crate) last: Vec<usize>,
    /// Whether the capture began in this stream.
    origin: bool,
}

static CAPTURES: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

thread_local! {
    static MODE: Cell<CUstreamCaptureMode> =
        const { Cell::new(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

impl Joined {
    pub(crate) fn record(&mut self, operation: Operation) -> Answer {
        if self.capture.invalid.load(Ordering::Acquire) {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let mut nodes = lock(&self.capture.nodes);
        let behind = std::mem::replace(&mut self.last, vec![nodes.len()]);
        nodes.push(Node { operation, behind });
        Ok(())
    }

    /// Spoils the capture; returns why.
    pub(crate) fn invalidate(&self, code: CUresult) -> CUresult {
        self.capture.invalid.store(true, Ordering::Release);
        code
    }
}

/// For calls that are unsafe while something is captured.
pub(crate) fn forbid() -> Answer {
    let mode = MODE.get();
    let here = std::thread::current().id();
    let forbids = |capture: &&Arc<Capture>| {
        use CUstreamCaptureMode::*;
        let own = capture.thread == here && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        let others = capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        match mode {
            CU_STREAM_CAPTURE_MODE_GLOBAL => own || others,
            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => own,
            CU_STREAM_CAPTURE_MODE_RELAXED => false,
        }
    };
    match lock(&CAPTURES).iter().find(forbids) {
        None => Ok(()),
        Some(capture) => {
            capture.invalid.store(true, Ordering::Release);
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
    }
}

/// For calls that ask about, or wait for, a stream.
pub(crate) fn forbid_on(stream: &Stream) -> Answer {
    if let Some(joined) = &*lock(&stream.joined) {
        return Err(joined.invalidate(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    }
    forbid()
}

/// For the legacy default stream, which would order itself with what is captured.
pub(crate) fn forbid_legacy(context: usize) -> Answer {
    let captures = lock(&CAPTURES);
    let blocking = |capture: &&Arc<Capture>| {
        capture.context == context && capture.blocking.load(Ordering::Acquire)
    };
    match captures.iter().find(blocking) {
        None => Ok(()),
        Some(capture) => {
            capture.invalid.store(true, Ordering::Release);
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        }
    }
}

/// Lets a stream wait for nodes of a capture, and so join it.
pub(crate) fn join(stream: &Arc<Stream>, capture: &Arc<Capture>, behind: &[usize]) -> Answer {
    let mut joined = lock(&stream.joined);
    match &mut *joined {
        Some(joined) if !Arc::ptr_eq(&joined.capture, capture) => {
            Err(joined.invalidate(CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE))
        }
        Some(joined) => {
            joined.last.extend_from_slice(behind);
            Ok(())
        }
        None => {
            capture.blocking.fetch_or(stream.is_blocking(), Ordering::AcqRel);
            let (capture, last) = (capture.clone(), behind.to_vec());
            *joined = Some(Joined { capture, last, origin: false });
            Ok(())
        }
    }
}

fn begin(stream: &Arc<Stream>, mode: CUstreamCaptureMode) -> Answer {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let mut joined = lock(&stream.joined);
    if joined.is_some() {
        return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
    }
    let capture = Arc::new(Capture {
        id: NEXT.fetch_add(1, Ordering::Relaxed),
        mode,
        thread: std::thread::current().id(),
        context: stream.context_handle,
        blocking: AtomicBool::new(stream.is_blocking()),
        invalid: AtomicBool::new(false),
        nodes: Mutex::new(Vec::new()),
    });
    lock(&CAPTURES).push(capture.clone());
    *joined = Some(Joined { capture, last: Vec::new(), origin: true });
    Ok(())
}

fn end(stream: &Arc<Stream>) -> Answer<Graph> {
    let unmatched = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    let mut own = lock(&stream.joined);
    let joined = own.take_if(|joined| joined.origin).ok_or(unmatched)?;
    drop(own);
    let capture = &joined.capture;
    lock(&CAPTURES).retain(|other| !Arc::ptr_eq(other, capture));
    for other in crate::stream::STREAMS.all() {
        lock(&other.joined).take_if(|joined| Arc::ptr_eq(&joined.capture, capture));
    }
    if capture.invalid.load(Ordering::Acquire) {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    let nodes = std::mem::take(&mut *lock(&capture.nodes));
    let mut reached = vec![false; nodes.len()];
    let mut open = joined.last.clone();
    while let Some(node) = open.pop() {
        if !std::mem::replace(&mut reached[node], true) {
            open.extend(&nodes[node].behind);
        }
    }
    // What was forked off must have come back.
    if reached.contains(&false) {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    }
    Ok(Graph { nodes })
}

fn status(stream: &Stream) -> (CUstreamCaptureStatus, u64) {
    use CUstreamCaptureStatus::*;
    match &*lock(&stream.joined) {
        None => (CU_STREAM_CAPTURE_STATUS_NONE, 0),
        Some(joined) if joined.capture.invalid.load(Ordering::Acquire) => {
            (CU_STREAM_CAPTURE_STATUS_INVALIDATED, joined.capture.id)
        }
        Some(joined) => (CU_STREAM_CAPTURE_STATUS_ACTIVE, joined.capture.id),
    }
}

driver_calls! {
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) {
        if stream.is_null() {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        begin(&Stream::find(stream)?, mode)
    }

    fn cuStreamEndCapture(stream: CUstream, out: *mut CUgraph) {
        let graph = end(&Stream::find(stream)?)?;
        put(out, GRAPHS.add(Arc::new(graph)) as CUgraph)
    }

    fn cuStreamIsCapturing(stream: CUstream, out: *mut CUstreamCaptureStatus) {
        if stream.is_null() {
            return put(out, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
        }
        put(out, status(&*Stream::find(stream)?).0)
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: CUstream,
        out: *mut CUstreamCaptureStatus,
        id: *mut u64,
        _graph: *mut CUgraph,
        _dependencies: *mut *const CUgraphNode,
        _count: *mut usize,
    ) {
        let (status, number) = status(&*Stream::find(stream)?);
        put(out, status)?;
        if id.is_null() { Ok(()) } else { put(id, number) }
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) {
        let before = MODE.replace(*mode);
        put(mode, before)
    }
}
