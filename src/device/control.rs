//! Control memory: one host region a rank, which all ranks of its node map, with what they read to
//! explain a failure: the call log, the badge, the progress words, and the words of groups. Of a
//! rank of another node there is a mirror, which its reports fill in. A GPU reaches the first part
//! of it, too. Other processes of the same user find it by its name (`src/status/process.rs`).

use super::badge::Badge;
use super::copy::ControlCopy;
use super::heap::Heap;
use super::log::CallLog;
use super::report;
use oxccl_kernels::format as f;
use oxccl_transports::fork::Origin;
use oxccl_transports::{Error, Region};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Words by which ranks whose groups differ find the first bucket in which they do.
pub(crate) const BUCKET_WORDS: usize = 5;
/// Room for groups' words: address space, of which pages exist once written.
const GROUPS_BYTES: usize = 1 << 30;
/// The name of a region, which other processes see.
pub(crate) const CONTROL: &str = "oxccl-control";
/// That of what stands for a rank of another node.
const MIRROR: &str = "oxccl-mirror";
/// A page.
const PAGE: usize = 4096;
/// A cache line.
const LINE: usize = 64;

/// How a control region is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControlShape {
    /// Channels, each of which has progress words.
    pub(crate) channels: usize,
}

impl ControlShape {
    /// Where the badge is, behind the log.
    pub(crate) fn badge(&self) -> usize {
        std::mem::size_of::<CallLog>()
    }

    /// Where the progress words begin, behind the badge.
    pub(crate) fn progress(&self) -> usize {
        self.badge() + std::mem::size_of::<Badge>()
    }

    /// The word that stops a GPU's kernels, in a line of its own.
    pub(crate) fn abort_word(&self) -> usize {
        self.progress() + self.channels * std::mem::size_of::<f::Progress>()
    }

    /// The word by which the ranks of a node share a shaped link, where the first of them has it,
    /// in a line of its own.
    pub(crate) fn egress(&self) -> usize {
        self.abort_word() + LINE
    }

    /// The word that sums up what ranks of a node are about to reserve, where the first of them has
    /// it, in a line of its own.
    pub(crate) fn claims(&self) -> usize {
        self.egress() + LINE
    }

    /// Length of the part that kernels use, whole pages.
    pub(crate) fn reached_bytes(&self) -> usize {
        (self.claims() + LINE).next_multiple_of(PAGE)
    }

    /// Length of a rank's region.
    pub(crate) fn len_bytes(&self) -> usize {
        self.reached_bytes() + GROUPS_BYTES
    }
}

/// The words of a rank's group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupWords {
    /// Where they lie in the rank's region.
    pub(crate) offset: u64,
    /// One array a bucket.
    pub(crate) words: Vec<[u64; BUCKET_WORDS]>,
}

/// What reports have told of a rank of another node, besides its log and its progress words.
#[derive(Debug, Default)]
struct Mirror {
    reports: AtomicU64,
    /// When it was asked for the first report that has not come.
    asked: Mutex<Option<Instant>>,
    groups: Mutex<Vec<GroupWords>>,
}

/// All ranks' control regions, as this rank maps them.
#[derive(Debug)]
pub(crate) struct Control {
    shape: ControlShape,
    rank: usize,
    regions: Vec<Arc<Region>>,
    /// Where this rank's log is, which every call writes.
    own_log: AtomicPtr<CallLog>,
    /// For each rank of another node, what its region does not hold; `None` for those whose memory
    /// this is.
    mirrors: Vec<Option<Mirror>>,
    /// This rank's room for groups' words.
    groups: Arc<Heap>,
    origin: Origin,
}

impl Drop for Control {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Control {
    /// This rank's communicator is gone, to who looks from outside: its file may outlive it, for
    /// parts, and who has looked from inside may hold this a while longer.
    pub(crate) fn leave(&self) {
        if self.origin.is_here() {
            self.own_badge().leave();
        }
    }

