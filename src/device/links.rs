//! Connections to ranks of other nodes: their slots and counters lie in memory of this rank's own,
//! and its proxy carries them.
//!
//! The memory of one peer, for each set of connections:
//!
//! ```text
//! slots:  inbox slots | outbox slots
//! words:  sync in, sync out, send head, recv head | inbox tails | outbox tails      a line each
//! ```
//!
//! Words are always the host's, since the proxy polls and stores them. Slots are moved without
//! being looked into: those of a GPU may lie in its own memory, where adapters reach that.
//!
//! A port's number is twice that of its set, and one more for the sync lane. There are none for
//! slots with flags and windows, which need memory that both ends map.

use super::staging::StagingShape;
use oxccl_kernels::format as f;
use oxccl_transports::cuda::{Context, DeviceRegion, RegisteredRegion};
use oxccl_transports::proxy::{Bell, Content, PortNumber, PortShape, Ports, PortsMemory};
use oxccl_transports::rdma::{GpuReach, GpuWay, RdmaError, RdmaFabric};
use oxccl_transports::{Error, Region};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A cache line.
const LINE: usize = 64;

const _: () = {
    assert!(size_of::<f::SlotTail>() == LINE);
    assert!(size_of::<Bell>() == size_of::<f::Doorbell>());
    assert!(std::mem::offset_of!(Bell, rings) == std::mem::offset_of!(f::Doorbell, rings));
    assert!(std::mem::offset_of!(Bell, sleeping) == std::mem::offset_of!(f::Doorbell, sleeping));
    assert!(std::mem::offset_of!(Bell, event) == std::mem::offset_of!(f::Doorbell, event));
};

/// This rank's end of all connections to one rank of another node.
#[derive(Debug)]
pub(crate) struct LinkPorts {
    shape: StagingShape,
    peer: usize,
    slots: Memory,
    words: Memory,
    /// Of threads of this process, this rank's staging, which begins with the doorbells of its
    /// channels. A GPU's kernels never sleep.
    doorbells: Option<Arc<Region>>,
}

/// What the executor and the proxy's side both reach.
#[derive(Debug)]
enum Memory {
    Host(Arc<Region>),
    /// The host's, which a GPU's kernels reach through the bus.
    Pinned(RegisteredRegion),
    /// A GPU's, and what lets adapters reach it, which goes first.
    Gpu(GpuReach, DeviceRegion),
}

/// Words of a set.
#[derive(Clone, Copy)]
enum Word {
    SyncIn,
    SyncOut,
    SendHead,
    RecvHead,
}

/// How many words a set has besides tails.
const WORDS: usize = 4;

/// Which way a slot's message goes.
#[derive(Clone, Copy)]
enum Side {
    Inbox,
    Outbox,
}

impl LinkPorts {
    /// Fresh memory for the connections to a peer, for threads whose doorbells this staging begins
    /// with.
    pub(crate) fn on_host(
        shape: StagingShape,
        peer: usize,
        staging: Arc<Region>,
    ) -> Result<LinkPorts, Error> {
        let slots = Memory::Host(Arc::new(Region::create("oxccl-links", slots_bytes(&shape))?));
        let words = Region::create("oxccl-link-words", words_bytes(&shape))?;
        let words = Memory::Host(Arc::new(words));
        Ok(LinkPorts { shape, peer, slots, words, doorbells: Some(staging) })
    }

    /// The same for a GPU's kernels: in pinned memory of the host, which they reach.
    pub(crate) fn staged(
        shape: StagingShape,
        peer: usize,
        context: &Context,
    ) -> Result<LinkPorts, Error> {
        let slots = Memory::pinned(context, "oxccl-links", slots_bytes(&shape))?;
        LinkPorts::of_gpu(shape, peer, context, slots)
    }

    /// The same with slots in the GPU's memory, which the adapters reach.
    pub(crate) fn direct(
        shape: StagingShape,
        peer: usize,
        context: &Context,
        rdma: &RdmaFabric,
    ) -> Result<LinkPorts, NotDirect> {
        let region = DeviceRegion::create(context, slots_bytes(&shape)).map_err(Error::from)?;
        let memory = PortsMemory { start: region.as_ptr(), len_bytes: slots_bytes(&shape) };
        // SAFETY: memory of the context's GPU, which goes behind what is made of it here.
        let reach = unsafe { rdma.reach_gpu(memory) }?;
        Ok(LinkPorts::of_gpu(shape, peer, context, Memory::Gpu(reach, region))?)
    }

