//! Control memory: one host region a rank, which all ranks map, with what they read to explain a failure: the call log, the
//! progress words, and the words of groups. A GPU reaches the first part of it, too.

use super::heap::Heap;
use super::log::CallLog;
use oxccl_kernels::format as f;
use oxccl_transports::Region;
use std::sync::Arc;

/// Words by which ranks whose groups differ find the first bucket in which they do.
pub(crate) const BUCKET_WORDS: usize = 4;
/// Room for groups' words: address space, of which pages exist once written.
const GROUPS_BYTES: usize = 1 << 30;
/// A page.
const PAGE: usize = 4096;

/// How a control region is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControlShape {
    /// Channels, each of which has progress words.
    pub(crate) channels: usize,
}

impl ControlShape {
    /// Where the progress words begin, behind the log.
    pub(crate) fn progress(&self) -> usize {
        std::mem::size_of::<CallLog>()
    }

    /// The word that stops a GPU's kernels, in a line of its own.
    pub(crate) fn abort_word(&self) -> usize {
        self.progress() + self.channels * std::mem::size_of::<f::Progress>()
    }

    /// Length of the part that kernels use, whole pages.
    pub(crate) fn reached_bytes(&self) -> usize {
        (self.abort_word() + std::mem::size_of::<f::Doorbell>()).next_multiple_of(PAGE)
    }

    /// Length of a rank's region.
    pub(crate) fn len_bytes(&self) -> usize {
        self.reached_bytes() + GROUPS_BYTES
    }
}

/// All ranks' control regions, as this rank maps them.
#[derive(Debug)]
pub(crate) struct Control {
    shape: ControlShape,
    rank: usize,
    regions: Vec<Arc<Region>>,
    /// This rank's room for groups' words.
    groups: Arc<Heap>,
}

impl Control {
    /// Control memory over every rank's region, in rank order. Each must have [`ControlShape::len_bytes`].
    pub(crate) fn new(shape: ControlShape, rank: usize, regions: Vec<Arc<Region>>) -> Control {
        assert!(regions.iter().all(|region| region.len_bytes() >= shape.len_bytes()));
        let groups = Heap::part(regions[rank].clone(), shape.reached_bytes());
        Control { shape, rank, regions, groups: Arc::new(groups) }
    }

    /// Number of ranks.
    pub(crate) fn ranks(&self) -> usize {
        self.regions.len()
    }

    /// Number of channels, which have progress words.
    pub(crate) fn channels(&self) -> usize {
        self.shape.channels
    }

    /// A rank's call log.
    pub(crate) fn log(&self, rank: usize) -> &CallLog {
        // SAFETY: every region begins with a log (zeroed at first, which is a valid one) and is page-aligned and mapped as long as
        // `self` lives; a log's fields are atomics, so that other ranks may write it.
        unsafe { &*self.regions[rank].as_ptr().cast::<CallLog>() }
    }

    /// This rank's progress words, one a channel.
    pub(crate) fn progress_table(&self) -> *mut f::Progress {
        self.regions[self.rank].as_ptr().wrapping_add(self.shape.progress()).cast()
    }

    /// What a rank's channel waits for; a snapshot that may be torn, for people to read.
    pub(crate) fn progress(&self, rank: usize, channel: usize) -> f::Progress {
        assert!(channel < self.shape.channels);
        let table = self.regions[rank].as_ptr().wrapping_add(self.shape.progress());
        // SAFETY: within the region, aligned to a line, any bits are valid; another rank may write it meanwhile, hence volatile.
        unsafe { table.cast::<f::Progress>().add(channel).read_volatile() }
    }

    /// This rank's room for the words of its groups, which others find by offsets into the region.
    pub(crate) fn groups(&self) -> &Arc<Heap> {
        &self.groups
    }

    /// The words of a rank's group, at an offset of its region: one array a bucket. A snapshot, to explain a failure; empty where it
    /// cannot be.
    pub(crate) fn bucket_words(
        &self,
        rank: usize,
        offset: u64,
        buckets: u64,
    ) -> Vec<[u64; BUCKET_WORDS]> {
        let region = &self.regions[rank];
        let size = std::mem::size_of::<[u64; BUCKET_WORDS]>() as u64;
        let len = region.len_bytes() as u64;
        let fits = offset.is_multiple_of(8)
            && buckets.checked_mul(size).is_some_and(|bytes| bytes <= len && offset <= len - bytes);
        if !fits {
            return Vec::new();
        }
        let first = region.as_ptr().wrapping_add(offset as usize).cast::<[u64; BUCKET_WORDS]>();
        // SAFETY: within the mapping, as just checked, aligned, any bits are valid; another rank may write it, hence volatile.
        (0..buckets as usize).map(|at| unsafe { first.add(at).read_volatile() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        let shape = ControlShape { channels: 3 };
        let progress_end = shape.progress() + 3 * std::mem::size_of::<f::Progress>();
        assert!(std::mem::size_of::<CallLog>() <= shape.progress());
        assert!(progress_end <= shape.abort_word());
        assert!(shape.abort_word() + 64 <= shape.reached_bytes());
        assert!(shape.progress().is_multiple_of(64) && shape.abort_word().is_multiple_of(64));
    }

    #[test]
    fn words_are_read_within_the_region_alone() {
        let shape = ControlShape { channels: 1 };
        let region = Arc::new(Region::create("test", shape.len_bytes()).unwrap());
        let control = Control::new(shape, 0, vec![region]);
        let block = control.groups().alloc(64).unwrap();
        let words = control.bucket_words(0, block.offset() as u64, 2);
        assert_eq!(words, [[0; BUCKET_WORDS]; 2]);
        for (offset, buckets) in [(4, 1), (shape.len_bytes() as u64, 1), (0, u64::MAX)] {
            assert!(control.bucket_words(0, offset, buckets).is_empty());
        }
    }
}
