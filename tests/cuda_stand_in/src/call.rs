//! What every driver call goes through: failures on demand, and the rule that `cuInit` comes first.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cudarc::driver::sys::CUresult;

use crate::registry::lock;
use crate::settings::settings;

pub(crate) type Answer<T = ()> = Result<T, CUresult>;

/// Defines functions of the driver API. A body has the type [`Answer`].
macro_rules! driver_calls {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        /// As in the CUDA driver API.
        ///
        /// # Safety
        /// As in the CUDA driver API: pointers are valid for what is read or written through them.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments, unused_unsafe)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> cudarc::driver::sys::CUresult {
            $crate::call::answer(stringify!($name), || {
                // SAFETY: the caller keeps the driver API's contract; what can be checked, the body
                // checks.
                unsafe { $body }
            })
        }
    )*};
}
pub(crate) use driver_calls;

static INITIALISED: AtomicBool = AtomicBool::new(false);
static COUNTED: AtomicU64 = AtomicU64::new(0);
static PLAN: Mutex<Option<Plan>> = Mutex::new(None);

/// A failure to come.
struct Plan {
    function: String,
    /// How many calls until then.
    left: u64,
    code: Option<CUresult>,
}

/// They undo; what fails to be given back is lost, so `*` leaves them out.
const GIVING_BACK: [&str; 18] = [
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuMemUnmap",
    "cuMulticastUnbind",
    "cuMemRelease",
    "cuMemAddressFree",
    "cuIpcCloseMemHandle",
    "cuStreamDestroy_v2",
    "cuEventDestroy_v2",
    "cuModuleUnload",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxDestroy_v2",
    "cuCtxPopCurrent_v2",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// A planned failure of these comes behind the wait: what a wait on a GPU fails with has also ended
/// what was waited for.
const WAITING: [&str; 3] = ["cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize"];

/// They work before `cuInit`.
const EARLY: [&str; 4] = ["cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString"];

pub(crate) fn answer(name: &'static str, body: impl FnOnce() -> Answer) -> CUresult {
    let counted = !GIVING_BACK.contains(&name);
    COUNTED.fetch_add(u64::from(counted), Ordering::Relaxed);
    let planned = planned(name, counted);
    if let Some(code) = planned.filter(|_| !WAITING.contains(&name)) {
        return code;
    }
    if !INITIALISED.load(Ordering::Acquire) && !EARLY.contains(&name) {
        return CUresult::CUDA_ERROR_NOT_INITIALIZED;
    }
    let code = body().err().unwrap_or(CUresult::CUDA_SUCCESS);
    planned.unwrap_or(code)
}

pub(crate) fn set_initialised() {
    INITIALISED.store(true, Ordering::Release);
}

/// Calls so far, but for those that give back.
pub(crate) fn counted() -> u64 {
    COUNTED.load(Ordering::Relaxed)
}

/// Plans a failure; see [`crate`] for the text. An empty one cancels it.
pub(crate) fn plan(text: &str) -> Result<(), String> {
    if text.is_empty() {
        *lock(&PLAN) = None;
        return Ok(());
    }
    let wrong = || format!("{text:?} is not FUNCTION:N or FUNCTION:N:CODE");
    let mut parts = text.split(':');
    let function = parts.next().ok_or_else(wrong)?.to_owned();
    let left = parts.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0).ok_or_else(wrong)?;
    let code = match parts.next() {
        None => None,
        Some(code) => Some(code.parse().ok().and_then(named).ok_or_else(wrong)?),
    };
    *lock(&PLAN) = Some(Plan { function, left, code });
    Ok(())
}

fn planned(name: &'static str, counted: bool) -> Option<CUresult> {
    static FROM_ENVIRONMENT: AtomicBool = AtomicBool::new(false);
    if !FROM_ENVIRONMENT.swap(true, Ordering::AcqRel)
        && let Some(text) = &settings().fail
    {
        plan(text).unwrap_or_else(|error| panic!("OXCCL_STAND_IN_FAIL: {error}"));
    }
    let mut plan = lock(&PLAN);
    let next = plan.as_mut()?;
    if next.function != name && !(next.function == "*" && counted) {
        return None;
    }
    next.left -= 1;
    if next.left > 0 {
        return None;
    }
    let code = next.code.unwrap_or_else(|| usual(name));
    *plan = None;
    Some(code)
}

/// What the function fails with where nothing else is asked for.
fn usual(name: &str) -> CUresult {
    let allocates = ["cuMemAlloc", "cuMemCreate", "cuMemHost", "cuMemAddressReserve", "cuMemMap"];
    if allocates.iter().any(|start| name.starts_with(start)) {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY
    } else {
        CUresult::CUDA_ERROR_UNKNOWN
    }
}

/// The codes that can be asked for, and their names.
pub(crate) fn codes() -> &'static BTreeMap<u32, (CUresult, &'static std::ffi::CStr)> {
    macro_rules! codes {
        ($($name:ident),+ $(,)?) => {
            BTreeMap::from([$((
                CUresult::$name as u32,
                (
                    CUresult::$name,
                    std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes())
                        .unwrap_or(c"CUDA_ERROR_UNKNOWN"),
                ),
            )),+])
        };
    }
    static CODES: std::sync::OnceLock<BTreeMap<u32, (CUresult, &'static std::ffi::CStr)>> =
        std::sync::OnceLock::new();
    CODES.get_or_init(|| {
        codes!(
            CUDA_SUCCESS,
            CUDA_ERROR_INVALID_VALUE,
            CUDA_ERROR_OUT_OF_MEMORY,
            CUDA_ERROR_NOT_INITIALIZED,
            CUDA_ERROR_STUB_LIBRARY,
            CUDA_ERROR_NO_DEVICE,
            CUDA_ERROR_INVALID_DEVICE,
            CUDA_ERROR_INVALID_IMAGE,
            CUDA_ERROR_INVALID_CONTEXT,
            CUDA_ERROR_MAP_FAILED,
            CUDA_ERROR_NO_BINARY_FOR_GPU,
            CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
            CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            CUDA_ERROR_OPERATING_SYSTEM,
            CUDA_ERROR_INVALID_HANDLE,
            CUDA_ERROR_NOT_FOUND,
            CUDA_ERROR_NOT_READY,
            CUDA_ERROR_ILLEGAL_ADDRESS,
            CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
            CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
            CUDA_ERROR_LAUNCH_FAILED,
            CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
            CUDA_ERROR_NOT_PERMITTED,
            CUDA_ERROR_NOT_SUPPORTED,
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            CUDA_ERROR_STREAM_CAPTURE_MERGE,
            CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
            CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
            CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            CUDA_ERROR_CAPTURED_EVENT,
            CUDA_ERROR_UNKNOWN,
        )
    })
}

fn named(code: u32) -> Option<CUresult> {
    codes().get(&code).map(|(code, _)| *code).filter(|code| *code != CUresult::CUDA_SUCCESS)
}

/// Writes an answer through a pointer that the API does not allow to be null.
///
/// # Safety
/// `out` is null or valid for a write.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Answer {
    if out.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: by this function's contract.
    unsafe { out.write(value) };
    Ok(())
}
