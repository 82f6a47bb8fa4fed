//! What is known of an address.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{CUdeviceptr, CUmemorytype, CUpointer_attribute, CUresult};

use crate::call::{Answer, driver_calls};
use crate::memory::{self, Kind, Range};

/// Writes one attribute; zero for an address that nobody knows.
///
/// # Safety
/// `out` has room for the attribute.
unsafe fn answer(
    attribute: CUpointer_attribute,
    range: Option<&Range>,
    out: *mut c_void,
) -> Answer {
    use CUpointer_attribute::*;
    let kind = |of: fn(&Kind) -> bool| range.is_some_and(|range| of(&range.kind));
    let host = range.is_some_and(|range| range.kind.is_host());
    let size = |of: fn(&Range) -> usize| range.map_or(0, of);
    let exportable = kind(|kind| matches!(kind, Kind::Mapped(p, _) if p.is_exportable()));
    // SAFETY: each attribute has the type that the driver's API gives it, and the caller has room
    // for it.
    unsafe {
        match attribute {
            CU_POINTER_ATTRIBUTE_CONTEXT => out.cast::<usize>().write(size(|range| range.context)),
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE => out.cast::<c_uint>().write(match range {
                None => 0,
                Some(_) if host => CUmemorytype::CU_MEMORYTYPE_HOST as c_uint,
                Some(_) => CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint,
            }),
            CU_POINTER_ATTRIBUTE_BUFFER_ID => {
                out.cast::<u64>().write(range.map_or(0, |range| range.id));
            }
            CU_POINTER_ATTRIBUTE_IS_MANAGED => out.cast::<c_uint>().write(0),
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
                out.cast::<c_int>().write(range.map_or(-2, |range| range.device));
            }
            CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
                out.cast::<c_uint>().write(kind(|kind| matches!(kind, Kind::Plain(_))).into());
            }
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => {
                out.cast::<usize>().write(size(|range| range.start));
            }
            CU_POINTER_ATTRIBUTE_RANGE_SIZE => out.cast::<usize>().write(size(|range| range.len)),
            CU_POINTER_ATTRIBUTE_MAPPED => out.cast::<c_uint>().write(range.is_some().into()),
            CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => out.cast::<u64>().write(exportable.into()),
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
    Ok(())
}

driver_calls! {
    fn cuPointerGetAttribute(out: *mut c_void, attribute: CUpointer_attribute, at: CUdeviceptr) {
        let range = memory::find(at as usize).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        answer(attribute, Some(&range), out)
    }

    fn cuPointerGetAttributes(
        count: c_uint,
        attributes: *mut CUpointer_attribute,
        out: *mut *mut c_void,
        at: CUdeviceptr,
    ) {
        let range = memory::find(at as usize);
        for index in 0..count as usize {
            answer(*attributes.add(index), range.as_ref(), *out.add(index))?;
        }
        Ok(())
    }
}
