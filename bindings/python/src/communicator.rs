//! The communicator.

use crate::allocator::Allocator;
use crate::array::{Array, product};
use crate::buffer::Buffer;
use crate::config::config;
use crate::element::Element;
use crate::error::{misuse, raise};
use crate::request::{Ends, Kept, Request};
use crate::stream::{Stream, Work};
use crate::unique_id::UniqueId;
use oxccl::{AnyStream, Collectives, Device, Error, Handle, Kind, Pin, cuda};
use oxccl_transports::Server;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

/// A start asks so often whether there is a signal, such as Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(100);

/// One rank of a set of ranks that carry out collectives together.
///
/// All ranks make the same calls in the same order. A call blocks until this rank's part is done;
/// with `stream` it returns a `Work` at once; in a `group` it returns its place there. It releases
/// the interpreter while it waits.
///
/// `input` and `output` are arrays of one type. Lengths are in elements, `n` is the number of
/// ranks. `op` is one of sum, prod, min, max, avg, mulsum (with `factor`), band, bor, bxor.
///
/// A call raises `UsageError` where this rank alone can see that it is wrong: an array that is not
/// contiguous or of a type that oxccl has not, lengths that do not fit, an `op` that its type has
/// not, a rank that does not exist. The communicator goes on. It raises `Error` where a rank has
/// died, timed out, aborted or called something else. The error names the rank in `ranks`, and with
/// `fatal` the communicator has ended.
///
/// Every setting of docs/configuration.md is a keyword of the ways to start: `timeout=60` is what
/// OXCCL_TIMEOUT=60 says, and counts before it.
#[pyclass(frozen, module = "oxccl")]
pub(crate) struct Communicator {
    /// None once it is closed.
    inner: Mutex<Option<oxccl::Communicator>>,
    handle: Handle,
    device: Device,
    /// Where the ranks met, which lasts as long as this.
    server: Option<Arc<Server>>,
    /// Groups that are being made, by the thread that makes them.
    groups: Mutex<Vec<(ThreadId, Vec<Request>)>>,
    /// Arrays of calls on streams, until these have ended.
    under_way: Mutex<Vec<(oxccl::Work, Arc<Kept>)>>,
    /// What a signal's handler has raised while a call waited.
    interrupted: Arc<Mutex<Option<PyErr>>>,
}

/// Calls that are made in its block are launched at its end, as one.
#[pyclass(frozen, module = "oxccl")]
pub(crate) struct Group {
    comm: Py<Communicator>,
    stream: Option<Py<PyAny>>,
    work: Mutex<Option<Py<Work>>>,
    /// Where it is a part of another group: how many calls that one had.
    begun: Mutex<Option<usize>>,
}

/// Where calls go.
enum Target {
    /// Here, blocking.
    Here,
    Host(Arc<oxccl::Stream>),
    /// A stream of a GPU, by its handle.
    Gpu(usize),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this is the thread in which Python runs handlers of signals.
fn is_main_thread() -> bool {
    // SAFETY: they take nothing and cannot fail.
    unsafe { libc::gettid() == libc::getpid() }
}

/// What a stream is that Python names: ours, a number, or what has one as `cuda_stream`.
fn target(stream: Option<&Bound<'_, PyAny>>) -> PyResult<Target> {
    let Some(stream) = stream else { return Ok(Target::Here) };
    if let Ok(stream) = stream.cast::<Stream>() {
        let inner = stream.get().inner();
        return inner.map(Target::Host).ok_or_else(|| misuse("the stream has ended"));
    }
    let handle = match stream.getattr_opt(pyo3::intern!(stream.py(), "cuda_stream"))? {
        Some(handle) => handle.extract(),
        None => stream.extract(),
    };
    let wrong = |_| {
        misuse("a stream is an oxccl.Stream, or a GPU's: an object with cuda_stream, or its number")
    };
    handle.map(Target::Gpu).map_err(wrong)
}

impl Communicator {
    fn new(inner: oxccl::Communicator, server: Option<Arc<Server>>) -> Communicator {
        let (handle, device) = (inner.handle(), inner.device());
        let interrupted = Arc::<Mutex<Option<PyErr>>>::default();
        let slot = interrupted.clone();
        inner.set_interrupt(move || {
            is_main_thread()
                && Python::attach(|py| py.check_signals())
                    .map_err(|raised| *lock(&slot) = Some(raised))
                    .is_err()
        });
        Communicator {
            inner: Mutex::new(Some(inner)),
            handle,
            device,
            server,
            groups: Mutex::default(),
            under_way: Mutex::default(),
            interrupted,
        }
    }

