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
//! being looked into: those of a GPU may lie in its own memory, where adapters reach that. At the
//! start a GPU's have addresses alone: memory is behind them once the link is used.
//!
//! A port's number is twice that of its set, and one more for the sync lane. There are none for
//! slots with flags and windows, which need memory that both ends map.

use super::staging::StagingShape;
use oxccl_kernels::format as f;
use oxccl_transports::cuda::{Context, DeviceRegion, RegisteredRegion, beside_captures};
use oxccl_transports::proxy::{
    Bell, Content, PortNumber, PortShape, Ports, PortsMemory, WireError,
};
use oxccl_transports::rdma::{GpuReach, RdmaError};
use oxccl_transports::{CudaError, Error, Region};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

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
    slots: Slots,
    words: Words,
    opening: Mutex<()>,
    /// Of threads of this process, this rank's staging, which begins with the doorbells of its
    /// channels. A GPU's kernels never sleep.
    doorbells: Option<Arc<Region>>,
}

/// What lets adapters reach a GPU's memory.
pub(crate) type Reaching = Arc<dyn Fn(PortsMemory) -> Result<GpuReach, RdmaError> + Send + Sync>;

/// Where slots lie, which the executor and the proxy's side both reach.
enum Slots {
    Host(Arc<Region>),
    /// The host's, which a GPU's kernels reach through the bus once it is registered, under the
    /// host's address.
    Pinned {
        registered: OnceLock<RegisteredRegion>,
        region: Arc<Region>,
        context: Context,
    },
    /// A GPU's, and what lets adapters reach it, which goes first.
    Gpu {
        reach: OnceLock<GpuReach>,
        region: DeviceRegion,
        reaching: Reaching,
    },
}

