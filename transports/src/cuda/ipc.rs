//! Legacy IPC: device memory that another library allocated, in another process.
//!
//! The driver hands out whole allocations, and may put several small ones into one block of 2 MiB,
//! so a handle says besides where in the allocation the buffer is. (All of that block becomes
//! visible to the other process.)
//!
//! Opening is expensive, so both sides remember. What tells a buffer from a later one at the same
//! address is the number that the driver gives each allocation: a handle is made anew when that
//! changes, and the other side closes what it had.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::driver::call;
use super::{Context, CudaError, Pointer, Uuid, sys};
use crate::identity;

/// A buffer, as other processes can find it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpcHandle {
    /// The driver's handle of the allocation, in two halves.
    halves: [[u8; 32]; 2],
    /// Where it is in the process that made it.
    start: u64,
    buffer: u64,
    process: [u8; 16],
    device: Uuid,
    /// Where in the allocation the buffer is.
    pub offset_bytes: u64,
    /// How much of the allocation is behind that.
    pub len_bytes: u64,
}

impl IpcHandle {
    /// Makes a handle of the allocation that holds these bytes.
    ///
    /// # Errors
    /// As [`Pointer::check_device`]; [`CudaError::NotShareable`], and the driver's.
    pub fn of(
        context: &Context,
        address: *const u8,
        len_bytes: usize,
    ) -> Result<IpcHandle, CudaError> {
        let pointer = Pointer::of(context, address)?;
        pointer.check_device(context, len_bytes)?;
        IpcHandle::make(context, &pointer)
    }

    fn make(context: &Context, pointer: &Pointer) -> Result<IpcHandle, CudaError> {
        if !pointer.is_legacy_shareable {
            let why = "it comes from a memory pool or from the virtual-memory API; allocate it with \
                       cudaMalloc, or from the communicator";
            return Err(CudaError::NotShareable { address: pointer.address, why });
        }
        let mut raw = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the driver is loaded, the context current, the pointer valid, and the start that
        // of an allocation.
        context.scope(|| unsafe { call!(cuIpcGetMemHandle(&raw mut raw, pointer.start)) })?;
        let half = |at: usize| std::array::from_fn(|i| raw.reserved[at * 32 + i] as u8);
        let handle = IpcHandle {
            halves: [half(0), half(1)],
            start: pointer.start,
            buffer: pointer.buffer,
            process: identity::process(),
            device: context.device().uuid()?,
            offset_bytes: 0,
            len_bytes: 0,
        };
        Ok(handle.at(pointer))
    }

    /// The same allocation, another buffer in it.
    fn at(mut self, pointer: &Pointer) -> IpcHandle {
        self.offset_bytes = pointer.address - pointer.start;
        self.len_bytes = pointer.len_bytes as u64 - self.offset_bytes;
        self
    }

    fn raw(&self) -> sys::CUipcMemHandle {
        let byte = |at: usize| self.halves[at / 32][at % 32] as std::ffi::c_char;
        sys::CUipcMemHandle { reserved: std::array::from_fn(byte) }
    }
}

/// Another process' allocation, mapped here.
#[derive(Debug)]
pub struct IpcMemory {
    context: Context,
    /// Where the allocation is. Of this process' own, nothing was opened.
    at: u64,
    opened: bool,
}

impl IpcMemory {
    /// Opens what another process exported.
    ///
    /// # Errors
    /// [`CudaError::NoPeerAccess`], and the driver's, as when the memory has been freed.
    pub fn open(context: &Context, handle: &IpcHandle) -> Result<IpcMemory, CudaError> {
        let context = context.clone();
        if handle.process == identity::process() {
            context.reach_plain_memory(handle.device)?;
            return Ok(IpcMemory { context, at: handle.start, opened: false });
        }
        context.device().check_reach(handle.device)?;
        const ENABLE_PEER_ACCESS: u32 = 1;
        let mut at = 0;
        // SAFETY: the driver is loaded, the context current, and the pointer valid.
        context.scope(|| unsafe {
            call!(cuIpcOpenMemHandle_v2(&raw mut at, handle.raw(), ENABLE_PEER_ACCESS))
        })?;
        Ok(IpcMemory { context, at, opened: true })
    }

    /// Where a buffer of it is.
    pub fn buffer(&self, handle: &IpcHandle) -> *mut u8 {
        (self.at + handle.offset_bytes) as *mut u8
    }
}

impl Drop for IpcMemory {
    fn drop(&mut self) {
        if self.opened {
            // SAFETY: opened by this object, and closed once.
            self.context.give_back(|| unsafe { call!(cuIpcCloseMemHandle(self.at)) });
        }
    }
}

/// The handles that this rank has made.
#[derive(Debug, Default)]
pub struct Exports {
    by_start: HashMap<u64, IpcHandle>,
}

impl Exports {
    /// A buffer's handle, made anew only if the allocation is not the one that was there before.
    ///
    /// # Errors
    /// As [`IpcHandle::of`].
    pub fn handle(
        &mut self,
        context: &Context,
        address: *const u8,
        len_bytes: usize,
    ) -> Result<IpcHandle, CudaError> {
        let pointer = Pointer::of(context, address)?;
        pointer.check_device(context, len_bytes)?;
        if let Some(known) = self.by_start.get(&pointer.start)
            && known.buffer == pointer.buffer
        {
            return Ok(known.clone().at(&pointer));
        }
        let made = IpcHandle::make(context, &pointer)?;
        self.by_start.insert(pointer.start, made.clone());
        Ok(made)
    }
}

/// What this rank has opened of others.
#[derive(Debug, Default)]
pub struct Imports {
    opened: HashMap<([u8; 16], u64), (u64, IpcMemory)>,
}

impl Imports {
    /// Where the buffer behind a handle is in this process. What was there in the same place before
    /// is closed.
    ///
    /// # Errors
    /// As [`IpcMemory::open`].
    pub fn address(&mut self, context: &Context, handle: &IpcHandle) -> Result<*mut u8, CudaError> {
        let key = (handle.process, handle.start);
        if let Some((buffer, memory)) = self.opened.get(&key)
            && *buffer == handle.buffer
        {
            return Ok(memory.buffer(handle));
        }
        // First the old one: two openings of one block could not be told apart.
        self.opened.remove(&key);
        let memory = IpcMemory::open(context, handle)?;
        let address = memory.buffer(handle);
        self.opened.insert(key, (handle.buffer, memory));
        Ok(address)
    }

    /// How many allocations are open.
    pub fn len(&self) -> usize {
        self.opened.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.opened.is_empty()
    }
}
