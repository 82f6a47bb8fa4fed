//! Connections to ranks of other nodes: their slots and counters lie in this rank's own memory, and its proxy carries them.
//!
//! The memory of one peer, a region:
//!
//! ```text
//! for each set of connections:  inbox slots | outbox slots | lines: sync in, sync out, send head, recv head
//! ```
//!
//! A port's number is twice that of its set, and one more for the sync lane. There are none for slots with flags and windows, which need
//! memory that both ends map.

use super::staging::StagingShape;
use oxccl_kernels::format as f;
use oxccl_transports::cuda::{Context, RegisteredRegion};
use oxccl_transports::proxy::{Bell, Content, PortNumber, PortShape, Ports, PortsMemory};
use oxccl_transports::{Error, Region};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A cache line.
const LINE: usize = 64;
/// Bytes of a slot's header by which a message is announced: they don't travel.
const TAIL_BYTES: usize = size_of::<u64>();

const _: () = {
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
    memory: Arc<Region>,
    executor: Executor,
}

/// What reads and writes the slots at this end.
#[derive(Debug)]
enum Executor {
    /// Threads of this process, with this rank's staging, which begins with the doorbells of its channels.
    Host(Arc<Region>),
    /// A GPU's kernels, which reach the memory through the bus. They never sleep, and ring nobody.
    Gpu(RegisteredRegion),
}

/// The lines behind a set's slots.
#[derive(Clone, Copy)]
enum Words {
    SyncIn,
    SyncOut,
    SendHead,
    RecvHead,
}

/// Which way a slot's message goes.
#[derive(Clone, Copy)]
enum Side {
    Inbox,
    Outbox,
}

impl LinkPorts {
    /// Fresh memory for the connections to a peer, for threads whose doorbells this staging begins with.
    pub(crate) fn on_host(
        shape: StagingShape,
        peer: usize,
        staging: Arc<Region>,
    ) -> Result<LinkPorts, Error> {
        let memory = Arc::new(Region::create("oxccl-links", LinkPorts::len_bytes(&shape))?);
        Ok(LinkPorts { shape, peer, memory, executor: Executor::Host(staging) })
    }

    /// The same for a GPU's kernels: pinned memory of the host, which they reach.
    pub(crate) fn on_gpu(
        shape: StagingShape,
        peer: usize,
        context: &Context,
    ) -> Result<LinkPorts, Error> {
        let memory = Arc::new(Region::create("oxccl-links", LinkPorts::len_bytes(&shape))?);
        let registered = RegisteredRegion::register(context, memory.clone(), memory.len_bytes())?;
        Ok(LinkPorts { shape, peer, memory, executor: Executor::Gpu(registered) })
    }

    /// Length of that memory.
    pub(crate) fn len_bytes(shape: &StagingShape) -> usize {
        ((shape.channels + 1) * set_bytes(shape)).next_multiple_of(4096)
    }

    /// The port of a lane in a set of connections.
    pub(crate) fn port(set: usize, lane: f::Lane) -> PortNumber {
        (2 * set + usize::from(lane == f::Lane::Sync)) as PortNumber
    }

    /// The connections to the peer, of all sets and lanes, in the machine's table. Executors ring this doorbell, if they ring.
    pub(crate) fn connect(&self, connections: &mut [f::Connection], doorbell: *mut f::Doorbell) {
        for set in 0..=self.shape.channels {
            for lane in f::Lane::ALL {
                let pair = set * self.shape.ranks + self.peer;
                connections[pair * f::LANES + lane as usize] = self.connection(set, lane, doorbell);
            }
        }
    }

