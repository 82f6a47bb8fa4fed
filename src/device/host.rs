//! The host as a device: the threads that run channels, and the tables that a launch points to.

use super::channels::Channels;
use super::control::Control;
use super::heaps::ByRank;
use super::staging::StagingShape;
use oxccl_kernels::{HostExecutor, TracedStep, format as f};
use oxccl_transports::Region;
use std::ffi::c_void;
use std::sync::Arc;

/// Yields of a wait before it sleeps.
const YIELDS: u32 = 2_000;

const LINE: usize = 64;

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Line {
    _bytes: [u8; LINE],
}

/// One rank's part of the host.
#[derive(Debug)]
pub(crate) struct Host {
    channels: Channels,
    /// What all launch blocks share.
    blank: f::Launch,
    // What it points to. They stay where they are.
    _connections: Box<[f::Connection]>,
    _windows: Box<[f::Window]>,
    _bounces: Box<[Line]>,
    statuses: Box<[f::Status]>,
    /// What the connections lead to.
    _staging: Vec<Arc<Region>>,
    /// What the windows lead to.
    heaps: ByRank<Region>,
}

/// How a wait asks whether to go on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// Not 0 stops it.
    pub(crate) abort: *const u32,
    /// As in [`f::Launch`].
    pub(crate) poll: unsafe extern "C" fn(*mut c_void, u32) -> u32,
    /// Passed to `poll`.
    pub(crate) context: *mut c_void,
    /// Polls before it yields.
    pub(crate) spins: u32,
}

impl Host {
    /// Tables over the staging of this node's ranks, in rank order, each of
    /// [`StagingShape::len_bytes`]; `connect` fills in the connections to others. `window_bases` is
    /// where peers' tokens count from, in this process. `processes` are the ranks', by rank, where
    /// the system reads their memory for this one.
    pub(crate) fn new(
        shape: StagingShape,
        rank: usize,
        (staging, heaps): (ByRank<Region>, ByRank<Region>),
        connect: impl FnOnce(&mut [f::Connection]),
        (window_bases, processes): (&[*mut u8], Option<&[u32]>),
        control: &Control,
        waiting: Waiting,
    ) -> Host {
        assert_eq!(staging.len(), shape.ranks);
        let regions = || staging.iter().flatten();
        assert!(regions().all(|region| region.len_bytes() >= shape.len_bytes()));
        let base = |region: &Option<Arc<Region>>| region.as_ref().map(|region| region.as_ptr());
        let bases: Vec<*mut u8> =
            staging.iter().map(|region| base(region).unwrap_or(std::ptr::null_mut())).collect();
        let mut connections = shape.connections(rank, &bases).into_boxed_slice();
        connect(&mut connections);
        let mut windows =
            shape.windows(window_bases, window_bases, |_| std::ptr::null()).into_boxed_slice();
        for (window, process) in windows.iter_mut().zip(processes.unwrap_or(&[]).iter().cycle()) {
            window.process = u64::from(*process);
        }
        let bounces = processes.map_or(0, |_| shape.channels * f::BOUNCE_BYTES / LINE);
        let mut bounces = vec![Line { _bytes: [0; LINE] }; bounces].into_boxed_slice();
        let mut statuses = vec![f::Status::default(); shape.channels].into_boxed_slice();
        let blank = f::Launch {
            connections: connections.as_mut_ptr(),
            windows: windows.as_mut_ptr(),
            progress: control.progress_table(),
            statuses: statuses.as_mut_ptr(),
            doorbells: bases[rank].cast(),
            abort: waiting.abort,
            poll: Some(waiting.poll),
            poll_context: waiting.context,
            ranks: shape.ranks as u32,
            spins: waiting.spins,
            yields: YIELDS,
            bounce: bounces.as_mut_ptr().cast(),
            ..f::Launch::EMPTY
        };
        Host {
            channels: Channels::new(HostExecutor::detect()),
            blank,
            _connections: connections,
            _windows: windows,
            _bounces: bounces,
            statuses,
            _staging: staging.into_iter().flatten().collect(),
            heaps,
        }
    }

    /// Wakes that waits have missed, on all channels.
    pub(crate) fn missed_wakes(&self) -> u64 {
        let missed = |channel: usize| {
            let doorbell = self.blank.doorbells.wrapping_add(channel);
            // SAFETY: staging begins with a doorbell for each channel, of which there are as many
            // as statuses; it is mapped as long as `self` lives.
            unsafe { u64::from((&raw const (*doorbell).missed).read_volatile()) }
        };
        (0..self.statuses.len()).map(missed).sum()
    }

    /// The heaps of this node's ranks, by rank.
    pub(crate) fn heaps(&self) -> &[Option<Arc<Region>>] {
        &self.heaps
    }

    /// Keeps the steps of calls from here on, or no longer.
    pub(crate) fn set_trace(&mut self, on: bool) {
        self.channels.set_trace(on);
    }

    /// The steps that have been kept.
    pub(crate) fn take_trace(&mut self) -> Vec<TracedStep> {
        self.channels.take_trace()
    }

    /// What all launch blocks of this rank share.
    pub(crate) fn blank(&self) -> f::Launch {
        self.blank
    }

    /// Runs all channels of a chain of launch blocks, which are made from [`blank`](Self::blank).
    ///
    /// # Safety
    ///
    /// Each block's program was lowered for this shape, and its buffers are valid for the call.
    #[inline]
    pub(crate) unsafe fn run(&mut self, first: &f::Launch, channels: usize) -> f::Outcome {
        // SAFETY: by this function's contract; the tables are this object's own.
        unsafe { self.channels.run(first, channels) }
    }

    /// How the first channel ended that did not end well.
    pub(crate) fn odd(&self) -> Option<&f::Status> {
        self.statuses.iter().find(|status| status.outcome != f::Outcome::Done as u32)
    }
}
