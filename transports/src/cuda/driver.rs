//! Whether there is a driver, and the one way to call it.

use std::ffi::CStr;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use super::sys::{self, CUresult};
use super::{CudaError, Device};

/// A version of CUDA, as drivers have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// The driver, loaded and initialised. Whoever has one may call it.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    version: Version,
}

/// Calls a function of the driver: `call!(cuMemFree_v2(address))`. In an unsafe block, under the
/// function's own contract, and only once [`Driver::load`] has succeeded. A function that the
/// driver lacks is an error.
#[doc(hidden)]
#[macro_export]
macro_rules! cuda_call {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        static PRESENT: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        if *PRESENT.get_or_init(|| $crate::cuda::has(stringify!($function))) {
            $crate::cuda::check(
                stringify!($function),
                $crate::cuda::sys::$function($($argument),*),
            )
        } else {
            Err($crate::cuda::CudaError::MissingFunction { function: stringify!($function) })
        }
    }};
}
pub(super) use cuda_call as call;

impl Driver {
    /// The oldest driver that has all that is used, whatever the kernels need besides.
    pub const OLDEST: Version = Version(12010);

    /// Loads the driver. Doing so again costs little.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], [`CudaError::DriverTooOld`], [`CudaError::NoDevice`], and what else
    /// the driver's initialisation may answer.
    pub fn load() -> Result<Driver, CudaError> {
        static PRESENT: AtomicBool = AtomicBool::new(false);
        // SAFETY: loading a driver runs its initialisers, which do nothing before cuInit.
        if !PRESENT.load(Ordering::Acquire) && !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        PRESENT.store(true, Ordering::Release);
        let mut version = 0;
        // SAFETY: the library is there, and the pointer valid.
        unsafe { call!(cuDriverGetVersion(&raw mut version)) }.map_err(absent)?;
        let found = Version(version.try_into().unwrap_or(0));
        if found < Driver::OLDEST {
            return Err(CudaError::DriverTooOld { found, needed: Driver::OLDEST });
        }
        // SAFETY: the library is there.
        unsafe { call!(cuInit(0)) }.map_err(absent)?;
        Ok(Driver { version: found })
    }

    /// The newest version of CUDA that it serves.
    pub fn version(&self) -> Version {
        self.version
    }

    /// How many GPUs this process sees.
    ///
    /// # Errors
    /// The driver's.
    pub fn count(&self) -> Result<usize, CudaError> {
        let mut count = 0;
        // SAFETY: the driver is loaded, and the pointer valid.
        unsafe { call!(cuDeviceGetCount(&raw mut count)) }?;
        Ok(count.try_into().unwrap_or(0))
    }

    /// A GPU, by its number in this process.
    ///
    /// # Errors
    /// [`CudaError::NoDevice`], [`CudaError::NoSuchDevice`].
    pub fn device(&self, ordinal: usize) -> Result<Device, CudaError> {
        match self.count()? {
            0 => Err(CudaError::NoDevice),
            count if ordinal < count => Device::new(*self, ordinal),
            count => Err(CudaError::NoSuchDevice { ordinal, count }),
        }
    }

    /// All of them.
    ///
    /// # Errors
    /// The driver's.
    pub fn devices(&self) -> Result<Vec<Device>, CudaError> {
        (0..self.count()?).map(|ordinal| Device::new(*self, ordinal)).collect()
    }
}

/// Answers that say there is no driver worth the name, or no GPU.
fn absent(error: CudaError) -> CudaError {
    const STUB: u32 = CUresult::CUDA_ERROR_STUB_LIBRARY as u32;
    const NO_DEVICE: u32 = CUresult::CUDA_ERROR_NO_DEVICE as u32;
    match error.code() {
        Some(STUB) => CudaError::StubDriver,
        Some(NO_DEVICE) => CudaError::NoDevice,
        _ => error,
    }
}

/// Whether the driver has a function. The driver must be there.
#[doc(hidden)]
pub fn has(function: &str) -> bool {
    // SAFETY: whoever calls has seen that the library is present. The symbol is only looked for.
    unsafe { sys::culib().get::<*const ()>(function.as_bytes()).is_ok() }
}

/// The driver's answer as a result.
#[doc(hidden)]
pub fn check(function: &'static str, answer: CUresult) -> Result<(), CudaError> {
    if answer == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failed(function, answer)) }
}

#[cold]
fn failed(function: &'static str, answer: CUresult) -> CudaError {
    use CUresult::*;
    let code = answer as u32;
    if (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as u32..=CUDA_ERROR_CAPTURED_EVENT as u32)
        .contains(&code)
    {
        return CudaError::Capturing { function, code };
    }
    let text = |of: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the driver has just answered, so it is there; these two functions are as old as
        // it.
        if unsafe { of(answer, &raw mut text) } != CUDA_SUCCESS || text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: the driver's texts end with a zero and live as long as it.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    let (name, text) = (text(sys::cuGetErrorName), text(sys::cuGetErrorString));
    CudaError::Driver { function, code, name, text }
}
