//! Streams: queues with a thread each.
//!
//! The legacy default stream (handle 0) is one a context, and orders itself behind and before all
//! blocking streams.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex};

use cudarc::driver::sys::{CUcontext, CUdevice, CUevent, CUhostFn, CUresult, CUstream};

use crate::call::{Answer, driver_calls, put};
use crate::capture::{self, Joined};
use crate::connection::Connection;
use crate::context::{self, CONTEXTS, Context};
use crate::event::EVENTS;
use crate::graph::Executable;
use crate::kernel::Run;
use crate::registry::{Registry, lock};
use crate::{copy, graph, kernel};

pub(crate) struct Stream {
    pub(crate) context_handle: usize,
    pub(crate) context: Arc<Context>,
    /// Ordered with the legacy default stream.
    blocking: bool,
    legacy: bool,
    connection: Arc<Connection>,
    queue: Mutex<Queue>,
    changed: Condvar,
    pub(crate) joined: Mutex<Option<Joined>>,
}

#[derive(Default)]
struct Queue {
    /// With their numbers in the connection.
    waiting: VecDeque<(Operation, u64)>,
    /// Entries so far, and those that are done.
    entered: u64,
    done: u64,
    closed: bool,
}

/// A point in a stream: done when that many entries are.
#[derive(Clone)]
pub(crate) struct Ticket {
    stream: Arc<Stream>,
    number: u64,
}

/// What can stand in a stream, or be a node of a graph.
#[derive(Clone)]
pub(crate) enum Operation {
    Copy { dst: usize, src: usize, len: usize },
    Fill { dst: usize, value: u32, width: usize, count: usize },
    Kernel(Arc<Run>),
    WaitValue { at: usize, value: u64, wide: bool, flags: u32 },
    WriteValue { at: usize, value: u64, wide: bool },
    Host { function: CUhostFn, data: usize },
    Behind(Ticket),
    Graph(Arc<Executable>),
    Nothing,
}

pub(crate) static STREAMS: Registry<Stream> = Registry::new(3);
static LEGACY: Mutex<Vec<Arc<Stream>>> = Mutex::new(Vec::new());

const NON_BLOCKING: u32 = 1;

impl Stream {
    fn start(blocking: bool, legacy: bool) -> Answer<Arc<Stream>> {
        let (context_handle, context) = context::current()?;
        let stream = Arc::new(Stream {
            connection: Connection::next(context.device),
            context_handle,
            context,
            blocking,
            legacy,
            queue: Mutex::default(),
            changed: Condvar::new(),
            joined: Mutex::new(None),
        });
        let worker = stream.clone();
        std::thread::Builder::new()
            .name("stand-in-stream".to_owned())
            .spawn(move || worker.work())
            .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(stream)
    }

    /// The stream behind a handle; of 0 and 1, the context's legacy default stream. So of 2, which
    /// is the default stream of each thread: nothing is put in there.
    pub(crate) fn find(handle: CUstream) -> Answer<Arc<Stream>> {
        let (current, _) = context::current()?;
        if handle as usize > 2 {
            let stream = STREAMS.find(handle as usize)?;
            stream.context.check()?;
            return Ok(stream);
        }
        let mut legacy = lock(&LEGACY);
        if let Some(stream) = legacy.iter().find(|stream| stream.context_handle == current) {
            return Ok(stream.clone());
        }
        let stream = Stream::start(false, true)?;
        legacy.push(stream.clone());
        Ok(stream)
    }

    /// Puts an operation in, or into the graph that the stream's capture records.
    pub(crate) fn push(self: &Arc<Stream>, operation: Operation) -> Answer {
        if self.legacy {
            capture::forbid_legacy(self.context_handle)?;
        }
        if let Some(joined) = &mut *lock(&self.joined) {
            return joined.record(operation);
        }
        for other in self.order_behind() {
            self.enter(Operation::Behind(other));
        }
        self.enter(operation);
        Ok(())
    }

    fn order_behind(self: &Arc<Stream>) -> Vec<Ticket> {
        let others = if self.legacy {
            STREAMS.all().into_iter().filter(|stream| stream.blocking).collect()
        } else if self.blocking {
            lock(&LEGACY).clone()
        } else {
            Vec::new()
        };
        let same = others.into_iter().filter(|other| other.context_handle == self.context_handle);
        same.map(|other| other.tail()).filter(|tail| !tail.is_done()).collect()
    }

    fn enter(&self, operation: Operation) {
        let mut queue = lock(&self.queue);
        queue.entered += 1;
        queue.waiting.push_back((operation, self.connection.come()));
        self.changed.notify_all();
    }

    /// The end of what is in the stream now.
    pub(crate) fn tail(self: &Arc<Stream>) -> Ticket {
        Ticket { stream: self.clone(), number: lock(&self.queue).entered }
    }

    pub(crate) fn is_blocking(&self) -> bool {
        self.blocking
    }

    fn close(&self) {
        lock(&self.queue).closed = true;
        self.changed.notify_all();
    }

    fn work(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let (operation, number) = loop {
                match queue.waiting.pop_front() {
                    Some(next) => break next,
                    None if queue.closed => return,
                    None => {}
                }
                queue = self.changed.wait(queue).unwrap_or_else(|broken| broken.into_inner());
            };
            drop(queue);
            self.connection.wait(number);
            execute(&operation, &self.context, || self.connection.start());
            drop(operation);
            lock(&self.queue).done += 1;
            self.changed.notify_all();
        }
    }
}

