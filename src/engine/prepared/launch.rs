//! A launch that is ready but for its buffers: programs, in launch blocks that the machine runs one
//! after the other.

use super::chain::Source;
use super::footprint::Footprint;
use super::messages::Message;
use super::plans::Whose;
use crate::call::{CheckedCall, Counts, GroupRecord, Record, Signature, What};
use crate::device::{HeapBlock, RECORD_WORDS};
use crate::engine::backend::Code;
use crate::engine::diagnosis::{Words, collective_words, message_words};
use crate::engine::tally::{Digest, Numbered, Tally};
use oxccl_kernels::format as f;
use oxccl_plans::collective::{Kind, Order};
use std::sync::Arc;

/// Calls that make the same launch.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Identity {
    /// In place of a factor each has the number of that factor among those of the launch: programs
    /// are the same for all factors.
    pub(super) signatures: Vec<Signature>,
    /// What the signatures' hashes of counts stand for.
    pub(super) counts: Vec<Option<Arc<Counts>>>,
    /// Whether it is one call that is carried out as such, and not as a group.
    pub(super) is_lone: bool,
}

/// One launch block, and what it points to.
#[derive(Debug)]
pub(in crate::engine) struct Block {
    pub(in crate::engine) code: Code,
    /// Whether it does more than copy.
    pub(in crate::engine) reduces: bool,
    pub(super) launch: f::Launch,
    /// What all ranks must agree on, but for the factor; none of messages, of which each pair
    /// agrees by itself.
    pub(super) digest: Option<Digest>,
    /// Its entries in the table.
    pub(in crate::engine) first: usize,
    pub(super) count: usize,
    /// Whether its buffers are the entries'; otherwise those of its one call.
    pub(in crate::engine) is_virtual: bool,
    /// Whether it begins when its buckets are ready.
    pub(super) awaits: bool,
    /// Whether its buckets are done when it is.
    pub(super) completes: bool,
}

/// A launch that is ready but for its buffers and factors.
#[derive(Debug)]
pub(in crate::engine) struct Prepared {
    pub(super) identity: Identity,
    /// What the log says of it.
    pub(in crate::engine) record: Record,
    /// That in words.
    pub(in crate::engine) words: [u64; RECORD_WORDS],
    is_collective: bool,
    /// Whether no rank leaves it before all have come.
    pub(in crate::engine) meets_all: bool,
    /// Of a call by itself: whether peers reach its buffers.
    pub(in crate::engine) has_windows: bool,
    /// Whether anything is copied to the heap for it, and back.
    pub(in crate::engine) has_edges: bool,
    /// What all ranks must agree on, but for factors, and with them.
    base: Digest,
    digest: Digest,
    /// By call.
    factors: Vec<u64>,
    pub(in crate::engine) channels: usize,
    pub(in crate::engine) sources: Vec<Source>,
    pub(in crate::engine) blocks: Vec<Block>,
    /// By bucket: the place of its block. Blocks follow one another.
    pub(in crate::engine) turns: Arc<[usize]>,
    /// The number of its tables at the backend.
    pub(in crate::engine) tables: usize,
    /// On a host, its first launch block, once its buffers have been placed; null of a launch
    /// without blocks.
    pub(in crate::engine) first: *mut f::Launch,
    /// Of a call by itself that is streamed or not by what is in the cache.
    pub(in crate::engine) footprint: Option<Footprint>,
    /// By their place among the calls.
    collectives: Vec<usize>,
    messages: Vec<Message>,
    /// The ranks with which this one exchanges messages as a group's.
    peers: Vec<usize>,
    /// [`Words`] for each collective and each message of a group: in control memory, for whoever
    /// compares groups.
    records: Option<HeapBlock>,
    /// What tells the buffers that its tables point to from others that they have pointed to.
    pub(super) placed: u64,
}

/// What a launch is made of, beside its blocks.
pub(super) struct Parts {
    pub(super) collectives: Vec<usize>,
    pub(super) messages: Vec<Message>,
    pub(super) records: Option<HeapBlock>,
}

impl Prepared {
    /// A launch of these blocks.
    pub(super) fn new(
        rank: usize,
        identity: Identity,
        (record, base): (Record, Digest),
        (sources, blocks): (Vec<Source>, Vec<Block>),
        tables: usize,
        parts: Parts,
    ) -> Prepared {
        let Parts { collectives, messages, records } = parts;
        let is_lone = identity.is_lone;
        Prepared {
            is_collective: record.is_collective(),
            meets_all: meets_all(&identity),
            has_windows: identity.signatures.first().is_some_and(|call| call.windows),
            has_edges: false,
            words: record.encode(),
            record,
            base,
            digest: base,
            // None is like this.
            factors: Vec::new(),
            turns: turns(&blocks, &sources),
            channels: blocks.iter().map(|block| block.code.channels).max().unwrap_or(1),
            sources,
            blocks,
            tables,
            first: std::ptr::null_mut(),
            footprint: None,
            collectives,
            peers: if is_lone { Vec::new() } else { peers(&messages, rank) },
            messages,
            records,
            identity,
            placed: 0,
        }
    }

    /// Whether the machine needs tables beside the first block.
    pub(in crate::engine) fn has_tables(&self) -> bool {
        has_tables(&self.blocks)
    }

    /// How many calls it is.
    pub(in crate::engine) fn buckets(&self) -> usize {
        self.identity.signatures.len()
    }

