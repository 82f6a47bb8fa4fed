//! Groups: any number of calls in one launch.
//!
//! A group's collectives become parts ([`parts`]): calls of one kind, type and op lie behind one another in a virtual buffer, which one
//! program handles as if it were a call's. Its messages ([`messages`]) come after them, as rounds of an exchange. All launch blocks are chained,
//! and the machine runs the chain. Nothing is copied to make it contiguous: a table says where each bucket really is, and each rank shares
//! its own with its peers, in its heap.

mod chain;
pub(super) mod differences;
mod exchange;
mod messages;
mod on_gpu;
mod parts;
mod prepared;

use super::linked;
use super::prepare::{self, Mix};
use super::tally::Signature;
use super::{Backend, Engine, call_key, wrong_device};
use crate::call::{Call, Described};
use crate::device::Signals;
use crate::error::Error;
use oxccl_plans::collective::{Kind, Order};

use chain::{Buffers, Source};
use differences::Words;
pub(super) use on_gpu::DeviceChain;
use on_gpu::DeviceChains;
use oxccl_kernels::format as f;
use oxccl_plans::verify::{GroupPart, GroupStep, Span, Verified, verify_group};
use oxccl_transports::Reach;
use parts::{Bucket, Part};
use prepared::{Block, Chains, HostChain, Identity, PreparedGroup};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

/// All prepared groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    prepared: Vec<PreparedGroup>,
    index: HashMap<u64, Vec<usize>, BuildHasherDefault<Mix>>,
    /// The buckets of the group at hand, and how peers find their buffers.
    asked: Vec<Bucket>,
    tokens: Vec<f::Tokens>,
    /// The last group's calls, and its place: one that comes again, buffers and all, has everything in place.
    last: (Vec<Call>, usize),
    /// How often `last` has changed.
    changes: u64,
    /// For each rank, in how many groups it and this one have had messages for each other.
    exchanges: Vec<u64>,
    /// Groups prepared so far.
    plans: u64,
}

/// A group's calls are the last ones that an engine was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed(u64);

impl Groups {
    pub(super) fn new(world: usize) -> Groups {
        Groups { exchanges: vec![0; world], ..Groups::default() }
    }

    pub(super) fn clear(&mut self) {
        self.prepared.clear();
        self.index.clear();
        self.last.0.clear();
        self.changes += 1;
    }

    /// Groups prepared so far.
    pub(super) fn plans(&self) -> u64 {
        self.plans
    }

    /// The group of these calls, if it has been prepared.
    fn known(&self, hash: u64, calls: &[Call]) -> Option<usize> {
        let candidates = self.index.get(&hash)?;
        candidates.iter().copied().find(|at| self.prepared[*at].identity.is(&self.asked, calls))
    }

    /// Counts the exchanges that a group is part of.
    fn count_exchanges(&mut self, at: usize, rank: usize) {
        let group = &self.prepared[at];
        for peer in &group.peers {
            self.exchanges[*peer] += 1;
        }
        group.write_messages(rank, &self.exchanges);
    }
}

impl Engine {
    /// Runs a group on the host to its end, in one launch. Who gives the same calls again may say so with what was left in `placed`; then they are not
    /// looked at.
    ///
    /// # Safety
    ///
    /// As for [`Engine::run`], for all calls; no call's output overlaps another's buffers. An input may still be in use until its bucket is
    /// marked ready in `signals`, and buffers may be used again from when their bucket is done there.
    pub(crate) unsafe fn run_group(
        &mut self,
        calls: &[Call],
        placed: &mut Option<Placed>,
        signals: Option<&Signals>,
    ) -> Result<(), Error> {
        if let Backend::Cuda(_) = self.backend {
            return Err(wrong_device(&self.config));
        }
        self.ranks.check()?;
        self.ready = None;
        let at = match placed {
            Some(Placed(change)) if *change == self.groups.changes => self.groups.last.1,
            _ => self.place_group(calls)?,
        };
        *placed = Some(Placed(self.groups.changes));
        self.groups.count_exchanges(at, self.ranks.rank);
        self.calls += 1;
        let group = &mut self.groups.prepared[at];
        group.count_messages(&mut self.tally);
        let PreparedGroup { described, signature, record, chains, channels, .. } = group;
        let mut history = 0;
        if described.is_collective() {
            let numbered = self.tally.collective(*signature);
            described.number(numbered.collective, record);
            history = numbered.history;
        }
        self.ranks.poll.set_collective(described.collective);
        let log = self.ranks.control.log(self.ranks.rank);
        let (Backend::Host(host), Chains::Host(chain)) = (&mut self.backend, chains) else {
            return Err(wrong_device(&self.config));
        };
        chain.begin(self.calls, history, signals, *channels);
        log.enter(self.calls, record);
        let outcome = match chain.first() {
            None => f::Outcome::Done,
            Some(first) => {
                // SAFETY: as in `Engine::launch`, for each part; the group keeps programs and tables.
                linked(&self.links, || unsafe { host.run_chain(first, *channels) })
            }
        };
        if outcome == f::Outcome::Done {
            log.leave(self.calls);
            return Ok(());
        }
        let odd = host.odd_peer();
        Err(self.ranks.fail(described, self.calls, outcome, odd))
    }

