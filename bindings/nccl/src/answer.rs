//! What a function answers: a code, and the text that `ncclGetLastError` gives.

use crate::abi::Code;
use oxccl::Error;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why something was not done.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) text: String,
}

/// What a function comes to.
pub(crate) type Answer<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Failure {
        Failure::new(Code::InvalidArgument, text)
    }

    pub(crate) fn usage(text: impl Into<String>) -> Failure {
        Failure::new(Code::InvalidUsage, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match &error {
            Error::Unsupported { .. }
            | Error::Forked
            | Error::Suspended
            | Error::Mismatch { .. }
            | Error::Unreceived { .. }
            | Error::CountsDiffer { .. }
            | Error::CapturedApart { .. }
            | Error::ReplayedBeside { .. }
            | Error::ConfigDiffers { .. } => Code::InvalidUsage,
            error if error.is_misuse() => Code::InvalidArgument,
            Error::DeviceLost { .. } | Error::Transport(oxccl_transports::Error::Cuda(_)) => {
                Code::UnhandledCudaError
            }
            error if error.is_fatal() => Code::RemoteError,
            _ => Code::SystemError,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<oxccl_transports::Error> for Failure {
    fn from(error: oxccl_transports::Error) -> Failure {
        Error::from(error).into()
    }
}

/// Locks what a panic may have left locked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last failure's text, with a zero at its end. Whoever reads it while another thread fails
/// may see a part of each, as with NVIDIA's library.
static LAST: [AtomicU8; 4096] = [const { AtomicU8::new(0) }; 4096];
static WRITES: Mutex<()> = Mutex::new(());
/// Its code.
static LAST_CODE: AtomicI32 = AtomicI32::new(0);

fn remember(code: Code, text: &str) {
    let _writes = lock(&WRITES);
    LAST_CODE.store(code as c_int, Ordering::Relaxed);
    let fitting = text.bytes().filter(|byte| *byte != 0).take(LAST.len() - 1);
    let mut end = 0;
    for (to, byte) in LAST.iter().zip(fitting) {
        to.store(byte, Ordering::Relaxed);
        end += 1;
    }
    LAST[end].store(0, Ordering::Relaxed);
}

/// `ncclGetLastError`: it lasts as long as the process.
pub(crate) fn last_error() -> *const c_char {
    LAST.as_ptr().cast()
}

/// Does what a function is for, and answers as C expects.
pub(crate) fn answer(name: &str, act: impl FnOnce() -> Answer) -> c_int {
    let done = catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_| {
        Err(Failure::new(Code::InternalError, "a defect of oxccl: it panicked"))
    });
    match done {
        Ok(()) => Code::Success as c_int,
        Err(failure) => {
            if failure.code != Code::InProgress {
                remember(failure.code, &format!("{name}: {}", failure.text));
                tracing::warn!("{name}: {}", failure.text);
            }
            failure.code as c_int
        }
    }
}

/// `ncclGetErrorString`: of the last failure's code, what that says, since many programs show
/// nothing else.
pub(crate) fn error_string(code: c_int) -> *const c_char {
    if code > 0 && code == LAST_CODE.load(Ordering::Relaxed) {
        return last_error();
    }
    let text = match code {
        0 => c"no error",
        1 => c"unhandled CUDA error",
        2 => c"unhandled system error",
        3 => c"internal error",
        4 => c"invalid argument",
        5 => c"invalid usage",
        6 => c"remote process exited, or another rank has failed",
        7 => c"operation in progress",
        8 => c"timed out",
        _ => c"unknown result code",
    };
    text.as_ptr()
}
