//! What a launch points to, of one rank: where it lies, and who may reach it.
//!
//! | what | where | why |
//! | --- | --- | --- |
//! | slots, counters, doorbells | each rank's staging, a [`DeviceRegion`] | peers' kernels write them |
//! | connections, windows | device memory | only this rank's kernel uses them |
//! | where peers' registered allocations are ([`Registered`]) | device memory | only this process' kernels use it |
//! | how many channels of a launch have ended | device memory | counted by its blocks |
//! | the last call that has ended ([`Ended`](super::Ended)) | pinned memory | the host reads it, and streams wait for it |
//! | programs | device memory ([`Programs`](super::Programs)) | read by the kernel |
//! | progress, the abort word | a host region, which all ranks map and the GPU reaches | the host reads and writes them while a kernel runs |
//! | statuses | pinned memory, [`SLOTS`] places, so that calls under way do not share them | the host reads them after |

use super::{DeviceProgram, Registered, Stream, copy};
use crate::device::{ControlShape, StagingShape};
use oxccl_kernels::format as f;
use oxccl_transports::cuda::{DeviceMemory, DeviceRegion, PinnedMemory, RegisteredRegion};
use oxccl_transports::{CudaError, Region};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Calls that can be under way at once. Behind their statuses is one more place, which all captured
/// calls share.
pub const SLOTS: usize = 64;

/// What differs from call to call.
#[derive(Clone, Copy, Debug)]
pub struct Arguments {
    /// The caller's input, in device memory.
    pub input: *const u8,
    /// The caller's output, in device memory.
    pub output: *mut u8,
    /// How peers find these two.
    pub tokens: f::Tokens,
    /// Where a switch finds them, and all ranks': see [`Gpu::multicast`](super::Gpu::multicast).
    pub multicast: f::Multicast,
    /// As in [`f::Launch`].
    pub scale_bits: u64,
    /// As in [`f::Launch`].
    pub call: u64,
    /// As in [`f::Launch`].
    pub history: u64,
    /// As in [`f::Launch`].
    pub signature: u32,
    /// Where it says how it ended: smaller than [`SLOTS`], or that, for a call that is captured.
    pub slot: usize,
}

/// A rank's tables.
#[derive(Debug)]
pub struct Tables {
    memory: Arc<TableMemory>,
    control_shape: ControlShape,
    shape: StagingShape,
    staging: Arc<DeviceRegion>,
    /// What connections lead to, by rank: none of other nodes.
    all: Vec<Option<Arc<DeviceRegion>>>,
}

/// What was allocated for them.
#[derive(Debug)]
pub(super) struct TableMemory {
    connections: DeviceMemory,
    windows: DeviceMemory,
    registered: Registered,
    statuses: PinnedMemory,
    /// Where the channels of a launch that have ended are counted.
    arrived: DeviceMemory,
    control: RegisteredRegion,
}

impl Tables {
    /// Lays out a rank's tables. Its connections lead to its own staging, and to that of this
    /// node's ranks, of [`StagingShape::len_bytes`] each and filled with zeros. `windows` is where
    /// peers' tokens count from, and where their heaps and registered allocations begin, in this
    /// process. They are copied through the stream, which is waited for.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], and the driver's.
    pub fn new(
        stream: &Stream,
        shape: StagingShape,
        staging: Arc<DeviceRegion>,
        all: Vec<Option<Arc<DeviceRegion>>>,
        control: Arc<Region>,
        connections: &[f::Connection],
        (bases, heaps, registered): (&[*mut u8], &[*mut u8], Registered),
    ) -> Result<Tables, CudaError> {
        assert!(staging.len_bytes() >= shape.len_bytes());
        let control_shape = ControlShape { channels: shape.channels };
        assert!(control.len_bytes() >= control_shape.len_bytes());
        let context = stream.context();
        let windows = shape.windows(bases, heaps, |rank| registered.starts(rank));
        let statuses_bytes = (SLOTS + 1) * shape.channels * size_of::<f::Status>();
        let memory = TableMemory {
            connections: upload(stream, connections)?,
            windows: upload(stream, &windows)?,
            registered,
            statuses: PinnedMemory::allocate(context, statuses_bytes)?,
            arrived: upload(stream, &[0u32])?,
            control: RegisteredRegion::register(context, control, control_shape.reached_bytes())?,
        };
        Ok(Tables { memory: Arc::new(memory), control_shape, shape, staging, all })
    }

    /// What was allocated, for whoever keeps it longer.
    pub(super) fn memory(&self) -> Arc<TableMemory> {
        self.memory.clone()
    }

