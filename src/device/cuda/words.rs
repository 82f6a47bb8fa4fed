//! Memory that both the host and the GPU write: words of groups, and what is copied to the GPU in a
//! stream. It is taken from a few long allocations, which stay until the rank goes, as programs do:
//! see [`Programs`](super::Programs).

use super::{Event, Stream};
use oxccl_plans::length::Length;
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Context, PinnedMemory, beside_captures};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What is allocated at a time, at least.
const CHUNK_BYTES: usize = 1 << 20;
/// What is allocated at the start where allocating more may have to wait for another rank.
const FIRST_BYTES_SEPARATE: usize = 4 << 20;
/// Parts begin at multiples of this.
const ALIGN_BYTES: usize = 64;
/// How long streams that still look at words are waited for when these go.
const LATER: Duration = Duration::from_secs(60);

/// A rank's pinned memory.
#[derive(Debug)]
pub struct PinnedPool {
    context: Context,
    /// The last one has room.
    chunks: Vec<Arc<Chunk>>,
    used_bytes: usize,
}

/// One allocation.
#[derive(Debug)]
pub(super) struct Chunk {
    memory: Option<PinnedMemory>,
    /// What streams must have come to before the memory goes.
    lookers: Mutex<Vec<Event>>,
}

/// A part of it, as 64-bit words, 0 at first.
#[derive(Clone, Debug)]
pub struct PinnedWords {
    chunk: Arc<Chunk>,
    offset_bytes: usize,
    len: usize,
}

impl PinnedPool {
    /// Room for the first ones; for many where ranks of the process launch by themselves
    /// (`separate`).
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], and the driver's.
    pub fn new(context: &Context, separate: bool) -> Result<PinnedPool, CudaError> {
        let first_bytes = if separate { FIRST_BYTES_SEPARATE } else { CHUNK_BYTES };
        let first = Arc::new(Chunk::allocate(context, first_bytes)?);
        Ok(PinnedPool { context: context.clone(), chunks: vec![first], used_bytes: 0 })
    }

    /// What was allocated, for whoever keeps it longer.
    pub(super) fn memory(&self) -> Vec<Arc<Chunk>> {
        self.chunks.clone()
    }

    /// Takes so many words.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], and the driver's.
    pub fn take(&mut self, len: usize) -> Result<PinnedWords, CudaError> {
        let padded = Length::new(len, size_of::<u64>())
            .and_then(|length| length.padded(ALIGN_BYTES / size_of::<u64>()));
        let Ok(padded) = padded else {
            let what = "pinned memory";
            return Err(CudaError::OutOfMemory { what, bytes: usize::MAX, free_bytes: None });
        };
        let len_bytes = padded.bytes();
        let room = self.chunks.last().map_or(0, |chunk| chunk.len_bytes() - self.used_bytes);
        if len_bytes > room {
            let chunk_bytes = len_bytes.max(CHUNK_BYTES);
            let driver = self.context.device().driver();
            let chunk = beside_captures(driver, || Chunk::allocate(&self.context, chunk_bytes))?;
            self.chunks.push(Arc::new(chunk));
            self.used_bytes = 0;
        }
        let chunk = self.chunks[self.chunks.len() - 1].clone();
        let offset_bytes = self.used_bytes;
        self.used_bytes += len_bytes;
        Ok(PinnedWords { chunk, offset_bytes, len })
    }
}

impl PinnedWords {
    /// The words; others may write them.
    pub fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: this part of the chunk is this object's and its clones', aligned to a line, and
        // all use it as atomics.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len) }
    }

    /// Where the host finds them.
    pub(crate) fn as_ptr(&self) -> *mut u64 {
        let memory = self.chunk.memory.as_ref().map_or(std::ptr::null_mut(), PinnedMemory::as_ptr);
        memory.wrapping_add(self.offset_bytes).cast()
    }

    /// Where the GPU finds them.
    pub fn device_ptr(&self) -> *mut u64 {
        let memory =
            self.chunk.memory.as_ref().map_or(std::ptr::null_mut(), PinnedMemory::device_ptr);
        memory.wrapping_add(self.offset_bytes).cast()
    }

    /// What is in the stream now looks at them: they stay until it has come that far. In a capture
    /// that is its maker's affair.
    ///
    /// # Errors
    /// The driver's.
    pub fn looked_at(&self, stream: &Stream) -> Result<(), CudaError> {
        if stream.capture_state()? != super::CaptureState::None {
            return Ok(());
        }
        let mut lookers = self.chunk.lookers.lock().unwrap_or_else(PoisonError::into_inner);
        let event = beside_captures(stream.context().device().driver(), || {
            let free = lookers.iter().position(|event| event.is_done().unwrap_or(false));
            match free {
                Some(at) => Ok(lookers.swap_remove(at)),
                None => Event::new(stream.context()),
            }
        })?;
        let recorded = event.record(stream);
        lookers.push(event);
        recorded
    }
}

impl Chunk {
    fn allocate(context: &Context, len_bytes: usize) -> Result<Chunk, CudaError> {
        let memory = Some(PinnedMemory::allocate(context, len_bytes)?);
        Ok(Chunk { memory, lookers: Mutex::default() })
    }

    fn len_bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, PinnedMemory::len_bytes)
    }
}

impl Drop for Chunk {
    /// Waits for whoever still looks. That is soon, but for streams that wait for something else of
    /// their own.
    fn drop(&mut self) {
        let begin = Instant::now();
        let lookers = self.lookers.get_mut().unwrap_or_else(PoisonError::into_inner);
        // What fails has no stream any more that could look.
        while lookers.iter().any(|event| matches!(event.is_done(), Ok(false))) {
            if begin.elapsed() > LATER {
                tracing::error!("a stream still waits for a bucket; the words stay");
                std::mem::forget(self.memory.take());
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
