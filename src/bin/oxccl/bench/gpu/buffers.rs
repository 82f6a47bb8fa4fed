//! One rank's buffers in device memory, filled and checked from the host.

use std::sync::Arc;

use oxccl::cuda::{Stream, copy, fill};
use oxccl::{DeviceBuffer, Element, Order};
use oxccl_peer_nccl::{Memory, NcclLibrary};
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Context, DeviceMemory};

use super::contestant::Task;
use crate::bench::check::{Expected, Inputs};
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

/// What a rank's buffers hold before a task and must hold behind it, call by call.
pub(super) struct Contents<T: Sample>(Vec<(Vec<T>, Expected<T>)>);

impl<T: Sample> Contents<T> {
    /// Works them out, and writes the inputs. The stream is waited for.
    pub(super) fn place(
        stream: &Stream,
        task: &Task,
        (rank, ranks): (usize, usize),
        seed: u64,
    ) -> Result<Contents<T>, CudaError> {
        let mut contents = Vec::with_capacity(task.checked.len());
        for (number, call) in task.checked.iter().enumerate() {
            let (case, shape, seed) = (call.case, call.shape, seed + number as u64);
            let inputs = Inputs { case, shape, ranks, order: Order::Any, seed };
            let input: Vec<T> = match case.has_input(rank) {
                true => (0..shape.input).map(|index| inputs.value(rank, index)).collect(),
                false => vec![T::POISON; shape.input],
            };
            let (to, from) = (call.input.cast_mut(), input.as_ptr().cast());
            // SAFETY: the buffer is as long, and no call is under way; the values live until the stream has been waited for.
            unsafe { copy(stream, to, from, size_of_val(&input[..])) }?;
            stream.synchronize()?;
            contents.push((input, inputs.expected(rank)));
        }
        Ok(Contents(contents))
    }

    /// Makes the outputs something that no call leaves there. The stream is waited for.
    pub(super) fn poison(&self, stream: &Stream, task: &Task) -> Result<(), CudaError> {
        for call in task.calls.iter().chain(&task.checked) {
            // SAFETY: the buffer is as long, and no call is under way.
            unsafe { fill(stream, call.output, POISON, call.shape.output * size_of::<T>()) }?;
        }
        stream.synchronize()
    }

    /// How many elements are wrong after the task, the inputs' included. The stream is waited for.
    pub(super) fn wrong(&self, stream: &Stream, task: &Task) -> Result<u64, CudaError> {
        let mut wrong = 0;
        for (call, (was, expected)) in task.checked.iter().zip(&self.0) {
            let output = read::<T>(stream, call.output.cast_const(), call.shape.output)?;
            let input = read::<T>(stream, call.input, call.shape.input)?;
            let changed = was.iter().zip(&input).filter(|(was, is)| !was.same(**is)).count();
            wrong += expected.wrong(&output) + changed as u64;
        }
        Ok(wrong)
    }
}

/// Copies elements between two buffers of a GPU.
///
/// # Errors
/// The driver's.
pub(in crate::bench) fn copy_elements<T: Element>(
    stream: &Stream,
    (to, to_at): (&mut DeviceBuffer<T>, usize),
    (from, from_at): (&DeviceBuffer<T>, usize),
    len: usize,
) -> Result<(), CudaError> {
    assert!(to_at + len <= to.count() && from_at + len <= from.count());
    let (to, from) = (to.as_ptr().wrapping_add(to_at), from.as_ptr().wrapping_add(from_at));
    // SAFETY: both are as long. Whoever measures waits for the stream before the buffers go, and calls are in that stream.
    unsafe { copy(stream, to.cast(), from.cast_const().cast(), len * size_of::<T>()) }
}

fn read<T: Sample>(stream: &Stream, from: *const u8, count: usize) -> Result<Vec<T>, CudaError> {
    let mut values = vec![T::ZERO; count];
    let len_bytes = size_of_val(&values[..]);
    // SAFETY: the buffer is as long, and what wrote it is in front in the stream; any bits are an element.
    unsafe { copy(stream, values.as_mut_ptr().cast(), from, len_bytes) }?;
    stream.synchronize()?;
    Ok(values)
}
