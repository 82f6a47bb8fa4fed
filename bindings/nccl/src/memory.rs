//! `ncclMemAlloc`: memory of GPUs, or with `OXCCL_DEVICE=host` the host's.

use crate::abi::Code;
use crate::answer::{Answer, Failure, lock};
use crate::config;
use oxccl_transports::cuda::{Context, DeviceMemory, Driver};
use std::alloc::Layout;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// As windows need it.
const ALIGN: usize = 4096;

/// What is allocated, by address.
static LIVE: Mutex<BTreeMap<usize, Memory>> = Mutex::new(BTreeMap::new());

enum Memory {
    Host(Layout),
    /// Given back when it is dropped.
    Gpu(DeviceMemory),
}

/// Memory of the calling thread's device.
pub(crate) fn allocate(bytes: usize) -> Answer<usize> {
    if bytes == 0 {
        return Ok(0);
    }
    let (address, memory) = if config::is_host() {
        // Its pages are its own.
        let layout = bytes
            .checked_next_multiple_of(ALIGN)
            .and_then(|len| Layout::from_size_align(len, ALIGN).ok())
            .ok_or_else(|| {
                Failure::argument(format!("size {bytes} is more than memory can have"))
            })?;
        // SAFETY: the layout is not empty.
        let address = unsafe { std::alloc::alloc_zeroed(layout) };
        if address.is_null() {
            return Err(Failure::new(Code::SystemError, format!("no {bytes} bytes of memory")));
        }
        (address.expose_provenance(), Memory::Host(layout))
    } else {
        let failed = |error: oxccl_transports::CudaError| {
            Failure::new(Code::UnhandledCudaError, error.to_string())
        };
        let context = Driver::load().and_then(Context::current).map_err(failed)?;
        let memory = DeviceMemory::allocate(&context, bytes).map_err(failed)?;
        (memory.as_ptr().expose_provenance(), Memory::Gpu(memory))
    };
    lock(&LIVE).insert(address, memory);
    Ok(address)
}

/// How long memory of the host is with the rest of its last page, if that is its own.
pub(crate) fn with_last_page(address: usize, len_bytes: usize) -> usize {
    let page_end =
        address.checked_add(len_bytes).and_then(|end| end.checked_next_multiple_of(ALIGN));
    let live = lock(&LIVE);
    match live.range(..=address).next_back() {
        Some((first, Memory::Host(layout))) if page_end == Some(first + layout.size()) => {
            first + layout.size() - address
        }
        _ => len_bytes,
    }
}

/// Gives memory back.
pub(crate) fn free(address: usize) -> Answer {
    if address == 0 {
        return Ok(());
    }
    match lock(&LIVE).remove(&address) {
        Some(Memory::Host(layout)) => {
            // SAFETY: it was allocated so, and nobody has given it back.
            unsafe { std::alloc::dealloc(std::ptr::with_exposed_provenance_mut(address), layout) };
            Ok(())
        }
        Some(Memory::Gpu(memory)) => {
            drop(memory);
            Ok(())
        }
        None => Err(Failure::argument(format!("{address:#x} is not of ncclMemAlloc"))),
    }
}