    /// Starts one, in a thread, while this one sees signals.
    fn start(
        py: Python<'_>,
        server: Option<Arc<Server>>,
        start: impl FnOnce() -> Result<oxccl::Communicator, Error> + Send + 'static,
    ) -> PyResult<Communicator> {
        let (tell, told) = channel();
        let starting = std::thread::Builder::new().name("oxccl-start".into()).spawn(move || {
            // Nobody listens where the caller has given up: then it ends here.
            let _ = tell.send(start());
        });
        starting?;
        let told = Mutex::new(told);
        loop {
            match py.detach(|| lock(&told).recv_timeout(SIGNALS)) {
                Ok(Ok(inner)) => return Ok(Communicator::new(inner, server)),
                Ok(Err(error)) => return Err(raise(&error)),
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(misuse("the start has panicked"));
                }
            }
        }
    }

    /// Does something with the communicator, without holding the interpreter.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut oxccl::Communicator) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let done = py.detach(|| lock(&self.inner).as_mut().map(act));
        match done {
            Some(Ok(result)) => Ok(result),
            Some(Err(error)) => {
                Err(lock(&self.interrupted).take().unwrap_or_else(|| raise(&error)))
            }
            None => Err(misuse("the communicator has been closed")),
        }
    }

    /// Makes a call: blocking, on a stream, or for the group that this thread is making.
    fn submit<'py>(
        &self,
        py: Python<'py>,
        request: Request,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let mut groups = lock(&self.groups);
        let here = || std::thread::current().id();
        if !groups.is_empty()
            && let Some((_, requests)) = groups.iter_mut().find(|group| group.0 == here())
        {
            if stream.is_some() {
                return Err(misuse("calls of a group take no stream: the group has one"));
            }
            request.check(self.handle.rank(), self.handle.world_size())?;
            requests.push(request);
            return Ok((requests.len() - 1).into_pyobject(py)?.into_any().unbind());
        }
        drop(groups);
        let target = target(stream)?;
        if let Target::Here = target {
            // SAFETY: the request keeps its arrays until this returns.
            self.with(py, |comm| unsafe { comm.run(request.call()?) })?;
            return Ok(py.None());
        }
        let (mut request, kept) = (request, Kept::default());
        let keep = std::mem::take(&mut request.keep);
        let work = self.with(py, |comm| {
            // SAFETY: `keep_until_done` keeps the arrays.
            on(comm, &target, |stream| unsafe { stream.run(request.call()?) })
        })?;
        self.keep_until_done(py, work, kept, keep)
    }

    /// Keeps the arrays of a launch until it has ended.
    fn keep_until_done(
        &self,
        py: Python<'_>,
        work: oxccl::Work,
        kept: Kept,
        keep: Vec<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        kept.set(keep);
        let kept = Arc::new(kept);
        let mut under_way = lock(&self.under_way);
        let ended: Vec<_> = under_way.extract_if(.., |(work, _)| work.is_done()).collect();
        under_way.push((work.clone(), kept.clone()));
        drop(under_way);
        // An array's end may run anything, so nothing is locked.
        drop(ended);
        Ok(Py::new(py, Work::new(work, kept))?.into_any())
    }

    /// Changes the group that this thread is making, if any.
    fn with_group(&self, change: impl FnOnce(&mut Vec<Request>)) {
        let here = std::thread::current().id();
        let mut groups = lock(&self.groups);
        if let Some((_, requests)) = groups.iter_mut().find(|group| group.0 == here) {
            change(requests);
        }
    }

    /// The group of this thread, which is made no longer.
    fn take_group(&self) -> Option<Vec<Request>> {
        let mut groups = lock(&self.groups);
        let here = std::thread::current().id();
        let place = groups.iter().position(|group| group.0 == here)?;
        Some(groups.remove(place).1)
    }

    /// Launches a group.
    fn launch(
        &self,
        py: Python<'_>,
        mut requests: Vec<Request>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Py<PyAny>>> {
        let target = target(stream)?;
        if let Target::Here = target {
            self.with(py, |comm| {
                comm.group(|group| {
                    requests.iter().try_for_each(|request| {
                        // SAFETY: the requests keep their arrays until this returns.
                        unsafe { group.run(request.call()?) }.map(drop)
                    })
                })
            })?;
            return Ok(None);
        }
        let keep = requests.iter_mut().flat_map(|request| std::mem::take(&mut request.keep));
        let keep = keep.collect();
        let work = self.with(py, |comm| {
            on(comm, &target, |stream| {
                stream.group(|group| {
                    requests.iter().try_for_each(|request| {
                        // SAFETY: `keep_until_done` keeps the arrays.
                        unsafe { group.run(request.call()?) }.map(drop)
                    })
                })
            })
        })?;
        self.keep_until_done(py, work.0, Kept::default(), keep).map(Some)
    }

    fn rooted<'py>(
        &self,
        py: Python<'py>,
        request: Request,
        root: usize,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.submit(py, request.ends(Ends::Root(root)), stream)
    }

    /// This rank's part of an array that has one for every rank.
    fn own_part(&self, kind: Kind, array: &Array, counts: Option<&[usize]>) -> PyResult<Array> {
        let (rank, ranks) = (self.handle.rank(), self.handle.world_size());
        let (all, lanes) = (array.memory.count, array.element.lanes);
        let (start, count) = match counts {
            None if !all.is_multiple_of(ranks * lanes) => {
                let count = all / lanes;
                return Err(misuse(format!(
                    "{kind}: {count} elements cannot be shared evenly by {ranks} ranks"
                )));
            }
            None => (rank * (all / ranks), all / ranks),
            Some(counts) => {
                let wrong = || {
                    misuse(format!("{kind}: counts must be one for each rank, and fit the array"))
                };
                let sum = |counts: &[usize]| {
                    counts.iter().try_fold(0usize, |sum, count| {
                        count.checked_mul(lanes).and_then(|count| sum.checked_add(count))
                    })
                };
                if counts.len() != ranks || sum(counts) != Some(all) {
                    return Err(wrong());
                }
                (sum(&counts[..rank]).ok_or_else(wrong)?, counts[rank] * lanes)
            }
        };
        let bytes = start * array.element.data_type.len_bytes();
        let address = array.memory.address.wrapping_add(bytes);
        let memory = oxccl::Memory { address, count };
        Ok(Array { memory, keep: Python::attach(|py| array.keep.clone_ref(py)), ..*array })
    }
}

