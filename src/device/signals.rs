//! Words by which a group under way and others tell each other of single buckets. Plain 64-bit
//! words, which only grow, so that whoever can write or await a word in memory can take part:
//! another thread, or a GPU's stream.
//!
//! Their values are numbers of calls: a bucket is ready, or done on a channel, for the call whose
//! number its word has come to. So words can be used again by a later call without being cleared,
//! though somebody may still have to look at them.

use super::cuda::{DoneWords, PinnedWords, ReadyWord, Stream, fill};
use oxccl_transports::CudaError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// For whichever call comes: the largest number, as words are compared.
const ANY_CALL: u64 = i64::MAX as u64;
/// Added to the number of a call that has failed: whoever waits for the words goes on, and whoever
/// looks sees that the bucket is not done.
const RELEASED: u64 = 1 << 62;

/// The words of one launch.
#[derive(Debug)]
pub(crate) struct Signals {
    words: Words,
    buckets: usize,
    /// Whether there is one a bucket, first: this rank has it ready. Otherwise all are from the
    /// beginning. Behind them are `stride` a bucket, one a channel: the channel is done with it. 0:
    /// nobody is told of single buckets.
    gated: bool,
    stride: usize,
    /// Channels of the launch; 0 before it.
    channels: AtomicUsize,
    /// What a bucket is marked ready with, and the least that says that it is done.
    ready: AtomicU64,
    done: AtomicU64,
}

/// Where they are.
#[derive(Debug)]
enum Words {
    Host(Box<[AtomicU64]>),
    /// In memory that a GPU reaches, too.
    Pinned(PinnedWords),
}

impl Signals {
    /// Words for so many buckets, of which each has one for up to `stride` channels when it is
    /// done, and one when it is ready, if they are `gated`.
    pub(crate) fn new(buckets: usize, stride: usize, gated: bool) -> Signals {
        let words = (0..Signals::words(buckets, stride, gated)).map(|_| AtomicU64::new(0));
        // Whichever call it is, it is the words' only one.
        let (ready, done) = (AtomicU64::new(ANY_CALL), AtomicU64::new(1));
        let (words, channels) = (Words::Host(words.collect()), AtomicUsize::new(0));
        Signals { words, buckets, gated, stride, channels, ready, done }
    }

    /// The same in memory that a GPU reaches: as many words as [`Signals::words`] says, all 0.
    pub(crate) fn pinned(
        words: PinnedWords,
        buckets: usize,
        stride: usize,
        gated: bool,
    ) -> Signals {
        assert!(words.as_slice().len() >= Signals::words(buckets, stride, gated));
        let words = Words::Pinned(words);
        let (ready, done) = (AtomicU64::new(ANY_CALL), AtomicU64::new(1));
        Signals { words, buckets, gated, stride, channels: AtomicUsize::new(0), ready, done }
    }

    /// How many words that takes.
    pub(crate) fn words(buckets: usize, stride: usize, gated: bool) -> usize {
        buckets * (stride + usize::from(gated))
    }

    /// Makes them those of the call of this number, of which no bucket is ready or done. Its words
    /// are pinned, and those of earlier calls have ended.
    pub(crate) fn begin(&self, call: u64) {
        self.ready.store(call, Ordering::Relaxed);
        self.done.store(call, Ordering::Relaxed);
    }

    fn all(&self) -> &[AtomicU64] {
        match &self.words {
            Words::Host(words) => words,
            Words::Pinned(words) => words.as_slice(),
        }
    }

    fn ready_len(&self) -> usize {
        if self.gated { self.buckets } else { 0 }
    }

    /// Whether there are words for buckets that are not ready.
    pub(crate) fn is_gated(&self) -> bool {
        self.gated
    }

    /// Whether there are words for buckets that are done.
    pub(crate) fn tells(&self) -> bool {
        self.stride > 0
    }

