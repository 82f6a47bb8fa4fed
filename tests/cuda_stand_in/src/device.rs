//! Devices and the driver itself.

use std::ffi::{CStr, c_char};

use cudarc::driver::sys::{CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUresult, CUuuid};

use crate::call::{self, Answer, driver_calls, put};
use crate::multicast;
use crate::settings::settings;

/// Whether there is such a device.
pub(crate) fn check(device: CUdevice) -> Answer {
    if usize::try_from(device).is_ok_and(|device| device < settings().devices) {
        Ok(())
    } else {
        Err(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }
}

/// Whether one device reaches another's memory.
pub(crate) fn reaches(one: CUdevice, other: CUdevice) -> bool {
    one != other && settings().peers
}

/// The same in all processes, as a GPU's is.
fn uuid(device: CUdevice) -> CUuuid {
    let mut bytes = *b"oxccl-stand-in-\0";
    bytes[15] = device as u8;
    CUuuid { bytes: bytes.map(|byte| byte as c_char) }
}

fn attribute(attribute: CUdevice_attribute, device: CUdevice) -> i32 {
    use CUdevice_attribute::*;
    let virtual_memory = i32::from(settings().virtual_memory);
    match attribute {
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => settings().multiprocessors as i32,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => (settings().capability / 10) as i32,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => (settings().capability % 10) as i32,
        CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
        | CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
        | CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS
        | CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH => 1,
        CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED => virtual_memory,
        CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED => i32::from(multicast::is_supported(device)),
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING if settings().capability >= 90 => {
            cudarc::driver::sys::CUGPUDirectRDMAWritesOrdering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as i32
        }
        CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => device + 1,
        CU_DEVICE_ATTRIBUTE_COMPUTE_MODE => settings().compute_mode,
        _ => 0,
    }
}

driver_calls! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if settings().devices == 0 {
            return Err(CUresult::CUDA_ERROR_NO_DEVICE);
        }
        call::set_initialised();
        Ok(())
    }

    fn cuDriverGetVersion(out: *mut i32) {
        put(out, settings().driver)
    }

    fn cuGetErrorName(error: CUresult, out: *mut *const c_char) {
        put(out, call::codes().get(&(error as u32)).map_or(c"CUDA_ERROR_UNKNOWN", |(_, name)| name).as_ptr())
    }

    fn cuGetErrorString(error: CUresult, out: *mut *const c_char) {
        let text: &CStr = match error {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => c"out of memory",
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS => c"an illegal memory access was encountered",
            _ => c"as the stand-in driver was told, or found",
        };
        put(out, text.as_ptr())
    }

    fn cuDeviceGetCount(out: *mut i32) {
        put(out, settings().devices as i32)
    }

    fn cuDeviceGet(out: *mut CUdevice, ordinal: i32) {
        check(ordinal)?;
        put(out, ordinal)
    }

    fn cuDeviceGetName(out: *mut c_char, len: i32, dev: CUdevice) {
        check(dev)?;
        let name = c"oxccl stand-in".to_bytes_with_nul();
        if out.is_null() || (len as usize) < name.len() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        std::ptr::copy_nonoverlapping(name.as_ptr().cast(), out, name.len());
        Ok(())
    }

    fn cuDeviceGetUuid_v2(out: *mut CUuuid, dev: CUdevice) {
        check(dev)?;
        put(out, uuid(dev))
    }

    fn cuDeviceTotalMem_v2(out: *mut usize, dev: CUdevice) {
        check(dev)?;
        put(out, settings().memory_bytes)
    }

    fn cuDeviceGetAttribute(out: *mut i32, which: CUdevice_attribute, dev: CUdevice) {
        check(dev)?;
        put(out, attribute(which, dev))
    }

    fn cuDeviceGetP2PAttribute(
        out: *mut i32,
        attribute: CUdevice_P2PAttribute,
        dev: CUdevice,
        peer: CUdevice,
    ) {
        check(dev)?;
        check(peer)?;
        if dev == peer {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        let value = match attribute {
            CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED => reaches(dev, peer),
            CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED => {
                reaches(dev, peer) && settings().nvlink
            }
            _ => false,
        };
        put(out, i32::from(value))
    }

    fn cuDeviceCanAccessPeer(out: *mut i32, dev: CUdevice, peer: CUdevice) {
        check(dev)?;
        check(peer)?;
        put(out, i32::from(reaches(dev, peer)))
    }
}
