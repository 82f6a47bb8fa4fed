//! Staging memory: one region a rank that holds its call log, its doorbells, its counters, and the slots that others fill.
//!
//! Everything a rank waits for lies in its own region and is written by one peer, so no two writers share a cache line. Heads have
//! lines of their own; a tail lies in the header of the slot that it announces, so that a short message is one or two lines.

use super::log::CallLog;
use oxccl_kernels::format as f;
use oxccl_transports::Region;
use std::sync::Arc;

/// Words by which ranks whose groups differ find the first bucket in which they do.
pub(crate) const BUCKET_WORDS: usize = 4;
/// A cache line.
const LINE: usize = 64;

/// Sizes on which all ranks agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingShape {
    /// Number of ranks.
    pub ranks: usize,
    /// Channels. There is one set of connections more, the last: that of send/recv, which runs on channel 0.
    pub channels: usize,
    /// Slots on the LL lane.
    pub ll_slots: u32,
    /// Payload of one, in bytes.
    pub ll_slot_bytes: usize,
    /// Slots on the slots lane.
    pub slots: u32,
    /// Payload of one, in bytes.
    pub slot_bytes: usize,
}

impl StagingShape {
    fn ll_stride(&self) -> usize {
        // An odd number of lines, so that slots spread over all sets of a cache.
        ((f::LL_HEADER_BYTES + 2 * self.ll_slot_bytes).div_ceil(LINE) | 1) * LINE
    }

    fn slot_stride(&self) -> usize {
        f::SLOT_HEADER_BYTES + self.slot_bytes
    }

    fn ll_bytes(&self) -> usize {
        self.ll_stride() * self.ll_slots as usize
    }

    fn plain_bytes(&self) -> usize {
        self.slot_stride() * self.slots as usize
    }

    fn log_bytes(&self) -> usize {
        std::mem::size_of::<CallLog>()
    }

    fn heads_bytes(&self) -> usize {
        self.ranks * f::LANES * LINE
    }

    /// Doorbells and progress words of all channels, as the machine's tables want them.
    fn tables_bytes(&self) -> usize {
        self.channels * (std::mem::size_of::<f::Doorbell>() + std::mem::size_of::<f::Progress>())
    }

    fn pair_slots_bytes(&self) -> usize {
        (self.ll_bytes() + self.plain_bytes() + LINE).next_multiple_of(4096)
    }

    fn slots_start(&self) -> usize {
        self.head(self.channels + 1, 0, f::Lane::Ll).next_multiple_of(4096)
    }

    /// Length of a rank's region.
    pub fn len_bytes(&self) -> usize {
        self.slots_start() + (self.channels + 1) * self.ranks * self.pair_slots_bytes()
    }

    /// Length of what the host reads: the log, doorbells and progress words, which come first.
    pub(crate) fn control_bytes(&self) -> usize {
        self.log_bytes() + self.tables_bytes()
    }

    pub(crate) fn doorbell(&self, channel: usize) -> usize {
        self.log_bytes() + channel * std::mem::size_of::<f::Doorbell>()
    }

    pub(crate) fn progress(&self, channel: usize) -> usize {
        self.doorbell(self.channels) + channel * std::mem::size_of::<f::Progress>()
    }

    fn head(&self, channel: usize, peer: usize, lane: f::Lane) -> usize {
        let line = peer * f::LANES + lane as usize;
        self.log_bytes() + self.tables_bytes() + channel * self.heads_bytes() + line * LINE
    }

    /// Where messages from `sender` lie in the receiver's region.
    fn slots(&self, channel: usize, sender: usize, lane: f::Lane) -> usize {
        let pair = self.slots_start() + (channel * self.ranks + sender) * self.pair_slots_bytes();
        match lane {
            f::Lane::Ll => pair,
            f::Lane::Slots => pair + self.ll_bytes(),
            f::Lane::Sync => pair + self.ll_bytes() + self.plain_bytes(),
        }
    }

    /// A rank's connections of all channels, peers and lanes, in the machine's order, over regions that begin at these
    /// addresses.
    pub(crate) fn connections(&self, rank: usize, bases: &[*mut u8]) -> Vec<f::Connection> {
        let lanes = [f::Lane::Ll, f::Lane::Slots, f::Lane::Sync];
        let pairs = (0..=self.channels).flat_map(|c| (0..self.ranks).map(move |p| (c, p)));
        pairs
            .flat_map(|(channel, peer)| {
                lanes.map(|lane| self.connection(rank, bases, channel, peer, lane))
            })
            .collect()
    }

    fn connection(
        &self,
        me: usize,
        bases: &[*mut u8],
        channel: usize,
        peer: usize,
        lane: f::Lane,
    ) -> f::Connection {
        let (slots, stride) = match lane {
            f::Lane::Ll => (self.ll_slots, self.ll_stride()),
            f::Lane::Slots => (self.slots, self.slot_stride()),
            f::Lane::Sync => (1, LINE),
        };
        let at = |rank: usize, offset: usize| bases[rank].wrapping_add(offset);
        let head = |owner, writer| at(owner, self.head(channel, writer, lane));
        f::Connection {
            send_slots: at(peer, self.slots(channel, me, lane)),
            recv_slots: at(me, self.slots(channel, peer, lane)),
            send_head: head(me, peer).cast(),
            recv_head: head(peer, me).cast(),
            doorbell: at(peer, self.doorbell(channel % self.channels)).cast(),
            sent: 0,
            received: 0,
            head_seen: 0,
            cleared: 0,
            slot_stride_bytes: stride as u32,
            slots,
            peer: peer as u32,
            lane: lane as u32,
        }
    }
}

