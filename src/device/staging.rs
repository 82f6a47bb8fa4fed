//! Staging memory: one region a rank that holds its doorbells, its counters, and the slots that
//! others of its node fill. Of a GPU it is device memory. What ranks of other nodes fill is the
//! links' (`links.rs`).
//!
//! Everything a rank waits for lies in its own region and is written by one peer, so no two writers
//! share a cache line. Heads have lines of their own; a tail lies in the header of the slot that it
//! announces, so that a short message is one or two lines.

use oxccl_kernels::format as f;

/// A cache line.
const LINE: usize = 64;
const LL128_LINE: usize = f::LL128_LINE_BYTES;

/// Numbers that a rank can give to allocations that it registers; none has number 0.
pub(crate) const REGISTRATIONS: usize = 1024;

/// Sizes on which all ranks agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingShape {
    /// Number of ranks.
    pub ranks: usize,
    /// Those of them on this node, which fill each other's slots.
    pub beside: usize,
    /// Whether each has slots for itself, too: lists of one rank may send to each other.
    pub to_itself: bool,
    /// Channels, each with a set of connections. Behind these are the sets of messages from rank to
    /// rank, which run on the first channels.
    pub channels: usize,
    /// How many of these there are.
    pub message_sets: usize,
    /// How many of them have slots; flags have slots in the first alone. The others tell where
    /// buffers are.
    pub message_channels: usize,
    /// Slots on the LL lane.
    pub ll_slots: u32,
    /// Slots on the LL128 lane; 0 where there is none.
    pub ll128_slots: u32,
    /// Payload of one of these, in bytes.
    pub ll_slot_bytes: usize,
    /// Slots on the slots lane.
    pub slots: u32,
    /// Payload of one, in bytes.
    pub slot_bytes: usize,
}

/// Which lanes of a set have slots for payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carries {
    All,
    Slots,
    /// What takes no more than this on the LL lane: where a buffer is.
    Tokens,
}

const TOKEN_SLOT_BYTES: usize = 64;

impl Carries {
    const EACH: [Carries; 3] = [Carries::All, Carries::Slots, Carries::Tokens];
}

impl StagingShape {
    /// Sets of connections.
    pub(super) fn sets(&self) -> usize {
        self.channels + self.message_sets
    }

    /// Sets of which each has what a set carries at most, in order.
    fn sets_of(&self, carries: Carries) -> usize {
        match carries {
            Carries::All => self.channels + 1,
            Carries::Slots => self.message_channels - 1,
            Carries::Tokens => self.message_sets - self.message_channels,
        }
    }

    /// What a set carries, and its place among those that carry the same.
    fn carries(&self, set: usize) -> (Carries, usize) {
        let mut place = set;
        for carries in Carries::EACH {
            let sets = self.sets_of(carries);
            if place < sets {
                return (carries, place);
            }
            place -= sets;
        }
        unreachable!("set {set} of {}", self.sets())
    }

    fn ll_stride(&self, carries: Carries) -> usize {
        let payload = match carries {
            Carries::All => self.ll_slot_bytes,
            Carries::Slots | Carries::Tokens => TOKEN_SLOT_BYTES,
        };
        // An odd number of lines, so that slots spread over all sets of a cache.
        ((f::LL_HEADER_BYTES + 2 * payload).div_ceil(LINE) | 1) * LINE
    }

    fn ll128_stride(&self) -> usize {
        f::ll128_slot_bytes(self.ll_slot_bytes as u64) as usize
    }

    pub(super) fn slot_stride(&self) -> usize {
        f::SLOT_HEADER_BYTES + self.slot_bytes
    }

    fn ll128_slots(&self, carries: Carries) -> u32 {
        if carries == Carries::All { self.ll128_slots } else { 0 }
    }

    fn plain_slots(&self, carries: Carries) -> u32 {
        if carries == Carries::Tokens { 0 } else { self.slots }
    }