/// Where words lie.
#[derive(Debug)]
enum Words {
    Host(Arc<Region>),
    /// The host's, which a GPU's kernels reach through the bus.
    Pinned(RegisteredRegion),
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
        let slots = Slots::Host(Arc::new(Region::create("oxccl-links", slots_bytes(&shape))?));
        let words = Region::create("oxccl-link-words", words_bytes(&shape))?;
        let words = Words::Host(Arc::new(words));
        let (opening, doorbells) = (Mutex::default(), Some(staging));
        Ok(LinkPorts { shape, peer, slots, words, opening, doorbells })
    }

    /// The same for a GPU's kernels: in pinned memory of the host, which they reach.
    pub(crate) fn staged(
        shape: StagingShape,
        peer: usize,
        context: &Context,
    ) -> Result<LinkPorts, Error> {
        let region = Arc::new(Region::create("oxccl-links", slots_bytes(&shape))?);
        let registered = OnceLock::new();
        if !context.device().has_host_addresses()? {
            // Where it will be is known once it is registered.
            let _ = registered.set(pinned(context, &region)?);
        }
        let slots = Slots::Pinned { registered, region, context: context.clone() };
        LinkPorts::of_gpu(shape, peer, context, slots)
    }

    /// The same with slots in the GPU's memory, which adapters reach by `reaching`.
    pub(crate) fn direct(
        shape: StagingShape,
        peer: usize,
        context: &Context,
        reaching: Reaching,
    ) -> Result<LinkPorts, Error> {
        let region = DeviceRegion::reserve(context, slots_bytes(&shape))?;
        let slots = Slots::Gpu { reach: OnceLock::new(), region, reaching };
        LinkPorts::of_gpu(shape, peer, context, slots)
    }

    fn of_gpu(
        shape: StagingShape,
        peer: usize,
        context: &Context,
        slots: Slots,
    ) -> Result<LinkPorts, Error> {
        let words = Arc::new(Region::create("oxccl-link-words", words_bytes(&shape))?);
        let words = Words::Pinned(pinned(context, &words)?);
        let (opening, doorbells) = (Mutex::default(), None);
        Ok(LinkPorts { shape, peer, slots, words, opening, doorbells })
    }

    /// Whether there is memory behind the slots. Pages of a host's come as they are written.
    pub(crate) fn is_open(&self) -> bool {
        match &self.slots {
            Slots::Host(_) => true,
            Slots::Pinned { registered, .. } => registered.get().is_some(),
            Slots::Gpu { reach, .. } => reach.get().is_some(),
        }
    }

    /// Has memory behind the slots from here on.
    pub(crate) fn back(&self) -> Result<(), NotOpen> {
        let _alone = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        match &self.slots {
            _ if self.is_open() => {}
            Slots::Host(_) => {}
            Slots::Pinned { registered, region, context } => {
                let made = beside_captures(context.device().driver(), || pinned(context, region));
                let _ = registered.set(made?);
            }
            Slots::Gpu { reach, region, reaching } => {
                let driver = region.context().device().driver();
                let reached = beside_captures(driver, || {
                    region.restore()?;
                    Ok::<_, NotOpen>(reaching(self.memory())?)
                });
                let _ = reach.set(reached.inspect_err(|_| region.give_up())?);
            }
        }
        Ok(())
    }

    /// Bytes that links to a peer pin.
    pub(crate) fn len_bytes(shape: &StagingShape) -> usize {
        slots_bytes(shape) + words_bytes(shape)
    }

    /// Bytes of memory that there are by now.
    pub(crate) fn memory_bytes(&self) -> usize {
        let slots_bytes = if self.is_open() { slots_bytes(&self.shape) } else { 0 };
        slots_bytes + words_bytes(&self.shape)
    }

    /// The port of a lane in a set of connections.
    pub(crate) fn port(set: usize, lane: f::Lane) -> PortNumber {
        (2 * set + usize::from(lane == f::Lane::Sync)) as PortNumber
    }

    /// The connections to the peer, of all sets and lanes, in the machine's table. Executors ring
    /// this doorbell, if they ring.
    pub(crate) fn connect(&self, connections: &mut [f::Connection], doorbell: *mut f::Doorbell) {
        for set in 0..sets(&self.shape) {
            for lane in f::Lane::ALL {
                let pair = set * self.shape.ranks + self.peer;
                connections[pair * f::LANES + lane as usize] = self.connection(set, lane, doorbell);
            }
        }
    }

    fn connection(&self, set: usize, lane: f::Lane, doorbell: *mut f::Doorbell) -> f::Connection {
        let words = match &self.words {
            Words::Host(region) => region.as_ptr(),
            Words::Pinned(registered) => registered.device_ptr(),
        };
        let word = |word| words.wrapping_add(self.word_offset(set, word));
        let tails = |side| words.wrapping_add(self.tail_offset(side, set, 0)).cast();
        let slots = match &self.slots {
            Slots::Pinned { registered, region, .. } => {
                registered.get().map_or(region.as_ptr(), RegisteredRegion::device_ptr)
            }
            Slots::Host(_) | Slots::Gpu { .. } => self.slots_start(),
        };
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

    /// Where the proxy, or an adapter, finds slots.
    fn slots_start(&self) -> *mut u8 {
        match &self.slots {
            Slots::Host(region) | Slots::Pinned { region, .. } => region.as_ptr(),
            Slots::Gpu { region, .. } => region.as_ptr(),
        }
    }

    /// Where the proxy finds words.
    fn words_start(&self) -> *mut u8 {
        match &self.words {
            Words::Host(region) => region.as_ptr(),
            Words::Pinned(registered) => registered.region().as_ptr(),
        }
    }

    /// A counter, as proxy and executor share it: a line of the words begins at the offset.
    fn atomic(&self, offset: usize) -> &AtomicU64 {
        let word = self.words_start().wrapping_add(offset);
        // SAFETY: callers give the offset of a line of `words`, which are host memory, aligned,
        // mapped as long as `self` lives, and used as atomics by the executor, too.
        unsafe { &*word.cast::<AtomicU64>() }
    }

    /// Wakes the thread of a set's channel if it sleeps.
    fn ring(&self, set: usize) {
        let Some(staging) = &self.doorbells else { return };
        let at = self.shape.channel_of(set) * size_of::<f::Doorbell>();
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

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Slots::Host(_) => "of the host",
            Slots::Pinned { .. } => "pinned",
            Slots::Gpu { .. } => "of a GPU",
        })
    }
}

