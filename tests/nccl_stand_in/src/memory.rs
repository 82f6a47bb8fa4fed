//! `ncclMemAlloc`: the driver's memory, remembered.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;

use cudarc::driver::sys;

use crate::answer::{Answer, Code, Refused, UNHANDLED_CUDA_ERROR, answer, lock};

/// Lengths by address.
static ALLOCATED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// Whether a range lies within one allocation of `ncclMemAlloc`.
pub(crate) fn holds(at: usize, len: usize) -> bool {
    let allocated = lock(&ALLOCATED);
    let below = allocated.range(..=at).next_back();
    below.is_some_and(|(start, whole)| at + len <= start + whole)
}

pub(crate) fn driver(code: sys::CUresult) -> Answer {
    match code {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        _ => Err(Refused(UNHANDLED_CUDA_ERROR, "the driver refused it")),
    }
}

/// As in NCCL.
///
/// # Safety
/// `out` is valid for a write.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclMemAlloc(out: *mut *mut c_void, len: usize) -> Code {
    answer("ncclMemAlloc", || {
        let mut at = 0;
        // SAFETY: the caller has a context, so the driver is loaded; the pointer is valid.
        driver(unsafe { sys::cuMemAlloc_v2(&raw mut at, len) })?;
        lock(&ALLOCATED).insert(at as usize, len);
        // SAFETY: by this function's contract.
        unsafe { out.write(at as *mut c_void) };
        Ok(())
    })
}
