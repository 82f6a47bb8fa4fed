//! One queue pair of a wire, with the books of both its queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::completion::{Completion, CompletionQueue, Outcome};
use super::fabric::Rail;
use super::flush::{FLUSH, Flush, Part};
use super::immediate::Brought;
use super::memory::{MemoryRegion, RemoteMemory};
use super::offer::PathOffer;
use super::queue_pair::{Class, Depth, Local, Operation, Patience, QueuePair, Request};
use super::{Device, RdmaError};
use crate::proxy::{Counter, PortNumber, PortsMemory};

/// Requests to send, and requests to receive, of each path.
const DEPTH: u32 = 256;
/// One in so many requests is signalled, so that completions free the send queue.
const SIGNAL_EVERY: u32 = DEPTH / 4;
/// What the peer has used of the receive queue is told at the latest at this number; more than a
/// few, so that two ends cannot wait for each other's credits (`may_receive`).
const CREDIT_EVERY: u64 = DEPTH as u64 / 2;

/// Bytes that a request carries itself: short messages need no completion before their slot is
/// free.
const INLINE_BYTES: usize = 128;

/// A receive buffer: what comes by `Send`. The adapter writes there, so they are atomics.
#[derive(Debug, Default)]
#[repr(C)]
struct Buffer {
    value: AtomicU64,
    returned: AtomicU64,
}

/// The GPU in whose memory ports are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gpu {
    /// Whether what an adapter has written must be waited for.
    pub(super) needs_flush: bool,
}

/// One queue pair of a wire.
#[derive(Debug)]
pub(super) struct Path {
    queue_pair: QueuePair,
    /// Where what comes has to be waited for.
    flush: Option<Flush>,
    /// The longest message that a request carries itself: none that the host cannot read.
    inline_bytes: usize,
    completions: Arc<CompletionQueue>,
    device: Arc<Device>,
    /// The memory of the ports here, and the peer's.
    region: Arc<MemoryRegion>,
    remote: RemoteMemory,
    /// Places of the send queue that hold requests, and how many of the last are not signalled.
    posted: u32,
    unsignalled: u32,
    /// Requests that use up one of the peer's to receive: sent, and given back.
    sent: u64,
    returned: u64,
    /// Requests to receive: used up by the peer and posted again, and how many of that it has been
    /// told.
    received: u64,
    received_told: u64,
    /// Before what it registers, so that it is dropped first.
    buffers_region: Arc<MemoryRegion>,
    buffers: Box<[Buffer]>,
}

/// What a completion stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// A request whose success frees the outbox has been carried out.
    Sent { tag: u32 },
    /// A part of a message is in its place.
    Part(Part),
    /// The peer has told a value.
    Told { port: PortNumber, counter: Counter, value: u64 },
    /// Parts that were held back are in their places: [`Path::flushed`].
    Flushed,
    /// Nothing that concerns the wire.
    Nothing,
}

/// The tag of requests whose success concerns nobody.
pub(super) const NO_TAG: u32 = u32::MAX;

impl Path {
    /// A path that knows no peer yet, and what the peer must be told of it.
    ///
    /// # Safety
    /// The memory stays mapped until the path is dropped, and no reference to it exists meanwhile.
    pub(super) unsafe fn new(
        rail: &Rail,
        memory: PortsMemory,
        gpu: Option<Gpu>,
    ) -> Result<(Path, PathOffer), RdmaError> {
        let domain = &rail.domain;
        // SAFETY: as the caller promises.
        let region = unsafe {
            match gpu {
                Some(_) => domain.registered(memory.start as u64, memory.len_bytes),
                None => domain.register(memory.start, memory.len_bytes),
            }
        }?;
        // One more for a flush.
        let completions = CompletionQueue::new(domain.device(), 2 * DEPTH + 1)?;
        let flush = gpu.filter(|gpu| gpu.needs_flush);
        let flush = flush.map(|_| Flush::new(rail, &completions, &region)).transpose()?;
        let depth = Depth { send: DEPTH, receive: DEPTH, inline_bytes: INLINE_BYTES as u32 };
        let queue_pair = QueuePair::new(&rail.port, domain, &completions, depth)?;
        let buffers: Box<[Buffer]> = (0..DEPTH).map(|_| Buffer::default()).collect();
        let bytes = size_of_val(&*buffers);
        // SAFETY: the buffers are atomics, and dropped after the registration.
        let buffers_region = unsafe { domain.register(buffers.as_ptr().cast_mut().cast(), bytes) }?;
        let path = Path {
            queue_pair,
            flush,
            inline_bytes: if gpu.is_some() { 0 } else { INLINE_BYTES },
            completions,
            device: Arc::clone(domain.device()),
            remote: RemoteMemory { start: 0, len_bytes: 0, key: 0 },
            posted: 0,
            unsignalled: 0,
            sent: 0,
            returned: 0,
            received: 0,
            received_told: 0,
            buffers_region,
            buffers,
            region,
        };
        (0..DEPTH).try_for_each(|buffer| path.post_receive(buffer))?;
        let offer = PathOffer {
            queue_pair: path.queue_pair.address(),
            memory: path.region.remote(memory.start as u64, memory.len_bytes)?,
            depth: DEPTH,
        };
        Ok((path, offer))
    }

