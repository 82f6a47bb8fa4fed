//! What an address is.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use super::driver::call;
use super::sys::{self, CUpointer_attribute};
use super::{Context, CudaError};

/// Whose memory an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerKind {
    /// Host memory that the driver does not know, or nobody's.
    Unknown,
    /// Host memory that GPUs reach.
    Pinned,
    /// Memory of a GPU.
    Device,
    /// Memory that moves between host and GPUs.
    Managed,
}

/// What the driver knows of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The address.
    pub address: u64,
    /// Whose memory it is.
    pub kind: PointerKind,
    /// The GPU's number; of host memory, that of the context which made it known.
    pub device: i32,
    /// Where the allocation starts.
    pub start: u64,
    /// How long the allocation is.
    pub len_bytes: usize,
    /// The allocation's number, which no other in this process ever has: an address that comes
    /// again has another.
    pub buffer: u64,
    /// Whether legacy IPC can export it.
    pub is_legacy_shareable: bool,
    /// Whether it can be exported as a file descriptor.
    pub is_descriptor_shareable: bool,
}

/// Addresses that were asked about before. Of one whose allocation is the same as then nothing but
/// that is asked again.
#[derive(Debug, Default)]
pub struct KnownPointers {
    known: Mutex<HashMap<u64, Pointer>>,
}

impl KnownPointers {
    /// More than the buffers that a program goes around; with one more it begins anew.
    const KEPT: usize = 4096;

    /// As [`Pointer::of`].
    ///
    /// # Errors
    /// The driver's; an address that it does not know is none.
    pub fn of(&self, context: &Context, address: *const u8) -> Result<Pointer, CudaError> {
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = lock().get(&(address as u64)).copied();
        if let Some(known) = found
            && buffer_at(context, address) == Some(known.buffer)
        {
            return Ok(known);
        }
        let pointer = Pointer::of(context, address)?;
        let mut known = lock();
        if known.len() >= KnownPointers::KEPT {
            known.clear();
        }
        known.insert(address as u64, pointer);
        Ok(pointer)
    }
}

/// The number of the allocation that an address is in; none where the driver knows of none.
fn buffer_at(context: &Context, address: *const u8) -> Option<u64> {
    let mut buffer = 0u64;
    let which = CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID;
    // SAFETY: the driver is loaded, and there is a value of the right type.
    let asked = context.scope(|| unsafe {
        call!(cuPointerGetAttribute((&raw mut buffer).cast(), which, address as u64))
    });
    asked.is_ok().then_some(buffer).filter(|buffer| *buffer != 0)
}

impl Pointer {
    /// Asks the driver.
    ///
    /// # Errors
    /// The driver's; an address that it does not know is none.
    pub fn of(context: &Context, address: *const u8) -> Result<Pointer, CudaError> {
        use CUpointer_attribute::*;
        let (mut kind, mut managed, mut legacy): (c_uint, c_uint, c_uint) = (0, 0, 0);
        let mut device: c_int = -1;
        let (mut start, mut len_bytes, mut buffer, mut handles) = (0u64, 0usize, 0u64, 0u64);
        let mut attributes = [
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            CU_POINTER_ATTRIBUTE_IS_MANAGED,
            CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            CU_POINTER_ATTRIBUTE_BUFFER_ID,
            CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
        ];
        let mut values: [*mut c_void; 8] = [
            (&raw mut kind).cast(),
            (&raw mut managed).cast(),
            (&raw mut legacy).cast(),
            (&raw mut device).cast(),
            (&raw mut start).cast(),
            (&raw mut len_bytes).cast(),
            (&raw mut buffer).cast(),
            (&raw mut handles).cast(),
        ];
        // SAFETY: the driver is loaded, and there is a value of the right type for each attribute.
        context.scope(|| unsafe {
            call!(cuPointerGetAttributes(
                attributes.len() as c_uint,
                attributes.as_mut_ptr(),
                values.as_mut_ptr(),
                address as u64,
            ))
        })?;
        const HOST: c_uint = sys::CUmemorytype::CU_MEMORYTYPE_HOST as c_uint;
        const DEVICE: c_uint = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint;
        let kind = match kind {
            _ if managed != 0 => PointerKind::Managed,
            HOST => PointerKind::Pinned,
            DEVICE => PointerKind::Device,
            _ => PointerKind::Unknown,
        };
        let posix = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        Ok(Pointer {
            address: address as u64,
            kind,
            device,
            start,
            len_bytes,
            buffer,
            is_legacy_shareable: legacy != 0,
            is_descriptor_shareable: handles & u64::from(posix.0) != 0,
        })
    }

    /// Fails unless `len_bytes` from the address on are memory of the context's GPU.
    ///
    /// # Errors
    /// [`CudaError::NotDeviceMemory`], [`CudaError::OtherDevice`], [`CudaError::TooShort`].
    pub fn check_device(&self, context: &Context, len_bytes: usize) -> Result<(), CudaError> {
        let (address, ordinal) = (self.address, context.device().ordinal());
        let found = match self.kind {
            PointerKind::Device => None,
            PointerKind::Unknown => Some("host memory"),
            PointerKind::Pinned => Some("pinned host memory"),
            PointerKind::Managed => Some("managed memory"),
        };
        if let Some(found) = found {
            return Err(CudaError::NotDeviceMemory { address, found, ordinal });
        }
        if usize::try_from(self.device) != Ok(ordinal) {
            return Err(CudaError::OtherDevice { address, found: self.device, ordinal });
        }
        let left = self.len_bytes.saturating_sub((address - self.start) as usize);
        match len_bytes.checked_sub(left) {
            None | Some(0) => Ok(()),
            Some(beyond_bytes) => Err(CudaError::TooShort { address, len_bytes, beyond_bytes }),
        }
    }
}
