//! Ports over plain memory, with an executor that tests play: for the tests of proxies and wires.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::ports::{Content, PortNumber, PortShape, Ports, PortsMemory};
use super::wire::WireError;
use crate::{Error, Region};

/// The word by which a slot's message is announced.
const TAIL_BYTES: usize = 8;
/// The length of its payload, which is the content's first word.
const LEN_BYTES: usize = 8;

/// Some ports with slots, and behind them one counter.
pub struct MemoryPorts {
    memory: PortsMemory,
    /// Keeps it mapped.
    _owner: Box<dyn Any + Send + Sync>,
    ports: PortNumber,
    slots: u32,
    stride: usize,
    send_heads: Box<[AtomicU64]>,
    recv_heads: Box<[AtomicU64]>,
    raised_here: AtomicU64,
    raised_there: AtomicU64,
}

impl MemoryPorts {
    /// So many ports with slots for payloads of up to so many bytes.
    ///
    /// # Errors
    /// As [`Region::create`].
    pub fn new(
        ports: PortNumber,
        slots: u32,
        payload_bytes: usize,
    ) -> Result<Arc<MemoryPorts>, Error> {
        let region = Region::create("test", MemoryPorts::len_bytes(ports, slots, payload_bytes))?;
        let memory = PortsMemory { start: region.as_ptr(), len_bytes: region.len_bytes() };
        // SAFETY: the region is as long, holds zeros, and goes along.
        Ok(unsafe { MemoryPorts::over(memory, Box::new(region), ports, slots, payload_bytes) })
    }

    /// How much memory they need.
    pub fn len_bytes(ports: PortNumber, slots: u32, payload_bytes: usize) -> usize {
        2 * usize::from(ports) * slots as usize * stride(payload_bytes)
    }

    /// The same over other memory.
    ///
    /// # Safety
    /// The memory is of at least [`len_bytes`](Self::len_bytes), all zero, reached by this process,
    /// and mapped until the owner is dropped.
    pub unsafe fn over(
        memory: PortsMemory,
        owner: Box<dyn Any + Send + Sync>,
        ports: PortNumber,
        slots: u32,
        payload_bytes: usize,
    ) -> Arc<MemoryPorts> {
        let stride = stride(payload_bytes);
        let words = || (0..ports).map(|_| AtomicU64::new(0)).collect();
        Arc::new(MemoryPorts {
            memory,
            _owner: owner,
            ports,
            slots,
            stride,
            send_heads: words(),
            recv_heads: words(),
            raised_here: AtomicU64::new(0),
            raised_there: AtomicU64::new(0),
        })
    }

    /// The counter's number.
    pub fn counter_port(&self) -> PortNumber {
        self.ports
    }

    /// Writes message `message` of a port and announces it, once there is a credit for it. False:
    /// there was none in time.
    ///
    /// # Panics
    /// If the payload does not fit.
    pub fn write(&self, port: PortNumber, message: u64, payload: &[u8], limit: Duration) -> bool {
        assert!(TAIL_BYTES + LEN_BYTES + payload.len() <= self.stride);
        let credited = || {
            message - self.send_heads[usize::from(port)].load(Ordering::Acquire)
                < u64::from(self.slots)
        };
        if !until(limit, credited) {
            return false;
        }
        let slot = self.slot(1, port, message);
        // SAFETY: within the slot, which the credit has freed for this thread alone.
        unsafe {
            slot.add(TAIL_BYTES).cast::<u64>().write(payload.len() as u64);
            let to = slot.add(TAIL_BYTES + LEN_BYTES);
            std::ptr::copy_nonoverlapping(payload.as_ptr(), to, payload.len());
        }
        self.tail(1, port, message).store(message + 1, Ordering::Release);
        true
    }

