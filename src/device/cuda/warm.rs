//! What the driver does with kernels and tables of its own, once at the start: it loads them when
//! they are first needed, unless `CUDA_MODULE_LOADING` is EAGER, and may wait for all kernels of
//! the context to do so, another rank's among them.

use super::{PinnedWords, Stream, copy, fill};
use oxccl_transports::CudaError;
use std::sync::atomic::Ordering;

/// What is filled and copied: long and short, by words and by bytes.
const EXTENTS: [(usize, usize); 3] = [(0, WARM_BYTES / 2), (256, 260), (1, 3)];
/// Memory that it takes.
pub(super) const WARM_BYTES: usize = 128 << 10;

/// Fills, copies every way, writes and awaits a word. The stream is waited for.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// The memory is [`WARM_BYTES`] of the GPU's, and nobody's yet.
pub(super) unsafe fn warm(
    stream: &Stream,
    memory: *mut u8,
    words: &PinnedWords,
) -> Result<(), CudaError> {
    let (half, host) = (memory.wrapping_add(WARM_BYTES / 2), words.device_ptr().cast::<u8>());
    for (at, len_bytes) in EXTENTS {
        let (from, to) = (memory.wrapping_add(at), half.wrapping_add(at));
        let len_bytes = len_bytes.min(WARM_BYTES / 2 - at);
        // SAFETY: within the two halves, which are this function's; the words are longer than what
        // is copied to and from them.
        unsafe {
            fill(stream, from, 0, len_bytes)?;
            copy(stream, to, from.cast_const(), len_bytes)?;
            let few = len_bytes.min(words.as_slice().len() * size_of::<u64>());
            copy(stream, host, from.cast_const(), few)?;
            copy(stream, to, host.cast_const(), few)?;
        }
    }
    // SAFETY: a word that lives until the stream has been waited for.
    unsafe {
        stream.write_value(words.device_ptr(), 1)?;
        stream.wait_value(words.device_ptr(), 1)?;
    }
    stream.synchronize()?;
    words.as_slice().iter().for_each(|word| word.store(0, Ordering::Relaxed));
    Ok(())
}