    fn ll_bytes(&self, carries: Carries) -> usize {
        self.ll_stride(carries) * self.ll_slots as usize
    }

    fn ll128_bytes(&self, carries: Carries) -> usize {
        self.ll128_stride() * self.ll128_slots(carries) as usize
    }

    fn plain_bytes(&self, carries: Carries) -> usize {
        self.slot_stride() * self.plain_slots(carries) as usize
    }

    fn heads_bytes(&self) -> usize {
        self.senders() * f::LANES * LINE
    }

    /// Ranks whose messages lie in a rank's region.
    fn senders(&self) -> usize {
        self.beside - usize::from(!self.to_itself)
    }

    /// The channel that uses a set.
    pub(super) fn channel_of(&self, set: usize) -> usize {
        set % self.channels
    }

    /// The number of a sender in a receiver's region, both by their places on the node.
    fn sender(&self, receiver: usize, sender: usize) -> usize {
        sender - usize::from(!self.to_itself && sender > receiver)
    }

    fn pair_slots_bytes(&self, carries: Carries) -> usize {
        (self.slots_of_pair(carries, f::Lane::Sync) + LINE).next_multiple_of(4096)
    }

    fn slots_start(&self) -> usize {
        self.head(self.sets(), 0, f::Lane::Ll).next_multiple_of(4096)
    }

    /// Length of a rank's region.
    pub fn len_bytes(&self) -> usize {
        self.slots_start() + self.all_slots_bytes(&Carries::EACH)
    }

    /// Slots of all sets that carry one of these.
    fn all_slots_bytes(&self, which: &[Carries]) -> usize {
        let of_sets = |&carries: &Carries| {
            self.sets_of(carries) * self.senders() * self.pair_slots_bytes(carries)
        };
        which.iter().map(of_sets).sum()
    }

    /// The doorbells of a rank, one a channel, are what its region begins with.
    fn doorbell(&self, channel: usize) -> usize {
        channel * std::mem::size_of::<f::Doorbell>()
    }

    /// Where it is counted what a sender's receiver has consumed: in the region of that sender,
    /// which numbers the receiver as if it sent.
    fn head(&self, set: usize, number: usize, lane: f::Lane) -> usize {
        let line = number * f::LANES + lane as usize;
        self.doorbell(self.channels) + set * self.heads_bytes() + line * LINE
    }

    /// Where the messages of a sender of this number lie in the receiver's region.
    fn slots(&self, set: usize, number: usize, lane: f::Lane) -> usize {
        let (carries, place) = self.carries(set);
        let before = self.all_slots_bytes(&Carries::EACH[..carries as usize]);
        let pair = (place * self.senders() + number) * self.pair_slots_bytes(carries);
        self.slots_start() + before + pair + self.slots_of_pair(carries, lane)
    }

    /// Where a lane's slots begin among those of a pair. The LL128 lane's come first, since only
    /// they need more than a cache line's alignment.
    fn slots_of_pair(&self, carries: Carries, lane: f::Lane) -> usize {
        let ll = self.ll128_bytes(carries).next_multiple_of(LL128_LINE);
        match lane {
            f::Lane::Ll128 => 0,
            f::Lane::Ll => ll,
            f::Lane::Slots => ll + self.ll_bytes(carries),
            f::Lane::Sync => ll + self.ll_bytes(carries) + self.plain_bytes(carries),
        }
    }

    /// A rank's connections of all sets, peers and lanes, in the machine's order, over regions
    /// that begin at these addresses. Those to ranks of other nodes, whose address is null, lead
    /// nowhere.
    pub(crate) fn connections(&self, rank: usize, bases: &[*mut u8]) -> Vec<f::Connection> {
        let is_beside = |base: &&*mut u8| !base.is_null();
        let place = |peer: usize| bases[..peer].iter().filter(is_beside).count();
        let places: Vec<usize> = (0..self.ranks).map(place).collect();
        assert_eq!(bases.iter().filter(is_beside).count(), self.beside);
        let pairs = (0..self.sets()).flat_map(|set| (0..self.ranks).map(move |p| (set, p)));
        pairs
            .flat_map(|(set, peer)| {
                f::Lane::ALL.map(|lane| self.connection(rank, (bases, &places), set, peer, lane))
            })
            .collect()
    }

