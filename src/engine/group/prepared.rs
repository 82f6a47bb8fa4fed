//! A group that is ready to be launched: programs, and the chained launch blocks of each launch.

use super::chain::{Buffers, Chain, Places, Source};
use super::differences::{Words, collective_words, message_words};
use super::messages::Message;
use super::on_gpu::DeviceChains;
use super::parts::Bucket;
use crate::call::{Call, Counts, Described, Key};
use crate::device::{HeapBlock, RECORD_WORDS, Signals};
use crate::engine::prepare::Code;
use crate::engine::tally::{Signature, Tally};
use oxccl_kernels::format as f;
use oxccl_plans::collective::{Kind, Order};
use oxccl_plans::element::OpKind;
use std::sync::Arc;

/// Calls that make the same group.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) buckets: Vec<Bucket>,
    /// What the buckets' hashes stand for.
    pub(super) counts: Vec<Option<Arc<Counts>>>,
}

/// One launch block, and what it points to.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) code: Code,
    /// Whether it does more than copy.
    pub(super) reduces: bool,
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
    pub(super) signature: Signature,
    /// That in words, for the log.
    pub(super) record: [u64; RECORD_WORDS],
    pub(super) channels: usize,
    pub(super) sources: Vec<Source>,
    pub(super) blocks: Vec<Block>,
    /// By bucket: the place of its block. Blocks follow one another.
    pub(super) turns: Arc<[usize]>,
    /// What runs it.
    pub(super) chains: Chains,
    collectives: Vec<usize>,
    messages: Vec<Message>,
    /// The ranks with which this one has messages.
    pub(super) peers: Vec<usize>,
    /// [`Words`] for each collective and each message: in control memory, for whoever compares groups.
    records: HeapBlock,
}

/// The tables of launches.
#[derive(Debug)]
pub(super) enum Chains {
    /// Of one at a time.
    Host(HostChain),
    /// Of as many as are under way.
    Cuda(DeviceChains),
}

/// On a host: a launch is over before the next one begins.
#[derive(Debug)]
pub(super) struct HostChain {
    chain: Chain,
    /// A [`f::SegmentTokens`] for each table entry: in the heap, for peers.
    shared: HeapBlock,
}

impl Identity {
    /// Whether these are the same calls.
    pub(super) fn is(&self, buckets: &[Bucket], calls: &[Call]) -> bool {
        let counts = calls.iter().map(|call| &call.counts);
        self.buckets == buckets && self.counts.iter().eq(counts)
    }
}

impl HostChain {
    /// The blocks, with room for tokens in `shared`.
    pub(super) fn new(
        blocks: &[Block],
        sources: &[Source],
        segments: &[f::Segment],
        shared: HeapBlock,
    ) -> HostChain {
        let tokens = shared.as_ptr().cast_const().cast();
        let chain = Chain::new(blocks, sources, segments, |launches, segments| Places {
            launches: launches.as_ptr(),
            segments: segments.as_ptr(),
            tokens,
        });
        HostChain { chain, shared }
    }

    /// The first block; none of an empty group.
    pub(super) fn first(&self) -> Option<&f::Launch> {
        self.chain.launches.first()
    }

    /// Tells the machine the number of the call and what was called before it, and where the words of this launch are. It has so many
    /// channels.
    pub(super) fn begin(
        &mut self,
        call: u64,
        history: u64,
        signals: Option<&Signals>,
        channels: usize,
    ) {
        let Some(first) = self.chain.launches.first_mut() else { return };
        (first.call, first.history) = (call, history);
        first.ready = signals.map_or(std::ptr::null(), Signals::ready_words);
        first.done = signals.map_or(std::ptr::null_mut(), Signals::done_words);
        if let Some(signals) = signals {
            debug_assert_eq!(signals.stride(), first.done_stride as usize);
            signals.launch(channels);
        }
    }
}

impl PreparedGroup {
    /// A group of these blocks. The tables do not move from here on.
    pub(super) fn new(
        rank: usize,
        identity: Identity,
        (mut described, signature): (Described, Signature),
        (sources, blocks): (Vec<Source>, Vec<Block>),
        chains: Chains,
        (collectives, messages): (Vec<usize>, Vec<Message>),
        records: HeapBlock,
    ) -> PreparedGroup {
        described.words_offset = records.offset() as u64;
        let group = PreparedGroup {
            identity,
            described,
            signature,
            record: described.encode(),
            turns: turns(&blocks, &sources),
            channels: blocks.iter().map(|block| block.code.channels()).max().unwrap_or(1),
            sources,
            blocks,
            chains,
            collectives,
            peers: peers(&messages, rank),
            messages,
            records,
        };
        group.write_collectives();
        group
    }

    /// Points a host's tables to these buffers.
    pub(super) fn set_buffers(&mut self, buffers: Buffers<'_>) {
        let Chains::Host(host) = &mut self.chains else { return };
        let tokens = host.shared.as_ptr().cast::<f::SegmentTokens>();
        host.chain.set_buffers((&self.blocks, &self.sources), buffers, |at, shared| {
            // SAFETY: the block has one for each entry. Peers read it only in a call, between this rank's first message and its
            // last, and no call is under way.
            unsafe { tokens.add(at).write_volatile(shared) };
        });
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

    /// Counts its messages to and from other ranks.
    pub(super) fn count_messages(&self, tally: &mut Tally) {
        for message in self.messages.iter().filter(|message| message.sender != message.receiver) {
            tally.message(message.sender, message.receiver);
        }
    }

    /// Whether it has messages.
    pub(super) fn has_messages(&self) -> bool {
        !self.messages.is_empty()
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
            channels: 0,
            count: self.count as u64,
            counts_hash: 0,
        };
        Described::call(key, Order::Any, 0)
    }
}
