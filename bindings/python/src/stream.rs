//! Streams of the host, and what is under way on them.

use crate::error::raise;
use crate::request::Kept;
use crate::wait::wait;
use pyo3::prelude::*;
use std::sync::Arc;

/// An ordered queue of calls, with a thread that carries them out.
#[pyclass(frozen, module = "oxccl")]
pub(crate) struct Stream(Option<Arc<oxccl::Stream>>);

impl Stream {
    pub(crate) fn inner(&self) -> Option<Arc<oxccl::Stream>> {
        self.0.clone()
    }
}

#[pymethods]
impl Stream {
    #[new]
    fn new() -> PyResult<Stream> {
        let inner = oxccl::Stream::new().map_err(|error| raise(&error))?;
        Ok(Stream(Some(Arc::new(inner))))
    }
}

impl Drop for Stream {
    /// Waits for the calls that are queued.
    fn drop(&mut self) {
        let inner = self.0.take();
        Python::attach(|py| py.detach(|| drop(inner)));
    }
}

/// A call, a group or a bucket of a group that a stream carries out.
#[pyclass(frozen, module = "oxccl")]
pub(crate) struct Work {
    inner: oxccl::Work,
    /// What it keeps until it has ended.
    kept: Arc<Kept>,
    is_bucket: bool,
}

impl Work {
    pub(crate) fn new(inner: oxccl::Work, kept: Arc<Kept>) -> Work {
        Work { inner, kept, is_bucket: false }
    }
}

#[pymethods]
impl Work {
    /// Waits for the end, at most so many seconds. False: it is still under way. It raises what the
    /// call would have raised.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let Some(result) = wait(py, timeout, |left| self.inner.wait_timeout(left))? else {
            return Ok(false);
        };
        if !self.is_bucket {
            self.kept.release();
        }
        result.map(|()| true).map_err(|error| raise(&error))
    }

    /// Whether it has ended, well or not.
    fn is_done(&self) -> bool {
        self.inner.is_done()
    }

    /// One bucket of a group, by its place there.
    fn bucket(&self, bucket: usize) -> Option<Work> {
        let inner = self.inner.bucket(bucket)?;
        Some(Work { inner, kept: self.kept.clone(), is_bucket: true })
    }
}
