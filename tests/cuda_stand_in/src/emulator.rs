//! Blocks of the CUDA kernels from their own source, thread by thread: see emulator/block.cpp.

use std::ffi::{c_char, c_void};

/// A block of a launch, and what it is given.
#[cfg_attr(not(emulator), allow(dead_code))]
pub(crate) struct Block<'a> {
    pub(crate) kernel: &'a str,
    pub(crate) parameter: *const c_void,
    pub(crate) number: u32,
    /// Blocks of the launch.
    pub(crate) count: u32,
    /// Dynamic shared memory.
    pub(crate) shared_bytes: u32,
    pub(crate) device: u32,
    /// The launch, by its number in the account of memory order.
    pub(crate) launch: u64,
}

/// `oxccl_emulate` of emulator/block.cpp.
pub(crate) type Emulate =
    unsafe extern "C" fn(*const c_char, *const c_void, u32, u32, u32, u64, u32, u64) -> bool;

/// Runs a block of a kernel to its end.
///
/// # Safety
/// As for a launch of it.
#[cfg(emulator)]
pub(crate) unsafe fn run(block: &Block<'_>) {
    use std::ffi::CString;
    use std::sync::atomic::{AtomicU64, Ordering};

    unsafe extern "C" {
        fn oxccl_emulate(
            kernel: *const c_char,
            parameter: *const c_void,
            number: u32,
            count: u32,
            shared_bytes: u32,
            seed: u64,
            device: u32,
            launch: u64,
        ) -> bool;
    }
    // Each block has other turns than those before it.
    static SEED: AtomicU64 = AtomicU64::new(0);
    let seed = SEED.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    let seed = seed ^ u64::from(std::process::id()) << 32;
    let Block { kernel, parameter, number, count, shared_bytes, device, launch } = *block;
    let name = CString::new(kernel).unwrap_or_default();
    let emulate: Emulate = crate::order::emulator().unwrap_or(oxccl_emulate);
    // SAFETY: a name with a zero at its end; the rest is the caller's promise.
    let found = unsafe {
        emulate(name.as_ptr(), parameter, number, count, shared_bytes, seed, device, launch)
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
pub(crate) unsafe fn run(_: &Block<'_>) {
    panic!("OXCCL_STAND_IN_EMULATE: this build has no emulator");
}

/// The length of the one parameter of a kernel that is not oxccl's own, if there is one of this
/// name.
#[cfg(emulator)]
pub(crate) fn guest(kernel: &str) -> Option<usize> {
    use std::ffi::CString;

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
