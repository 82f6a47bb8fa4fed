//! How calls go out: at once, on a stream, or in a group.

use super::Communicator;
use crate::array::Array;
use crate::error::{misuse, raise};
use crate::request::{Ends, Kept, Request};
use crate::stream::{Stream, Work};
use crate::wait::lock;
use oxccl::{AnyStream, Collectives, Error, Kind, cuda};
use pyo3::prelude::*;
use std::sync::Arc;

/// Where calls go.
enum Target {
    /// Here, blocking.
    Here,
    Host(Arc<oxccl::Stream>),
    /// A stream of a GPU, by its handle.
    Gpu(usize),
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
    /// Does something with the communicator, without holding the interpreter.
    pub(super) fn with<R: Send>(
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
    pub(super) fn submit<'py>(
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
    pub(super) fn keep_until_done(
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
    pub(super) fn with_group(&self, change: impl FnOnce(&mut Vec<Request>)) {
        let here = std::thread::current().id();
        let mut groups = lock(&self.groups);
        if let Some((_, requests)) = groups.iter_mut().find(|group| group.0 == here) {
            change(requests);
        }
    }

    /// The group of this thread, which is made no longer.
    pub(super) fn take_group(&self) -> Option<Vec<Request>> {
        let mut groups = lock(&self.groups);
        let here = std::thread::current().id();
        let place = groups.iter().position(|group| group.0 == here)?;
        Some(groups.remove(place).1)
    }

    /// Launches a group.
    pub(super) fn launch(
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

    pub(super) fn rooted<'py>(
        &self,
        py: Python<'py>,
        request: Request,
        root: usize,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.submit(py, request.ends(Ends::Root(root)), stream)
    }

    /// This rank's part of an array that has one for every rank.
    pub(super) fn own_part(
        &self,
        kind: Kind,
        array: &Array,
        counts: Option<&[usize]>,
    ) -> PyResult<Array> {
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
pub(super) fn in_place_or_not(
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
