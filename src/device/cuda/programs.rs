//! Programs in device memory.
//!
//! They share a few long allocations, which stay until all of a rank's programs go. To free memory
//! the driver waits for all kernels of the context; where another rank of the process is in a call
//! that this rank has yet to make, that would be for ever. So nothing is freed between a
//! communicator's first call and its end, and little allocated.

use super::{Stream, copy};
use oxccl_kernels::format as f;
use oxccl_plans::lower::Program;
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{DeviceMemory, beside_captures};
use std::sync::Arc;

/// What is allocated at the start: all that most ranks need.
const FIRST_BYTES: usize = 512 << 10;
/// The same where allocating more may have to wait for another rank.
const FIRST_BYTES_SEPARATE: usize = 8 << 20;
/// What is allocated at a time behind it, at least.
const CHUNK_BYTES: usize = 4 << 20;
/// Programs start at multiples of this.
const ALIGN_BYTES: usize = 256;

/// A rank's programs.
#[derive(Debug)]
pub struct Programs {
    /// The last one has room.
    chunks: Vec<Arc<DeviceMemory>>,
    used_bytes: usize,
}

/// A program in device memory.
#[derive(Clone, Debug)]
pub struct DeviceProgram {
    chunk: Arc<DeviceMemory>,
    offset_bytes: usize,
    channels: usize,
}

impl Programs {
    /// Room for the first ones; for many where ranks of the process launch by themselves
    /// (`separate`).
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], and the driver's.
    pub fn new(stream: &Stream, separate: bool) -> Result<Programs, CudaError> {
        let first_bytes = if separate { FIRST_BYTES_SEPARATE } else { FIRST_BYTES };
        let chunk = Arc::new(DeviceMemory::allocate(stream.context(), first_bytes)?);
        Ok(Programs { chunks: vec![chunk], used_bytes: 0 })
    }

    /// Where the next one comes, at least [`FIRST_BYTES`] long as long as there is none.
    pub(super) fn room(&self) -> *mut u8 {
        self.chunks[self.chunks.len() - 1].as_ptr().wrapping_add(self.used_bytes)
    }

    /// What was allocated, for whoever keeps it longer.
    pub(super) fn memory(&self) -> Vec<Arc<DeviceMemory>> {
        self.chunks.clone()
    }

    /// Copies a program to the GPU, through a stream that is waited for, and that nobody captures.
    /// Whatever else is captured meanwhile does not matter, so the first call of a shape may be one
    /// that is captured.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], and the driver's.
    pub fn upload(
        &mut self,
        stream: &Stream,
        program: &mut Program,
    ) -> Result<DeviceProgram, CudaError> {
        let driver = stream.context().device().driver();
        beside_captures(driver, || self.place(stream, program))
    }

    /// With its scratch behind it.
    fn place(
        &mut self,
        stream: &Stream,
        program: &mut Program,
    ) -> Result<DeviceProgram, CudaError> {
        let program_bytes = size_of_val(program.words());
        let scratch_at = program_bytes.next_multiple_of(ALIGN_BYTES);
        let scratch_bytes = program.scratch_bytes();
        let len_bytes = if scratch_bytes > 0 { scratch_at + scratch_bytes } else { program_bytes };
        let room = self.chunks.last().map_or(0, |chunk| chunk.len_bytes() - self.used_bytes);
        if len_bytes > room {
            let chunk_bytes = len_bytes.max(CHUNK_BYTES);
            let chunk = DeviceMemory::allocate(stream.context(), chunk_bytes)?;
            self.chunks.push(Arc::new(chunk));
            self.used_bytes = 0;
        }
        let (chunk, offset_bytes) = (self.chunks[self.chunks.len() - 1].clone(), self.used_bytes);
        let to = chunk.as_ptr().wrapping_add(offset_bytes);
        if scratch_bytes > 0 {
            program.set_scratch(to.wrapping_add(scratch_at));
        }
        // SAFETY: this part of the chunk is nobody's yet; the program lives until the copy has been
        // waited for.
        unsafe { copy(stream, to, program.words().as_ptr().cast(), program_bytes) }?;
        stream.synchronize()?;
        self.used_bytes =
            (offset_bytes + len_bytes.next_multiple_of(ALIGN_BYTES)).min(chunk.len_bytes());
        Ok(DeviceProgram { chunk, offset_bytes, channels: program.channels() })
    }
}

impl DeviceProgram {
    /// Where the GPU finds it.
    pub fn header(&self) -> *const f::Header {
        self.chunk.as_ptr().wrapping_add(self.offset_bytes).cast()
    }

    /// Its channels: blocks of a launch.
    pub fn channels(&self) -> usize {
        self.channels
    }
}