    fn connection(&self, set: usize, lane: f::Lane, doorbell: *mut f::Doorbell) -> f::Connection {
        let there = |at: *mut u8| self.seen_by_executor(at);
        let word = |word| there(self.word(set, word));
        let slot = |side| there(self.slot(side, set, 0));
        let (recv_slots, send_slots, slots, stride) = match lane {
            f::Lane::Slots => {
                let stride = self.shape.slot_stride();
                (slot(Side::Inbox), slot(Side::Outbox), self.shape.slots, stride)
            }
            f::Lane::Sync => (word(Words::SyncIn), word(Words::SyncOut), 1, LINE),
            // No schedule that runs uses it.
            f::Lane::Ll | f::Lane::Ll128 => (std::ptr::null_mut(), std::ptr::null_mut(), 0, 0),
        };
        f::Connection {
            send_slots,
            recv_slots,
            send_head: word(Words::SendHead).cast(),
            recv_head: word(Words::RecvHead).cast(),
            doorbell,
            sent: 0,
            received: 0,
            head_seen: 0,
            cleared: 0,
            slot_stride_bytes: stride as u32,
            slots,
            peer: self.peer as u32,
            lane: lane as u32,
        }
    }

    /// The address by which the executor finds what lies here.
    fn seen_by_executor(&self, at: *mut u8) -> *mut u8 {
        match &self.executor {
            Executor::Host(_) => at,
            Executor::Gpu(registered) => {
                let offset = at as usize - self.memory.as_ptr() as usize;
                registered.device_ptr().wrapping_add(offset)
            }
        }
    }

    fn slot_offset(&self, side: Side, set: usize, message: u64) -> usize {
        let slots = self.shape.slots as usize;
        let slot = side as usize * slots + (message % slots as u64) as usize;
        set * set_bytes(&self.shape) + slot * self.shape.slot_stride()
    }

    fn slot(&self, side: Side, set: usize, message: u64) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(self.slot_offset(side, set, message))
    }

    fn word(&self, set: usize, word: Words) -> *mut u8 {
        let lines = (set + 1) * set_bytes(&self.shape) - LINES_BYTES;
        self.memory.as_ptr().wrapping_add(lines + word as usize * LINE)
    }

    /// A counter, as proxy and executor share it.
    fn atomic(&self, word: *mut u8) -> &AtomicU64 {
        // SAFETY: callers give the first word of a slot or a line of `memory`, which is aligned, mapped as long as `self` lives,
        // and used as an atomic by the executor, too.
        unsafe { &*word.cast::<AtomicU64>() }
    }

    fn is_announced(&self, side: Side, set: usize, message: u64) -> bool {
        self.atomic(self.slot(side, set, message)).load(Ordering::Acquire) == message + 1
    }

    /// Wakes the thread of a set's channel if it sleeps.
    fn ring(&self, set: usize) {
        let Executor::Host(staging) = &self.executor else { return };
        let at = (set % self.shape.channels) * size_of::<f::Doorbell>();
        let doorbell = staging.as_ptr().wrapping_add(at).cast::<f::Doorbell>();
        // The sleeper announces itself, then looks for what was stored; this looks for the sleeper behind the store.
        fence(Ordering::SeqCst);
        // SAFETY: staging begins with a doorbell for each channel, mapped as long as `self` lives; others use these words as
        // atomics, too.
        let (rings, sleeping) = unsafe {
            let rings = &*(&raw mut (*doorbell).rings).cast::<AtomicU32>();
            (rings, &*(&raw mut (*doorbell).sleeping).cast::<AtomicU32>())
        };
        if sleeping.load(Ordering::Relaxed) != 0 {
            rings.fetch_add(1, Ordering::Release);
            // SAFETY: the word is mapped; a wake reads and writes nothing.
            unsafe { libc::syscall(libc::SYS_futex, rings.as_ptr(), libc::FUTEX_WAKE, 1) };
        }
    }
}

const LINES_BYTES: usize = 4 * LINE;

fn set_bytes(shape: &StagingShape) -> usize {
    2 * shape.slots as usize * shape.slot_stride() + LINES_BYTES
}

fn set_of(port: PortNumber) -> usize {
    usize::from(port) / 2
}

// SAFETY: all addresses are of `memory`, by the layout above; an executor writes a slot only with a credit for it, and reads one
// only behind its tail.
unsafe impl Ports for LinkPorts {
    fn count(&self) -> usize {
        2 * (self.shape.channels + 1)
    }

    fn shape(&self, port: PortNumber) -> PortShape {
        if port % 2 == 1 {
            return PortShape::Counter;
        }
        let content_bytes = (self.shape.slot_stride() - TAIL_BYTES) as u32;
        PortShape::Slots { slots: self.shape.slots, content_bytes }
    }