    /// Control memory over the regions of this node's ranks, in rank order, each of
    /// [`ControlShape::len_bytes`] or more; `None` for ranks of others, which get a mirror.
    ///
    /// # Errors
    /// Without memory for the mirrors.
    pub(crate) fn new(
        shape: ControlShape,
        rank: usize,
        regions: Vec<Option<Arc<Region>>>,
    ) -> Result<Control, Error> {
        assert!(regions.iter().flatten().all(|region| region.len_bytes() >= shape.len_bytes()));
        let mirrors = regions.iter().map(|region| match region {
            Some(_) => None,
            None => Some(Mirror::default()),
        });
        let mirrors = mirrors.collect();
        let mirrored = |region| match region {
            Some(region) => Ok(region),
            None => Region::create(MIRROR, shape.reached_bytes()).map(Arc::new),
        };
        let regions: Vec<_> = regions.into_iter().map(mirrored).collect::<Result<_, _>>()?;
        let groups = Heap::part(regions[rank].clone(), shape.reached_bytes()..shape.len_bytes());
        let own_log = AtomicPtr::new(regions[rank].as_ptr().cast());
        Ok(Control {
            shape,
            rank,
            regions,
            own_log,
            mirrors,
            groups: Arc::new(groups),
            origin: Origin::here(),
        })
    }

    /// What this rank tells ranks of other nodes; these are the words of its groups, those of the
    /// last one first.
    pub(crate) fn report(&self, groups: &[GroupWords]) -> Vec<u8> {
        let channels = 0..self.shape.channels;
        let progress: Vec<_> = channels.map(|at| self.progress(self.rank, at)).collect();
        report::encode(self.log(self.rank), &progress, groups)
    }

    /// Takes the report of a rank of another node. Reports are taken one after the other.
    pub(crate) fn take_report(&self, rank: usize, report: &[u8]) {
        let Some(Some(mirror)) = self.mirrors.get(rank) else { return };
        let Some(told) = report::decode(report, self.log(rank), self.shape.channels) else {
            tracing::warn!(of = rank, len_bytes = report.len(), "a rank's report cannot be read");
            return;
        };
        for (channel, progress) in told.progress.into_iter().enumerate() {
            // SAFETY: within the mirror, by its length, and aligned to a line; readers take it for
            // a snapshot that may be torn.
            unsafe { self.progress_of(rank, channel).write_volatile(progress) };
        }
        *mirror.groups.lock().unwrap_or_else(PoisonError::into_inner) = told.groups;
        *mirror.asked.lock().unwrap_or_else(PoisonError::into_inner) = None;
        mirror.reports.fetch_add(1, Ordering::Release);
    }

    /// The ranks of other nodes are being asked for reports.
    pub(crate) fn asked(&self) {
        for mirror in self.mirrors.iter().flatten() {
            let mut asked = mirror.asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.get_or_insert_with(Instant::now);
        }
    }

    /// For how long a rank of another node has owed an answer, if it does.
    pub(crate) fn unanswered(&self, rank: usize) -> Option<Duration> {
        let mirror = self.mirrors[rank].as_ref()?;
        let asked = mirror.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.map(|asked| asked.elapsed())
    }

    /// Whether what is known of a rank comes from its reports.
    pub(crate) fn is_mirror(&self, rank: usize) -> bool {
        self.mirrors[rank].is_some()
    }

    /// How many reports of a rank of another node have come.
    pub(crate) fn reports(&self, rank: usize) -> u64 {
        self.mirrors[rank].as_ref().map_or(0, |mirror| mirror.reports.load(Ordering::Acquire))
    }

    /// The ranks of other nodes.
    pub(crate) fn mirrored(&self) -> impl Iterator<Item = usize> + use<'_> {
        (0..self.ranks()).filter(|rank| self.is_mirror(*rank))
    }

    /// This rank.
    pub(crate) fn rank(&self) -> usize {
        self.rank
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
        // SAFETY: every region begins with a log (zeroed at first, which is a valid one) and is
        // page-aligned and mapped as long as `self` lives; a log's fields are atomics, so that
        // other ranks may write it.
        unsafe { &*self.regions[rank].as_ptr().cast::<CallLog>() }
    }

