//! The communicator.

mod group;
mod submit;

pub(crate) use group::Group;

use crate::allocator::Allocator;
use crate::array::{Array, product};
use crate::buffer::Buffer;
use crate::config::config;
use crate::element::Element;
use crate::error::{misuse, raise};
use crate::registration::{Bytes, Registration};
use crate::request::{Ends, Kept, Request};
use crate::starting::Starting;
use crate::unique_id::UniqueId;
use crate::wait::{lock, wait};
use oxccl::{Device, Error, Handle, Kind, Pin};
use oxccl_transports::Server;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;
use submit::in_place_or_not;

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

/// Whether this is the thread in which Python runs handlers of signals.
fn is_main_thread() -> bool {
    // SAFETY: they take nothing and cannot fail.
    unsafe { libc::gettid() == libc::getpid() }
}

impl Communicator {
    pub(crate) fn new(inner: oxccl::Communicator, server: Option<Arc<Server>>) -> Communicator {
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

    /// Waits for a start, and sees signals meanwhile, which give it up.
    fn started(
        py: Python<'_>,
        server: Option<Arc<Server>>,
        starting: Result<oxccl::Starting, Error>,
    ) -> PyResult<Communicator> {
        let starting = starting.map_err(|error| raise(&error))?;
        wait(py, None, |left| starting.wait_timeout(left).then_some(()))?;
        let inner = starting.wait().map_err(|error| raise(&error))?;
        Ok(Communicator::new(inner, server))
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
        let (id, server) = UniqueId::of(unique_id)?;
        let starting = oxccl::Communicator::starting(&id, rank, world_size, &config);
        Communicator::started(py, server, starting)
    }

    /// As `Communicator(...)`, but returns at once: the start goes on in a thread of its own.
    #[staticmethod]
    #[pyo3(signature = (unique_id, rank, world_size, **settings))]
    fn starting(
        unique_id: &Bound<'_, PyAny>,
        rank: usize,
        world_size: usize,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Starting> {
        let config = config(settings)?;
        let (id, server) = UniqueId::of(unique_id)?;
        let starting = oxccl::Communicator::starting(&id, rank, world_size, &config);
        Ok(Starting::new(starting.map_err(|error| raise(&error))?, server))
    }

    /// This process's rank, as torchrun, mpirun, srun or `oxccl run` tells it.
    #[staticmethod]
    #[pyo3(signature = (**settings))]
    fn from_env(py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Communicator> {
        let config = config(settings)?;
        Communicator::started(py, None, oxccl::Communicator::starting_from_env(&config))
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

    /// Has peers reach an array of another library on the host in place, as memory of `empty`,
    /// until what this returns is closed. Not collective; but all ranks register what they use in a
    /// call, or none does. Nobody may use the array in another thread meanwhile, nor when it is
    /// closed.
    fn register(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<Registration> {
        let array = Array::of(array)?;
        let bytes = Bytes::of(&array)?;
        // SAFETY: the array is kept by what is returned; that nobody uses it, the caller promises.
        let registration = self.with(py, |comm| unsafe { bytes.register(comm) })?;
        Ok(Registration::new(registration, array.keep))
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

    /// The text by which other ranks join: one rank makes it and hands it to them, before `grow`.
    fn invite(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |comm| Ok(comm.invite()?.to_string()))
    }

    /// A communicator of these ranks, which keep their numbers and their memory, and of those that
    /// join by `Communicator(unique_id, rank, world_size)`. All ranks call it; one or more give
    /// what `invite` has made.
    #[pyo3(signature = (world_size, unique_id = None))]
    fn grow(
        &self,
        py: Python<'_>,
        world_size: usize,
        unique_id: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Communicator> {
        let id = unique_id.map(UniqueId::of).transpose()?.map(|(id, _)| id);
        let inner = self.with(py, |comm| comm.grow(world_size, id.as_ref()))?;
        Ok(Communicator::new(inner, None))
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
    pub(crate) fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
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
