//! Words by which a group under way and others tell each other of single buckets. Plain 64-bit words, 0 until something has happened, so
//! that whoever can write or await a word in memory can take part: another thread, or a GPU's stream.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The words of one launch. Each is set once.
#[derive(Debug)]
pub(crate) struct Signals {
    /// One a bucket: this rank has it ready. None where all are from the beginning.
    ready: Box<[AtomicU64]>,
    /// `stride` a bucket, one a channel: the channel is done with it.
    done: Box<[AtomicU64]>,
    stride: usize,
    /// Channels of the launch; 0 before it.
    channels: AtomicUsize,
}

impl Signals {
    /// Words for so many buckets, of which each has one for up to `stride` channels when it is done, and one when it is ready, if they are
    /// `gated`.
    pub(crate) fn new(buckets: usize, stride: usize, gated: bool) -> Signals {
        let words = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        Signals {
            ready: words(if gated { buckets } else { 0 }),
            done: words(buckets * stride),
            stride,
            channels: AtomicUsize::new(0),
        }
    }

    /// Marks a bucket ready: what this thread has written before may be read now (release).
    pub(crate) fn mark_ready(&self, bucket: usize) {
        if let Some(word) = self.ready.get(bucket) {
            word.store(1, Ordering::Release);
        }
    }

    /// Whether the bucket is done: what was written to it can be read (acquire), and nobody touches it any more.
    pub(crate) fn is_done(&self, bucket: usize) -> bool {
        let channels = self.channels.load(Ordering::Acquire);
        let words = self.done.get(bucket * self.stride..).unwrap_or(&[]);
        channels > 0
            && words.len() >= channels
            && words[..channels].iter().all(|word| word.load(Ordering::Acquire) != 0)
    }

    /// Says how many channels set words. Before the launch.
    pub(crate) fn launch(&self, channels: usize) {
        debug_assert!(channels <= self.stride);
        self.channels.store(channels, Ordering::Release);
    }

    /// The words that channels await; null where there are none.
    pub(crate) fn ready_words(&self) -> *const u64 {
        if self.ready.is_empty() { std::ptr::null() } else { self.ready.as_ptr().cast() }
    }

    /// The words that channels set.
    pub(crate) fn done_words(&self) -> *mut u64 {
        // Written through the pointer as atomics, which a shared reference allows.
        self.done.as_ptr().cast::<u64>().cast_mut()
    }

    /// Words between two buckets' first ones.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_done_when_all_channels_are() {
        let signals = Signals::new(2, 4, false);
        signals.done[4].store(9, Ordering::Release);
        assert!(!signals.is_done(1), "nothing is done before the launch");
        signals.launch(2);
        assert!(!signals.is_done(1));
        signals.done[5].store(9, Ordering::Release);
        assert!(signals.is_done(1) && !signals.is_done(0) && !signals.is_done(2));
        assert!(signals.ready_words().is_null());
    }
}
