//! Blocks of the CUDA kernels from their own source, thread by thread: see emulator/block.cpp.

use oxccl_kernels::format::Launch;

/// Runs a block of a kernel, which has so many bytes of dynamic shared memory, to its end.
///
/// # Safety
/// As for a launch of it.
#[cfg(emulator)]
pub(crate) unsafe fn run(kernel: &str, launch: &Launch, block: u32, shared_bytes: u32) {
    use std::ffi::{CString, c_char};
    use std::sync::atomic::{AtomicU64, Ordering};

    unsafe extern "C" {
        fn oxccl_emulate(
            kernel: *const c_char,
            launch: *const Launch,
            block: u32,
            shared_bytes: u32,
            seed: u64,
        ) -> bool;
    }
    // Each block has other turns than those before it.
    static SEED: AtomicU64 = AtomicU64::new(0);
    let seed = SEED.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    let name = CString::new(kernel).unwrap_or_default();
    // SAFETY: a name with a zero at its end; the rest is the caller's promise.
    let found = unsafe {
        oxccl_emulate(
            name.as_ptr(),
            launch,
            block,
            shared_bytes,
            seed ^ u64::from(std::process::id()) << 32,
        )
    };
    assert!(found, "there is no kernel {kernel}");
}

/// Runs a block of a kernel to its end.
///
/// # Safety
/// None: there is no emulator here.
#[cfg(not(emulator))]
pub(crate) unsafe fn run(_: &str, _: &Launch, _: u32, _: u32) {
    panic!("OXCCL_STAND_IN_EMULATE: this build has no emulator");
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