/// What a call reads and writes: without an output, the same array, which is asked once.
fn in_place_or_not(
    py: Python<'_>,
    input: &Bound<'_, PyAny>,
    output: Option<&Bound<'_, PyAny>>,
) -> PyResult<(Array, Array)> {
    let input = Array::of(input)?;
    let output = match output {
        Some(output) => Array::of(output)?,
        None => Array { keep: input.keep.clone_ref(py), ..input },
    };
    Ok((input, output))
}

/// Does something on a stream of this communicator's device.
fn on<R>(
    comm: &oxccl::Communicator,
    target: &Target,
    act: impl FnOnce(oxccl::OnStream<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    match (target, comm.context()) {
        (Target::Gpu(handle), Some(context)) => {
            let handle = std::ptr::without_provenance_mut(*handle);
            // SAFETY: it is the caller's, who keeps it until its calls have ended.
            let stream = unsafe { cuda::Stream::foreign(&context, handle) }
                .map_err(oxccl_transports::Error::from)?;
            act(comm.on(AnyStream::Cuda(&stream)))
        }
        (Target::Host(stream), _) => act(comm.on(AnyStream::Host(stream))),
        (_, None) | (Target::Here, _) => Err(Error::OtherDevice { device: comm.device() }),
    }
}

#[pymethods]
impl Communicator {
    #[new]
    #[pyo3(signature = (unique_id, rank, world_size, **settings))]
    fn connect(
        py: Python<'_>,
        unique_id: &Bound<'_, PyAny>,
        rank: usize,
        world_size: usize,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Communicator> {
        let config = config(settings)?;
        let (id, server) = match unique_id.cast::<UniqueId>() {
            Ok(made) => (made.get().id.clone(), Some(made.get().server.clone())),
            Err(_) => {
                let id: String = unique_id.extract()?;
                (id.parse().map_err(|error| misuse(format!("unique_id: {error}")))?, None)
            }
        };
        let start = move || oxccl::Communicator::connect(&id, rank, world_size, &config);
        Communicator::start(py, server, start)
    }

    /// This process's rank, as torchrun, mpirun, srun or `oxccl run` tells it.
    #[staticmethod]
    #[pyo3(signature = (**settings))]
    fn from_env(py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Communicator> {
        let config = config(settings)?;
        Communicator::start(py, None, move || oxccl::Communicator::from_env_with(&config))
    }

    /// All ranks in this process, in rank order: give each to a thread.
    #[staticmethod]
    #[pyo3(signature = (world_size, **settings))]
    fn local(
        py: Python<'_>,
        world_size: usize,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Vec<Communicator>> {
        let config = config(settings)?;
        let made = py.detach(|| oxccl::Communicator::local_with(world_size, &config));
        let made = made.map_err(|error| raise(&error))?;
        Ok(made.into_iter().map(|inner| Communicator::new(inner, None)).collect())
    }

    /// This rank's number, from 0 on.
    #[getter]
    fn rank(&self) -> usize {
        self.handle.rank()
    }

    /// The number of ranks.
    #[getter]
    fn world_size(&self) -> usize {
        self.handle.world_size()
    }

    /// `host`, or `cuda:` and the GPU's number.
    #[getter]
    fn device(&self) -> String {
        self.device.to_string()
    }

    /// Number of nodes that the ranks are on.
    #[getter]
    fn nodes(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |comm| Ok(comm.nodes()))
    }

    /// Programs launched so far: one for a call or a group.
    #[getter]
    fn launches(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |comm| Ok(comm.launches()))
    }

    /// Launches planned so far.
    #[getter]
    fn plans(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |comm| Ok(comm.plans()))
    }

    /// Zeroed memory of the communicator's device, which every rank reaches in place. Not
    /// collective. It outlives the communicator. A type or shape that cannot be, and a heap without
    /// so long a range, are errors.
    #[pyo3(signature = (*shape, dtype = "float32"))]
    fn empty(&self, py: Python<'_>, shape: &Bound<'_, PyTuple>, dtype: &str) -> PyResult<Buffer> {
        let shape: Vec<usize> = match shape.get_item(0).ok().filter(|_| shape.len() == 1) {
            Some(only) if only.extract::<usize>().is_err() => only.extract()?,
            _ => shape.extract()?,
        };
        let element = Element::named(dtype)?;
        let bytes = product(&shape)?.checked_mul(element.len_bytes());
        let bytes = bytes.ok_or_else(|| misuse("that is more than memory can have"))?;
        let (memory, device) = self.with(py, |comm| Ok((comm.alloc(bytes)?, comm.device())))?;
        Ok(Buffer::new(memory, element, shape, device))
    }

    /// Every rank's output, of as many elements as its input, is the reduction of all inputs;
    /// without `output`, in place. All ranks have equal lengths.
    #[pyo3(signature = (input, output = None, op = "sum", *, factor = None, stream = None))]
    fn all_reduce(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        op: &str,
        factor: Option<f64>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (input, output) = in_place_or_not(py, input, output)?;
        let (request, element) = Request::new(Kind::AllReduce, Some(input), Some(output))?;
        self.submit(py, request.reducing(element, op, factor)?, stream)
    }

    /// Rank r's output, of `count` elements, is the reduction of chunk r of all inputs, of `n *
    /// count`; or of `counts[r]` elements, the same counts on all ranks. Without `output` it is
    /// this rank's chunk of the input. A length that n does not divide is an error without counts.
    #[pyo3(signature = (input, output = None, op = "sum", *, factor = None, counts = None, stream = None))]
    #[expect(clippy::too_many_arguments, reason = "most are keywords with defaults")]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        op: &str,
        factor: Option<f64>,
        counts: Option<Vec<usize>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (kind, input) = (Kind::ReduceScatter, Array::of(input)?);
        let output = match output {
            Some(output) => Array::of(output)?,
            None => {
                let part = self.own_part(kind, &input, counts.as_deref())?;
                Array { is_writable: input.is_writable, ..part }
            }
        };
        let (request, element) = Request::new(kind, Some(input), Some(output))?;
        let request = request.reducing(element, op, factor)?.counts(element, counts);
        self.submit(py, request, stream)
    }

    /// Chunk r of every rank's output, of `n * count` elements, is rank r's input, of `count`, or
    /// of `counts[r]`. Without `output`, `input` is it, and has this rank's chunk. Counts that do
    /// not fit the arrays are an error.
    #[pyo3(signature = (input, output = None, *, counts = None, stream = None))]
    fn all_gather(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        counts: Option<Vec<usize>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (kind, given) = (Kind::AllGather, Array::of(input)?);
        let (input, output) = match output {
            Some(output) => (given, Array::of(output)?),
            None => (self.own_part(kind, &given, counts.as_deref())?, given),
        };
        let (request, element) = Request::new(kind, Some(input), Some(output))?;
        self.submit(py, request.counts(element, counts), stream)
    }

    /// Chunk r of the input goes to rank r, and is chunk `rank` of its output. With counts,
    /// `send_counts[r]` elements go to rank r, and `recv_counts[r]` come from it. Without them both
    /// arrays have `n * count` elements. One of the two lists alone is an error.
    #[pyo3(signature = (input, output = None, *, send_counts = None, recv_counts = None, stream = None))]
    fn all_to_all(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        send_counts: Option<Vec<usize>>,
        recv_counts: Option<Vec<usize>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (input, output) = in_place_or_not(py, input, output)?;
        let (request, element) = Request::new(Kind::AllToAll, Some(input), Some(output))?;
        self.submit(py, request.own_counts(element, send_counts, recv_counts)?, stream)
    }

    /// Every rank's output, of as many elements, is the root's input; without `output`, in place. A
    /// root that is no rank is an error.
    #[pyo3(signature = (input, output = None, root = 0, *, stream = None))]
    fn broadcast(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        root: usize,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        // In place nothing is written at the root, so there the array may be one to be read.
        let is_read = output.is_none() && root == self.handle.rank();
        let (input, output) = in_place_or_not(py, input, output)?;
        let output = Array { is_writable: output.is_writable || is_read, ..output };
        let (request, _) = Request::new(Kind::Broadcast, Some(input), Some(output))?;
        self.rooted(py, request, root, stream)
    }

    /// The root's output, of as many elements, is the reduction of all inputs; without `output`,
    /// its input. The others need no output. A root that is no rank is an error.
    #[pyo3(signature = (input, output = None, op = "sum", root = 0, *, factor = None, stream = None))]
    #[expect(clippy::too_many_arguments, reason = "most are keywords with defaults")]
    fn reduce(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        op: &str,
        root: usize,
        factor: Option<f64>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let is_root = root == self.handle.rank();
        let output = is_root.then(|| Array::of(output.unwrap_or(input))).transpose()?;
        let (request, element) = Request::new(Kind::Reduce, Some(Array::of(input)?), output)?;
        self.rooted(py, request.reducing(element, op, factor)?, root, stream)
    }

    /// Chunk r of the root's output, of `n * count` elements, is rank r's input, of `count`.
    /// Without `output` the root gives it as `input`, with its own chunk.
    #[pyo3(signature = (input, output = None, root = 0, *, stream = None))]
    fn gather(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        root: usize,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let given = Array::of(input)?;
        let (input, output) = match output {
            _ if root != self.handle.rank() => (given, None),
            Some(output) => (given, Some(Array::of(output)?)),
            None => (self.own_part(Kind::Gather, &given, None)?, Some(given)),
        };
        let (request, _) = Request::new(Kind::Gather, Some(input), output)?;
        self.rooted(py, request, root, stream)
    }

    /// Rank r's output, of `count` elements, is chunk r of the root's input, of `n * count`.
    /// Without `output` the root keeps its chunk, and the others give the output as `input`.
    #[pyo3(signature = (input, output = None, root = 0, *, stream = None))]
    fn scatter(
        &self,
        py: Python<'_>,
        input: Option<&Bound<'_, PyAny>>,
        output: Option<&Bound<'_, PyAny>>,
        root: usize,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (input, output) =
            (input.map(Array::of).transpose()?, output.map(Array::of).transpose()?);
        let (input, output) = match (input, output) {
            // In place: of what the root has, its part stays; the others give where theirs goes.
            (Some(given), None) if root == self.handle.rank() => {
                let part = self.own_part(Kind::Scatter, &given, None)?;
                (Some(given), Some(part))
            }
            (Some(given), None) => (None, Some(given)),
            (input, output) if root == self.handle.rank() => (input, output),
            (_, output) => (None, output),
        };
        let (request, _) = Request::new(Kind::Scatter, input, output)?;
        self.rooted(py, request, root, stream)
    }

    /// Sends all elements to another rank; it ends when the message has been received. To send to
    /// oneself, or another length than the receiver expects, is an error.
    #[pyo3(signature = (input, peer, *, stream = None))]
    fn send(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        peer: usize,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (request, _) = Request::new(Kind::SendRecv, Some(Array::of(input)?), None)?;
        self.submit(py, request.ends(Ends::To(peer)), stream)
    }

    /// Receives the next message of another rank, which has as many elements; another length is an
    /// error on both sides.
    #[pyo3(signature = (output, peer, *, stream = None))]
    fn recv(
        &self,
        py: Python<'_>,
        output: &Bound<'_, PyAny>,
        peer: usize,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (request, _) = Request::new(Kind::SendRecv, None, Some(Array::of(output)?))?;
        self.submit(py, request.ends(Ends::From(peer)), stream)
    }

    /// Ends when every rank has called it. The error names a rank that has died or not come.
    #[pyo3(signature = (*, stream = None))]
    fn barrier(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        self.submit(py, Request::barrier(), stream)
    }

    /// `with comm.group():` makes one launch of all calls of this thread in its block. Sends and
    /// receives may be in any order there. A group within a group is a part of that one.
    #[pyo3(signature = (*, stream = None))]
    fn group(slf: Py<Self>, stream: Option<Py<PyAny>>) -> Group {
        Group { comm: slf, stream, work: Mutex::default(), begun: Mutex::default() }
    }

    /// Waits for all ranks, at most so many seconds: how much later than the first each came. The
    /// error names all that have not come, and ends the communicator.
    fn monitored_barrier(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<f64>> {
        let timeout =
            Duration::try_from_secs_f64(timeout).map_err(|error| misuse(error.to_string()))?;
        let late = self.with(py, |comm| comm.monitored_barrier(timeout))?;
        Ok(late.iter().map(Duration::as_secs_f64).collect())
    }

    /// Communicators of parts of the ranks: those of one color are together, in the order of their
    /// keys. All ranks call it; one without a color gets none. Those of one color have their ranks
    /// in it from 0 on.
    #[pyo3(signature = (color, key = 0))]
    fn split(
        &self,
        py: Python<'_>,
        color: Option<u32>,
        key: i64,
    ) -> PyResult<Option<Communicator>> {
        let part = self.with(py, |comm| comm.split(color, key))?;
        Ok(part.map(|inner| Communicator::new(inner, self.server.clone())))
    }

    /// A communicator of all ranks but these, also after a failure. All others call it.
    fn shrink(&self, py: Python<'_>, exclude: Vec<usize>) -> PyResult<Communicator> {
        let inner = self.with(py, |comm| comm.shrink(&exclude))?;
        Ok(Communicator::new(inner, self.server.clone()))
    }

    /// How its memory is used: heap_bytes, allocated_bytes, largest_free_bytes, staging_bytes,
    /// registrations.
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let used = self.with(py, |comm| Ok(comm.memory()))?;
        let dict = PyDict::new(py);
        dict.set_item("heap_bytes", used.heap_bytes)?;
        dict.set_item("allocated_bytes", used.allocated_bytes)?;
        dict.set_item("largest_free_bytes", used.largest_free_bytes)?;
        dict.set_item("staging_bytes", used.staging_bytes)?;
        dict.set_item("registrations", used.registrations)?;
        Ok(dict)
    }

    /// An allocator over this rank's heap, on the host. It is not a call of all ranks.
    fn allocator(&self, py: Python<'_>) -> PyResult<Allocator> {
        self.with(py, |comm| Allocator::new(comm))
    }

    /// The promised order of reduction: any, rank or tree. All ranks, between the same calls.
    fn set_order(&self, py: Python<'_>, order: &str) -> PyResult<()> {
        let order = order.parse().map_err(|error: String| misuse(error))?;
        self.with(py, |comm| comm.set_order(order))
    }

    /// What the tuner must choose. All ranks, between the same calls.
    #[pyo3(signature = (algorithm = None, encoding = None, channels = None))]
    fn set_pin(
        &self,
        py: Python<'_>,
        algorithm: Option<&str>,
        encoding: Option<&str>,
        channels: Option<usize>,
    ) -> PyResult<()> {
        let algorithm = algorithm.map(str::parse).transpose().map_err(misuse)?;
        let encoding = encoding.map(str::parse).transpose().map_err(misuse)?;
        let pin = Pin { algorithm, encoding, channels };
        self.with(py, |comm| comm.set_pin(pin))
    }

    /// Seconds that calls may wait without progress; None: without end.
    fn set_timeout(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let timeout = match timeout {
            None => Duration::MAX,
            Some(seconds) => {
                Duration::try_from_secs_f64(seconds).map_err(|error| misuse(error.to_string()))?
            }
        };
        self.with(py, |comm| comm.set_timeout(timeout))
    }

    /// Ends the communicator on all ranks, whatever they wait for; from any thread.
    #[pyo3(signature = (reason = "abort"))]
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        py.detach(|| self.handle.abort(reason)).map_err(|error| raise(&error))
    }

    /// Why the communicator has ended, if it has otherwise than by being closed; from any thread.
    fn error(&self, py: Python<'_>) -> Option<PyErr> {
        py.detach(|| self.handle.error()).map(|error| raise(&error))
    }

    /// Ends the communicator on all ranks, which compare what they have called.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = py.detach(|| lock(&self.inner).take().map(oxccl::Communicator::close));
        let kept = std::mem::take(&mut *lock(&self.under_way));
        drop(kept);
        match closed {
            Some(Err(error)) => {
                Err(lock(&self.interrupted).take().unwrap_or_else(|| raise(&error)))
            }
            _ => Ok(()),
        }
    }

    /// Ends this rank's part without waiting for the others.
    fn leave(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.inner).take()));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Closes it; where the block has failed, without waiting for the others.
    fn __exit__(
        &self,
        py: Python<'_>,
        raised: Option<&Bound<'_, PyAny>>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        match raised {
            None => self.close(py),
            Some(_) => {
                self.leave(py);
                Ok(())
            }
        }
    }

    fn __repr__(&self) -> String {
        let (rank, world) = (self.handle.rank(), self.handle.world_size());
        format!(
            "oxccl.Communicator(rank={rank}, world_size={world}, device={:?})",
            self.device.to_string()
        )
    }
}

