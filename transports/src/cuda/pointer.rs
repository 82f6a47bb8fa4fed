//! What an address is.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// Allocations that were asked about before. Of one that is known nothing but whether it is still
/// the same is asked again, and that once for all addresses of a call or group.
#[derive(Debug, Default)]
pub struct KnownPointers {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By where they start; none overlap.
    allocations: BTreeMap<u64, Allocation>,
    /// Counts the questions that stand by themselves.
    turn: u64,
}

#[derive(Clone, Copy, Debug)]
struct Allocation {
    pointer: Pointer,
    /// When it was last seen to be there.
    seen: u64,
}

impl Known {
    fn at(&mut self, address: u64) -> Option<&mut Allocation> {
        let (_, found) = self.allocations.range_mut(..=address).next_back()?;
        found.pointer.has(address).then_some(found)
    }

    /// Takes one that the driver has just told of, in place of all that were there before.
    fn put(&mut self, pointer: Pointer) {
        let end = pointer.start.saturating_add(pointer.len_bytes as u64);
        let overlaps = |known: &Pointer| {
            known.start < end && pointer.start < known.start.saturating_add(known.len_bytes as u64)
        };
        while let Some((&start, _)) =
            self.allocations.range(..end).next_back().filter(|(_, known)| overlaps(&known.pointer))
        {
            self.allocations.remove(&start);
        }
        if self.allocations.len() >= KnownPointers::KEPT {
            self.allocations.clear();
        }
        self.allocations.insert(pointer.start, Allocation { pointer, seen: self.turn });
    }
}

impl KnownPointers {
    /// More than the allocations that a program goes around; with one more it begins anew.
    const KEPT: usize = 4096;

    /// What was seen so far may have been freed since.
    pub fn look_again(&self) {
        self.lock().turn += 1;
    }

    /// As [`Pointer::of`].
    ///
    /// # Errors
    /// The driver's; an address that it does not know is none.
    pub fn of(&self, context: &Context, address: *const u8) -> Result<Pointer, CudaError> {
        let mut known = self.lock();
        let turn = known.turn;
        if let Some(found) = known.at(address as u64)
            && (found.seen == turn || buffer_at(context, address) == Some(found.pointer.buffer))
        {
            found.seen = turn;
            return Ok(Pointer { address: address as u64, ..found.pointer });
        }
        let pointer = Pointer::of(context, address)?;
        // Host memory that the driver does not know has no place, and is an error anyway.
        if pointer.len_bytes > 0 {
            known.put(pointer);
        }
        Ok(pointer)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// Whether an address is in the same allocation.
    fn has(&self, address: u64) -> bool {
        address.checked_sub(self.start).is_some_and(|at| at < self.len_bytes as u64)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(start: u64, len_bytes: usize, buffer: u64) -> Pointer {
        Pointer {
            address: start,
            kind: PointerKind::Device,
            device: 0,
            start,
            len_bytes,
            buffer,
            is_legacy_shareable: true,
            is_descriptor_shareable: false,
        }
    }

    #[test]
    fn an_allocation_takes_the_place_of_those_that_it_overlaps() {
        let mut known = Known::default();
        for (at, buffer) in [(0x1000, 1), (0x2000, 2), (0x3000, 3), (0x4000, 4)] {
            known.put(allocation(at, 0x1000, buffer));
        }
        let mut found = |address| known.at(address).map(|found| found.pointer.buffer);
        assert_eq!(found(0xfff), None);
        assert_eq!(found(0x1fff), Some(1));
        assert_eq!(found(0x2000), Some(2));
        assert_eq!(found(0x5000), None);
        known.put(allocation(0x2800, 0x1000, 5));
        let mut found = |address| known.at(address).map(|found| found.pointer.buffer);
        let of_all = [0x1000, 0x2000, 0x2800, 0x37ff, 0x3800, 0x4000].map(&mut found);
        assert_eq!(of_all, [Some(1), None, Some(5), Some(5), None, Some(4)]);
        known.put(allocation(0, 0x10000, 6));
        assert_eq!(known.allocations.len(), 1);
    }
}