    /// This rank's log.
    #[inline]
    pub(crate) fn own_log(&self) -> &CallLog {
        // SAFETY: as in `log`; nobody changes the pointer.
        unsafe { &*self.own_log.load(Ordering::Relaxed) }
    }

    /// This rank's badge.
    pub(crate) fn own_badge(&self) -> &Badge {
        let at = self.regions[self.rank].as_ptr().wrapping_add(self.shape.badge());
        // SAFETY: as in `log`: it lies behind it, a whole number of lines.
        unsafe { &*at.cast::<Badge>() }
    }

    /// A copy of what a rank's memory says now; of a rank of another node, what it has last told.
    pub(crate) fn copy(&self, rank: usize) -> ControlCopy {
        let first = self.regions[rank].as_ptr().cast::<u64>();
        // SAFETY: within the region, aligned, any bits are valid; another rank may write it
        // meanwhile, hence volatile.
        let words = |len| (0..len).map(|at| unsafe { first.add(at).read_volatile() }).collect();
        let copied = ControlCopy::new(self.shape, |len| Ok(words(len)));
        copied.unwrap_or_else(|error| unreachable!("memory can be read: {error}"))
    }

    /// This rank's progress words, one a channel.
    pub(crate) fn progress_table(&self) -> *mut f::Progress {
        self.regions[self.rank].as_ptr().wrapping_add(self.shape.progress()).cast()
    }

    /// What a rank's channel waits for; a snapshot that may be torn, for people to read.
    pub(crate) fn progress(&self, rank: usize, channel: usize) -> f::Progress {
        // SAFETY: within the region, aligned to a line, any bits are valid; another rank may write
        // it meanwhile, hence volatile.
        unsafe { self.progress_of(rank, channel).read_volatile() }
    }

    fn progress_of(&self, rank: usize, channel: usize) -> *mut f::Progress {
        assert!(channel < self.shape.channels);
        let table = self.regions[rank].as_ptr().wrapping_add(self.shape.progress());
        table.cast::<f::Progress>().wrapping_add(channel)
    }

    /// This rank's room for the words of its groups, which others find by offsets into the region.
    pub(crate) fn groups(&self) -> &Arc<Heap> {
        &self.groups
    }

    /// The words of a rank's group, at an offset of its region: one array a bucket. A snapshot, to
    /// explain a failure; `None` where it cannot be had, as of a rank of another node that has not
    /// told of that group.
    pub(crate) fn bucket_words(
        &self,
        rank: usize,
        offset: u64,
        buckets: u64,
    ) -> Option<Vec<[u64; BUCKET_WORDS]>> {
        if let Some(mirror) = &self.mirrors[rank] {
            let groups = mirror.groups.lock().unwrap_or_else(PoisonError::into_inner);
            return groups.iter().find_map(|group| group.part(offset, buckets));
        }
        let region = &self.regions[rank];
        let size = std::mem::size_of::<[u64; BUCKET_WORDS]>() as u64;
        let len = self.shape.len_bytes() as u64;
        let fits = offset.is_multiple_of(8)
            && buckets.checked_mul(size).is_some_and(|bytes| bytes <= len && offset <= len - bytes);
        if !fits {
            return None;
        }
        let first = region.as_ptr().wrapping_add(offset as usize).cast::<[u64; BUCKET_WORDS]>();
        // SAFETY: within the mapping, as just checked, aligned, any bits are valid; another rank
        // may write it, hence volatile.
        Some((0..buckets as usize).map(|at| unsafe { first.add(at).read_volatile() }).collect())
    }
}