    /// Whether streams of a GPU reach the words.
    pub(crate) fn is_pinned(&self) -> bool {
        matches!(self.words, Words::Pinned(_))
    }

    /// Marks a bucket ready: what this thread has written before may be read now (release).
    pub(crate) fn mark_ready(&self, bucket: usize) {
        if let Some(word) = self.all()[..self.ready_len()].get(bucket) {
            word.store(self.ready.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    /// Marks a bucket ready when the stream has come that far.
    ///
    /// # Errors
    /// The driver's. Words that no GPU reaches: [`CudaError::NotSupported`].
    pub(crate) fn mark_ready_on(&self, stream: &Stream, bucket: usize) -> Result<(), CudaError> {
        if bucket >= self.ready_len() {
            return Ok(());
        }
        let word = self.pinned_word(stream, bucket)?;
        // SAFETY: `looked_at` keeps the word until the stream has come that far.
        unsafe { stream.write_value(word, self.ready.load(Ordering::Relaxed)) }?;
        self.looked_at(stream)
    }

    /// Has a stream wait until a bucket is done, or its call has failed.
    ///
    /// # Errors
    /// As [`mark_ready_on`](Signals::mark_ready_on).
    pub(crate) fn await_done_on(&self, stream: &Stream, bucket: usize) -> Result<(), CudaError> {
        let value = self.done.load(Ordering::Relaxed);
        for channel in 0..self.channels.load(Ordering::Acquire) {
            let word = self.pinned_word(stream, self.done_at(bucket) + channel)?;
            // SAFETY: as above.
            unsafe { stream.wait_value(word, value) }?;
        }
        self.looked_at(stream)
    }

    fn looked_at(&self, stream: &Stream) -> Result<(), CudaError> {
        match &self.words {
            Words::Pinned(words) => words.looked_at(stream),
            Words::Host(_) => Ok(()),
        }
    }

    /// Has a stream clear the words that say what is done, in front of each replay of a captured
    /// call: by one fill, since a write of a word takes a stream most of a microsecond.
    ///
    /// # Errors
    /// As [`mark_ready_on`](Signals::mark_ready_on).
    pub(crate) fn clear_done_on(&self, stream: &Stream) -> Result<(), CudaError> {
        let len_bytes = self.buckets * self.stride * size_of::<u64>();
        let words = self.pinned_word(stream, self.done_at(0))?;
        // SAFETY: these are this object's words, which a captured call has to itself, and which
        // stay as long as its communicator.
        unsafe { fill(stream, words.cast(), 0, len_bytes) }
    }

    /// Has a stream take back a bucket's mark, behind each replay of a captured call: the next one
    /// awaits another.
    ///
    /// # Errors
    /// As [`mark_ready_on`](Signals::mark_ready_on).
    pub(crate) fn clear_ready_on(&self, stream: &Stream, bucket: usize) -> Result<(), CudaError> {
        if bucket >= self.ready_len() {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { stream.write_value(self.pinned_word(stream, bucket)?, 0) }
    }

    fn pinned_word(&self, stream: &Stream, at: usize) -> Result<*mut u64, CudaError> {
        match &self.words {
            Words::Pinned(words) => Ok(words.device_ptr().wrapping_add(at)),
            Words::Host(_) => {
                let ordinal = stream.context().device().ordinal();
                Err(CudaError::NotSupported { ordinal, what: "a bucket of a group on the host" })
            }
        }
    }

    fn done_at(&self, bucket: usize) -> usize {
        self.ready_len() + bucket * self.stride
    }

    /// Whether the bucket is done: what was written to it can be read (acquire), and nobody touches
    /// it any more.
    pub(crate) fn is_done(&self, bucket: usize) -> bool {
        let channels = self.channels.load(Ordering::Acquire);
        let words = self.all().get(self.done_at(bucket)..).unwrap_or(&[]);
        let done = self.done.load(Ordering::Relaxed)..RELEASED;
        channels > 0
            && words.len() >= channels
            && words[..channels].iter().all(|word| done.contains(&word.load(Ordering::Acquire)))
    }

    /// Says that all buckets are done, where no channel does.
    pub(crate) fn finish(&self) {
        let done = self.done.load(Ordering::Relaxed);
        self.all()[self.ready_len()..].iter().for_each(|word| word.store(done, Ordering::Release));
    }

    /// Lets whoever waits for a bucket go on, though it is not done: the call has failed, and runs
    /// no more.
    pub(crate) fn release(&self) {
        let released = self.done.load(Ordering::Relaxed) | RELEASED;
        for word in &self.all()[self.ready_len()..] {
            if word.load(Ordering::Acquire) < self.done.load(Ordering::Relaxed) {
                word.store(released, Ordering::Release);
            }
        }
    }

    /// Says how many channels set words. Before the launch.
    pub(crate) fn launch(&self, channels: usize) {
        debug_assert!(channels <= self.stride || !self.tells());
        self.channels.store(if self.tells() { channels } else { 0 }, Ordering::Release);
    }

    /// The words that channels await, where the machine finds them; null where there are none.
    pub(crate) fn ready_words(&self) -> *const u64 {
        if self.gated { self.first_word() } else { std::ptr::null() }
    }

    /// For a kernel: the word by which a bucket is marked ready.
    pub(crate) fn ready_word(&self, bucket: usize) -> Option<ReadyWord> {
        let word = self.first_word().wrapping_add(bucket);
        let is_there = bucket < self.ready_len() && self.is_pinned();
        is_there.then(|| ReadyWord::new(word, self.ready.load(Ordering::Relaxed)))
    }

    /// For a kernel: the words that say that a bucket is done.
    pub(crate) fn done_words_of(&self, bucket: usize) -> Option<DoneWords> {
        let words = self.first_word().wrapping_add(self.done_at(bucket));
        let channels = self.channels.load(Ordering::Acquire);
        let is_there = bucket < self.buckets && channels > 0 && self.is_pinned();
        is_there.then(|| DoneWords::new(words, self.done.load(Ordering::Relaxed), channels))
    }

    /// The words that channels set, where the machine finds them; null where there are none.
    pub(crate) fn done_words(&self) -> *mut u64 {
        match self.tells() {
            true => self.first_word().wrapping_add(self.ready_len()),
            false => std::ptr::null_mut(),
        }
    }

    fn first_word(&self) -> *mut u64 {
        match &self.words {
            // Written through the pointer as atomics, which a shared reference allows.
            Words::Host(words) => words.as_ptr().cast::<u64>().cast_mut(),
            Words::Pinned(words) => words.device_ptr(),
        }
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
        signals.all()[4].store(9, Ordering::Release);
        assert!(!signals.is_done(1), "nothing is done before the launch");
        signals.launch(2);
        assert!(!signals.is_done(1));
        signals.all()[5].store(9, Ordering::Release);
        assert!(signals.is_done(1) && !signals.is_done(0) && !signals.is_done(2));
        assert!(signals.ready_words().is_null());
    }

    #[test]
    fn a_later_call_begins_anew_and_a_failed_one_does_no_bucket() {
        let signals = Signals::new(2, 1, true);
        signals.launch(1);
        signals.begin(3);
        signals.mark_ready(0);
        signals.all()[2].store(3, Ordering::Release);
        assert!(signals.is_done(0));
        signals.begin(4);
        assert!(!signals.is_done(0));
        assert_eq!(signals.all()[0].load(Ordering::Relaxed), 3, "not ready for the fourth");
        signals.all()[2].store(4, Ordering::Release);
        signals.release();
        assert!(signals.is_done(0) && !signals.is_done(1));
        let released = signals.all()[3].load(Ordering::Relaxed);
        assert!(released.wrapping_sub(4).cast_signed() >= 0, "who waits goes on");
    }
}