    /// Reads message `message` of a port once it has come, and gives its slot back. `None`: it did
    /// not come in time.
    pub fn read(&self, port: PortNumber, message: u64, limit: Duration) -> Option<Vec<u8>> {
        let tail = self.tail(0, port, message);
        if !until(limit, || tail.load(Ordering::Acquire) == message + 1) {
            return None;
        }
        let slot = self.slot(0, port, message);
        // SAFETY: within the slot, which is this thread's until it is given back.
        let payload = unsafe {
            let len = slot.add(TAIL_BYTES).cast::<u64>().read() as usize;
            let len = len.min(self.stride - TAIL_BYTES - LEN_BYTES);
            std::slice::from_raw_parts(slot.add(TAIL_BYTES + LEN_BYTES), len).to_vec()
        };
        self.recv_heads[usize::from(port)].store(message + 1, Ordering::Release);
        Some(payload)
    }

    /// Raises this end's counter.
    pub fn raise_here(&self, value: u64) {
        self.raised_here.store(value, Ordering::Release);
    }

    /// What the other end has raised its counter to.
    pub fn raised_there(&self) -> u64 {
        self.raised_there.load(Ordering::Acquire)
    }

    /// A slot of the inbox (0) or the outbox (1).
    fn slot(&self, side: usize, port: PortNumber, message: u64) -> *mut u8 {
        self.memory.start.wrapping_add(self.offset(side, port, message))
    }

    fn offset(&self, side: usize, port: PortNumber, message: u64) -> usize {
        let slots = self.slots as usize;
        let slot = (side * usize::from(self.ports) + usize::from(port)) * slots;
        (slot + (message % slots as u64) as usize) * self.stride
    }

    fn tail(&self, side: usize, port: PortNumber, message: u64) -> &AtomicU64 {
        // SAFETY: the first word of a slot, aligned, mapped as long as `self` lives, and used as an
        // atomic by all.
        unsafe { &*self.slot(side, port, message).cast::<AtomicU64>() }
    }
}

// SAFETY: slots lie in the memory; a content is written before its announcement and again only
// after its credit; `read` looks at no slot before its tail is stored.
unsafe impl Ports for MemoryPorts {
    fn open(&self) -> Result<(), WireError> {
        Ok(())
    }

    fn count(&self) -> usize {
        usize::from(self.ports) + 1
    }

    fn shape(&self, port: PortNumber) -> PortShape {
        if port == self.ports {
            return PortShape::Counter;
        }
        PortShape::Slots { slots: self.slots, content_bytes: (self.stride - TAIL_BYTES) as u32 }
    }

    fn memory(&self) -> PortsMemory {
        self.memory
    }

    fn inbox_offset(&self, port: PortNumber, message: u64) -> usize {
        self.offset(0, port, message) + TAIL_BYTES
    }

    fn outgoing(&self, port: PortNumber, message: u64) -> Option<Content> {
        if self.tail(1, port, message).load(Ordering::Acquire) != message + 1 {
            return None;
        }
        let start = self.slot(1, port, message).wrapping_add(TAIL_BYTES);
        // SAFETY: the content's first word, written before the announcement.
        let len = unsafe { start.cast::<u64>().read() } as usize;
        Some(Content { start, len_bytes: LEN_BYTES + len })
    }

    fn consumed(&self, port: PortNumber) -> u64 {
        self.recv_heads[usize::from(port)].load(Ordering::Acquire)
    }

    fn deliver(&self, port: PortNumber, message: u64) {
        self.tail(0, port, message).store(message + 1, Ordering::Release);
    }

    fn credit(&self, port: PortNumber, consumed: u64) {
        self.send_heads[usize::from(port)].store(consumed, Ordering::Release);
    }

    fn counter(&self, _port: PortNumber) -> u64 {
        self.raised_here.load(Ordering::Acquire)
    }

    fn raise(&self, _port: PortNumber, value: u64) {
        self.raised_there.store(value, Ordering::Release);
    }
}

/// The distance of two slots.
fn stride(payload_bytes: usize) -> usize {
    (TAIL_BYTES + LEN_BYTES + payload_bytes).next_multiple_of(64)
}

/// Waits for something, and says whether it came.
pub fn until(limit: Duration, mut there: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !there() {
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
    true
}