impl GroupWords {
    /// Those of some buckets, by where they lie in the rank's region.
    fn part(&self, offset: u64, buckets: u64) -> Option<Vec<[u64; BUCKET_WORDS]>> {
        let size = std::mem::size_of::<[u64; BUCKET_WORDS]>() as u64;
        let first = offset.checked_sub(self.offset).filter(|bytes| bytes.is_multiple_of(size))?;
        let first = usize::try_from(first / size).ok()?;
        let end = first.checked_add(usize::try_from(buckets).ok()?)?;
        self.words.get(first..end).map(<[_]>::to_vec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        let shape = ControlShape { channels: 3 };
        let progress_end = shape.progress() + 3 * std::mem::size_of::<f::Progress>();
        assert!(std::mem::size_of::<CallLog>() <= shape.badge());
        assert!(shape.badge() + std::mem::size_of::<Badge>() <= shape.progress());
        assert!(progress_end <= shape.abort_word());
        assert!(shape.abort_word() + 64 <= shape.reached_bytes());
        assert!(shape.progress().is_multiple_of(64) && shape.abort_word().is_multiple_of(64));
    }

    #[test]
    fn reports_fill_mirrors_in() {
        let shape = ControlShape { channels: 2 };
        let region = || Some(Arc::new(Region::create("test", shape.len_bytes()).unwrap()));
        let own = Control::new(shape, 0, vec![region(), None]).unwrap();
        let other = Control::new(shape, 1, vec![None, region()]).unwrap();
        own.log(0).enter(1, &[7; 6]);
        let waits = f::Progress { call: 1, awaited: 9, step: 3, peer: 1, lane: 2, head: 1 };
        // SAFETY: nobody else uses it.
        unsafe { own.progress_table().add(1).write_volatile(waits) };
        assert_eq!((other.reports(0), other.mirrored().collect::<Vec<_>>()), (0, vec![0]));
        other.take_report(0, &own.report(&[]));
        assert_eq!((other.reports(0), other.log(0).entered()), (1, 1));
        let seen = other.progress(0, 1);
        assert_eq!((seen.call, seen.awaited, seen.step), (waits.call, waits.awaited, waits.step));
        assert_eq!((seen.peer, seen.lane, seen.head), (waits.peer, waits.lane, waits.head));
        assert_eq!(other.progress(0, 0).call, 0);
        let group = GroupWords { offset: 640, words: vec![[1, 2, 3, 4, 0], [5, 6, 7, 8, 9]] };
        let earlier = GroupWords { offset: 1024, words: vec![[7; BUCKET_WORDS]] };
        let long = GroupWords { offset: 8192, words: vec![[8; BUCKET_WORDS]; 1 << 20] };
        let report = own.report(&[group, long, earlier]);
        for bad in [&[][..], &report[1..], &report[..report.len() - 8], &[255; 8]] {
            other.take_report(0, bad);
        }
        own.take_report(0, &report);
        own.take_report(2, &report);
        assert_eq!((other.reports(0), own.reports(0)), (1, 0), "none of them counts");
        assert_eq!(other.bucket_words(0, 640, 2), None, "there was no group");
        other.take_report(0, &report);
        assert_eq!(other.bucket_words(0, 680, 1), Some(vec![[5, 6, 7, 8, 9]]));
        assert_eq!(other.bucket_words(0, 1024, 1), Some(vec![[7; BUCKET_WORDS]]));
        assert_eq!(other.bucket_words(0, 8192, 1), None, "too long to be told");
        for (offset, buckets) in [(639, 1), (648, 1), (640, 3), (720, 1), (640, u64::MAX)] {
            assert_eq!(other.bucket_words(0, offset, buckets), None);
        }
        assert_eq!(other.bucket_words(0, 720, 0), Some(vec![]));
    }

    #[test]
    fn words_are_read_within_the_region_alone() {
        let shape = ControlShape { channels: 1 };
        let region = Arc::new(Region::create("test", shape.len_bytes()).unwrap());
        let control = Control::new(shape, 0, vec![Some(region)]).unwrap();
        let block = control.groups().alloc(80).unwrap();
        let words = control.bucket_words(0, block.offset() as u64, 2);
        assert_eq!(words, Some(vec![[0; BUCKET_WORDS]; 2]));
        for (offset, buckets) in [(4, 1), (shape.len_bytes() as u64, 1), (0, u64::MAX)] {
            assert_eq!(control.bucket_words(0, offset, buckets), None);
        }
    }
}
