//! The heap's allocator for allocators in C++, which call it by addresses.

use oxccl::HeapAllocator;
use pyo3::prelude::*;
use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr::NonNull;

/// What tensors are aligned to.
const ALIGN: usize = 64;

/// Takes memory: null where there is none.
unsafe extern "C" fn take(allocator: *const HeapAllocator, bytes: usize) -> *mut c_void {
    let Ok(layout) = Layout::from_size_align(bytes, ALIGN) else { return std::ptr::null_mut() };
    // SAFETY: it is one that was leaked.
    let taken = unsafe { &*allocator }.allocate(layout);
    taken.map_or(std::ptr::null_mut(), |at| at.as_ptr().cast())
}

/// Gives memory back; false: it is not this allocator's.
unsafe extern "C" fn give(allocator: *const HeapAllocator, at: *mut c_void) -> bool {
    // SAFETY: it is one that was leaked.
    let allocator = unsafe { &*allocator };
    let Some(at) = NonNull::new(at.cast()).filter(|at| allocator.owns(at.as_ptr())) else {
        return false;
    };
    // SAFETY: it has come from there, and its owner has no use for it any longer.
    unsafe { allocator.deallocate(at) };
    true
}

/// Memory of a communicator's heap for allocators of other libraries; it lasts as long as the
/// process.
#[pyclass(frozen, module = "oxccl")]
pub(crate) struct Allocator(&'static HeapAllocator);

impl Allocator {
    pub(crate) fn new(comm: &oxccl::Communicator) -> Result<Allocator, oxccl::Error> {
        Ok(Allocator(Box::leak(Box::new(comm.heap_allocator()?))))
    }
}

#[pymethods]
impl Allocator {
    /// The addresses of `void *take(void *heap, size_t bytes)`, null where there is none, and of
    /// `bool give(void *heap, void *at)`, false for memory of somebody else; and `heap`.
    #[getter]
    fn hooks(&self) -> (usize, usize, usize) {
        (take as *const () as usize, give as *const () as usize, std::ptr::from_ref(self.0).addr())
    }

    /// Bytes that are used by somebody.
    #[getter]
    fn used_bytes(&self) -> usize {
        self.0.usage().used_bytes
    }

    /// Bytes that are kept for the next that need as much.
    #[getter]
    fn kept_bytes(&self) -> usize {
        self.0.usage().kept_bytes
    }

    /// Gives the machine what is kept.
    fn trim(&self, py: Python<'_>) {
        py.detach(|| self.0.trim());
    }
}
