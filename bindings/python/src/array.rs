//! Arrays of whatever library, as memory.

use crate::buffer::Buffer;
use crate::element::Element;
use crate::error::misuse;
use oxccl::Memory;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// An array that a call is given.
pub(crate) struct Array {
    pub(crate) element: Element,
    /// The array's elements, counted as the runtime's.
    pub(crate) memory: Memory,
    pub(crate) is_writable: bool,
    pub(crate) is_gpu: bool,
    /// What keeps the memory.
    pub(crate) keep: Py<PyAny>,
}

/// What arrays are asked for, in this order.
const KINDS: &str = "a tensor of torch, an oxccl.Buffer, or an object with \
                     __cuda_array_interface__, __array_interface__ or __dlpack__";

impl Array {
    fn new(
        keep: Py<PyAny>,
        element: Element,
        address: usize,
        count: usize,
        is_gpu: bool,
    ) -> PyResult<Array> {
        let too_long = || misuse("an array has more bytes than memory can have");
        let count = count.checked_mul(element.lanes).ok_or_else(too_long)?;
        let memory = Memory { address: std::ptr::without_provenance_mut(address), count };
        Ok(Array { element, memory, is_writable: true, is_gpu, keep })
    }

    /// Of any object that has elements in one piece.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Array> {
        if let Ok(buffer) = object.cast::<Buffer>() {
            let (element, address, count, is_gpu) = buffer.get().parts();
            return Array::new(object.clone().unbind(), element, address, count, is_gpu);
        }
        let py = object.py();
        if let Some(data_ptr) = object.getattr_opt(pyo3::intern!(py, "data_ptr"))? {
            return Array::of_tensor(object, &data_ptr);
        }
        let names = [
            (pyo3::intern!(py, "__cuda_array_interface__"), true),
            (pyo3::intern!(py, "__array_interface__"), false),
        ];
        for (name, is_gpu) in names {
            if let Some(interface) = object.getattr_opt(name)? {
                return Array::of_interface(object, interface.cast::<PyDict>()?, is_gpu);
            }
        }
        match object.getattr_opt(pyo3::intern!(py, "__dlpack__"))? {
            Some(dlpack) => Array::of_dlpack(&dlpack.call0()?),
            None => {
                let name = object.get_type().name()?;
                Err(PyTypeError::new_err(format!("{name} is no array: what counts is {KINDS}")))
            }
        }
    }

    fn of_tensor(object: &Bound<'_, PyAny>, data_ptr: &Bound<'_, PyAny>) -> PyResult<Array> {
        let py = object.py();
        let dtype = object.getattr(pyo3::intern!(py, "dtype"))?;
        let element = tensor_element(&dtype)?;
        let is = |name| -> PyResult<bool> { object.getattr(name)?.extract() };
        let is_gpu = !is(pyo3::intern!(py, "is_cpu"))?;
        if is_gpu && !is(pyo3::intern!(py, "is_cuda"))? {
            let device = object.getattr(pyo3::intern!(py, "device"))?;
            return Err(misuse(format!("a tensor on {device} cannot be communicated")));
        }
        let call = |name| object.call_method0(name);
        if !call(pyo3::intern!(py, "is_contiguous"))?.extract::<bool>()? {
            return Err(misuse("a tensor must be contiguous: call contiguous() first"));
        }
        let count = call(pyo3::intern!(py, "numel"))?.extract()?;
        let address = data_ptr.call0()?.extract()?;
        Array::new(object.clone().unbind(), element, address, count, is_gpu)
    }

    fn of_interface(
        object: &Bound<'_, PyAny>,
        interface: &Bound<'_, PyDict>,
        is_gpu: bool,
    ) -> PyResult<Array> {
        let missing = |name: &str| misuse(format!("the array's interface has no {name}"));
        let get = |name: &str| interface.get_item(name)?.ok_or_else(|| missing(name));
        let (shape, code) = (get("shape")?.extract::<Vec<usize>>()?, get("typestr")?);
        let code: String = code.extract()?;
        let element = if code.contains('V') {
            // A type that another package has added to numpy, such as bfloat16.
            Element::named(&object.getattr("dtype")?.getattr("name")?.extract::<String>()?)?
        } else {
            Element::of_numpy(&code)?
        };
        let strides = interface.get_item("strides")?.filter(|strides| !strides.is_none());
        if let Some(strides) = strides {
            check_strides(&shape, &strides.extract::<Vec<isize>>()?, element.len_bytes())?;
        }
        let data = get("data")?;
        let (address, is_read_only): (usize, bool) = data.cast::<PyTuple>()?.extract()?;
        let count = product(&shape)?;
        let array = Array::new(object.clone().unbind(), element, address, count, is_gpu)?;
        Ok(Array { is_writable: !is_read_only, ..array })
    }

    /// Of a capsule, which is not consumed: it keeps the memory.
    fn of_dlpack(capsule: &Bound<'_, PyAny>) -> PyResult<Array> {
        // SAFETY: the object is alive; another than such a capsule is an exception.
        let tensor = unsafe {
            pyo3::ffi::PyCapsule_GetPointer(capsule.as_ptr(), DLPACK_NAME.as_ptr())
                .cast::<Managed>()
        };
        if tensor.is_null() {
            return Err(PyErr::fetch(capsule.py()));
        }
        // SAFETY: a capsule of this name holds such a tensor, as long as it is not consumed.
        let tensor = unsafe { &(*tensor).tensor };
        if tensor.lanes != 1 {
            return Err(misuse("an array of vectors cannot be communicated"));
        }
        let element = Element::of_dlpack(tensor.code, tensor.bits)?;
        let is_gpu = match tensor.device_type {
            DLPACK_CPU | DLPACK_CUDA_HOST => false,
            DLPACK_CUDA | DLPACK_CUDA_MANAGED => true,
            other => return Err(misuse(format!("memory of DLPack's device type {other}"))),
        };
        let dimensions = usize::try_from(tensor.dimensions).unwrap_or(0);
        let list = |pointer: *const i64| match dimensions {
            0 => Vec::new(),
            // SAFETY: the tensor has as many of each.
            _ => unsafe { std::slice::from_raw_parts(pointer, dimensions) }.to_vec(),
        };
        let negative = |_| misuse("an array has a negative dimension");
        let shape = list(tensor.shape).into_iter().map(usize::try_from);
        let shape: Vec<usize> = shape.collect::<Result<_, _>>().map_err(negative)?;
        if !tensor.strides.is_null() {
            let strides: Vec<_> =
                list(tensor.strides).iter().map(|stride| *stride as isize).collect();
            check_strides(&shape, &strides, 1)?;
        }
        let offset = usize::try_from(tensor.byte_offset).map_err(|_| misuse("DLPack offset"))?;
        let address = tensor.data.addr().wrapping_add(offset);
        Array::new(capsule.clone().unbind(), element, address, product(&shape)?, is_gpu)
    }
}