/// Why there is no memory for a link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotOpen {
    /// Adapters do not reach it.
    #[error(transparent)]
    Unreached(#[from] RdmaError),
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<CudaError> for NotOpen {
    fn from(error: CudaError) -> NotOpen {
        NotOpen::Failed(error.into())
    }
}

fn pinned(context: &Context, region: &Arc<Region>) -> Result<RegisteredRegion, Error> {
    Ok(RegisteredRegion::register(context, region.clone(), region.len_bytes())?)
}

/// Sets of connections, all of which have slots.
fn sets(shape: &StagingShape) -> usize {
    shape.channels + shape.message_channels
}

fn set_slots_bytes(shape: &StagingShape) -> usize {
    2 * shape.slots as usize * shape.slot_stride()
}

fn set_words_bytes(shape: &StagingShape) -> usize {
    (WORDS + 2 * shape.slots as usize) * LINE
}

/// Length of the memory of slots: whole pages of the host's, as drivers export them to adapters.
fn slots_bytes(shape: &StagingShape) -> usize {
    (sets(shape) * set_slots_bytes(shape)).next_multiple_of(page_bytes())
}

/// Length of the memory of words: whole pages.
fn words_bytes(shape: &StagingShape) -> usize {
    (sets(shape) * set_words_bytes(shape)).next_multiple_of(page_bytes())
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
        2 * sets(&self.shape)
    }

    fn shape(&self, port: PortNumber) -> PortShape {
        if port % 2 == 1 {
            return PortShape::Counter;
        }
        let content_bytes = self.shape.slot_stride() as u32;
        PortShape::Slots { slots: self.shape.slots, content_bytes }
    }

    fn open(&self) -> Result<(), WireError> {
        self.back().map_err(|error| WireError::Device(error.to_string()))
    }

    fn memory(&self) -> PortsMemory {
        PortsMemory { start: self.slots_start(), len_bytes: slots_bytes(&self.shape) }
    }

    fn inbox_offset(&self, port: PortNumber, message: u64) -> usize {
        self.slot_offset(Side::Inbox, set_of(port), message)
    }

    fn outgoing(&self, port: PortNumber, message: u64) -> Option<Content> {
        let tail = self.tail_offset(Side::Outbox, set_of(port), message);
        if self.atomic(tail).load(Ordering::Acquire) != message + 1 {
            return None;
        }
        let tail = self.words_start().wrapping_add(tail).cast::<f::SlotTail>();
        // SAFETY: within the words; written before the announcement, and not again before the
        // credit.
        let content_bytes = unsafe { (*tail).content_bytes } as usize;
        let slot = self.slot_offset(Side::Outbox, set_of(port), message);
        Some(Content {
            start: self.slots_start().wrapping_add(slot),
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
            to_itself: false,
            channels: 2,
            message_sets: 2,
            message_channels: 1,
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
        let tail = ports.words_start().wrapping_add(ports.tail_offset(Side::Outbox, 1, 0));
        for (said, is) in [(350, 350), (u32::MAX, ports.shape.slot_stride())] {
            let written = f::SlotTail { tail: 1, content_bytes: said, reserved: 0 };
            // SAFETY: within the words; this thread alone uses it.
            unsafe { tail.cast::<f::SlotTail>().write(written) };
            assert_eq!(ports.outgoing(port, 0).unwrap().len_bytes, is);
        }
        assert!(ports.outgoing(port, 4).is_none(), "the slot's next message");
    }
}
