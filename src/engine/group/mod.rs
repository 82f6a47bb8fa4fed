//! Groups: any number of calls in one launch.
//!
//! A group's calls become parts ([`parts`]): calls of one kind, type and op lie behind one another in a virtual buffer, which one
//! program handles as if it were a call's. The parts' launch blocks are chained, and the machine runs the chain. Nothing is copied to
//! make it contiguous: a table says where each bucket really is, and each rank shares its own with its peers, in its heap.

mod parts;

use super::prepare::{self, Buffers, Cache, Mix};
use super::{Engine, call_key};
use crate::call::{Call, Described, Key};
use crate::collective::{Kind, Order};
use crate::config::Config;
use crate::device::{BUCKET_WORDS, HeapBlock};
use crate::error::Error;
use crate::schedule::{Program, size_bytes};
use oxccl_kernels::format as f;
use oxccl_transports::Reach;
use parts::{Bucket, Part};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A group that is ready to be launched with other buffers.
#[derive(Debug)]
struct PreparedGroup {
    buckets: Vec<Bucket>,
    hash: u64,
    /// What the launch blocks point to.
    _programs: Vec<Program>,
    /// The calls in the order of the tables.
    order: Vec<usize>,
    segments: Box<[f::Segment]>,
    launches: Box<[f::Launch]>,
    channels: usize,
    /// A [`f::SegmentTokens`] for each bucket, in the order of the tables: in the heap, for peers' kernels.
    shared: HeapBlock,
    /// [`BUCKET_WORDS`] words for each bucket, in the order of the calls: in control memory, for whoever compares groups.
    records: HeapBlock,
}

/// All prepared groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    prepared: Vec<PreparedGroup>,
    index: HashMap<u64, Vec<usize>, BuildHasherDefault<Mix>>,
    /// The buckets of the group at hand.
    asked: Vec<Bucket>,
}

impl Groups {
    pub(super) fn clear(&mut self) {
        self.prepared.clear();
        self.index.clear();
    }

    /// The group that `asked` describes, if it has been prepared.
    fn known(&self, hash: u64) -> Option<usize> {
        let candidates = self.index.get(&hash)?;
        candidates.iter().copied().find(|at| self.prepared[*at].buckets == self.asked)
    }
}

impl Engine {
    /// Runs a group to its end, in one launch.
    ///
    /// # Safety
    ///
    /// As for [`Engine::run`], for all calls; no call's output overlaps another's buffers.
    pub(crate) unsafe fn run_group(&mut self, calls: &[Call]) -> Result<(), Error> {
        if self.failed.is_some() {
            return Err(self.broken());
        }
        self.ready = None;
        let at = self.look_up_group(calls)?;
        let base = (self.reach != Reach::SameProcess).then(|| self.heap.base());
        let group = &mut self.groups.prepared[at];
        group.set_buffers(calls, base);
        self.calls += 1;
        self.collectives += 1;
        for launch in &mut group.launches {
            launch.call = self.calls;
        }
        let words = group.records.offset() as u64;
        let order = self.config.order;
        let described = Described::group(order, calls.len(), group.hash, self.collectives, words);
        self.poll.set_collective(self.collectives);
        let log = self.control.log(self.rank);
        log.enter(self.calls, &described.encode());
        let outcome = match group.launches.first() {
            None => f::Outcome::Done,
            // SAFETY: as in `Engine::launch`, for each part; the group keeps programs and tables.
            Some(first) => unsafe { self.host.run_chain(first, group.channels) },
        };
        if outcome == f::Outcome::Done {
            log.leave(self.calls);
            return Ok(());
        }
        Err(self.fail(&described, outcome))
    }

    /// Finds the group among the prepared ones, or prepares it.
    fn look_up_group(&mut self, calls: &[Call]) -> Result<usize, Error> {
        let mut asked = std::mem::take(&mut self.groups.asked);
        asked.clear();
        asked.extend(calls.iter().map(|call| {
            let key = call_key(call, self.tokens(call).1);
            Bucket { key, factor_bits: call.factor_bits }
        }));
        self.groups.asked = asked;
        let mut mix = Mix::default();
        self.groups.asked.hash(&mut mix);
        let hash = mix.finish();
        if let Some(at) = self.groups.known(hash) {
            return Ok(at);
        }
        let prepared = self.prepare_group(calls, hash)?;
        self.groups.prepared.push(prepared);
        let at = self.groups.prepared.len() - 1;
        self.groups.index.entry(hash).or_default().push(at);
        Ok(at)
    }

    #[cold]
    fn prepare_group(&mut self, calls: &[Call], hash: u64) -> Result<PreparedGroup, Error> {
        let buckets = self.groups.asked.clone();
        let parts = parts::parts(&buckets);
        let total: usize = buckets.iter().map(Bucket::len_bytes).sum();
        let mut programs = Vec::with_capacity(parts.len());
        let mut launches = Vec::with_capacity(parts.len());
        for (number, part) in parts.iter().enumerate() {
            let first = part.calls[0];
            let call = virtual_call(&calls[first], &buckets[first], part);
            let (program, signature) = part_program(
                &mut self.cache,
                &self.config,
                self.rank,
                &call,
                &buckets[first].key,
                total,
            )?;
            let mut launch = *self.host.launch;
            launch.program = program.header();
            launch.scale_bits = call.factor_bits;
            let mut mix = Mix::default();
            (hash, number, signature).hash(&mut mix);
            launch.signature = super::fold(mix.finish());
            programs.push(program);
            launches.push(launch);
        }
        let order: Vec<usize> = parts.iter().flat_map(|part| part.calls.iter().copied()).collect();
        let shared_bytes = order.len() * std::mem::size_of::<f::SegmentTokens>();
        let records_bytes = order.len() * BUCKET_WORDS * std::mem::size_of::<u64>();
        let mut group = PreparedGroup {
            hash,
            channels: programs.iter().map(Program::channels).max().unwrap_or(1),
            _programs: programs,
            segments: segments(&parts, &buckets),
            launches: launches.into_boxed_slice(),
            shared: self.heap.alloc(shared_bytes)?,
            records: self.control.groups().alloc(records_bytes)?,
            order,
            buckets,
        };
        group.link(&parts);
        group.write_records();
        Ok(group)
    }
}