    fn of_gpu(
        shape: StagingShape,
        peer: usize,
        context: &Context,
        slots: Memory,
    ) -> Result<LinkPorts, Error> {
        let words = Memory::pinned(context, "oxccl-link-words", words_bytes(&shape))?;
        Ok(LinkPorts { shape, peer, slots, words, doorbells: None })
    }

    /// By which way adapters reach the slots, if these are in a GPU's memory.
    pub(crate) fn way(&self) -> Option<GpuWay> {
        match &self.slots {
            Memory::Gpu(reach, _) => Some(reach.way()),
            Memory::Host(_) | Memory::Pinned(_) => None,
        }
    }

    /// Bytes that links to a peer pin.
    pub(crate) fn len_bytes(shape: &StagingShape) -> usize {
        slots_bytes(shape) + words_bytes(shape)
    }

    /// The port of a lane in a set of connections.
    pub(crate) fn port(set: usize, lane: f::Lane) -> PortNumber {
        (2 * set + usize::from(lane == f::Lane::Sync)) as PortNumber
    }

    /// The connections to the peer, of all sets and lanes, in the machine's table. Executors ring
    /// this doorbell, if they ring.
    pub(crate) fn connect(&self, connections: &mut [f::Connection], doorbell: *mut f::Doorbell) {
        for set in 0..=self.shape.channels {
            for lane in f::Lane::ALL {
                let pair = set * self.shape.ranks + self.peer;
                connections[pair * f::LANES + lane as usize] = self.connection(set, lane, doorbell);
            }
        }
    }

    fn connection(&self, set: usize, lane: f::Lane, doorbell: *mut f::Doorbell) -> f::Connection {
        let words = self.words.seen_by_executor();
        let word = |word| words.wrapping_add(self.word_offset(set, word));
        let tails = |side| words.wrapping_add(self.tail_offset(side, set, 0)).cast();
        let slots = self.slots.seen_by_executor();
        let slot = |side| slots.wrapping_add(self.slot_offset(side, set, 0));
        let nowhere = f::Connection {
            send_slots: std::ptr::null_mut(),
            recv_slots: std::ptr::null_mut(),
            send_head: word(Word::SendHead).cast(),
            recv_head: word(Word::RecvHead).cast(),
            doorbell,
            sent: 0,
            received: 0,
            head_seen: 0,
            cleared: 0,
            slot_stride_bytes: 0,
            slots: 0,
            peer: self.peer as u32,
            lane: lane as u32,
            send_tails: std::ptr::null_mut(),
            recv_tails: std::ptr::null_mut(),
        };
        match lane {
            f::Lane::Slots => f::Connection {
                send_slots: slot(Side::Outbox),
                recv_slots: slot(Side::Inbox),
                slot_stride_bytes: self.shape.slot_stride() as u32,
                slots: self.shape.slots,
                send_tails: tails(Side::Outbox),
                recv_tails: tails(Side::Inbox),
                ..nowhere
            },
            f::Lane::Sync => f::Connection {
                send_slots: word(Word::SyncOut),
                recv_slots: word(Word::SyncIn),
                slot_stride_bytes: LINE as u32,
                slots: 1,
                ..nowhere
            },
            // No schedule that runs uses it.
            f::Lane::Ll | f::Lane::Ll128 => nowhere,
        }
    }

    fn slot_offset(&self, side: Side, set: usize, message: u64) -> usize {
        let slot = self.slot_number(side, message);
        set * set_slots_bytes(&self.shape) + slot * self.shape.slot_stride()
    }

    fn tail_offset(&self, side: Side, set: usize, message: u64) -> usize {
        let line = WORDS + self.slot_number(side, message);
        set * set_words_bytes(&self.shape) + line * LINE
    }

    fn word_offset(&self, set: usize, word: Word) -> usize {
        set * set_words_bytes(&self.shape) + word as usize * LINE
    }

    /// The number of a message's slot among those of its set.
    fn slot_number(&self, side: Side, message: u64) -> usize {
        let slots = self.shape.slots as usize;
        side as usize * slots + (message % slots as u64) as usize
    }

