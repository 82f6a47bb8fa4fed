//! Memory of a communicator, as an array.

use crate::array::{DLPACK_CPU, DLPACK_CUDA, DLPACK_NAME, Managed, Tensor, dlpack_name};
use crate::element::Element;
use oxccl::{Device, DeviceBuffer};
use pyo3::exceptions::{PyAttributeError, PyBufferError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::c_int;
use std::sync::Arc;

/// Zeroed elements of memory that all ranks reach in place: see `Communicator.empty`.
#[pyclass(frozen, module = "oxccl")]
pub(crate) struct Buffer {
    /// What arrays that are made of it keep, too.
    memory: Arc<DeviceBuffer<u8>>,
    element: Element,
    shape: Vec<usize>,
    device: Device,
}

impl Buffer {
    pub(crate) fn new(
        memory: DeviceBuffer<u8>,
        element: Element,
        shape: Vec<usize>,
        device: Device,
    ) -> Buffer {
        Buffer { memory: Arc::new(memory), element, shape, device }
    }

    /// Element type, address, number of the array's elements, whether it is a GPU's.
    pub(crate) fn parts(&self) -> (Element, usize, usize, bool) {
        let count = self.shape.iter().product();
        (self.element, self.memory.as_ptr().addr(), count, !self.memory.is_host())
    }

    /// The array interface, of numpy or of CUDA.
    fn interface<'py>(&self, py: Python<'py>, version: u32) -> PyResult<Bound<'py, PyDict>> {
        let Some(code) = self.element.numpy else {
            let text = format!("numpy has no {}: use torch() or __dlpack__", self.element.name);
            return Err(PyAttributeError::new_err(text));
        };
        let order = if self.element.len_bytes() == 1 { '|' } else { '<' };
        let interface = PyDict::new(py);
        interface.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        interface.set_item("typestr", format!("{order}{code}"))?;
        interface.set_item("data", (self.memory.as_ptr().addr(), false))?;
        interface.set_item("strides", py.None())?;
        interface.set_item("version", version)?;
        Ok(interface)
    }

    fn ordinal(&self) -> c_int {
        match self.device {
            Device::Cuda(Some(ordinal)) => c_int::try_from(ordinal).unwrap_or(c_int::MAX),
            _ => 0,
        }
    }
}

#[pymethods]
impl Buffer {
    /// Its dimensions, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// Its type, as `Communicator.empty` takes it.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.element.name
    }

    /// Its length in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.len()
    }

    /// `host`, or `cuda:` and the GPU's number.
    #[getter]
    fn device(&self) -> String {
        self.device.to_string()
    }

    #[getter(__array_interface__)]
    fn array_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if !self.memory.is_host() {
            return Err(PyAttributeError::new_err("this is memory of a GPU"));
        }
        self.interface(py, 3)
    }

    #[getter(__cuda_array_interface__)]
    fn cuda_array_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.memory.is_host() {
            return Err(PyAttributeError::new_err("this is memory of the host"));
        }
        self.interface(py, 3)
    }

    fn __dlpack_device__(&self) -> (c_int, c_int) {
        let kind = if self.memory.is_host() { DLPACK_CPU } else { DLPACK_CUDA };
        (kind, self.ordinal())
    }

    #[pyo3(signature = (**_options))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        _options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shape: Result<Vec<i64>, _> =
            self.shape.iter().map(|size| i64::try_from(*size)).collect();
        let shape = shape.map_err(|_| PyBufferError::new_err("a dimension is too long"))?;
        let (kind, device) = self.__dlpack_device__();
        let mut lent = Box::new(Lent {
            managed: Managed {
                tensor: Tensor {
                    data: self.memory.as_ptr().cast(),
                    device_type: kind,
                    device,
                    dimensions: c_int::try_from(shape.len()).unwrap_or(c_int::MAX),
                    code: self.element.dlpack.0,
                    bits: self.element.dlpack.1,
                    lanes: 1,
                    shape: std::ptr::null_mut(),
                    strides: std::ptr::null_mut(),
                    byte_offset: 0,
                },
                context: std::ptr::null_mut(),
                delete: Some(delete),
            },
            shape: shape.into_boxed_slice(),
            _memory: self.memory.clone(),
        });
        lent.managed.tensor.shape = lent.shape.as_mut_ptr();
        let lent = Box::into_raw(lent);
        // SAFETY: the name is static, and the pointer is valid until somebody calls `delete`: who
        // consumes the capsule, or its destructor.
        unsafe {
            let capsule = pyo3::ffi::PyCapsule_New(lent.cast(), dlpack_name(), Some(destroy));
            if capsule.is_null() {
                drop(Box::from_raw(lent));
                return Err(PyErr::fetch(py));
            }
            Ok(Bound::from_owned_ptr(py, capsule))
        }
    }

    /// A numpy array over this memory.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("numpy")?.call_method1("asarray", (slf,))
    }

    /// A torch tensor over this memory.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("torch")?.call_method1("from_dlpack", (slf,))
    }

    fn __repr__(&self) -> String {
        format!(
            "oxccl.Buffer(shape={:?}, dtype={:?}, device={:?})",
            self.shape,
            self.element.name,
            self.device.to_string()
        )
    }
}

/// What a tensor of another library holds.
#[repr(C)]
struct Lent {
    managed: Managed,
    shape: Box<[i64]>,
    _memory: Arc<DeviceBuffer<u8>>,
}

/// Gives a tensor back.
unsafe extern "C" fn delete(managed: *mut Managed) {
    if !managed.is_null() {
        // SAFETY: it is the first member of a `Lent` from a box, and this is called once.
        drop(unsafe { Box::from_raw(managed.cast::<Lent>()) });
    }
}

/// Gives the tensor back of a capsule that nobody has consumed.
unsafe extern "C" fn destroy(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: Python calls this with the capsule, once; one that was consumed has another name.
    unsafe {
        if pyo3::ffi::PyCapsule_IsValid(capsule, DLPACK_NAME.as_ptr()) != 0 {
            delete(pyo3::ffi::PyCapsule_GetPointer(capsule, DLPACK_NAME.as_ptr()).cast());
        }
    }
}
