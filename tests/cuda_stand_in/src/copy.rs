//! Copies, fills, and waits for and writes of values.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cudarc::driver::sys::{
    CUdeviceptr, CUresult, CUstream, CUstreamBatchMemOpParams, CUstreamBatchMemOpType,
    CUstreamWriteValue_flags,
};

use crate::call::{Answer, driver_calls};
use crate::order::{self, Host};
use crate::settings::settings;
use crate::stream::{Operation, Stream};
use crate::{capture, context, memory};

const ILLEGAL: CUresult = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;

/// An address that the API says is a device's must be one.
fn device(at: CUdeviceptr, len: usize) -> Answer<usize> {
    if len == 0 || memory::is_reachable(at as usize, len) {
        Ok(at as usize)
    } else {
        Err(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

/// Host memory: anything, but no part of an allocation that has been freed or ends earlier.
fn any(at: usize, len: usize) -> Answer<usize> {
    if memory::find(at).is_some() { device(at as CUdeviceptr, len) } else { Ok(at) }
}

pub(crate) fn copy(dst: usize, src: usize, len: usize) -> Answer {
    // It may have been freed since the call.
    for at in [dst, src] {
        any(at, len).map_err(|_| ILLEGAL)?;
    }
    order::host(src, len, Host::Loads);
    order::host(dst, len, Host::Stores);
    // SAFETY: device ranges are mapped, as just checked; for host memory the caller of the copy
    // vouches.
    unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, len) };
    Ok(())
}

pub(crate) fn fill(dst: usize, value: u32, width: usize, count: usize) -> Answer {
    device(dst as CUdeviceptr, count * width).map_err(|_| ILLEGAL)?;
    order::host(dst, count * width, Host::Stores);
    // SAFETY: a range that devices can use, and so mapped and writable, as just checked.
    unsafe {
        match width {
            _ if value == 0 => memory::zero(dst, count * width),
            1 => std::ptr::write_bytes(dst as *mut u8, value as u8, count),
            _ => (0..count).for_each(|at| (dst as *mut u32).add(at).write_unaligned(value)),
        }
    }
    Ok(())
}

fn word_at(at: usize, wide: bool) -> Answer<u64> {
    device(at as CUdeviceptr, if wide { 8 } else { 4 }).map_err(|_| ILLEGAL)?;
    // SAFETY: mapped, as just checked, and aligned, as the call checked.
    Ok(unsafe {
        if wide {
            AtomicU64::from_ptr(at as *mut u64).load(Ordering::Acquire)
        } else {
            AtomicU32::from_ptr(at as *mut u32).load(Ordering::Acquire).into()
        }
    })
}

pub(crate) fn await_value(at: usize, value: u64, wide: bool, flags: u32) -> Answer {
    loop {
        let found = word_at(at, wide)?;
        let met = match flags & 3 {
            // Cyclic comparison, in the width of the word.
            0 if wide => found.wrapping_sub(value) as i64 >= 0,
            0 => (found as u32).wrapping_sub(value as u32) as i32 >= 0,
            1 => found == value,
            2 => found & value != 0,
            _ => found | value != u64::MAX,
        };
        if met {
            order::awaited(at);
            return Ok(());
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

pub(crate) fn write_value(at: usize, value: u64, wide: bool) -> Answer {
    word_at(at, wide)?;
    // SAFETY: as in `word_at`, which has just been there.
    unsafe {
        if wide {
            AtomicU64::from_ptr(at as *mut u64).store(value, Ordering::Release);
        } else {
            AtomicU32::from_ptr(at as *mut u32).store(value as u32, Ordering::Release);
        }
    }
    Ok(())
}

/// An operation of the legacy default stream that the caller waits for.
fn at_once(operation: Operation) -> Answer {
    capture::forbid()?;
    let stream = Stream::find(std::ptr::null_mut())?;
    stream.push(operation)?;
    stream.tail().wait();
    stream.context.check()
}

/// The driver's own kernels are loaded when they are first needed.
fn load_kernel(operation: &Operation) -> Answer {
    static LOADED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
    let which = match operation {
        Operation::Fill { .. } => 0,
        Operation::Copy { .. } => 1,
        _ => return Ok(()),
    };
    if settings().eager || LOADED[which].swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    context::may_wait()
}

fn in_stream(stream: CUstream, operation: Operation) -> Answer {
    load_kernel(&operation)?;
    Stream::find(stream)?.push(operation)
}

fn word(at: CUdeviceptr, wide: bool) -> Answer<usize> {
    let len = if wide { 8 } else { 4 };
    if !at.is_multiple_of(len) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    device(at, len as usize)
}

/// A word to be written; without a barrier the second version of these calls writes none.
fn written(at: CUdeviceptr, wide: bool, flags: u32) -> Answer<usize> {
    if flags != CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    word(at, wide)
}

/// One operation of a batch: those that the library has.
///
/// # Safety
/// The union holds what its operation says.
unsafe fn batched(one: &CUstreamBatchMemOpParams) -> Answer<Operation> {
    // SAFETY: by this function's contract.
    unsafe {
        match one.operation {
            CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64 => {
                let at = written(one.writeValue.address, true, one.writeValue.flags)?;
                let value = one.writeValue.__bindgen_anon_1.value64;
                Ok(Operation::WriteValue { at, value, wide: true })
            }
            CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_64 => {
                let at = word(one.waitValue.address, true)?;
                let value = one.waitValue.__bindgen_anon_1.value64;
                Ok(Operation::WaitValue { at, value, wide: true, flags: one.waitValue.flags })
            }
            _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
    }
}

driver_calls! {
    fn cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, len: usize) {
        at_once(Operation::Copy { dst: device(dst, len)?, src: any(src as usize, len)?, len })
    }

    fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, len: usize) {
        at_once(Operation::Copy { dst: any(dst as usize, len)?, src: device(src, len)?, len })
    }

    fn cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, len: usize, stream: CUstream) {
        let (dst, src) = (any(dst as usize, len)?, any(src as usize, len)?);
        in_stream(stream, Operation::Copy { dst, src, len })
    }

    fn cuMemcpyHtoDAsync_v2(dst: CUdeviceptr, src: *const c_void, len: usize, stream: CUstream) {
        let (dst, src) = (device(dst, len)?, any(src as usize, len)?);
        in_stream(stream, Operation::Copy { dst, src, len })
    }

    fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: CUdeviceptr, len: usize, stream: CUstream) {
        let (dst, src) = (any(dst as usize, len)?, device(src, len)?);
        in_stream(stream, Operation::Copy { dst, src, len })
    }

    fn cuMemsetD8_v2(dst: CUdeviceptr, value: u8, count: usize) {
        let dst = device(dst, count)?;
        at_once(Operation::Fill { dst, value: value.into(), width: 1, count })
    }

    fn cuMemsetD8Async(dst: CUdeviceptr, value: u8, count: usize, stream: CUstream) {
        let dst = device(dst, count)?;
        in_stream(stream, Operation::Fill { dst, value: value.into(), width: 1, count })
    }

    fn cuMemsetD32Async(dst: CUdeviceptr, value: u32, count: usize, stream: CUstream) {
        let dst = device(dst, count * 4)?;
        in_stream(stream, Operation::Fill { dst, value, width: 4, count })
    }

    fn cuStreamWaitValue32_v2(stream: CUstream, at: CUdeviceptr, value: u32, flags: u32) {
        let at = word(at, false)?;
        in_stream(stream, Operation::WaitValue { at, value: value.into(), wide: false, flags })
    }

    fn cuStreamWaitValue64_v2(stream: CUstream, at: CUdeviceptr, value: u64, flags: u32) {
        let at = word(at, true)?;
        in_stream(stream, Operation::WaitValue { at, value, wide: true, flags })
    }

    fn cuStreamWriteValue32_v2(stream: CUstream, at: CUdeviceptr, value: u32, flags: u32) {
        let at = written(at, false, flags)?;
        in_stream(stream, Operation::WriteValue { at, value: value.into(), wide: false })
    }

    fn cuStreamWriteValue64_v2(stream: CUstream, at: CUdeviceptr, value: u64, flags: u32) {
        let at = written(at, true, flags)?;
        in_stream(stream, Operation::WriteValue { at, value, wide: true })
    }

    fn cuStreamBatchMemOp_v2(
        stream: CUstream,
        count: u32,
        parameters: *mut CUstreamBatchMemOpParams,
        flags: u32,
    ) {
        if count >= 256 || flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let operations = std::slice::from_raw_parts(parameters, count as usize);
        let operations: Vec<_> = operations.iter().map(|one| batched(one)).collect::<Answer<_>>()?;
        operations.into_iter().try_for_each(|operation| in_stream(stream, operation))
    }
}