    /// A counter, as proxy and executor share it: a line of the words begins at the offset.
    fn atomic(&self, offset: usize) -> &AtomicU64 {
        let word = self.words.as_ptr().wrapping_add(offset);
        // SAFETY: callers give the offset of a line of `words`, which are host memory, aligned,
        // mapped as long as `self` lives, and used as atomics by the executor, too.
        unsafe { &*word.cast::<AtomicU64>() }
    }

    /// Wakes the thread of a set's channel if it sleeps.
    fn ring(&self, set: usize) {
        let Some(staging) = &self.doorbells else { return };
        let at = (set % self.shape.channels) * size_of::<f::Doorbell>();
        let doorbell = staging.as_ptr().wrapping_add(at).cast::<f::Doorbell>();
        // The sleeper announces itself, then looks for what was stored; this looks for the sleeper
        // behind the store.
        fence(Ordering::SeqCst);
        // SAFETY: staging begins with a doorbell for each channel, mapped as long as `self` lives;
        // others use these words as atomics, too.
        let (rings, sleeping) = unsafe {
            let rings = &*(&raw mut (*doorbell).rings).cast::<AtomicU32>();
            (rings, &*(&raw mut (*doorbell).sleeping).cast::<AtomicU32>())
        };
        if sleeping.load(Ordering::Relaxed) & 1 != 0 {
            rings.fetch_add(1, Ordering::Release);
            // SAFETY: the word is mapped; a wake reads and writes nothing.
            unsafe { libc::syscall(libc::SYS_futex, rings.as_ptr(), libc::FUTEX_WAKE, 1) };
        }
    }
}

impl Memory {
    fn pinned(context: &Context, name: &str, len_bytes: usize) -> Result<Memory, Error> {
        let region = Arc::new(Region::create(name, len_bytes)?);
        Ok(Memory::Pinned(RegisteredRegion::register(context, region, len_bytes)?))
    }

    /// Where the proxy, or an adapter, finds it.
    fn as_ptr(&self) -> *mut u8 {
        match self {
            Memory::Host(region) => region.as_ptr(),
            Memory::Pinned(registered) => registered.region().as_ptr(),
            Memory::Gpu(_, region) => region.as_ptr(),
        }
    }

    /// Where the executor finds it.
    fn seen_by_executor(&self) -> *mut u8 {
        match self {
            Memory::Pinned(registered) => registered.device_ptr(),
            Memory::Host(_) | Memory::Gpu(..) => self.as_ptr(),
        }
    }
}