    /// The group's place among the prepared ones, with its tables pointing to the calls' buffers.
    fn place_group(&mut self, calls: &[Call]) -> Result<usize, Error> {
        let (last, at) = &self.groups.last;
        if !calls.is_empty() && last == calls {
            return Ok(*at);
        }
        let at = self.look_up_group(calls)?;
        let base = (self.reach != Reach::SameProcess).then(|| self.heap.base());
        let Groups { prepared, tokens, .. } = &mut self.groups;
        prepared[at].set_buffers(Buffers { calls, tokens, base });
        self.groups.last.0.clear();
        self.groups.last.0.extend_from_slice(calls);
        self.groups.last.1 = at;
        self.groups.changes += 1;
        Ok(at)
    }

    /// Finds the group among the prepared ones, or prepares it.
    fn look_up_group(&mut self, calls: &[Call]) -> Result<usize, Error> {
        self.groups.asked.clear();
        self.groups.tokens.clear();
        for call in calls {
            let (tokens, windows) = self.find_buffers(call)?;
            let bucket = Bucket { key: call_key(call, windows), factor_bits: call.factor_bits };
            self.groups.asked.push(bucket);
            self.groups.tokens.push(tokens);
        }
        let hash = hash(&self.groups.asked);
        if let Some(at) = self.groups.known(hash, calls) {
            return Ok(at);
        }
        let prepared = self.prepare_group(calls)?;
        self.groups.plans += 1;
        self.groups.prepared.push(prepared);
        let at = self.groups.prepared.len() - 1;
        self.groups.index.entry(hash).or_default().push(at);
        Ok(at)
    }

    #[cold]
    fn prepare_group(&mut self, calls: &[Call]) -> Result<PreparedGroup, Error> {
        let buckets = self.groups.asked.clone();
        let is_collective = |at: &usize| !messages::has_messages(&calls[*at]);
        let collectives: Vec<usize> = (0..calls.len()).filter(is_collective).collect();
        let common: Vec<Bucket> = collectives.iter().map(|at| buckets[*at]).collect();
        let agreed = hash(&common);
        let mut tables = Tables::default();
        let total =
            collectives.iter().map(|at| calls[*at].total_bytes()).fold(0, usize::saturating_add);
        let too_long = Error::too_long("group", "buffers");
        let parts = parts::parts(&common).map_err(too_long)?;
        for (number, mut part) in parts.into_iter().enumerate() {
            tables.spans.push(part.spans(&common));
            part.calls.iter_mut().for_each(|at| *at = collectives[*at]);
            let place = (agreed, number);
            let block = self.part_block(calls, &buckets, &part, total, place, &mut tables)?;
            tables.blocks.push(block);
        }
        tables.prove(common.len(), self.ranks.control.ranks())?;
        let messages = messages::messages(calls, self.ranks.rank);
        self.exchange_blocks(&messages, &mut tables)?;
        let shared_bytes = tables.sources.len() * size_of::<f::SegmentTokens>();
        let records_bytes = (collectives.len() + messages.len()) * size_of::<Words>();
        let order = self.config.order;
        let described = Described::group(order, collectives.len(), messages.len(), agreed);
        let (rank, messages_count) = (self.ranks.rank, messages.len());
        tracing::info!(
            rank,
            buckets = calls.len(),
            parts = tables.blocks.len(),
            messages = messages_count,
            "planned a group"
        );
        let counts = calls.iter().map(|call| call.counts.clone()).collect();
        let Tables { sources, segments, blocks, .. } = tables;
        let chains = match &self.backend {
            Backend::Host(_) => {
                let shared = self.heap.alloc(shared_bytes)?;
                Chains::Host(HostChain::new(&blocks, &sources, &segments, shared))
            }
            Backend::Cuda(calls) => Chains::Cuda(DeviceChains::new(&calls.gpu, &blocks, segments)?),
        };
        Ok(PreparedGroup::new(
            self.ranks.rank,
            Identity { buckets, counts },
            (described, Signature::of(&(agreed, order))),
            (sources, blocks),
            chains,
            (collectives, messages),
            self.ranks.control.groups().alloc(records_bytes)?,
        ))
    }

