//! What a launch points to, of one rank: where it lies, and who may reach it.
//!
//! | what | where | why |
//! | --- | --- | --- |
//! | slots, counters, doorbells | each rank's staging, a [`DeviceRegion`] | peers' kernels write them |
//! | connections, windows | device memory | only this rank's kernel uses them |
//! | programs | device memory ([`Programs`](super::Programs)) | read by the kernel |
//! | progress, the abort word | a host region, which all ranks map and the GPU reaches | the host reads and writes them while a kernel runs |
//! | statuses | pinned memory | the host reads them after |

use super::{DeviceProgram, Stream, copy};
use crate::device::{ControlShape, StagingShape};
use oxccl_kernels::format as f;
use oxccl_transports::cuda::{DeviceMemory, DeviceRegion, PinnedMemory, RegisteredRegion};
use oxccl_transports::{CudaError, Region};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What differs from call to call.
#[derive(Clone, Copy, Debug)]
pub struct Arguments {
    /// The caller's input, in device memory.
    pub input: *const u8,
    /// The caller's output, in device memory.
    pub output: *mut u8,
    /// How peers find these two.
    pub tokens: f::Tokens,
    /// As in [`f::Launch`].
    pub scale_bits: u64,
    /// As in [`f::Launch`].
    pub call: u64,
    /// As in [`f::Launch`].
    pub signature: u32,
}

/// A rank's tables.
#[derive(Debug)]
pub struct Tables {
    connections: DeviceMemory,
    windows: DeviceMemory,
    statuses: PinnedMemory,
    control: RegisteredRegion,
    control_shape: ControlShape,
    shape: StagingShape,
    rank: usize,
    /// All ranks' staging, which connections lead to.
    staging: Vec<Arc<DeviceRegion>>,
}

impl Tables {
    /// Lays out a rank's tables over all ranks' staging regions, of [`StagingShape::len_bytes`] each and filled with zeros.
    /// `window_bases` is where each peer's shareable memory begins in this process. They are copied through the stream, which
    /// is waited for.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], and the driver's.
    pub fn new(
        stream: &Stream,
        shape: StagingShape,
        rank: usize,
        staging: Vec<Arc<DeviceRegion>>,
        control: Arc<Region>,
        window_bases: &[*mut u8],
    ) -> Result<Tables, CudaError> {
        assert_eq!(staging.len(), shape.ranks);
        assert!(staging.iter().all(|region| region.len_bytes() >= shape.len_bytes()));
        let control_shape = ControlShape { channels: shape.channels };
        assert!(control.len_bytes() >= control_shape.len_bytes());
        let context = stream.context();
        let bases: Vec<*mut u8> = staging.iter().map(|region| region.as_ptr()).collect();
        let connections = shape.connections(rank, &bases);
        let windows = shape.windows(window_bases);
        Ok(Tables {
            connections: upload(stream, &connections)?,
            windows: upload(stream, &windows)?,
            statuses: PinnedMemory::allocate(context, shape.channels * size_of::<f::Status>())?,
            control: RegisteredRegion::register(context, control, control_shape.reached_bytes())?,
            control_shape,
            shape,
            rank,
            staging,
        })
    }

    /// The launch block of a call.
    pub fn launch(&self, program: &DeviceProgram, arguments: &Arguments) -> f::Launch {
        let staging = self.staging[self.rank].as_ptr();
        f::Launch {
            program: program.header(),
            connections: self.connections.as_ptr().cast(),
            windows: self.windows.as_ptr().cast(),
            progress: self.control.device_ptr().wrapping_add(self.control_shape.progress()).cast(),
            statuses: self.statuses.device_ptr().cast(),
            doorbells: staging.cast(),
            abort: self.control.device_ptr().wrapping_add(self.control_shape.abort_word()).cast(),
            input: arguments.input,
            output: arguments.output,
            tokens: arguments.tokens,
            scale_bits: arguments.scale_bits,
            call: arguments.call,
            signature: arguments.signature,
            ranks: self.shape.ranks as u32,
            ..f::Launch::EMPTY
        }
    }

    /// How the channels of the last launch ended: the first that is not done, with its number. Once the stream is.
    pub fn outcome(&self, channels: usize) -> Result<(), (usize, f::Status)> {
        let ended = (0..channels).map(|channel| {
            // SAFETY: the table has an entry for each channel; a kernel may be writing, hence volatile.
            (channel, unsafe {
                self.statuses.as_ptr().cast::<f::Status>().add(channel).read_volatile()
            })
        });
        let mut failed = ended.filter(|(_, status)| status.outcome != f::Outcome::Done as u32);
        failed.next().map_or(Ok(()), Err)
    }

    /// What a channel waits for; a snapshot that may be torn, for people to read.
    pub fn progress(&self, channel: usize) -> f::Progress {
        assert!(channel < self.shape.channels);
        let table = self.control.region().as_ptr().wrapping_add(self.control_shape.progress());
        // SAFETY: within the control region; the kernel may be writing, hence volatile.
        unsafe { table.cast::<f::Progress>().add(channel).read_volatile() }
    }

    /// The word that stops this rank's kernels, once it is not 0.
    pub fn abort_word(&self) -> &AtomicU32 {
        let at = self.control.region().as_ptr().wrapping_add(self.control_shape.abort_word());
        // SAFETY: in the control region, aligned to a line, written by atomic accesses alone.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// Stops this rank's kernels.
    pub fn abort(&self) {
        self.abort_word().store(1, Ordering::Release);
    }
}

fn upload<T>(stream: &Stream, table: &[T]) -> Result<DeviceMemory, CudaError> {
    let memory = DeviceMemory::allocate(stream.context(), size_of_val(table))?;
    // SAFETY: the memory is as long, and new; the table lives until the copy has been waited for.
    unsafe { copy(stream, memory.as_ptr(), table.as_ptr().cast(), size_of_val(table)) }?;
    stream.synchronize()?;
    Ok(memory)
}
