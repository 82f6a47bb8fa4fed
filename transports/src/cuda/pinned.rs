//! Host memory that GPUs reach.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::driver::call;
use super::{Context, CudaError};
use crate::Region;

/// Reachable in all contexts, mapped for devices.
const FLAGS: u32 = 1 | 2;

/// Pinned host memory of this process.
#[derive(Debug)]
pub struct PinnedMemory {
    context: Context,
    at: *mut c_void,
    device_at: u64,
    len_bytes: usize,
}

// SAFETY: plain memory, reached through raw pointers; who uses it when is its users' business.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates zeros.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], and the driver's.
    pub fn allocate(context: &Context, len_bytes: usize) -> Result<PinnedMemory, CudaError> {
        let len_bytes = len_bytes.max(1);
        let mut at = std::ptr::null_mut();
        context
            // SAFETY: the driver is loaded, the context current, and the pointer valid.
            .scope(|| unsafe { call!(cuMemHostAlloc(&raw mut at, len_bytes, FLAGS)) })
            .map_err(|error: CudaError| error.allocating("pinned memory", len_bytes, None))?;
        let mut memory = PinnedMemory { context: context.clone(), at, device_at: 0, len_bytes };
        memory.device_at = device_address(context, at)?;
        // SAFETY: just allocated, of this length, and nobody else knows it.
        unsafe { at.cast::<u8>().write_bytes(0, len_bytes) };
        Ok(memory)
    }

    /// Where the host finds it. Valid until this is dropped.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.cast()
    }

    /// Where GPUs find it.
    pub fn device_ptr(&self) -> *mut u8 {
        self.device_at as *mut u8
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated by this object, freed once.
        self.context.give_back(|| unsafe { call!(cuMemFreeHost(self.at)) });
    }
}

/// A host region that GPUs reach besides.
#[derive(Debug)]
pub struct RegisteredRegion {
    registration: Arc<Registration>,
    device_at: u64,
}

/// What the driver knows of a region: once in a process, whose contexts all reach it.
#[derive(Debug)]
struct Registration {
    context: Context,
    region: Arc<Region>,
}

/// The registrations of this process, by where they begin.
static REGISTERED: Mutex<BTreeMap<usize, Weak<Registration>>> = Mutex::new(BTreeMap::new());

fn registered() -> MutexGuard<'static, BTreeMap<usize, Weak<Registration>>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RegisteredRegion {
    /// Registers the first bytes of a region, whole pages, which reserves them. One that another
    /// rank of this process has registered, over as many bytes, is shared with it.
    ///
    /// # Errors
    /// The driver's.
    pub fn register(
        context: &Context,
        region: Arc<Region>,
        len_bytes: usize,
    ) -> Result<RegisteredRegion, CudaError> {
        assert!(len_bytes <= region.len_bytes());
        let at = region.as_ptr();
        let mut all = registered();
        let known = all.get(&(at as usize)).and_then(Weak::upgrade);
        let registration = match known {
            Some(known) => known,
            None => {
                let registered = context
                    // SAFETY: the driver is loaded and the context current; the region is mapped,
                    // and kept so.
                    .scope(|| unsafe { call!(cuMemHostRegister_v2(at.cast(), len_bytes, FLAGS)) });
                registered.map_err(|error: CudaError| {
                    error.allocating("pinned memory", len_bytes, None)
                })?;
                let registration = Arc::new(Registration { context: context.clone(), region });
                all.insert(at as usize, Arc::downgrade(&registration));
                registration
            }
        };
        drop(all);
        let mut shared = RegisteredRegion { registration, device_at: 0 };
        shared.device_at = device_address(context, at.cast())?;
        Ok(shared)
    }

    /// The region.
    pub fn region(&self) -> &Arc<Region> {
        &self.registration.region
    }

    /// Where GPUs find its start.
    pub fn device_ptr(&self) -> *mut u8 {
        self.device_at as *mut u8
    }
}

impl Drop for RegisteredRegion {
    fn drop(&mut self) {
        // Nobody finds it meanwhile.
        let mut all = registered();
        if Arc::strong_count(&self.registration) > 1 {
            return;
        }
        let at = self.region().as_ptr();
        // SAFETY: registered once, and given back by the last that has it, before the region goes.
        self.registration.context.give_back(|| unsafe { call!(cuMemHostUnregister(at.cast())) });
        all.remove(&(at as usize));
    }
}

fn device_address(context: &Context, at: *mut c_void) -> Result<u64, CudaError> {
    let mut device_at = 0;
    // SAFETY: the driver is loaded, the context current, and the memory mapped for devices.
    context.scope(|| unsafe { call!(cuMemHostGetDevicePointer_v2(&raw mut device_at, at, 0)) })?;
    Ok(device_at)
}