/// All ranks' staging regions, as this rank maps them.
#[derive(Debug)]
pub(crate) struct Staging {
    shape: StagingShape,
    rank: usize,
    regions: Vec<Arc<Region>>,
    /// Every rank's heap, which windows point into.
    heaps: Vec<Arc<Region>>,
}

impl Staging {
    /// Staging over every rank's region, in rank order. Each must have [`StagingShape::len_bytes`].
    pub(crate) fn new(
        shape: StagingShape,
        rank: usize,
        regions: Vec<Arc<Region>>,
        heaps: Vec<Arc<Region>>,
    ) -> Staging {
        assert_eq!(regions.len(), shape.ranks);
        assert!(regions.iter().all(|region| region.len_bytes() >= shape.len_bytes()));
        Staging { shape, rank, regions, heaps }
    }

    /// Number of ranks.
    pub(crate) fn ranks(&self) -> usize {
        self.shape.ranks
    }

    /// The words of a rank's group, at an offset of its heap: one array a bucket. A snapshot, to explain a failure; empty where it cannot be.
    pub(crate) fn bucket_words(
        &self,
        rank: usize,
        offset: u64,
        buckets: u64,
    ) -> Vec<[u64; BUCKET_WORDS]> {
        let heap = &self.heaps[rank];
        let size = std::mem::size_of::<[u64; BUCKET_WORDS]>() as u64;
        let len = heap.len_bytes() as u64;
        let fits = offset.is_multiple_of(8)
            && buckets.checked_mul(size).is_some_and(|bytes| bytes <= len && offset <= len - bytes);
        if !fits {
            return Vec::new();
        }
        let first = heap.as_ptr().wrapping_add(offset as usize).cast::<[u64; BUCKET_WORDS]>();
        // SAFETY: within the mapping, as just checked, aligned, any bits are valid; another rank may write it, hence volatile.
        (0..buckets as usize).map(|at| unsafe { first.add(at).read_volatile() }).collect()
    }

    /// A rank's call log.
    pub(crate) fn log(&self, rank: usize) -> &CallLog {
        // SAFETY: every region begins with a log (zeroed at first, which is a valid one) and is page-aligned and mapped as long as
        // `self` lives; a log's fields are atomics, so that other ranks may write it.
        unsafe { &*self.regions[rank].as_ptr().cast::<CallLog>() }
    }

    /// This rank's doorbells, one a channel.
    pub(crate) fn doorbells(&self) -> *mut f::Doorbell {
        self.doorbell(self.rank, 0)
    }

    /// This rank's progress words, one a channel.
    pub(crate) fn progress_table(&self) -> *mut f::Progress {
        self.at(self.rank, self.shape.progress(0)).cast()
    }

    /// What a rank's channel waits for; a snapshot that may be torn, for people to read.
    pub(crate) fn progress(&self, rank: usize, channel: usize) -> f::Progress {
        let progress = self.at(rank, self.shape.progress(channel)).cast::<f::Progress>();
        // SAFETY: mapped, aligned to a line, any bits are valid; another rank may write it meanwhile, hence volatile.
        unsafe { progress.read_volatile() }
    }

    fn doorbell(&self, rank: usize, channel: usize) -> *mut f::Doorbell {
        self.at(rank, self.shape.doorbell(channel)).cast()
    }

    /// The connections of all channels, peers and lanes, in the machine's order.
    pub(crate) fn connections(&self) -> Vec<f::Connection> {
        let bases: Vec<*mut u8> = self.regions.iter().map(|region| region.as_ptr()).collect();
        self.shape.connections(self.rank, &bases)
    }

    fn at(&self, rank: usize, offset: usize) -> *mut u8 {
        assert!(offset < self.shape.len_bytes());
        // SAFETY: the offset lies within the region, by the assertion and the one in `new`.
        unsafe { self.regions[rank].as_ptr().add(offset) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        let shape = StagingShape {
            ranks: 3,
            channels: 2,
            ll_slots: 8,
            ll_slot_bytes: 256,
            slots: 4,
            slot_bytes: 1024,
        };
        let mut ranges = vec![(0, shape.log_bytes())];
        for channel in 0..shape.channels {
            ranges.push((shape.doorbell(channel), 64));
            ranges.push((shape.progress(channel), 64));
        }
        for channel in 0..=shape.channels {
            for peer in 0..shape.ranks {
                for lane in [f::Lane::Ll, f::Lane::Slots, f::Lane::Sync] {
                    ranges.push((shape.head(channel, peer, lane), LINE));
                }
                ranges.push((shape.slots(channel, peer, f::Lane::Ll), shape.ll_stride() * 8));
                ranges.push((shape.slots(channel, peer, f::Lane::Slots), shape.slot_stride() * 4));
                ranges.push((shape.slots(channel, peer, f::Lane::Sync), LINE));
            }
        }
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        let last = ranges[ranges.len() - 1];
        assert!(last.0 + last.1 <= shape.len_bytes());
        assert!(ranges.iter().all(|range| range.0 % LINE == 0));
    }
}
