//! What kernels that are not oxccl's own get of a communicator: the parameter of
//! `kernels/include/oxccl/device.h`, and what it leads to.

use super::tables::upload;
use super::{Gpu, PinnedWords};
use crate::device::HeapBlock;
use oxccl_plans::length::Length;
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{DeviceMemory, DeviceRegion};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a counter, which has a line to itself, and of a line of data.
const COUNTER_BYTES: usize = 64;
const LINE_BYTES: usize = 16;
/// Cursors of a pair: notices given and taken, rounds of lines.
const CURSORS: usize = 3;

/// How much there is for user kernels: see
/// [`Communicator::device_communicator`](crate::Communicator::device_communicator).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceShape {
    /// Thread blocks that talk to their counterparts on the other ranks.
    pub blocks: usize,
    /// Lines of 8 bytes that each of them has for small messages to each rank.
    pub lines: usize,
}

/// `oxccl::device::Communicator` of `oxccl/device.h`: a kernel's parameter, or a field of it, by
/// value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceParameter {
    heaps: *const *mut u8,
    counters: *const *mut u8,
    lines: *const *mut u8,
    cursors: *mut u64,
    everywhere: *mut u8,
    abort: *const u32,
    stopped: *mut u32,
    rank: u32,
    ranks: u32,
    blocks: u32,
    lines_each: u32,
}

/// `oxccl::device::ReadyWord`: see [`Unready::ready_in_kernel`](crate::Unready::ready_in_kernel).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReadyWord {
    word: *mut u64,
    value: u64,
}

/// `oxccl::device::DoneWords`: see [`Work::done_words`](crate::Work::done_words).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DoneWords {
    words: *const u64,
    value: u64,
    count: u64,
}

impl ReadyWord {
    pub(crate) fn new(word: *mut u64, value: u64) -> ReadyWord {
        ReadyWord { word, value }
    }
}

impl DoneWords {
    pub(crate) fn new(words: *const u64, value: u64, count: usize) -> DoneWords {
        DoneWords { words, value, count: count as u64 }
    }
}

// SAFETY: addresses of the GPU's, tied to no thread.
unsafe impl Send for ReadyWord {}
// SAFETY: as above.
unsafe impl Sync for ReadyWord {}
// SAFETY: as above.
unsafe impl Send for DoneWords {}
// SAFETY: as above.
unsafe impl Sync for DoneWords {}

// SAFETY: addresses of the GPU's, tied to no thread.
unsafe impl Send for DeviceParameter {}
// SAFETY: as above.
unsafe impl Sync for DeviceParameter {}

/// A communicator as user kernels use it: see
/// [`Communicator::device_communicator`](crate::Communicator::device_communicator).
#[derive(Debug)]
pub struct DeviceCommunicator {
    parameter: DeviceParameter,
    stopped: PinnedWords,
    _tables: [DeviceMemory; 4],
    /// Counters and lines, which peers write.
    _shared: HeapBlock,
    _heaps: Vec<Option<Arc<DeviceRegion>>>,
}

impl DeviceShape {
    /// Bytes of a rank's counters and of its lines.
    pub(crate) fn bytes(&self, ranks: usize) -> Result<[usize; 2], oxccl_plans::length::TooLong> {
        let pairs = Length::new(self.blocks, ranks)?.bytes();
        // One half of the lines for each of two rounds.
        let lines = Length::new(pairs, 2 * LINE_BYTES)?.bytes();
        Ok([Length::new(pairs, COUNTER_BYTES)?.bytes(), Length::new(lines, self.lines)?.bytes()])
    }
}

impl DeviceCommunicator {
    /// What a kernel is given. It leads to memory of this object and of the communicator's, and
    /// must not be used once one of them has gone.
    pub fn parameter(&self) -> DeviceParameter {
        self.parameter
    }

    /// Whether a block has given up waiting, since the communicator had ended.
    pub fn has_stopped(&self) -> bool {
        self.stopped.as_slice()[0].load(Ordering::Acquire) != 0
    }
}

impl Gpu {
    /// For as many blocks and lines as all ranks have asked for. `shared` is this rank's block of
    /// the heap for counters and lines, all zeros, and `offsets` where all ranks' begin in their
    /// heaps.
    pub(crate) fn device_communicator(
        &mut self,
        (rank, shape): (usize, DeviceShape),
        shared: HeapBlock,
        offsets: &[usize],
        counter_bytes: usize,
    ) -> Result<DeviceCommunicator, CudaError> {
        let ranks = offsets.len();
        let stopped = self.words(1)?;
        let heaps = self.heaps().to_vec();
        let base = |heap: &Option<Arc<DeviceRegion>>| {
            heap.as_ref().map_or(std::ptr::null_mut(), |heap| heap.as_ptr())
        };
        let bases: Vec<*mut u8> = heaps.iter().map(base).collect();
        let at = |more: usize| -> Vec<*mut u8> {
            bases.iter().zip(offsets).map(|(base, at)| base.wrapping_add(at + more)).collect()
        };
        let stream = self.stream().clone();
        // All ranks' heaps, or none.
        let everywhere = match self.switched() == Some(ranks) {
            true => self.multicast(Some(0), Some(0)).base,
            false => std::ptr::null_mut(),
        };
        let cursors = vec![0u64; shape.blocks * ranks * CURSORS];
        let tables = [
            upload(&stream, &bases)?,
            upload(&stream, &at(0))?,
            upload(&stream, &at(counter_bytes))?,
            upload(&stream, &cursors)?,
        ];
        let parameter = DeviceParameter {
            heaps: tables[0].as_ptr().cast(),
            counters: tables[1].as_ptr().cast(),
            lines: tables[2].as_ptr().cast(),
            cursors: tables[3].as_ptr().cast(),
            everywhere,
            abort: self.tables().blank().abort,
            stopped: stopped.device_ptr().cast(),
            rank: rank as u32,
            ranks: ranks as u32,
            blocks: shape.blocks as u32,
            lines_each: shape.lines as u32,
        };
        Ok(DeviceCommunicator {
            parameter,
            stopped,
            _tables: tables,
            _shared: shared,
            _heaps: heaps,
        })
    }
}

// As `device.h` has it, which asserts the same.
const _: () = assert!(size_of::<DeviceParameter>() == 72);
