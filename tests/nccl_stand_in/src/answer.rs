//! What functions answer: codes, the text of the last error, and failures on demand.

use std::ffi::{CString, c_char, c_int};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// `ncclResult_t`.
pub(crate) type Code = c_int;

pub(crate) const UNHANDLED_CUDA_ERROR: Code = 1;
pub(crate) const SYSTEM_ERROR: Code = 2;
const INTERNAL_ERROR: Code = 3;
pub(crate) const INVALID_ARGUMENT: Code = 4;
pub(crate) const INVALID_USAGE: Code = 5;

/// A failed answer with its text.
pub(crate) struct Refused(pub(crate) Code, pub(crate) &'static str);

/// What a function's body comes to.
pub(crate) type Answer = Result<(), Refused>;

static LAST: Mutex<Option<CString>> = Mutex::new(None);

/// Turns what a body comes to into a code, unless the call is to fail.
pub(crate) fn answer(function: &str, body: impl FnOnce() -> Answer) -> Code {
    let done = if is_to_fail(function) {
        Err(Refused(INTERNAL_ERROR, "it failed on demand"))
    } else {
        body()
    };
    match done {
        Ok(()) => 0,
        Err(Refused(code, text)) => {
            *lock(&LAST) = CString::new(text).ok();
            code
        }
    }
}

fn is_to_fail(function: &str) -> bool {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let Ok(plan) = std::env::var("OXCCL_NCCL_STAND_IN_FAIL") else { return false };
    let Some((name, number)) = plan.split_once(':') else {
        panic!("OXCCL_NCCL_STAND_IN_FAIL={plan} is not FUNCTION:N");
    };
    name == function && number == (CALLS.fetch_add(1, Ordering::Relaxed) + 1).to_string()
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|broken| broken.into_inner())
}

/// As in NCCL.
#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: Code) -> *const c_char {
    let text = match code {
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error",
        SYSTEM_ERROR => c"unhandled system error",
        INTERNAL_ERROR => c"internal error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// As in NCCL. The text lives until the next error.
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_comm: *mut std::ffi::c_void) -> *const c_char {
    lock(&LAST).as_ref().map_or(std::ptr::null(), |text| text.as_ptr())
}

/// As in NCCL.
///
/// # Safety
/// `version` is valid for a write.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> Code {
    let wanted = std::env::var("OXCCL_NCCL_STAND_IN_VERSION");
    let number = wanted.map_or(Ok(23_007), |text| text.parse());
    // SAFETY: by this function's contract.
    answer("ncclGetVersion", || match number {
        Ok(number) => {
            // SAFETY: by this function's contract.
            unsafe { version.write(number) };
            Ok(())
        }
        Err(_) => Err(Refused(INVALID_ARGUMENT, "OXCCL_NCCL_STAND_IN_VERSION is not a number")),
    })
}
