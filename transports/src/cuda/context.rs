//! Primary contexts, which all libraries of a process share.

use std::cell::Cell;
use std::sync::Arc;

use super::driver::call;
use super::{CudaError, Device, Driver, Uuid, beside_captures, sys};

/// A GPU's primary context, kept alive. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    retained: Arc<Retained>,
}

#[derive(Debug)]
struct Retained {
    device: Device,
    raw: sys::CUcontext,
}

// SAFETY: contexts are the process', and the driver lets all threads use them.
unsafe impl Send for Retained {}
// SAFETY: as above.
unsafe impl Sync for Retained {}

impl Context {
    /// The GPU's primary context. It is the one that the CUDA runtime, and so most libraries, use.
    ///
    /// # Errors
    /// The driver's, as when the GPU is in exclusive mode and in use.
    pub fn primary(device: Device) -> Result<Context, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver is loaded, and the pointer valid.
        unsafe { call!(cuDevicePrimaryCtxRetain(&raw mut raw, device.raw)) }?;
        Ok(Context { retained: Arc::new(Retained { device, raw }) })
    }

    /// The context that is current in the calling thread, as another library has set it.
    ///
    /// # Errors
    /// [`CudaError::NoCurrentContext`], [`CudaError::NotPrimary`], and the driver's.
    pub fn current(driver: Driver) -> Result<Context, CudaError> {
        let current = raw_current()?;
        if current.is_null() {
            return Err(CudaError::NoCurrentContext);
        }
        let mut device = 0;
        // SAFETY: the driver is loaded, and the pointer valid.
        unsafe { call!(cuCtxGetDevice(&raw mut device)) }?;
        let context = Context::primary(driver.device(device as usize)?)?;
        if context.retained.raw != current {
            return Err(CudaError::NotPrimary { ordinal: device as usize });
        }
        Ok(context)
    }

    /// Its GPU.
    pub fn device(&self) -> Device {
        self.retained.device
    }

    /// The driver's handle.
    #[doc(hidden)]
    pub fn raw(&self) -> sys::CUcontext {
        self.retained.raw
    }

    /// Does something with this context current, and leaves the thread as it was.
    ///
    /// # Errors
    /// What `act` fails with; the driver's.
    pub fn scope<T, E: From<CudaError>>(&self, act: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        if WITHIN.get() == self.retained.raw {
            return act();
        }
        let is_current = raw_current()? == self.retained.raw;
        if !is_current {
            // SAFETY: the context is retained.
            unsafe { call!(cuCtxPushCurrent_v2(self.retained.raw)) }?;
        }
        let done = act();
        if is_current {
            return done;
        }
        let mut popped = std::ptr::null_mut();
        // SAFETY: it was pushed above, and `act` leaves the stack of contexts as it finds it.
        let left = unsafe { call!(cuCtxPopCurrent_v2(&raw mut popped)) };
        done.and_then(|done| left.map(|()| done).map_err(E::from))
    }

    /// As [`scope`](Self::scope), for something during which nobody else's code runs in this
    /// thread: until its end, scopes of this context do not ask the driver which one is current.
    ///
    /// # Errors
    /// As [`scope`](Self::scope).
    pub fn undisturbed<T, E: From<CudaError>>(
        &self,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.scope(|| {
            let _within = Within { outer: WITHIN.replace(self.retained.raw) };
            act()
        })
    }

    /// Lets this context's kernels reach plain memory of another GPU of the process, as other
    /// libraries allocate it.
    ///
    /// # Errors
    /// [`CudaError::NoPeerAccess`], [`CudaError::NoDevice`] if this process does not see the GPU;
    /// the driver's.
    pub fn reach_plain_memory(&self, of: Uuid) -> Result<(), CudaError> {
        let device = self.device();
        if device.uuid()? == of {
            return Ok(());
        }
        device.check_reach(of)?;
        for other in device.driver().devices()? {
            if other.uuid()? != of {
                continue;
            }
            let peer = Context::primary(other)?;
            // SAFETY: both contexts are retained.
            let enabled =
                self.scope(|| unsafe { call!(cuCtxEnablePeerAccess(peer.retained.raw, 0)) });
            const ALREADY: u32 = sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as u32;
            return match enabled {
                Err(error) if error.code() == Some(ALREADY) => Ok(()),
                other => other,
            };
        }
        Err(CudaError::NoDevice)
    }

    /// Gives something back, also while some stream is captured. What goes wrong then can only be
    /// told.
    #[doc(hidden)]
    pub fn give_back(&self, act: impl FnOnce() -> Result<(), CudaError>) {
        let driver = self.device().driver();
        if let Err(error) = beside_captures(driver, || self.scope(act)) {
            tracing::warn!(%error, "cannot give something back to the CUDA driver");
        }
    }

    /// The GPU's free memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn free_bytes(&self) -> Result<usize, CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver is loaded, the context current, and the pointers valid.
        self.scope(|| unsafe { call!(cuMemGetInfo_v2(&raw mut free, &raw mut total)) })?;
        Ok(free)
    }
}

thread_local! {
    /// The context that is current in this thread without asking.
    static WITHIN: Cell<sys::CUcontext> = const { Cell::new(std::ptr::null_mut()) };
}

/// Puts back what was so before, also after a panic.
struct Within {
    outer: sys::CUcontext,
}

impl Drop for Within {
    fn drop(&mut self) {
        WITHIN.set(self.outer);
    }
}

fn raw_current() -> Result<sys::CUcontext, CudaError> {
    let mut current = std::ptr::null_mut();
    // SAFETY: a context, or a driver, is at hand, so the driver is loaded; the pointer is valid.
    unsafe { call!(cuCtxGetCurrent(&raw mut current)) }?;
    Ok(current)
}

impl Drop for Retained {
    fn drop(&mut self) {
        // SAFETY: retained once, and released once.
        if let Err(error) = unsafe { call!(cuDevicePrimaryCtxRelease_v2(self.device.raw)) } {
            tracing::warn!(%error, "cannot release a primary context");
        }
    }
}