    /// Whether it has messages.
    pub(in crate::engine) fn has_messages(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Takes the calls' factors, or what stands in their place.
    pub(super) fn set_factors(&mut self, calls: &[CheckedCall], places: &[Option<u64>]) {
        let agreed = || {
            let all = calls.iter().zip(places);
            all.map(|(call, place)| place.unwrap_or(call.factor_bits))
        };
        if self.factors.iter().copied().eq(agreed()) {
            return;
        }
        self.factors.clear();
        self.factors.extend(agreed());
        let factors = self.collectives.iter().map(|at| self.factors[*at]);
        self.digest = factors.fold(self.base, Digest::with_factor);
        match &mut self.record.what {
            What::Call(signature) => signature.factor_bits = self.factors[0],
            What::Group(group) => {
                let told = told(&self.collectives, &self.identity, &self.factors);
                group.hash = GroupRecord::hash_of(&told.collect::<Vec<_>>());
            }
            What::Meeting(_) => {}
        }
        self.words = self.record.encode();
        self.write_collectives();
    }

    /// What all ranks must agree on, behind this history.
    pub(in crate::engine) fn agreed(&self, numbered: Numbered) -> u64 {
        self.digest.behind(numbered)
    }

    /// Of a call that copy engines carry out: where its buffer lies of which peers read.
    pub(in crate::engine) fn place(&self) -> u64 {
        self.factors[0]
    }

    /// Counts a launch of it that is not captured. Its place among the collectives.
    #[inline]
    pub(in crate::engine) fn count(&mut self, rank: usize, tally: &mut Tally) -> Numbered {
        if !self.messages.is_empty() {
            self.count_messages(rank, tally);
        }
        if !self.is_collective {
            return Numbered::default();
        }
        let numbered = tally.collective(self.digest);
        self.record.number(numbered.collective, &mut self.words);
        numbered
    }

    fn count_messages(&self, rank: usize, tally: &mut Tally) {
        for message in self.messages.iter().filter(|message| message.sender != message.receiver) {
            tally.message(message.sender, message.receiver);
        }
        if !self.identity.is_lone {
            let numbers = tally.exchange(&self.peers);
            self.write_messages(rank, numbers);
        }
    }

    fn record_words(&self) -> Option<*mut Words> {
        self.records.as_ref().map(|records| records.as_ptr().cast())
    }

    fn write_collectives(&self) {
        let Some(words) = self.record_words() else { return };
        let told = told(&self.collectives, &self.identity, &self.factors);
        for (at, (&place, bucket)) in self.collectives.iter().zip(told).enumerate() {
            // SAFETY: the block was made for as many words. Others read them only while the log
            // says that the launch is under way, or was the last; no launch is under way.
            unsafe { words.add(at).write_volatile(collective_words(place, &bucket)) };
        }
    }

    /// Writes down which exchange of its two ranks each message belongs to.
    fn write_messages(&self, rank: usize, numbers: &[u64]) {
        let Some(words) = self.record_words() else { return };
        for (at, message) in self.messages.iter().enumerate() {
            let Message { data_type, count, sender, receiver, .. } = *message;
            let signature = Signature::message(data_type, count, sender, receiver);
            let told = message_words(message.call, &signature, numbers[message.peer(rank)]);
            // SAFETY: as above.
            unsafe { words.add(self.collectives.len() + at).write_volatile(told) };
        }
    }
}

/// What others are told of a group's collectives, whose order the group's record has.
fn told(
    collectives: &[usize],
    identity: &Identity,
    factors: &[u64],
) -> impl Iterator<Item = Signature> {
    collectives.iter().map(|&place| {
        let (order, factor_bits) = (Order::Any, factors[place]);
        Signature { order, factor_bits, ..identity.signatures[place] }
    })
}

impl Block {
    /// A block of a collective.
    pub(super) fn of_collective(
        code: Code,
        (launch, digest): (f::Launch, Digest),
        reduces: bool,
        (first, count): (usize, usize),
        whose: Whose,
    ) -> Block {
        Block {
            code,
            reduces,
            launch,
            digest: Some(digest),
            first,
            count,
            is_virtual: matches!(whose, Whose::Virtual { .. }),
            awaits: true,
            completes: true,
        }
    }
}

/// Whether the machine needs tables beside the first of these blocks.
pub(in crate::engine) fn has_tables(blocks: &[Block]) -> bool {
    blocks.len() > 1 || blocks.iter().any(|block| block.is_virtual)
}

/// Whether each rank needs something of every other in one of the calls.
fn meets_all(identity: &Identity) -> bool {
    let meets = |call: &Signature| match call.kind {
        Kind::Barrier => true,
        Kind::SendRecv => false,
        // Where counts differ some may be 0.
        kind => !kind.is_rooted() && call.is_even() && call.count > 0,
    };
    identity.signatures.iter().any(meets)
}

/// The place of each bucket's last block.
fn turns(blocks: &[Block], sources: &[Source]) -> Arc<[usize]> {
    let calls = sources.iter().map(|source| source.call + 1).max().unwrap_or(0);
    let mut turns = vec![0; calls];
    for (turn, block) in blocks.iter().enumerate() {
        let of_block = &sources[block.first..block.first + block.count];
        of_block.iter().for_each(|source| turns[source.call] = turn);
    }
    turns.into()
}

/// The other ends of the messages, each once.
fn peers(messages: &[Message], rank: usize) -> Vec<usize> {
    let mut peers: Vec<usize> = messages.iter().map(|message| message.peer(rank)).collect();
    peers.sort_unstable();
    peers.dedup();
    peers.retain(|peer| *peer != rank);
    peers
}