impl Drop for Communicator {
    /// Waits for the calls on streams, whose arrays are kept until then.
    fn drop(&mut self) {
        let inner = lock(&self.inner).take();
        Python::attach(|py| py.detach(|| drop(inner)));
    }
}

#[pymethods]
impl Group {
    /// A group within a group of this thread is a part of that one.
    fn __enter__(slf: Py<Self>) -> PyResult<Py<Self>> {
        let (group, here) = (slf.get(), std::thread::current().id());
        let mut groups = lock(&group.comm.get().groups);
        let outer = groups.iter().find(|group| group.0 == here);
        let begun = outer.map(|(_, requests)| requests.len());
        if begun.is_some() && group.stream.is_some() {
            return Err(misuse("a group within a group takes no stream: the outer one has it"));
        }
        if begun.is_none() {
            groups.push((here, Vec::new()));
        }
        *lock(&group.begun) = begun;
        drop(groups);
        Ok(slf)
    }

    /// Launches the calls; where the block has failed, none of them.
    fn __exit__(
        &self,
        py: Python<'_>,
        raised: Option<&Bound<'_, PyAny>>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let comm = self.comm.get();
        if let Some(begun) = *lock(&self.begun) {
            if raised.is_some() {
                comm.with_group(|requests| requests.truncate(begun));
            }
            return Ok(());
        }
        let requests =
            comm.take_group().ok_or_else(|| misuse("the group was begun in another thread"))?;
        if raised.is_some() {
            return Ok(());
        }
        let stream = self.stream.as_ref().map(|stream| stream.bind(py));
        let work = comm.launch(py, requests, stream)?;
        if let Some(work) = work {
            *lock(&self.work) = Some(work.bind(py).cast::<Work>()?.clone().unbind());
        }
        Ok(())
    }

    /// What is under way, of a group on a stream, once its block has ended.
    #[getter]
    fn work(&self, py: Python<'_>) -> Option<Py<Work>> {
        lock(&self.work).as_ref().map(|work| work.clone_ref(py))
    }
}
