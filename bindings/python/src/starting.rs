//! Starts that do not block.

use crate::communicator::Communicator;
use crate::error::raise;
use crate::wait::{lock, wait};
use oxccl_transports::Server;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A communicator that starts: see `Communicator.starting`. Any thread may ask after it and give it
/// up; when it goes, the start is given up, too.
#[pyclass(frozen, module = "oxccl")]
pub(crate) struct Starting {
    rank: usize,
    /// None once it has ended, and somebody has waited for it.
    inner: RwLock<Option<oxccl::Starting>>,
    /// Where the ranks meet.
    server: Option<Arc<Server>>,
    /// From then on.
    outcome: Mutex<Option<PyResult<Py<Communicator>>>>,
}

impl Starting {
    pub(crate) fn new(inner: oxccl::Starting, server: Option<Arc<Server>>) -> Starting {
        let (rank, inner) = (inner.rank(), RwLock::new(Some(inner)));
        Starting { rank, inner, server, outcome: Mutex::default() }
    }

    /// Asks the start, unless it has ended.
    fn with<R>(&self, ask: impl FnOnce(&oxccl::Starting) -> R) -> Option<R> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(ask)
    }
}

#[pymethods]
impl Starting {
    /// This rank's number.
    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    /// Whether the start has ended, well or not.
    fn is_done(&self) -> bool {
        self.with(oxccl::Starting::is_done).unwrap_or(true)
    }

    /// Waits for the communicator, at most so many seconds; None: it has not started yet. It raises
    /// what `Communicator(...)` would have raised.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<Communicator>>> {
        let ended = |left| self.with(|inner| inner.wait_timeout(left)).unwrap_or(true);
        if wait(py, timeout, |left| ended(left).then_some(()))?.is_none() {
            return Ok(None);
        }
        let mut outcome = lock(&self.outcome);
        let inner = self.inner.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(inner) = inner {
            *outcome = Some(match inner.wait() {
                Ok(comm) => Py::new(py, Communicator::new(comm, self.server.clone())),
                Err(error) => Err(raise(&error)),
            });
        }
        match &*outcome {
            Some(Ok(comm)) => Ok(Some(comm.clone_ref(py))),
            Some(Err(error)) => Err(error.clone_ref(py)),
            None => Ok(None),
        }
    }

    /// Gives the start up, from any thread. All ranks that have met get an error that names this
    /// one and the reason. A communicator that has started is aborted.
    #[pyo3(signature = (reason = "its start was given up"))]
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let started = match &*lock(&self.outcome) {
            Some(Ok(comm)) => Some(comm.clone_ref(py)),
            _ => None,
        };
        match started {
            Some(comm) => comm.get().abort(py, reason),
            None => {
                let aborted = py.detach(|| self.with(|inner| inner.abort(reason)));
                aborted.unwrap_or(Ok(())).map_err(|error| raise(&error))
            }
        }
    }
}