    /// A rank's windows on all peers, of all channels, in the machine's order. Tokens count from
    /// these addresses, or from where the peer's registered allocations begin, in a table that
    /// `registered` gives, or null. Heaps begin at `heaps`.
    pub(crate) fn windows(
        &self,
        bases: &[*mut u8],
        heaps: &[*mut u8],
        registered: impl Fn(usize) -> *const *mut u8,
    ) -> Vec<f::Window> {
        let window = |peer: usize| f::Window {
            base: bases[peer],
            registered: registered(peer),
            heap: (heaps[peer] as u64).wrapping_sub(bases[peer] as u64),
            tokens: f::Tokens::default(),
            process: 0,
        };
        (0..self.channels).flat_map(|_| (0..self.ranks).map(window)).collect()
    }

    /// The connection to a peer, over regions that begin at these addresses, of ranks at these
    /// places of the node.
    fn connection(
        &self,
        me: usize,
        (bases, places): (&[*mut u8], &[usize]),
        set: usize,
        peer: usize,
        lane: f::Lane,
    ) -> f::Connection {
        let (carries, channel) = (self.carries(set).0, self.channel_of(set));
        // Without slots no schedule that runs uses a lane.
        let (slots, stride) = match lane {
            f::Lane::Ll => (self.ll_slots, self.ll_stride(carries)),
            f::Lane::Slots => (self.plain_slots(carries), self.slot_stride()),
            f::Lane::Sync => (1, LINE),
            f::Lane::Ll128 => (self.ll128_slots(carries), self.ll128_stride()),
        };
        // A rank of another node fills no place here, nor does a rank that sends nothing to itself.
        let is_here = !bases[peer].is_null() && (peer != me || self.to_itself);
        let at = |rank: usize, offset: &dyn Fn() -> usize| match is_here {
            true => bases[rank].wrapping_add(offset()),
            false => std::ptr::null_mut(),
        };
        let number = |receiver: usize, sender: usize| self.sender(places[receiver], places[sender]);
        let head = |owner, writer| at(owner, &|| self.head(set, number(owner, writer), lane));
        f::Connection {
            send_slots: at(peer, &|| self.slots(set, number(peer, me), lane)),
            recv_slots: at(me, &|| self.slots(set, number(me, peer), lane)),
            send_head: head(me, peer).cast(),
            recv_head: head(peer, me).cast(),
            doorbell: at(peer, &|| self.doorbell(channel)).cast(),
            sent: 0,
            received: 0,
            head_seen: 0,
            cleared: 0,
            send_tails: std::ptr::null_mut(),
            recv_tails: std::ptr::null_mut(),
            slot_stride_bytes: stride as u32,
            slots,
            peer: peer as u32,
            lane: lane as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        for (ll128_slots, to_itself) in [(0, true), (4, true), (4, false)] {
            check(StagingShape {
                ranks: 3,
                beside: 3,
                to_itself,
                channels: 2,
                message_sets: 4,
                message_channels: 2,
                ll_slots: 8,
                ll128_slots,
                ll_slot_bytes: 256,
                slots: 4,
                slot_bytes: 1024,
            });
        }
    }

    /// Ranks 1 and 3 of four share a node.
    #[test]
    fn ranks_of_other_nodes_take_no_memory() {
        let shape = StagingShape {
            ranks: 4,
            beside: 2,
            to_itself: true,
            channels: 1,
            message_sets: 1,
            message_channels: 1,
            ll_slots: 8,
            ll128_slots: 0,
            ll_slot_bytes: 256,
            slots: 4,
            slot_bytes: 1024,
        };
        let alone = StagingShape { ranks: 2, ..shape };
        assert_eq!(shape.len_bytes(), alone.len_bytes());
        let regions = [vec![0u8; shape.len_bytes()], vec![0u8; shape.len_bytes()]];
        let [first, second] = regions.each_ref().map(|region| region.as_ptr().cast_mut());
        let null = std::ptr::null_mut();
        let all = shape.connections(3, &[null, first, null, second]);
        let two = alone.connections(1, &[first, second]);
        for channel in 0..2 {
            for (peer, place) in [(0, None), (1, Some(0)), (2, None), (3, Some(1))] {
                for lane in f::Lane::ALL.map(|lane| lane as usize) {
                    let one = &all[(channel * 4 + peer) * f::LANES + lane];
                    let places = [
                        one.send_slots,
                        one.recv_slots,
                        one.send_head.cast(),
                        one.recv_head.cast(),
                    ];
                    match place {
                        None => assert_eq!(places, [null; 4]),
                        Some(place) => {
                            let other = &two[(channel * 2 + place) * f::LANES + lane];
                            let theirs = [other.send_slots, other.recv_slots];
                            assert_eq!(places[..2], theirs);
                            assert_eq!(
                                places[2..],
                                [other.send_head.cast(), other.recv_head.cast()]
                            );
                            assert_eq!(one.doorbell, other.doorbell);
                        }
                    }
                }
            }
        }
    }

    /// Of three ranks the middle one: what one end sends to is where the other receives.
    #[test]
    fn both_ends_are_at_one_place() {
        let shape = StagingShape {
            ranks: 3,
            beside: 3,
            to_itself: false,
            channels: 2,
            message_sets: 4,
            message_channels: 2,
            ll_slots: 8,
            ll128_slots: 4,
            ll_slot_bytes: 256,
            slots: 4,
            slot_bytes: 1024,
        };
        let regions = [0u8; 3].map(|byte| vec![byte; shape.len_bytes()]);
        let bases = regions.each_ref().map(|region| region.as_ptr().cast_mut());
        let ends = [0, 1, 2].map(|rank| shape.connections(rank, &bases));
        let mut places = std::collections::BTreeSet::new();
        for (channel, one, other) in
            (0..6).flat_map(|c| [(0, 1), (0, 2), (1, 2)].map(|(one, other)| (c, one, other)))
        {
            for lane in 0..f::LANES {
                let end =
                    |rank: usize, peer: usize| &ends[rank][(channel * 3 + peer) * f::LANES + lane];
                let (here, there) = (end(one, other), end(other, one));
                assert_eq!((here.send_slots, here.send_head), (there.recv_slots, there.recv_head));
                assert_eq!((here.recv_slots, here.recv_head), (there.send_slots, there.send_head));
                assert!(places.insert((here.send_head as usize, here.recv_head as usize)));
                assert!(end(one, one).send_slots.is_null() && end(one, one).recv_head.is_null());
            }
        }
    }

    fn check(shape: StagingShape) {
        let mut ranges: Vec<_> = (0..shape.channels).map(|c| (shape.doorbell(c), LINE)).collect();
        for set in 0..shape.sets() {
            let carries = shape.carries(set).0;
            for peer in 0..shape.senders() {
                for lane in f::Lane::ALL {
                    ranges.push((shape.head(set, peer, lane), LINE));
                }
                let first = shape.slots(set, peer, f::Lane::Ll128);
                assert_eq!(first % LL128_LINE, 0);
                let of_lanes = [
                    (f::Lane::Ll128, shape.ll128_bytes(carries)),
                    (f::Lane::Ll, shape.ll_bytes(carries)),
                    (f::Lane::Slots, shape.plain_bytes(carries)),
                    (f::Lane::Sync, LINE),
                ];
                let used = of_lanes.into_iter().filter(|(_, len_bytes)| *len_bytes > 0);
                ranges.extend(used.map(|(lane, len)| (shape.slots(set, peer, lane), len)));
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