    /// The launch block of a part. `place` tells it from other parts: what all ranks must agree on in the group, and its number there.
    fn part_block(
        &mut self,
        calls: &[Call],
        buckets: &[Bucket],
        part: &Part,
        total_bytes: usize,
        place: (u64, usize),
        tables: &mut Tables,
    ) -> Result<Block, Error> {
        let (first, key) = (&calls[part.calls[0]], &buckets[part.calls[0]].key);
        let call = with_bytes(first, part.len_bytes)?;
        let is_virtual = part.is_virtual();
        let buffers = match is_virtual {
            true => prepare::Buffers::Virtual { part_bytes: part.len_bytes },
            false => prepare::Buffers::OwnInGroup,
        };
        // A part is one of many, and what is in the cache is a matter of all.
        let whole = with_bytes(&call, part.class_bytes)?;
        let mut plan = self.cache.plan(&self.config, &whole, key.windows, buffers)?;
        plan.channels =
            plan.channels.min(self.config.advanced.group_channels.unwrap_or(usize::MAX));
        plan.stream |= total_bytes.saturating_mul(call.collective.ranks)
            >= self.config.last_level_cache_bytes();
        crate::log::planned(self.ranks.rank, &call, &plan, "a part of a group");
        let verified = self.cache.verified(&self.config, &call, &plan)?;
        let program = self.cache.program(&self.config, self.ranks.rank, &call, &plan, buffers)?;
        let signature = Signature::of(&(place, prepare::signature(&self.config, key, &plan)));
        let mut launch = self.blank_block();
        launch.scale_bits = call.factor_bits;
        launch.signature = signature.word();
        let entries = part.calls.iter().zip(&part.starts);
        let place = tables.sources.len();
        for (&call, &start) in entries {
            let source = Source { call, input_at: Some(0), output_at: Some(0) };
            tables.push(source, start, buckets[call].len_bytes());
        }
        tables.proofs.push((verified, program.rounds(), part.len_bytes));
        let count = part.calls.len();
        let code = self.backend.load(program, call.data_type, call.op.lower().0)?;
        Ok(Block {
            code,
            reduces: key.kind.reduces(),
            launch,
            first: place,
            count,
            is_virtual,
            awaits: true,
            completes: true,
        })
    }

    /// A launch block with nothing but this rank's own tables.
    fn blank_block(&self) -> f::Launch {
        f::Launch { done_stride: self.config.max_channels as u32, ..self.backend.blank_launch() }
    }
}

/// The tables of a group while they grow.
#[derive(Debug, Default)]
struct Tables {
    sources: Vec<Source>,
    segments: Vec<f::Segment>,
    blocks: Vec<Block>,
    /// Of each part: where its buckets lie, and what is proven of it, with its rounds and length in bytes.
    spans: Vec<Vec<Span>>,
    proofs: Vec<(Arc<Verified>, u64, usize)>,
}

impl Tables {
    /// Proves the parts in a row, each with its buckets ready before it and done behind it, as the machine runs them.
    fn prove(&self, buckets: usize, ranks: usize) -> Result<(), Error> {
        let parts: Vec<GroupPart<'_>> = self
            .proofs
            .iter()
            .zip(&self.spans)
            .map(|((verified, rounds, len_bytes), spans)| GroupPart {
                verified,
                rounds: *rounds,
                spans: spans.clone(),
                len_bytes: *len_bytes,
            })
            .collect();
        let steps = |rank: usize| {
            let of_part = |(number, part): (usize, &GroupPart<'_>)| {
                let until = part.verified.schedule().ranks[rank].len();
                let buckets = || part.spans.iter().map(|span| span.bucket);
                let run = std::iter::once(GroupStep::Run { part: number, until });
                let awaits = buckets().map(GroupStep::Await);
                awaits.chain(run).chain(buckets().map(GroupStep::Done)).collect::<Vec<_>>()
            };
            parts.iter().enumerate().flat_map(of_part).collect()
        };
        let ranks: Vec<Vec<GroupStep>> = (0..ranks).map(steps).collect();
        verify_group(buckets, &parts, &ranks).map_err(|violation| {
            let (kind, order) = (Kind::Barrier, Order::Any);
            Error::NoAlgorithm { kind, order, detail: violation.to_string() }
        })
    }

    /// A bucket's memory, from `start` of the virtual buffer on.
    fn push(&mut self, source: Source, start: usize, len_bytes: usize) {
        self.segments.push(f::Segment {
            start: start as u64,
            len_bytes: len_bytes as u64,
            input: std::ptr::null(),
            output: std::ptr::null_mut(),
            followers: 0,
            bucket: source.call as u32,
            reserved: 0,
        });
        self.sources.push(source);
    }
}

/// A call with so many bytes for each rank's part, or in all where ranks have no parts; as it is where parts differ.
fn with_bytes(call: &Call, bytes: usize) -> Result<Call, Error> {
    call.with_count(bytes / call.data_type.len_bytes())
}

fn hash(buckets: &[Bucket]) -> u64 {
    let mut mix = Mix::default();
    buckets.hash(&mut mix);
    mix.finish()
}