    fn memory(&self) -> PortsMemory {
        PortsMemory { start: self.memory.as_ptr(), len_bytes: self.memory.len_bytes() }
    }

    fn inbox_offset(&self, port: PortNumber, message: u64) -> usize {
        self.slot_offset(Side::Inbox, set_of(port), message) + TAIL_BYTES
    }

    fn outgoing(&self, port: PortNumber, message: u64) -> Option<Content> {
        if !self.is_announced(Side::Outbox, set_of(port), message) {
            return None;
        }
        let slot = self.slot(Side::Outbox, set_of(port), message);
        let limit = self.shape.slot_stride();
        // SAFETY: a slot begins with a header; the last segment's lies within the slot, too, by the bound. They were written
        // before the announcement, and are not again before the credit.
        let end = unsafe {
            let last = (*slot.cast::<f::SlotHeader>()).last_segment as usize;
            let last = last.min(limit - f::SLOT_HEADER_BYTES) / LINE * LINE;
            let header = slot.add(last).cast::<f::SlotHeader>();
            last + f::SLOT_HEADER_BYTES + (*header).len_bytes as usize
        };
        Some(Content {
            start: slot.wrapping_add(TAIL_BYTES),
            len_bytes: end.min(limit) - TAIL_BYTES,
        })
    }

    fn consumed(&self, port: PortNumber) -> u64 {
        self.atomic(self.word(set_of(port), Words::RecvHead)).load(Ordering::Acquire)
    }

    fn deliver(&self, port: PortNumber, message: u64) {
        let slot = self.slot(Side::Inbox, set_of(port), message);
        self.atomic(slot).store(message + 1, Ordering::Release);
        self.ring(set_of(port));
    }

    fn credit(&self, port: PortNumber, consumed: u64) {
        let head = self.word(set_of(port), Words::SendHead);
        self.atomic(head).store(consumed, Ordering::Release);
        self.ring(set_of(port));
    }

    fn counter(&self, port: PortNumber) -> u64 {
        self.atomic(self.word(set_of(port), Words::SyncOut)).load(Ordering::Acquire)
    }

    fn raise(&self, port: PortNumber, value: u64) {
        self.atomic(self.word(set_of(port), Words::SyncIn)).store(value, Ordering::Release);
        self.ring(set_of(port));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports() -> LinkPorts {
        let shape = StagingShape {
            ranks: 2,
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

    #[test]
    fn nothing_overlaps() {
        let ports = ports();
        let base = ports.memory.as_ptr() as usize;
        let mut ranges = Vec::new();
        for set in 0..=2 {
            for side in [Side::Inbox, Side::Outbox] {
                let slot =
                    |m| (ports.slot(side, set, m) as usize - base, ports.shape.slot_stride());
                ranges.extend((0..4).map(slot));
            }
            let words = [Words::SyncIn, Words::SyncOut, Words::SendHead, Words::RecvHead];
            ranges.extend(words.map(|word| (ports.word(set, word) as usize - base, LINE)));
        }
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        let last = ranges[ranges.len() - 1];
        assert!(last.0 + last.1 <= ports.memory.len_bytes());
        assert!(ranges.iter().all(|range| range.0 % LINE == 0));
    }

    #[test]
    fn content_ends_with_the_last_segment() {
        let ports = ports();
        let port = LinkPorts::port(1, f::Lane::Slots);
        assert!(ports.outgoing(port, 0).is_none());
        let slot = ports.slot(Side::Outbox, 1, 0);
        for (at, len_bytes, last_segment) in [(0, 100, 0), (0, 100, 256), (256, 30, 0)] {
            let header =
                f::SlotHeader { tail: 1, signature: 7, len_bytes, last_segment, reserved: 0 };
            // SAFETY: within the slot; this thread alone uses it.
            unsafe { slot.add(at).cast::<f::SlotHeader>().write(header) };
        }
        let content = ports.outgoing(port, 0).unwrap();
        assert_eq!(content.len_bytes, 256 + 64 + 30 - 8);
        assert!(ports.outgoing(port, 4).is_none(), "the slot's next message");
    }
}
