//! Host memory that devices reach.

use std::ffi::c_void;

use cudarc::driver::sys::{CUdeviceptr, CUresult};

use crate::call::{Answer, driver_calls, put};
use crate::memory::{self, Kind};
use crate::{capture, context, stream};

const DEVICE_MAP: u32 = 2;
const KNOWN_FLAGS: u32 = 0xf;

fn allocate(out: *mut *mut c_void, len: usize) -> Answer {
    let (handle, context) = context::current()?;
    capture::forbid()?;
    context::may_wait()?;
    if len == 0 || out.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    let pages = len.next_multiple_of(4096);
    // SAFETY: a new mapping at an address that the system chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), pages, access, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    memory::spoil(at as usize, len);
    memory::enter(at as usize, len, Kind::Pinned, context.device, handle);
    // SAFETY: not null, and the caller's.
    unsafe { out.write(at) };
    Ok(())
}

fn is_mapped(at: *mut c_void, len: usize) -> bool {
    let start = at as usize & !4095;
    let pages = (at as usize + len - start).div_ceil(4096);
    let mut resident = vec![0u8; pages];
    // SAFETY: room for an answer a page; the system checks the range.
    unsafe { libc::mincore(start as *mut _, pages * 4096, resident.as_mut_ptr()) == 0 }
}

driver_calls! {
    fn cuMemHostAlloc(out: *mut *mut c_void, len: usize, flags: u32) {
        if flags & !KNOWN_FLAGS != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        allocate(out, len)
    }

    fn cuMemAllocHost_v2(out: *mut *mut c_void, len: usize) {
        allocate(out, len)
    }

    fn cuMemFreeHost(at: *mut c_void) {
        capture::forbid()?;
        let range = memory::find(at as usize).filter(|range| range.start == at as usize);
        let Some(range) = range.filter(|range| matches!(range.kind, Kind::Pinned)) else {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        stream::drain(range.context);
        memory::leave(range.start);
        libc::munmap(at, range.len.next_multiple_of(4096));
        Ok(())
    }

    fn cuMemHostRegister_v2(at: *mut c_void, len: usize, flags: u32) {
        let (handle, context) = context::current()?;
        capture::forbid()?;
        if len == 0 || flags & !KNOWN_FLAGS != 0 || !is_mapped(at, len) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        context::may_wait()?;
        if memory::overlaps(at as usize, len) {
            return Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        let kind = Kind::Registered(flags & DEVICE_MAP != 0);
        memory::enter(at as usize, len, kind, context.device, handle);
        Ok(())
    }

    fn cuMemHostUnregister(at: *mut c_void) {
        let range = memory::find(at as usize).filter(|range| range.start == at as usize);
        let Some(range) = range.filter(|range| matches!(range.kind, Kind::Registered(_))) else {
            return Err(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        };
        memory::leave(range.start);
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(out: *mut CUdeviceptr, at: *mut c_void, flags: u32) {
        context::current()?;
        match memory::find(at as usize).map(|range| range.kind) {
            Some(Kind::Pinned | Kind::Registered(true)) if flags == 0 => put(out, at as CUdeviceptr),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
}
