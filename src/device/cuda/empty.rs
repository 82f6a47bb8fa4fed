//! A kernel that does nothing: what a launch costs without any work, the floor of what small calls
//! can take.

use super::{Stream, call};
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Context, sys};

/// For GPUs of compute capability 8.0 and newer; the driver compiles it.
const PTX: &std::ffi::CStr = c".version 7.0
.target sm_80
.address_size 64
.visible .entry oxccl_empty()
{
    ret;
}
";

/// A kernel without parameters that does nothing.
#[derive(Debug)]
pub struct EmptyKernel {
    context: Context,
    module: sys::CUmodule,
    function: sys::CUfunction,
}

// SAFETY: handles, which the driver lets all threads use.
unsafe impl Send for EmptyKernel {}
// SAFETY: as above.
unsafe impl Sync for EmptyKernel {}

impl EmptyKernel {
    /// Compiles and loads it.
    ///
    /// # Errors
    /// The driver's.
    pub fn load(context: &Context) -> Result<EmptyKernel, CudaError> {
        let mut module = std::ptr::null_mut();
        context.scope(|| {
            // SAFETY: the driver is loaded, the context current, the pointer valid, and the text
            // ends with a zero.
            unsafe { call!(cuModuleLoadData(&raw mut module, PTX.as_ptr().cast())) }
        })?;
        let function = std::ptr::null_mut();
        let mut loaded = EmptyKernel { context: context.clone(), module, function };
        // SAFETY: the module is loaded, the context current, and the name ends with a zero.
        context.scope(|| unsafe {
            call!(cuModuleGetFunction(&raw mut loaded.function, module, c"oxccl_empty".as_ptr()))
        })?;
        Ok(loaded)
    }

    /// Puts it into a stream, as one thread.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        let (raw, none) = (stream.raw(), std::ptr::null_mut());
        // SAFETY: a kernel without parameters, which touches no memory; the stream lives.
        stream.context().scope(|| unsafe {
            call!(cuLaunchKernel(
                self.function,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                raw,
                std::ptr::null_mut(),
                none
            ))
        })
    }
}

impl Drop for EmptyKernel {
    fn drop(&mut self) {
        // SAFETY: loaded by this object, given back once. The driver lets what runs end.
        self.context.give_back(|| unsafe { call!(cuModuleUnload(self.module)) });
    }
}