/// The program of a part, and what ranks must agree on.
fn part_program(
    cache: &mut Cache,
    config: &Config,
    rank: usize,
    call: &Call,
    key: &Key,
    total_bytes: usize,
) -> Result<(Program, u32), Error> {
    let mut plan = prepare::plan(config, call, key.windows)?;
    plan.stream |=
        total_bytes.saturating_mul(call.collective.ranks) >= config.last_level_cache_bytes();
    let virtual_bytes = call.count * size_bytes(call.data_type);
    let buffers = if call.counts.is_some() {
        Buffers::Own
    } else {
        Buffers::Virtual { part_bytes: virtual_bytes }
    };
    let program = cache.program(config, rank, call, &plan, buffers)?;
    Ok((program, prepare::signature(config, key, &plan)))
}

/// The call that a part is.
fn virtual_call(first: &Call, bucket: &Bucket, part: &Part) -> Call {
    let mut call = first.clone();
    if bucket.is_even() {
        call.count = part.len_bytes / size_bytes(call.data_type);
    }
    call
}

fn segments(parts: &[Part], buckets: &[Bucket]) -> Box<[f::Segment]> {
    let of_part = |part: &Part| {
        let pairs = part.calls.iter().zip(&part.starts);
        let segment = |(call, start): (&usize, &usize)| f::Segment {
            start: *start as u64,
            len_bytes: buckets[*call].len_bytes() as u64,
            input: std::ptr::null(),
            output: std::ptr::null_mut(),
        };
        pairs.map(segment).collect::<Vec<_>>()
    };
    parts.iter().flat_map(of_part).collect()
}

impl PreparedGroup {
    /// Chains the launch blocks and points each to its tables.
    fn link(&mut self, parts: &[Part]) {
        let mut first = 0;
        for (number, part) in parts.iter().enumerate() {
            // SAFETY: one past the last is allowed; the boxes don't move.
            let next = unsafe { self.launches.as_ptr().add(number + 1) };
            let launch = &mut self.launches[number];
            launch.next = if number + 1 < parts.len() { next } else { std::ptr::null() };
            launch.first_bucket = first as u32;
            let call = part.calls[0];
            if self.buckets[call].is_even() && self.buckets[call].key.kind != Kind::Barrier {
                launch.segments = &raw const self.segments[first];
                launch.segments_count = part.calls.len() as u32;
            }
            first += part.calls.len();
        }
    }

    fn write_records(&self) {
        let base = self.records.as_ptr().cast::<u64>();
        for (at, bucket) in self.buckets.iter().enumerate() {
            for (word, value) in bucket.words().into_iter().enumerate() {
                // SAFETY: the block was made for as many words, and nobody reads it before the log names it.
                unsafe { base.add(at * BUCKET_WORDS + word).write_volatile(value) };
            }
        }
    }

    /// Points the tables to this launch's buffers. `base` is what peers' addresses are relative to; none in one process.
    fn set_buffers(&mut self, calls: &[Call], base: Option<usize>) {
        let tokens = self.shared.as_ptr().cast::<f::SegmentTokens>();
        let token = |address: *const u8| match base {
            Some(base) if !address.is_null() => (address as usize).wrapping_sub(base) as u64,
            _ => address as u64,
        };
        for (at, &call) in self.order.iter().enumerate() {
            let (call, segment) = (&calls[call], &mut self.segments[at]);
            if segment.input == call.input.cast_const() && segment.output == call.output {
                continue;
            }
            (segment.input, segment.output) = (call.input, call.output);
            let shared = f::SegmentTokens { input: token(call.input), output: token(call.output) };
            // SAFETY: the block has one for each bucket. Peers read it only in a call, between this rank's first message and its
            // last, and no call is under way.
            unsafe { tokens.add(at).write_volatile(shared) };
        }
        for launch in &mut self.launches {
            let first = launch.first_bucket as usize;
            if launch.segments.is_null() {
                let call = &calls[self.order[first]];
                (launch.input, launch.output) = (call.input, call.output);
                launch.tokens = f::Tokens { input: token(call.input), output: token(call.output) };
            } else {
                let table = tokens.wrapping_add(first).cast::<u8>();
                launch.tokens = f::Tokens { input: token(table), output: 0 };
            }
        }
    }
}

impl Bucket {
    /// What ranks compare.
    fn words(&self) -> [u64; BUCKET_WORDS] {
        let [what, count, roots, counts_hash, factor_bits, _] =
            Described::call(self.key, Order::Any, self.factor_bits).encode();
        [what, count, roots, counts_hash ^ factor_bits]
    }
}
