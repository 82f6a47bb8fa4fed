//! Communicators of one process whose kernels may not all be on a GPU at once.
//!
//! The blocks of a call wait for those of its other ranks, so all must be on their GPUs. Each
//! communicator's fit ([`CudaError::TooManyBlocks`]). Those of several may not: a kernel that waits
//! on one GPU takes the room of another that it waits for by way of a second GPU, where the two
//! came the other way round. So where the blocks of all communicators are more than the GPU holds,
//! their calls take turns there: each follows the one that was launched before, whosever that was.
//! What is in one stream, or one communicator, is in that order anyway, and a thread's calls of
//! several communicators come alike on all ranks.

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
    /// Whether there are more blocks than it holds.
    is_crowded: AtomicBool,
    last: Mutex<Option<Last>>,
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

/// The call that was launched last.
#[derive(Debug)]
struct Last {
    seat: u64,
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
    seat: u64,
    last: MutexGuard<'a, Option<Last>>,
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
            let (seated, is_crowded, last) = Default::default();
            let crowd = Arc::new(Crowd { gpu, resident, seated, is_crowded, last });
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

    /// The turn, where there have to be turns.
    pub(crate) fn turn(&self) -> Option<Turn<'_>> {
        let takes_turns = self.waits && self.crowd.is_crowded.load(Ordering::Relaxed);
        takes_turns.then(|| Turn { seat: self.number, last: lock(&self.crowd.last) })
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
        lock(&self.crowd.last).take_if(|last| last.seat == self.number || !is_crowded);
    }
}

impl Turn<'_> {
    /// Has what comes into the stream wait for another communicator's call. A capture knows only
    /// what it has recorded.
    pub(crate) fn hold(&self, stream: &Stream, capture: Option<u64>) -> Result<(), CudaError> {
        let Some(last) = self.last.as_ref() else { return Ok(()) };
        if last.seat == self.seat || last.capture != capture {
            return Ok(());
        }
        last.end.hold(stream, last.connections)
    }

    /// This call has been launched, and ends there.
    pub(crate) fn launched(
        &mut self,
        end: CallEnd,
        capture: Option<u64>,
        connections: Option<usize>,
    ) {
        *self.last = Some(Last { seat: self.seat, end, capture, connections });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
