//! A group that is ready to be launched: programs, tables, and launch blocks that are chained.

use super::differences::{Words, collective_words, message_words};
use super::messages::Message;
use super::parts::Bucket;
use crate::call::{Call, Counts, Described, Key};
use crate::collective::{Kind, Order};
use crate::device::{HeapBlock, Signals};
use crate::element::OpKind;
use crate::schedule::Program;
use oxccl_kernels::format as f;
use std::sync::Arc;

/// Calls that make the same group.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) buckets: Vec<Bucket>,
    /// What the buckets' hashes stand for.
    pub(super) counts: Vec<Option<Arc<Counts>>>,
}

/// Where a table entry's memory is: so far into the call's buffers, of which it may have one or both.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) call: usize,
    pub(super) input_at: Option<usize>,
    pub(super) output_at: Option<usize>,
}

/// One launch block, and what it points to.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) program: Program,
    pub(super) launch: f::Launch,
    /// Its entries in the table.
    pub(super) first: usize,
    pub(super) count: usize,
    /// Whether its buffers are the entries'; otherwise those of its one call.
    pub(super) is_virtual: bool,
    /// Whether it begins when its buckets are ready.
    pub(super) awaits: bool,
    /// Whether its buckets are done when it is.
    pub(super) completes: bool,
}

/// A group that is ready to be launched with other buffers.
#[derive(Debug)]
pub(super) struct PreparedGroup {
    pub(super) identity: Identity,
    /// What all ranks must agree on.
    pub(super) described: Described,
    pub(super) channels: usize,
    sources: Vec<Source>,
    segments: Box<[f::Segment]>,
    blocks: Vec<Block>,
    launches: Box<[f::Launch]>,
    collectives: Vec<usize>,
    messages: Vec<Message>,
    /// The ranks with which this one has messages.
    pub(super) peers: Vec<usize>,
    /// A [`f::SegmentTokens`] for each table entry: in the heap, for peers' kernels.
    shared: HeapBlock,
    /// [`Words`] for each collective and each message: in control memory, for whoever compares groups.
    records: HeapBlock,
}

impl Identity {
    /// Whether these are the same calls.
    pub(super) fn is(&self, buckets: &[Bucket], calls: &[Call]) -> bool {
        let counts = calls.iter().map(|call| &call.counts);
        self.buckets == buckets && self.counts.iter().eq(counts)
    }
}

impl PreparedGroup {
    /// Chains the blocks. The tables do not move from here on.
    pub(super) fn new(
        rank: usize,
        identity: Identity,
        mut described: Described,
        (sources, segments): (Vec<Source>, Vec<f::Segment>),
        blocks: Vec<Block>,
        (collectives, messages): (Vec<usize>, Vec<Message>),
        (shared, records): (HeapBlock, HeapBlock),
    ) -> PreparedGroup {
        described.words_offset = records.offset() as u64;
        let mut group = PreparedGroup {
            identity,
            described,
            channels: blocks.iter().map(|block| block.program.channels()).max().unwrap_or(1),
            sources,
            segments: segments.into_boxed_slice(),
            launches: blocks.iter().map(|block| block.launch).collect(),
            blocks,
            collectives,
            peers: peers(&messages, rank),
            messages,
            shared,
            records,
        };
        group.link();
        group.write_collectives();
        group
    }

    fn link(&mut self) {
        let last = self.launches.len().saturating_sub(1);
        for (number, block) in self.blocks.iter().enumerate() {
            let next = self.launches.as_ptr().wrapping_add(number + 1);
            let launch = &mut self.launches[number];
            launch.program = block.program.header();
            launch.next = if number < last { next } else { std::ptr::null() };
            launch.segments_count = block.count as u32;
            launch.bucket = self.sources.get(block.first).map_or(0, |source| source.call as u32);
            if block.is_virtual {
                launch.segments = self.segments.as_ptr().wrapping_add(block.first);
            }
        }
    }

    /// The first block; none of an empty group.
    pub(super) fn first(&self) -> Option<&f::Launch> {
        self.launches.first()
    }

    /// Tells the machine the number of the call.
    pub(super) fn number(&mut self, call: u64) {
        for launch in &mut self.launches {
            launch.call = call;
        }
    }

