//! Read after write: makes sure that what an adapter has written into a GPU's memory is there.
//!
//! An adapter reports a write when it has left for the GPU; a GPU older than compute capability 9
//! may read the old bytes for a while. A read by the same adapter from the same memory comes back
//! only behind what was written before it.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use super::RdmaError;
use super::completion::CompletionQueue;
use super::fabric::Rail;
use super::memory::MemoryRegion;
use super::queue_pair::{Class, Depth, Local, Operation, Patience, QueuePair, Request};
use crate::proxy::PortNumber;

/// A part of a message, as it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) port: PortNumber,
    pub(super) message: u8,
    pub(super) parts: usize,
    pub(super) len_bytes: usize,
}

/// A queue pair that is joined with itself, and the parts that wait for it.
#[derive(Debug)]
pub(super) struct Flush {
    queue_pair: QueuePair,
    /// What is read from: any byte of the memory.
    region: Arc<MemoryRegion>,
    /// Before what it registers, so that it is dropped first.
    landing_region: Arc<MemoryRegion>,
    landing: Box<AtomicU8>,
    /// Parts that came after the read under way began, and those that it is for.
    waiting: Vec<Part>,
    covered: Vec<Part>,
}

/// The number of the read's completion.
pub(super) const FLUSH: u64 = 1 << 62;

impl Flush {
    /// For memory that is registered in a rail's domain.
    pub(super) fn new(
        rail: &Rail,
        completions: &Arc<CompletionQueue>,
        region: &Arc<MemoryRegion>,
    ) -> Result<Flush, RdmaError> {
        let depth = Depth { send: 1, receive: 1, inline_bytes: 0 };
        let mut queue_pair = QueuePair::new(&rail.port, &rail.domain, completions, depth)?;
        let itself = queue_pair.address();
        queue_pair.connect(&itself, "itself", Patience::default(), Class::default())?;
        let landing = Box::new(AtomicU8::new(0));
        // SAFETY: an atomic, dropped after the registration.
        let landing_region = unsafe { rail.domain.register(landing.as_ptr(), 1) }?;
        let region = Arc::clone(region);
        let (waiting, covered) = (Vec::new(), Vec::new());
        Ok(Flush { queue_pair, region, landing_region, landing, waiting, covered })
    }

    /// A part has been told: it must wait.
    pub(super) fn hold(&mut self, part: Part) {
        self.waiting.push(part);
    }

    /// Begins to read for the parts that wait, unless a read is under way.
    pub(super) fn start(&mut self) -> Result<(), RdmaError> {
        if self.waiting.is_empty() || !self.covered.is_empty() {
            return Ok(());
        }
        std::mem::swap(&mut self.waiting, &mut self.covered);
        let from = self.region.remote(self.region.start(), 1)?;
        let operation = Operation::Read { from: from.start, key: from.key };
        let start = self.landing.as_ptr() as u64;
        let local = Local::Registered { region: &self.landing_region, start, len_bytes: 1 };
        self.queue_pair.post(Request { id: FLUSH, operation, local, signalled: true })
    }

    /// Whether parts wait.
    pub(super) fn is_under_way(&self) -> bool {
        !self.waiting.is_empty() || !self.covered.is_empty()
    }

    /// The read has come back: the parts that it was for are there.
    pub(super) fn done(&mut self) -> impl Iterator<Item = Part> + '_ {
        self.covered.drain(..)
    }
}
