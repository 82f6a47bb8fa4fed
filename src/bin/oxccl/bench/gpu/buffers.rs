//! One rank's buffers in device memory, filled and checked from the host.

use std::sync::Arc;

use oxccl::Element;
use oxccl::cuda::{Stream, copy, fill};
use oxccl_peer_nccl::{Memory, NcclLibrary};
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Context, DeviceMemory};

use super::contestant::Placed;
use crate::bench::check::Inputs;
use crate::bench::sample::Sample;
use crate::failure::Failure;

/// What outputs are filled with before a call.
const POISON: u8 = 0xee;

/// Device memory that all contestants can use.
pub(super) enum Buffer {
    /// With NCCL, its kind: windows are made of no other.
    Nccl(Arc<Memory>),
    /// Ours.
    Own(DeviceMemory),
}

impl Buffer {
    /// Allocates in the current context.
    pub(super) fn allocate(
        context: &Context,
        nccl: Option<&NcclLibrary>,
        len_bytes: usize,
    ) -> Result<Buffer, Failure> {
        Ok(match nccl {
            Some(library) => Buffer::Nccl(Arc::new(Memory::allocate(library, len_bytes)?)),
            None => Buffer::Own(DeviceMemory::allocate(context, len_bytes)?),
        })
    }

    /// Where it begins; the host must not follow it.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        match self {
            Buffer::Nccl(memory) => memory.as_ptr(),
            Buffer::Own(memory) => memory.as_ptr(),
        }
    }

    /// NCCL's handle of it, where it is NCCL's.
    pub(super) fn nccl(&self) -> Option<&Arc<Memory>> {
        match self {
            Buffer::Nccl(memory) => Some(memory),
            Buffer::Own(_) => None,
        }
    }
}

/// Writes this rank's input. The stream is waited for.
pub(super) fn fill_input<T: Sample>(
    stream: &Stream,
    call: &Placed,
    inputs: &Inputs,
    rank: usize,
) -> Result<(), CudaError> {
    let values: Vec<T> = match call.case.has_input(rank) {
        true => (0..call.shape.input).map(|index| inputs.value(rank, index)).collect(),
        false => vec![T::POISON; call.shape.input],
    };
    // SAFETY: the buffer is as long, and no call is under way; the values live until the stream has been waited for.
    unsafe {
        copy(stream, call.input.cast_mut(), values.as_ptr().cast(), size_of_val(&values[..]))?;
    }
    stream.synchronize()
}

/// Makes the output something that no call leaves there.
pub(super) fn poison<T: Element>(stream: &Stream, call: &Placed) -> Result<(), CudaError> {
    // SAFETY: the buffer is as long, and no call is under way.
    unsafe { fill(stream, call.output, POISON, call.shape.output * size_of::<T>()) }
}

/// How many elements of this rank are wrong after a call, its input included. The stream is waited for.
pub(super) fn wrong<T: Sample>(
    stream: &Stream,
    call: &Placed,
    inputs: &Inputs,
    rank: usize,
) -> Result<u64, CudaError> {
    let read = |from: *const u8, count: usize| {
        let mut values = vec![T::ZERO; count];
        let len_bytes = size_of_val(&values[..]);
        // SAFETY: the buffer is as long, and what wrote it is in front in the stream; any bits are an element.
        unsafe { copy(stream, values.as_mut_ptr().cast(), from, len_bytes) }?;
        stream.synchronize()?;
        Ok::<_, CudaError>(values)
    };
    let output = read(call.output.cast_const(), call.shape.output)?;
    let input = read(call.input, call.shape.input)?;
    Ok(inputs.wrong(rank, &output) + inputs.changed(rank, &input))
}