    /// Points the machine to the words of this launch.
    pub(super) fn set_signals(&mut self, signals: Option<&Signals>) {
        let ready = signals.map_or(std::ptr::null(), Signals::ready_words);
        let done = signals.map_or(std::ptr::null_mut(), Signals::done_words);
        if let Some(signals) = signals {
            debug_assert_eq!(
                signals.stride(),
                self.blocks.first().map_or(signals.stride(), |b| b.launch.done_stride as usize)
            );
            signals.launch(self.channels);
        }
        for (block, launch) in self.blocks.iter().zip(&mut self.launches) {
            launch.ready = if block.awaits { ready } else { std::ptr::null() };
            launch.done = if block.completes { done } else { std::ptr::null_mut() };
        }
    }

    /// Points the tables to this launch's buffers. `base` is what peers' addresses are relative to; none in one process.
    pub(super) fn set_buffers(&mut self, calls: &[Call], base: Option<usize>) {
        let tokens = self.shared.as_ptr().cast::<f::SegmentTokens>();
        let token = |address: *const u8| match base {
            Some(base) if !address.is_null() => (address as usize).wrapping_sub(base) as u64,
            _ => address as u64,
        };
        for (at, source) in self.sources.iter().enumerate() {
            let (call, segment) = (&calls[source.call], &mut self.segments[at]);
            let place = |base: *mut u8, at: Option<usize>| {
                at.map_or(std::ptr::null_mut(), |at| base.wrapping_add(at))
            };
            let input = place(call.input, source.input_at);
            let output = place(call.output, source.output_at);
            if segment.input == input.cast_const() && segment.output == output {
                continue;
            }
            (segment.input, segment.output) = (input, output);
            let shared = f::SegmentTokens { input: token(input), output: token(output) };
            // SAFETY: the block has one for each entry. Peers read it only in a call, between this rank's first message and its
            // last, and no call is under way.
            unsafe { tokens.add(at).write_volatile(shared) };
        }
        for (block, launch) in self.blocks.iter().zip(&mut self.launches) {
            if block.is_virtual {
                let table = tokens.wrapping_add(block.first).cast::<u8>();
                launch.tokens = f::Tokens { input: token(table), output: 0 };
            } else {
                let call = &calls[self.sources[block.first].call];
                (launch.input, launch.output) = (call.input, call.output);
                launch.tokens = f::Tokens { input: token(call.input), output: token(call.output) };
            }
        }
    }

    fn words(&self) -> *mut Words {
        self.records.as_ptr().cast()
    }

    fn write_collectives(&self) {
        for (at, &place) in self.collectives.iter().enumerate() {
            let bucket = &self.identity.buckets[place];
            let call = Described::call(bucket.key, Order::Any, bucket.factor_bits);
            // SAFETY: the block was made for as many words, and nobody reads them before the log names them.
            unsafe { self.words().add(at).write_volatile(collective_words(place, &call)) };
        }
    }

    /// Writes down which exchange of its two ranks each message belongs to.
    pub(super) fn write_messages(&self, rank: usize, numbers: &[u64]) {
        for (at, message) in self.messages.iter().enumerate() {
            let words =
                message_words(message.call, &message.described(), numbers[message.peer(rank)]);
            let at = self.collectives.len() + at;
            // SAFETY: the block was made for as many words. Others read them only while the log says that the call is under way.
            unsafe { self.words().add(at).write_volatile(words) };
        }
    }
}

/// The other ends of the messages, each once.
fn peers(messages: &[Message], rank: usize) -> Vec<usize> {
    let mut peers: Vec<usize> = messages.iter().map(|message| message.peer(rank)).collect();
    peers.sort_unstable();
    peers.dedup();
    peers.retain(|peer| *peer != rank);
    peers
}

impl Message {
    fn described(&self) -> Described {
        let key = Key {
            kind: Kind::SendRecv,
            data_type: self.data_type,
            op: OpKind::Sum,
            in_place: false,
            windows: false,
            root: self.sender as u32,
            receiver: self.receiver as u32,
            count: self.count as u64,
            counts_hash: 0,
        };
        Described::call(key, Order::Any, 0)
    }
}
