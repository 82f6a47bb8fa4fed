//! Groups of calls.

use crate::communicator::Communicator;
use crate::error::misuse;
use crate::stream::Work;
use crate::wait::lock;
use pyo3::prelude::*;
use std::sync::Mutex;

/// Calls that are made in its block are launched at its end, as one.
#[pyclass(frozen, module = "oxccl")]
pub(crate) struct Group {
    pub(super) comm: Py<Communicator>,
    pub(super) stream: Option<Py<PyAny>>,
    pub(super) work: Mutex<Option<Py<Work>>>,
    /// Where it is a part of another group: how many calls that one had.
    pub(super) begun: Mutex<Option<usize>>,
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
