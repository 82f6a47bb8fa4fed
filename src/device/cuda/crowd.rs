//! Communicators of one process whose kernels may not all be on a GPU at once.
//!
//! The blocks of a call wait for those of its other ranks, so all must be on their GPUs. Each
//! communicator's fit ([`CudaError::TooManyBlocks`]). Those of several may not: a kernel that waits
//! on one GPU takes the room of another that it waits for by way of a second GPU, where the two
//! came the other way round. So a call whose blocks do not fit beside those that are under way
//! follows as many of these, the oldest first, as it takes to fit. A thread's calls of several
//! communicators come alike on all ranks, so what one waits for, no rank has launched behind it.

use super::{CallEnd, Stream};
use oxccl_transports::CudaError;
use oxccl_transports::cuda::Uuid;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The GPUs of this process that have seats.
static CROWDS: Mutex<Vec<Weak<Crowd>>> = Mutex::new(Vec::new());

/// The communicators of this process on one GPU.
#[derive(Debug)]
struct Crowd {
    gpu: Uuid,
    /// How many blocks the GPU holds.
    resident: usize,
    seated: Mutex<Seated>,
    /// Whether all together have more blocks than it holds: otherwise nobody has to look.
    is_crowded: AtomicBool,
    /// The last call of each seat, the oldest first, unless it is known to have ended, and the last
    /// that was captured.
    under_way: Mutex<Vec<Launched>>,
}

#[derive(Debug, Default)]
struct Seated {
    /// Blocks of all.
    blocks: usize,
    /// Seats that cannot wait for their turns.
    impatient: usize,
    /// Numbers that were given.
    numbers: u64,
}

/// A call that was launched, behind all earlier ones of its seat.
#[derive(Debug)]
struct Launched {
    seat: u64,
    blocks: usize,
    end: CallEnd,
    /// The capture that recorded it.
    capture: Option<u64>,
    /// By how many connections streams reach the GPU, where it waits for marks.
    connections: Option<usize>,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Seat {
    crowd: Arc<Crowd>,
    number: u64,
    blocks: usize,
    waits: bool,
}

/// Whoever has it launches next.
pub(crate) struct Turn<'a> {
    seat: &'a Seat,
    under_way: MutexGuard<'a, Vec<Launched>>,
}

impl Seat {
    /// Takes a seat for a communicator whose kernels have up to `channels` blocks, on a GPU that
    /// holds `resident`. `waits`: it has one rank of this process there. Several launch by
    /// themselves, and none may wait for what another has launched before.
    ///
    /// # Errors
    /// [`CudaError::TooManyBlocks`] if not all blocks fit, and some communicator cannot wait.
    pub(super) fn take(
        gpu: Uuid,
        channels: usize,
        resident: usize,
        waits: bool,
    ) -> Result<Seat, CudaError> {
        let mut crowds = lock(&CROWDS);
        crowds.retain(|crowd| crowd.strong_count() > 0);
        let known = crowds.iter().filter_map(Weak::upgrade).find(|crowd| crowd.gpu == gpu);
        let crowd = known.unwrap_or_else(|| {
            let (seated, is_crowded, under_way) = Default::default();
            let crowd = Arc::new(Crowd { gpu, resident, seated, is_crowded, under_way });
            crowds.push(Arc::downgrade(&crowd));
            crowd
        });
        let number = {
            let mut seated = lock(&crowd.seated);
            let blocks = seated.blocks + channels;
            if blocks > crowd.resident && !(waits && seated.impatient == 0) {
                let ranks = blocks.div_ceil(channels.max(1));
                return Err(CudaError::TooManyBlocks { gpu, ranks, channels, resident });
            }
            if blocks > crowd.resident && !crowd.is_crowded.swap(true, Ordering::Relaxed) {
                tracing::info!(blocks, resident, "communicators take turns on a GPU");
            }
            seated.blocks = blocks;
            seated.impatient += usize::from(!waits);
            seated.numbers += 1;
            seated.numbers
        };
        Ok(Seat { crowd, number, blocks: channels, waits })
    }

    /// The turn, where there may have to be turns. What was launched before there were so many
    /// communicators is not looked at.
    pub(crate) fn turn(&self) -> Option<Turn<'_>> {
        let takes_turns = self.waits && self.crowd.is_crowded.load(Ordering::Relaxed);
        takes_turns.then(|| Turn { seat: self, under_way: lock(&self.crowd.under_way) })
    }
}

impl Drop for Seat {
    /// Its calls have ended.
    fn drop(&mut self) {
        let mut seated = lock(&self.crowd.seated);
        seated.blocks -= self.blocks;
        seated.impatient -= usize::from(!self.waits);
        let is_crowded = seated.blocks > self.crowd.resident;
        self.crowd.is_crowded.store(is_crowded, Ordering::Relaxed);
        lock(&self.crowd.under_way).retain(|call| call.seat != self.number && is_crowded);
    }
}

impl Turn<'_> {
    /// Has what comes into the stream wait until so many blocks fit beside those of other
    /// communicators. A capture knows only what it has recorded.
    pub(crate) fn hold(
        &mut self,
        stream: &Stream,
        blocks: usize,
        capture: Option<u64>,
    ) -> Result<(), CudaError> {
        self.under_way.retain(|call| !call.end.has_ended());
        let is_other = |call: &&Launched| call.seat != self.seat.number && call.capture == capture;
        let others = || self.under_way.iter().filter(is_other);
        let mut room = blocks + others().map(|call| call.blocks).sum::<usize>();
        for call in others() {
            if room <= self.seat.crowd.resident {
                break;
            }
            if let Some(connections) = call.connections {
                // The wait must not keep back a mark.
                stream.check_connections(connections)?;
            }
            call.end.hold(stream, None)?;
            room -= call.blocks;
        }
        Ok(())
    }

    /// This call has been launched, and ends there.
    pub(crate) fn launched(
        &mut self,
        blocks: usize,
        end: CallEnd,
        capture: Option<u64>,
        connections: Option<usize>,
    ) {
        let seat = self.seat.number;
        let is_captured = capture.is_some();
        self.under_way.retain(|call| call.seat != seat || call.capture.is_some() != is_captured);
        self.under_way.push(Launched { seat, blocks, end, capture, connections });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