impl Ticket {
    pub(crate) fn is_done(&self) -> bool {
        lock(&self.stream.queue).done >= self.number
    }

    pub(crate) fn wait(&self) {
        let mut queue = lock(&self.stream.queue);
        while queue.done < self.number {
            queue = self.stream.changed.wait(queue).unwrap_or_else(|broken| broken.into_inner());
        }
    }
}

impl Operation {
    /// Whether it has started only when it is over.
    fn waits(&self) -> bool {
        matches!(self, Operation::Behind(_) | Operation::WaitValue { .. })
    }
}

/// Does what an operation says, and tells once when it has started. After an error that ends the
/// context, nothing.
pub(crate) fn execute(operation: &Operation, context: &Arc<Context>, started: impl FnOnce()) {
    // Of a kernel, when its blocks are on the device.
    let mut started = Some(started);
    let kernel = matches!(operation, Operation::Kernel(_)) && context.check().is_ok();
    if !operation.waits() && !kernel {
        started.take().into_iter().for_each(|started| started());
    }
    let result = match operation {
        // Nobody may be left waiting.
        Operation::Behind(ticket) => {
            ticket.wait();
            Ok(())
        }
        _ if context.check().is_err() => Ok(()),
        Operation::Copy { dst, src, len } => copy::copy(*dst, *src, *len),
        Operation::Fill { dst, value, width, count } => copy::fill(*dst, *value, *width, *count),
        Operation::WaitValue { at, value, wide, flags } => {
            copy::await_value(*at, *value, *wide, *flags)
        }
        Operation::WriteValue { at, value, wide } => copy::write_value(*at, *value, *wide),
        Operation::Kernel(run) => {
            kernel::run(run, || started.take().into_iter().for_each(|started| started()))
        }
        Operation::Graph(executable) => {
            graph::replay(executable, context);
            Ok(())
        }
        Operation::Host { function, data } => {
            if let Some(function) = function {
                // SAFETY: the caller of cuLaunchHostFunc vouches for function and data.
                unsafe { function(*data as *mut c_void) };
            }
            Ok(())
        }
        Operation::Nothing => Ok(()),
    };
    if let Err(code) = result {
        context.fail(code);
    }
    started.into_iter().for_each(|started| started());
}

/// Waits until all streams of a context are empty.
pub(crate) fn drain(context: usize) {
    let legacy = lock(&LEGACY).clone();
    for stream in STREAMS.all().into_iter().chain(legacy) {
        if stream.context_handle == context {
            stream.tail().wait();
        }
    }
}

/// Ends the streams that a context has when it goes.
pub(crate) fn end_all(context: usize) {
    lock(&LEGACY).retain(|stream| {
        let stays = stream.context_handle != context;
        if !stays {
            stream.close();
        }
        stays
    });
}

/// With `OXCCL_STAND_IN_STREAMS` a file gets a line for each stream that is made; the stand-in of
/// NCCL writes there, too.
fn note_made() {
    use std::io::Write;
    let Ok(path) = std::env::var("OXCCL_STAND_IN_STREAMS") else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(b"stream\n"));
    written.unwrap_or_else(|error| panic!("{path}: {error}"));
}

driver_calls! {
    fn cuStreamCreate(out: *mut CUstream, flags: u32) {
        if flags & !NON_BLOCKING != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let stream = Stream::start(flags & NON_BLOCKING == 0, false)?;
        note_made();
        put(out, STREAMS.add(stream) as CUstream)
    }

    fn cuStreamDestroy_v2(handle: CUstream) {
        STREAMS.remove(handle as usize)?.close();
        Ok(())
    }

    fn cuStreamSynchronize(handle: CUstream) {
        let stream = Stream::find(handle)?;
        capture::forbid_on(&stream)?;
        stream.tail().wait();
        stream.context.check()
    }

    fn cuStreamQuery(handle: CUstream) {
        let stream = Stream::find(handle)?;
        capture::forbid_on(&stream)?;
        if stream.tail().is_done() { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_READY) }
    }

    fn cuStreamGetCtx(handle: CUstream, out: *mut CUcontext) {
        put(out, Stream::find(handle)?.context_handle as CUcontext)
    }

    fn cuStreamGetDevice(handle: CUstream, out: *mut CUdevice) {
        put(out, Stream::find(handle)?.context.device)
    }

    fn cuStreamGetFlags(handle: CUstream, out: *mut u32) {
        let stream = Stream::find(handle)?;
        put(out, if stream.blocking || stream.legacy { 0 } else { NON_BLOCKING })
    }

    fn cuStreamWaitEvent(handle: CUstream, event: CUevent, flags: u32) {
        let stream = Stream::find(handle)?;
        let event = EVENTS.find(event as usize)?;
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        event.wait_in(&stream)
    }

    fn cuLaunchHostFunc(handle: CUstream, function: CUhostFn, data: *mut c_void) {
        let stream = Stream::find(handle)?;
        stream.push(Operation::Host { function, data: data as usize })
    }
}

/// Streams alive.
pub(crate) fn count() -> usize {
    // What is left of a context that is gone does not count.
    STREAMS.all().iter().filter(|s| CONTEXTS.find(s.context_handle).is_ok()).count()
}