/// Why slots are not in a GPU's memory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotDirect {
    /// Adapters do not reach it.
    #[error(transparent)]
    Unreached(#[from] RdmaError),
    /// There is no memory for them, neither there nor on the host.
    #[error(transparent)]
    Failed(#[from] Error),
}

fn set_slots_bytes(shape: &StagingShape) -> usize {
    2 * shape.slots as usize * shape.slot_stride()
}

fn set_words_bytes(shape: &StagingShape) -> usize {
    (WORDS + 2 * shape.slots as usize) * LINE
}

/// Length of the memory of slots: whole pages of the host's, as drivers export them to adapters.
fn slots_bytes(shape: &StagingShape) -> usize {
    ((shape.channels + 1) * set_slots_bytes(shape)).next_multiple_of(page_bytes())
}

/// Length of the memory of words: whole pages.
fn words_bytes(shape: &StagingShape) -> usize {
    ((shape.channels + 1) * set_words_bytes(shape)).next_multiple_of(page_bytes())
}

/// 64 KiB on some machines with aarch64.
fn page_bytes() -> usize {
    // SAFETY: it only asks.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

fn set_of(port: PortNumber) -> usize {
    usize::from(port) / 2
}

// SAFETY: all addresses are of `slots` and `words`, by the layout above; an executor writes a slot
// only with a credit for it, and reads one only behind its tail.
unsafe impl Ports for LinkPorts {
    fn count(&self) -> usize {
        2 * (self.shape.channels + 1)
    }

    fn shape(&self, port: PortNumber) -> PortShape {
        if port % 2 == 1 {
            return PortShape::Counter;
        }
        let content_bytes = self.shape.slot_stride() as u32;
        PortShape::Slots { slots: self.shape.slots, content_bytes }
    }

    fn memory(&self) -> PortsMemory {
        PortsMemory { start: self.slots.as_ptr(), len_bytes: slots_bytes(&self.shape) }
    }

    fn inbox_offset(&self, port: PortNumber, message: u64) -> usize {
        self.slot_offset(Side::Inbox, set_of(port), message)
    }

    fn outgoing(&self, port: PortNumber, message: u64) -> Option<Content> {
        let tail = self.tail_offset(Side::Outbox, set_of(port), message);
        if self.atomic(tail).load(Ordering::Acquire) != message + 1 {
            return None;
        }
        let tail = self.words.as_ptr().wrapping_add(tail).cast::<f::SlotTail>();
        // SAFETY: within the words; written before the announcement, and not again before the
        // credit.
        let content_bytes = unsafe { (*tail).content_bytes } as usize;
        let slot = self.slot_offset(Side::Outbox, set_of(port), message);
        Some(Content {
            start: self.slots.as_ptr().wrapping_add(slot),
            len_bytes: content_bytes.clamp(1, self.shape.slot_stride()),
        })
    }

    fn consumed(&self, port: PortNumber) -> u64 {
        self.atomic(self.word_offset(set_of(port), Word::RecvHead)).load(Ordering::Acquire)
    }

    fn deliver(&self, port: PortNumber, message: u64) {
        let tail = self.tail_offset(Side::Inbox, set_of(port), message);
        self.atomic(tail).store(message + 1, Ordering::Release);
        self.ring(set_of(port));
    }

    fn credit(&self, port: PortNumber, consumed: u64) {
        let head = self.word_offset(set_of(port), Word::SendHead);
        self.atomic(head).store(consumed, Ordering::Release);
        self.ring(set_of(port));
    }

    fn counter(&self, port: PortNumber) -> u64 {
        self.atomic(self.word_offset(set_of(port), Word::SyncOut)).load(Ordering::Acquire)
    }

    fn raise(&self, port: PortNumber, value: u64) {
        let word = self.word_offset(set_of(port), Word::SyncIn);
        self.atomic(word).store(value, Ordering::Release);
        self.ring(set_of(port));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports() -> LinkPorts {
        let shape = StagingShape {
            ranks: 2,
            beside: 1,
            channels: 2,
            ll_slots: 8,
            ll128_slots: 0,
            ll_slot_bytes: 256,
            slots: 4,
            slot_bytes: 1024,
        };
        let staging = Arc::new(Region::create("test", shape.len_bytes()).unwrap());
        LinkPorts::on_host(shape, 1, staging).unwrap()
    }

    fn is_apart(mut ranges: Vec<(usize, usize)>, len_bytes: usize) {
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        let last = ranges[ranges.len() - 1];
        assert!(last.0 + last.1 <= len_bytes);
        assert!(ranges.iter().all(|range| range.0 % LINE == 0));
    }

    #[test]
    fn nothing_overlaps() {
        let ports = ports();
        let (mut slots, mut words) = (Vec::new(), Vec::new());
        for set in 0..=2 {
            for (side, m) in
                [Side::Inbox, Side::Outbox].into_iter().flat_map(|s| (0..4).map(move |m| (s, m)))
            {
                slots.push((ports.slot_offset(side, set, m), ports.shape.slot_stride()));
                words.push((ports.tail_offset(side, set, m), LINE));
            }
            let all = [Word::SyncIn, Word::SyncOut, Word::SendHead, Word::RecvHead];
            words.extend(all.map(|word| (ports.word_offset(set, word), LINE)));
        }
        is_apart(slots, slots_bytes(&ports.shape));
        is_apart(words, words_bytes(&ports.shape));
    }

    #[test]
    fn a_tail_says_how_long_the_content_is() {
        let ports = ports();
        let port = LinkPorts::port(1, f::Lane::Slots);
        assert!(ports.outgoing(port, 0).is_none());
        let tail = ports.words.as_ptr().wrapping_add(ports.tail_offset(Side::Outbox, 1, 0));
        for (said, is) in [(350, 350), (u32::MAX, ports.shape.slot_stride())] {
            let written = f::SlotTail { tail: 1, content_bytes: said, reserved: 0 };
            // SAFETY: within the words; this thread alone uses it.
            unsafe { tail.cast::<f::SlotTail>().write(written) };
            assert_eq!(ports.outgoing(port, 0).unwrap().len_bytes, is);
        }
        assert!(ports.outgoing(port, 4).is_none(), "the slot's next message");
    }
}
