//! Blocks of the CUDA kernels from their own source, thread by thread: see emulator/block.cpp.

use std::ffi::c_void;

/// Runs a block of a kernel with this parameter, which has so many bytes of dynamic shared memory,
/// to its end, as one of a launch on a device.
///
/// # Safety
/// As for a launch of it.
#[cfg(emulator)]
pub(crate) unsafe fn run(
    kernel: &str,
    parameter: *const c_void,
    block: u32,
    shared_bytes: u32,
    device: u32,
    launch: u64,
) {
    use std::ffi::{CString, c_char};
    use std::sync::atomic::{AtomicU64, Ordering};

    unsafe extern "C" {
        fn oxccl_emulate(
            kernel: *const c_char,
            parameter: *const c_void,
            block: u32,
            shared_bytes: u32,
            seed: u64,
            device: u32,
            launch: u64,
        ) -> bool;
    }
    // Each block has other turns than those before it.
    static SEED: AtomicU64 = AtomicU64::new(0);
    let seed = SEED.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    let name = CString::new(kernel).unwrap_or_default();
    // SAFETY: a name with a zero at its end; the rest is the caller's promise.
    let found = unsafe {
        crate::order::emulator().unwrap_or(oxccl_emulate)(
            name.as_ptr(),
            parameter,
            block,
            shared_bytes,
            seed ^ u64::from(std::process::id()) << 32,
            device,
            launch,
        )
    };
    if !found {
        // Who waits for this launch would do so for ever.
        eprintln!("stand-in: there is no kernel {kernel}");
        std::process::abort();
    }
}

/// Runs a block of a kernel to its end.
///
/// # Safety
/// None: there is no emulator here.
#[cfg(not(emulator))]
pub(crate) unsafe fn run(_: &str, _: *const c_void, _: u32, _: u32, _: u32, _: u64) {
    panic!("OXCCL_STAND_IN_EMULATE: this build has no emulator");
}

/// The length of the one parameter of a kernel that is not oxccl's own, if there is one of this
/// name.
#[cfg(emulator)]
pub(crate) fn guest(kernel: &str) -> Option<usize> {
    use std::ffi::{CString, c_char};

    unsafe extern "C" {
        fn oxccl_emulator_guest(kernel: *const c_char) -> u32;
    }
    let name = CString::new(kernel).ok()?;
    // SAFETY: a name with a zero at its end.
    let len_bytes = unsafe { oxccl_emulator_guest(name.as_ptr()) };
    (len_bytes > 0).then_some(len_bytes as usize)
}

/// None: there is no emulator here.
#[cfg(not(emulator))]
pub(crate) fn guest(_: &str) -> Option<usize> {
    None
}

/// The bytes that loads from all members of a team have given so far.
#[cfg(emulator)]
pub(crate) fn switched_bytes() -> u64 {
    unsafe extern "C" {
        safe fn oxccl_emulator_switched_bytes() -> u64;
    }
    oxccl_emulator_switched_bytes()
}

/// None: there is no emulator here.
#[cfg(not(emulator))]
pub(crate) fn switched_bytes() -> u64 {
    0
}
