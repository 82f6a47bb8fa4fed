//! What ranks need to find each other.

use crate::error::{misuse, raise};
use oxccl_transports::Server;
use pyo3::prelude::*;
use std::sync::Arc;

/// Where ranks meet, and the secret to enter: made by one rank, handed to the others as text.
///
/// The process that makes it serves the meeting, as long as this object or a communicator that was
/// made from it lives.
#[pyclass(frozen, module = "oxccl")]
pub(crate) struct UniqueId {
    id: oxccl::UniqueId,
    server: Arc<Server>,
}

impl UniqueId {
    /// What Python names: one that was made here, with its server, or the text of another's.
    pub(crate) fn of(named: &Bound<'_, PyAny>) -> PyResult<(oxccl::UniqueId, Option<Arc<Server>>)> {
        if let Ok(made) = named.cast::<UniqueId>() {
            return Ok((made.get().id.clone(), Some(made.get().server.clone())));
        }
        let text: String = named.extract()?;
        let id = text.parse().map_err(|error| misuse(format!("unique_id: {error}")))?;
        Ok((id, None))
    }
}

#[pymethods]
impl UniqueId {
    /// On the loopback address, or on `host:port` (port 0: any), the host being the one under which
    /// the other ranks reach this machine.
    #[new]
    #[pyo3(signature = (address = None))]
    fn new(py: Python<'_>, address: Option<&str>) -> PyResult<UniqueId> {
        let made = py.detach(|| match address {
            None => oxccl::UniqueId::create(),
            Some(address) => oxccl::UniqueId::create_on(address),
        });
        let (id, server) = made.map_err(|error| raise(&error.into()))?;
        Ok(UniqueId { id, server: Arc::new(server) })
    }

    /// The text that the other ranks take: who has it can join.
    fn __str__(&self) -> String {
        self.id.to_string()
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.id)
    }
}
