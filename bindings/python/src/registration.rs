//! Memory of another library, which peers reach in place for a while.

use crate::array::Array;
use crate::error::misuse;
use crate::wait::lock;
use oxccl::{Communicator, HostRegistration};
use pyo3::prelude::*;
use std::sync::Mutex;

/// An array that peers reach in place until this is closed, or gone: see `Communicator.register`.
#[pyclass(frozen, module = "oxccl")]
pub(crate) struct Registration(Mutex<Option<Registered>>);

struct Registered {
    // In this order.
    _registration: HostRegistration<'static, u8>,
    _array: Py<PyAny>,
}

/// What is to be registered.
pub(crate) struct Bytes {
    address: usize,
    len_bytes: usize,
}

impl Bytes {
    pub(crate) fn of(array: &Array) -> PyResult<Bytes> {
        if array.is_gpu {
            return Err(misuse("memory of a GPU is registered by NCCL's calls or by Rust's"));
        }
        if !array.is_writable {
            return Err(misuse("an array that cannot be written cannot be registered"));
        }
        let len_bytes = array.memory.count * array.element.data_type.len_bytes();
        Ok(Bytes { address: array.memory.address.addr(), len_bytes })
    }

    /// # Safety
    /// The array is there, and nobody uses it, while this runs and when what it gives is dropped.
    pub(crate) unsafe fn register(
        &self,
        comm: &Communicator,
    ) -> Result<HostRegistration<'static, u8>, oxccl::Error> {
        if self.len_bytes == 0 {
            return comm.register_host(&mut []);
        }
        let at = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: by this function's contract.
        comm.register_host(unsafe { std::slice::from_raw_parts_mut(at, self.len_bytes) })
    }
}

impl Registration {
    pub(crate) fn new(
        registration: HostRegistration<'static, u8>,
        array: Py<PyAny>,
    ) -> Registration {
        let registered = Registered { _registration: registration, _array: array };
        Registration(Mutex::new(Some(registered)))
    }
}

#[pymethods]
impl Registration {
    /// Whether it has been closed.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.0).is_none()
    }

    /// Ends it: the array is as any other again. No call may be using it.
    fn close(&self) {
        let registered = lock(&self.0).take();
        drop(registered);
    }

    fn __enter__(slf: Py<Registration>) -> Py<Registration> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, _raised: &Bound<'_, PyAny>) {
        self.close();
    }
}