/// The element type of a tensor. torch has one object for each.
fn tensor_element(dtype: &Bound<'_, PyAny>) -> PyResult<Element> {
    // So few that to look at each is quicker than to hash.
    static KNOWN: Mutex<Vec<(usize, Element)>> = Mutex::new(Vec::new());
    let address = dtype.as_ptr().addr();
    let lock = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = lock().iter().find(|(known, _)| *known == address).map(|(_, element)| *element);
    if let Some(element) = known {
        return Ok(element);
    }
    let element = Element::named(&dtype.str()?.to_string())?;
    // It stays alive, so no other object gets its address.
    std::mem::forget(dtype.clone());
    lock().push((address, element));
    Ok(element)
}

/// How many elements there are.
pub(crate) fn product(shape: &[usize]) -> PyResult<usize> {
    let product = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    product.ok_or_else(|| misuse("an array has more elements than memory can have"))
}

/// Fails for elements that are not in one piece, the last dimension's beside each other.
fn check_strides(shape: &[usize], strides: &[isize], unit: usize) -> PyResult<()> {
    if shape.contains(&0) {
        return Ok(());
    }
    let mut expected = unit;
    for (size, stride) in shape.iter().zip(strides).rev() {
        if *size != 1 && isize::try_from(expected) != Ok(*stride) {
            return Err(misuse("an array must be contiguous (C order): copy it first"));
        }
        expected = expected.saturating_mul(*size);
    }
    Ok(())
}

/// DLPack's name of a capsule that nobody has consumed.
pub(crate) const DLPACK_NAME: &std::ffi::CStr = c"dltensor";
pub(crate) const DLPACK_CPU: c_int = 1;
pub(crate) const DLPACK_CUDA: c_int = 2;
const DLPACK_CUDA_HOST: c_int = 3;
const DLPACK_CUDA_MANAGED: c_int = 13;

/// `DLTensor`.
#[repr(C)]
pub(crate) struct Tensor {
    pub(crate) data: *mut c_void,
    pub(crate) device_type: c_int,
    pub(crate) device: c_int,
    pub(crate) dimensions: c_int,
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
pub(crate) struct Managed {
    pub(crate) tensor: Tensor,
    pub(crate) context: *mut c_void,
    pub(crate) delete: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// The name of a capsule, as C has it.
pub(crate) fn dlpack_name() -> *const c_char {
    DLPACK_NAME.as_ptr()
}