    /// Where the channels of a launch that have ended are counted.
    pub(super) fn arrived(&self) -> *mut u32 {
        self.memory.arrived.as_ptr().cast()
    }

    /// How staging is laid out.
    pub(super) fn shape(&self) -> StagingShape {
        self.shape
    }

    /// This rank's staging.
    pub(super) fn own_staging(&self) -> &Arc<DeviceRegion> {
        &self.staging
    }

    /// That of each rank of this node.
    pub(super) fn staging(&self) -> &[Option<Arc<DeviceRegion>>] {
        &self.all
    }

    /// The launch block of a call.
    pub fn launch(&self, program: &DeviceProgram, arguments: &Arguments) -> f::Launch {
        f::Launch {
            program: program.header(),
            statuses: self.statuses(arguments.slot),
            input: arguments.input,
            output: arguments.output,
            tokens: arguments.tokens,
            multicast: arguments.multicast,
            scale_bits: arguments.scale_bits,
            call: arguments.call,
            history: arguments.history,
            signature: arguments.signature,
            ..self.blank()
        }
    }

    /// What all launch blocks of this rank share.
    pub(crate) fn blank(&self) -> f::Launch {
        let memory = &*self.memory;
        let control = memory.control.device_ptr();
        f::Launch {
            connections: memory.connections.as_ptr().cast(),
            windows: memory.windows.as_ptr().cast(),
            progress: control.wrapping_add(self.control_shape.progress()).cast(),
            doorbells: self.staging.as_ptr().cast(),
            abort: control.wrapping_add(self.control_shape.abort_word()).cast(),
            ranks: self.shape.ranks as u32,
            ..f::Launch::EMPTY
        }
    }

    /// Where the channels of the call at this place say how they ended.
    pub(crate) fn statuses(&self, slot: usize) -> *mut f::Status {
        let statuses = self.memory.statuses.device_ptr().cast::<f::Status>();
        statuses.wrapping_add(slot * self.shape.channels)
    }

    /// Where the ranks' registered allocations begin.
    pub(crate) fn registered(&self) -> &Registered {
        &self.memory.registered
    }

    /// How the channels of a call ended that writes to this place, of which none may have ended
    /// yet: the first that failed, with its number, or else the first that was stopped.
    pub fn outcome(&self, slot: usize, channels: usize) -> Result<(), (usize, f::Status)> {
        assert!(slot <= SLOTS && channels <= self.shape.channels);
        let statuses = self.memory.statuses.as_ptr().cast::<f::Status>();
        let ended = (0..channels).map(|channel| {
            // SAFETY: each place has an entry for each channel; a kernel may be writing, hence
            // volatile.
            let status =
                unsafe { statuses.add(slot * self.shape.channels + channel).read_volatile() };
            (channel, status)
        });
        let not_done: Vec<(usize, f::Status)> =
            ended.filter(|(_, status)| status.outcome != f::Outcome::Done as u32).collect();
        let is_failed =
            |(_, status): &&(usize, f::Status)| status.outcome != f::Outcome::Aborted as u32;
        let told = not_done.iter().find(is_failed).or(not_done.first());
        told.map_or(Ok(()), |told| Err(*told))
    }

    /// What a channel waits for; a snapshot that may be torn, for people to read.
    pub fn progress(&self, channel: usize) -> f::Progress {
        assert!(channel < self.shape.channels);
        let table =
            self.memory.control.region().as_ptr().wrapping_add(self.control_shape.progress());
        // SAFETY: within the control region; the kernel may be writing, hence volatile.
        unsafe { table.cast::<f::Progress>().add(channel).read_volatile() }
    }

    /// The word that stops this rank's kernels, once it is not 0.
    pub fn abort_word(&self) -> &AtomicU32 {
        let at =
            self.memory.control.region().as_ptr().wrapping_add(self.control_shape.abort_word());
        // SAFETY: in the control region, aligned to a line, written by atomic accesses alone.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// Stops this rank's kernels.
    pub fn abort(&self) {
        self.abort_word().store(1, Ordering::Release);
    }
}

pub(super) fn upload<T>(stream: &Stream, table: &[T]) -> Result<DeviceMemory, CudaError> {
    let memory = DeviceMemory::allocate(stream.context(), size_of_val(table))?;
    // SAFETY: the memory is as long, and new; the table lives until the copy has been waited for.
    unsafe { copy(stream, memory.as_ptr(), table.as_ptr().cast(), size_of_val(table)) }?;
    stream.synchronize()?;
    Ok(memory)
}
