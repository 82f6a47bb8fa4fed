//! One rank's buffers in device memory, filled and checked from the host.

use std::mem::ManuallyDrop;

use oxccl::Order;
use oxccl::cuda::{Stream, copy, fill};
use oxccl_command::shared::{Expected, Failure, Inputs, PERIOD, Sample};
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Context, DeviceMemory};

use crate::contestant::Task;
use crate::nccl::NcclLibrary;

/// What outputs are filled with before a call.
const POISON: u8 = 0xee;

/// Device memory that all contestants can use. The process's end gives it back: NCCL's
/// communicators, which last as long, may know it.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    /// Where it begins; the host must not follow it.
    pub(crate) at: *mut u8,
    pub(crate) len_bytes: usize,
}

impl Buffer {
    /// Allocates in the current context; with NCCL, memory of its kind, since windows are made of
    /// no other.
    pub(crate) fn allocate(
        context: &Context,
        nccl: Option<&NcclLibrary>,
        len_bytes: usize,
    ) -> Result<Buffer, Failure> {
        // Windows begin and end at such addresses.
        const ALIGNMENT: usize = 4096;
        let len_bytes = len_bytes.max(1).next_multiple_of(ALIGNMENT);
        let at = match nccl {
            Some(library) => library.allocate(len_bytes)?,
            None => ManuallyDrop::new(DeviceMemory::allocate(context, len_bytes)?).as_ptr(),
        };
        Ok(Buffer { at, len_bytes })
    }
}

/// What a rank's buffers hold before a task and must hold behind it, call by call. Inputs repeat
/// after [`PERIOD`] elements.
pub(crate) struct Contents<T: Sample>(Vec<(Vec<T>, Expected<T>)>);

impl<T: Sample> Contents<T> {
    /// Works them out, and writes the inputs. The stream is waited for.
    pub(crate) fn place(
        stream: &Stream,
        task: &Task,
        (rank, ranks): (usize, usize),
        seed: u64,
    ) -> Result<Contents<T>, CudaError> {
        let mut contents = Vec::with_capacity(task.checked.len());
        for (number, call) in task.checked.iter().enumerate() {
            let (case, shape, seed) = (call.case, call.shape, seed + number as u64);
            let inputs = Inputs { case, shape, ranks, order: Order::Any, seed };
            let distinct = shape.input.min(PERIOD);
            let input: Vec<T> = match case.has_input(rank) {
                true => (0..distinct).map(|index| inputs.value(rank, index)).collect(),
                false => vec![T::POISON; distinct],
            };
            for (first, len) in parts(shape.input) {
                let to = call.input.cast_mut().wrapping_add(first * size_of::<T>());
                // SAFETY: the buffer is as long, and no call is under way; the values live until
                // the stream has been waited for.
                unsafe { copy(stream, to, input.as_ptr().cast(), len * size_of::<T>()) }?;
            }
            stream.synchronize()?;
            contents.push((input, inputs.expected(rank)));
        }
        Ok(Contents(contents))
    }

    /// Makes the outputs something that no call leaves there. The stream is waited for.
    pub(crate) fn poison(&self, stream: &Stream, task: &Task) -> Result<(), CudaError> {
        for call in task.calls.iter().chain(&task.checked) {
            // SAFETY: the buffer is as long, and no call is under way.
            unsafe { fill(stream, call.output, POISON, call.shape.output * size_of::<T>()) }?;
        }
        stream.synchronize()
    }

    /// How many elements are wrong after the task, the inputs' included. The stream is waited for.
    pub(crate) fn wrong(&self, stream: &Stream, task: &Task) -> Result<u64, CudaError> {
        let mut wrong = 0;
        for (call, (was, expected)) in task.checked.iter().zip(&self.0) {
            let output = call.output.cast_const();
            read::<T>(stream, output, call.shape.output, |first, part| {
                wrong += expected.wrong(first, part);
            })?;
            read::<T>(stream, call.input, call.shape.input, |_, part| {
                let changed = was.iter().zip(part).filter(|(was, is)| !was.same(**is)).count();
                wrong += changed as u64;
            })?;
        }
        Ok(wrong)
    }
}

/// Parts of so many elements, each but the last as long as the period: where they begin, and how
/// long they are.
fn parts(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).step_by(PERIOD).map(move |first| (first, PERIOD.min(count - first)))
}

/// Shows elements part by part: memory of the host for all of them would take longer to get than
/// they to come.
fn read<T: Sample>(
    stream: &Stream,
    from: *const u8,
    count: usize,
    mut look: impl FnMut(usize, &[T]),
) -> Result<(), CudaError> {
    let mut values = vec![T::ZERO; count.min(PERIOD)];
    for (first, len) in parts(count) {
        let from = from.wrapping_add(first * size_of::<T>());
        // SAFETY: the buffer is as long, and what wrote it is in front in the stream; any bits are
        // an element.
        unsafe { copy(stream, values.as_mut_ptr().cast(), from, len * size_of::<T>()) }?;
        stream.synchronize()?;
        look(first, &values[..len]);
    }
    Ok(())
}