    /// Joins it with the peer's.
    pub(super) fn connect(
        &mut self,
        offer: PathOffer,
        peer: &str,
        patience: Patience,
        class: Class,
    ) -> Result<(), RdmaError> {
        if offer.depth != DEPTH {
            let detail = format!("a receive queue of {}, not {DEPTH}", offer.depth);
            return Err(RdmaError::BadAddress { detail });
        }
        self.remote = offer.memory;
        self.queue_pair.connect(&offer.queue_pair, peer, patience, class)
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn completions(&self) -> &CompletionQueue {
        &self.completions
    }

    /// Whether a message or a value may be sent: the last place of the peer's receive queue is for
    /// credits.
    pub(super) fn has_room(&self) -> bool {
        self.posted + 1 < DEPTH && self.sent - self.returned + 1 < u64::from(DEPTH)
    }

    /// Writes bytes of an outbox to an offset of the peer's ports, and tells it `what`. Where they
    /// are taken at once, `true`; otherwise `tag` is reported once they have been.
    pub(super) fn write(
        &mut self,
        bytes: *const u8,
        len_bytes: usize,
        offset: usize,
        what: Brought,
        tag: u32,
    ) -> Result<bool, RdmaError> {
        let to = self.remote.at(offset, len_bytes)?;
        let key = self.remote.key;
        let operation = Operation::WriteWithImmediate { to, key, immediate: what.encode() };
        let inline = len_bytes <= self.inline_bytes;
        if inline {
            // SAFETY: the outbox stays as it is until the message has been reported as sent.
            let bytes = unsafe { std::slice::from_raw_parts(bytes, len_bytes) };
            self.post(operation, Local::Inline(bytes), NO_TAG)?;
        } else {
            let region = Arc::clone(&self.region);
            let local = Local::Registered { region: &region, start: bytes as u64, len_bytes };
            self.post(operation, local, tag)?;
        }
        self.sent += 1;
        Ok(inline)
    }

    /// Tells the peer a value; with it go credits.
    pub(super) fn tell(&mut self, what: Brought, value: u64) -> Result<(), RdmaError> {
        let mut bytes = [0; size_of::<Buffer>()];
        bytes[..8].copy_from_slice(&value.to_le_bytes());
        bytes[8..].copy_from_slice(&self.received.to_le_bytes());
        let operation = Operation::Send { immediate: what.encode() };
        self.post(operation, Local::Inline(&bytes), NO_TAG)?;
        self.received_told = self.received;
        self.sent += 1;
        Ok(())
    }

    /// Gives the peer back what it may send, once that has become much.
    ///
    /// Two ends cannot both be waiting for it: an end stops with one place left, which only this
    /// may use. It uses it after half a queue has come since the last time, and the other end
    /// cannot have sent more than half a queue and one beyond what it had been given back by then;
    /// so of two that cross at most one used the last place.
    fn return_credits(&mut self) -> Result<(), RdmaError> {
        let due = self.received - self.received_told >= CREDIT_EVERY;
        if due && self.posted < DEPTH && self.sent - self.returned < u64::from(DEPTH) {
            self.tell(Brought::Credit, 0)?;
        }
        Ok(())
    }

    /// Whether every request whose completion is asked for has been carried out.
    pub(super) fn is_drained(&self) -> bool {
        self.posted == self.unsignalled
    }

    /// Whether everything that was posted has been carried out. If not, its completion is asked
    /// for.
    pub(super) fn drain(&mut self) -> Result<bool, RdmaError> {
        if self.unsignalled > 0 && self.posted < DEPTH {
            let (to, key) = (self.remote.start, self.remote.key);
            self.post_signalled(Operation::Write { to, key }, Local::Nothing, NO_TAG, true)?;
        }
        Ok(self.posted == 0)
    }

    /// Books a completion.
    pub(super) fn complete(&mut self, completion: Completion) -> Result<Progress, RdmaError> {
        match completion.outcome {
            Outcome::Failed(failure) => {
                let operation = if completion.id & RECEIVE != 0 { "receiving" } else { "sending" };
                Err(self.queue_pair.transfer_error(operation, failure))
            }
            Outcome::Sent if completion.id == FLUSH => Ok(Progress::Flushed),
            Outcome::Sent => {
                self.posted -= (completion.id >> FREED_SHIFT) as u32;
                let tag = completion.id as u32;
                Ok(if tag == NO_TAG { Progress::Nothing } else { Progress::Sent { tag } })
            }
            Outcome::Received { len_bytes, immediate } => {
                let buffer = completion.id as u32;
                let what = Brought::decode(immediate.unwrap_or(u32::MAX));
                let progress = match what {
                    Brought::Part { port, message, parts } => {
                        let len_bytes = len_bytes as usize;
                        self.hold_or_pass(Part { port, message, parts, len_bytes })
                    }
                    Brought::Value { port, counter } => {
                        let value = self.read(buffer, len_bytes)?;
                        Progress::Told { port, counter, value }
                    }
                    Brought::Credit => {
                        self.read(buffer, len_bytes)?;
                        Progress::Nothing
                    }
                };
                self.post_receive(buffer)?;
                self.received += 1;
                Ok(progress)
            }
        }
    }

    /// After a poll: begins what makes held parts readable, and returns credits.
    pub(super) fn follow_up(&mut self) -> Result<(), RdmaError> {
        if let Some(flush) = &mut self.flush {
            flush.start()?;
        }
        self.return_credits()
    }

    /// Appends the parts that a flush was for.
    pub(super) fn flushed(&mut self, parts: &mut Vec<Part>) {
        if let Some(flush) = &mut self.flush {
            parts.extend(flush.done());
        }
    }

    /// Whether parts have come that are not in their places yet.
    pub(super) fn is_flushing(&self) -> bool {
        self.flush.as_ref().is_some_and(Flush::is_under_way)
    }

    fn hold_or_pass(&mut self, part: Part) -> Progress {
        match &mut self.flush {
            None => Progress::Part(part),
            Some(flush) => {
                flush.hold(part);
                Progress::Nothing
            }
        }
    }

    /// What has come into a receive buffer: a value, and with it credits.
    fn read(&mut self, buffer: u32, len_bytes: u32) -> Result<u64, RdmaError> {
        let buffer = &self.buffers[buffer as usize];
        let returned = u64::from_le(buffer.returned.load(Ordering::Relaxed));
        let possible = returned <= self.sent && len_bytes as usize == size_of::<Buffer>();
        if !possible {
            let detail = format!("{len_bytes} bytes, {returned} of {} given back", self.sent);
            return Err(RdmaError::BadAddress { detail });
        }
        self.returned = self.returned.max(returned);
        Ok(u64::from_le(buffer.value.load(Ordering::Relaxed)))
    }

    fn post(&mut self, operation: Operation, local: Local<'_>, tag: u32) -> Result<(), RdmaError> {
        let signalled = tag != NO_TAG || self.unsignalled + 1 >= SIGNAL_EVERY;
        self.post_signalled(operation, local, tag, signalled)
    }

    fn post_signalled(
        &mut self,
        operation: Operation,
        local: Local<'_>,
        tag: u32,
        signalled: bool,
    ) -> Result<(), RdmaError> {
        // A completion stands for the requests before it, too.
        let id = u64::from(self.unsignalled + 1) << FREED_SHIFT | u64::from(tag);
        self.queue_pair.post(Request { id, operation, local, signalled })?;
        self.posted += 1;
        self.unsignalled = if signalled { 0 } else { self.unsignalled + 1 };
        Ok(())
    }

    fn post_receive(&self, buffer: u32) -> Result<(), RdmaError> {
        let start = &raw const self.buffers[buffer as usize] as u64;
        let buffer_len = size_of::<Buffer>();
        let id = RECEIVE | u64::from(buffer);
        self.queue_pair.post_receive(id, Some((&self.buffers_region, start, buffer_len)))
    }
}

/// Marks the numbers of requests to receive.
const RECEIVE: u64 = 1 << 63;
/// Above the tag: how many places of the send queue a completion frees.
const FREED_SHIFT: u32 = 32;
