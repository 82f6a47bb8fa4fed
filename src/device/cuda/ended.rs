//! The word by which a rank's kernels say that they have ended: the number of the last call, in
//! memory that the host and streams reach.
//!
//! An event behind a kernel would do, but it keeps back all that other streams put into the same
//! connection to the GPU, until the kernel has ended; of a kernel that waits for a mark, that may
//! be the mark. So nothing stands behind a kernel but what its stream's owner puts there. A rank's
//! calls follow one another, so one word does for all of them.

use super::{Event, MemoryOp, PinnedWords, Stream};
use oxccl_kernels::format::Launch;
use oxccl_transports::CudaError;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A rank's word.
#[derive(Debug)]
pub struct Ended {
    word: PinnedWords,
    /// Where the channels of a launch are counted: device memory of the rank's.
    arrived: usize,
}

impl Ended {
    /// A word that is 0, and a count that is 0, which lives as long as this rank launches.
    pub(super) fn new(word: PinnedWords, arrived: *mut u32) -> Ended {
        Ended { word, arrived: arrived as usize }
    }

    /// The launch block of a call of so many channels, which writes its number here at its end.
    pub(crate) fn told_by(&self, launch: Launch, channels: usize) -> Launch {
        let (ended, arrived) = (self.word.device_ptr(), self.arrived as *mut u32);
        Launch { ended, arrived, launched: channels as u64, ..launch }
    }

    /// What says so at the end of a call that is no kernel.
    pub(crate) fn tell(&self, call: u64) -> MemoryOp {
        MemoryOp::Write(self.word.device_ptr(), call)
    }

    /// Whether the call of this number has ended, and those before it. What it has done can be read
    /// then (acquire).
    pub(crate) fn has(&self, call: u64) -> bool {
        let last = self.word.as_slice()[0].load(Ordering::Acquire);
        last.wrapping_sub(call).cast_signed() >= 0
    }

    /// What comes later in the stream waits for the end of a call that has been launched.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn hold(&self, stream: &Stream, call: u64) -> Result<(), CudaError> {
        if self.has(call) {
            return Ok(());
        }
        // SAFETY: `looked_at` keeps the word until the stream has come that far.
        unsafe { stream.wait_value(self.word.device_ptr(), call) }?;
        self.word.looked_at(stream)
    }
}

/// Where a call that was put into a stream ends.
#[derive(Clone, Debug)]
pub(crate) enum CallEnd {
    /// Its kernel tells.
    Told {
        ended: Arc<Ended>,
        call: u64,
        /// By how many connections streams reach the GPU, where its end depends on what may yet
        /// have to come by one of them.
        connections: Option<usize>,
    },
    /// It is only recorded.
    Captured(Arc<Event>),
}

impl CallEnd {
    /// Whether the host knows that nothing need wait for it any more.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, CallEnd::Told { ended, call, .. } if ended.has(*call))
    }

    /// What comes later in the stream waits for it. `keeps_back`: it may need what stands behind
    /// the wait, in another stream of the same connection.
    ///
    /// # Errors
    /// [`CudaError::TooFewConnections`] if that may be; the driver's.
    pub(crate) fn hold(&self, stream: &Stream, keeps_back: Option<usize>) -> Result<(), CudaError> {
        match self {
            CallEnd::Captured(event) => event.hold(stream),
            CallEnd::Told { ended, call, .. } if ended.has(*call) => Ok(()),
            CallEnd::Told { ended, call, connections } => {
                if let Some(connections) = connections.or(keeps_back) {
                    stream.check_connections(connections)?;
                }
                ended.hold(stream, *call)
            }
        }
    }
}
