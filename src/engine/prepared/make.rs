//! How a launch is prepared.

use super::chain::Source;
use super::footprint::Footprint;
use super::launch::{Block, Identity, Parts, Prepared};
use super::messages;
use super::parts::{self, Part};
use super::plans::{Plans, Room, Whose, digest};
use super::rooms::Rooms;
use crate::call::{CheckedCall, GroupRecord, Record, Signature, What};
use crate::config::Config;
use crate::engine::backend::Backend;
use crate::engine::diagnosis::{Ranks, Words};
use crate::engine::links::Links;
use crate::engine::tally::Digest;
use crate::error::Error;
use crate::target::Device;
use oxccl_kernels::format::{self as f, Extents, Scale};
use oxccl_plans::collective::{Kind, Order};
use oxccl_plans::tune::Plan;
use oxccl_plans::verify::{GroupPart, GroupStep, Span, Verified, verify_group};
use std::sync::Arc;

/// What prepares launches.
pub(in crate::engine) struct Maker<'a> {
    pub(in crate::engine) config: &'a Config,
    pub(in crate::engine) ranks: &'a Ranks,
    pub(in crate::engine) links: Option<&'a Arc<Links>>,
    pub(in crate::engine) plans: &'a mut Plans,
    pub(in crate::engine) backend: &'a mut dyn Backend,
}

impl Maker<'_> {
    /// One call by itself.
    pub(super) fn lone(
        &mut self,
        call: &CheckedCall,
        identity: Identity,
    ) -> Result<Prepared, Error> {
        let signature = identity.signatures[0];
        let plan = self.plans.plan(self.config, call, signature.windows, Whose::Own)?;
        crate::log::planned(self.ranks.rank, call, &plan, "a call");
        let place = (Whose::Own, &(0..self.config.max_channels));
        let program = self.plans.program(self.config, self.ranks.rank, call, &plan, place)?;
        let digest = digest(&signature, &plan);
        let one = (call, &plan, &program);
        let hot = self.plans.hot(self.config, self.ranks.rank, one, (Whose::Own, 1))?;
        let (kernel, extents) = hot.unzip();
        let reduction = (call.data_type, call.op.lower().0);
        let code = self.backend.load(program, reduction, 0, kernel)?;
        let mut tables = Tables::default();
        let source = Source { call: 0, input_at: Some(0), output_at: Some(0) };
        tables.push(source, 0, signature.len_bytes());
        let (launch, reduces) = (self.block_of(call, &plan, extents), signature.kind.reduces());
        let block = Block::of_collective(code, (launch, digest), reduces, (0, 1), Whose::Own);
        let is_message = messages::has_messages(call);
        let messages = messages::messages(std::slice::from_ref(call), self.ranks.rank);
        let collectives = if is_message { Vec::new() } else { vec![0] };
        let record = Record::new(What::Call(signature));
        tables.blocks.push(block);
        let parts = Parts { collectives, messages, records: None };
        let mut prepared = self.finish(identity, (record, digest), tables, parts)?;
        if self.config.device == Device::Host {
            prepared.footprint = Footprint::of(call, signature.windows, plan.stream);
        }
        Ok(prepared)
    }

    /// Any other number of calls.
    pub(super) fn group(
        &mut self,
        calls: &[CheckedCall],
        identity: Identity,
    ) -> Result<Prepared, Error> {
        let buckets = &identity.signatures;
        let is_collective = |at: &usize| !messages::has_messages(&calls[*at]);
        let collectives: Vec<usize> = (0..calls.len()).filter(is_collective).collect();
        let common: Vec<Signature> = collectives.iter().map(|at| buckets[*at]).collect();
        let agreed = GroupRecord::hash_of(&common);
        let mut tables = Tables::default();
        let total =
            collectives.iter().map(|at| calls[*at].total_bytes()).fold(0, usize::saturating_add);
        let too_long = Error::too_long("group", "buffers");
        let usual = match self.config.device {
            Device::Host => parts::HOST_PART_BYTES,
            Device::Cuda(_) => parts::GPU_PART_BYTES,
        };
        let part_bytes = self.config.advanced.group_part_bytes.unwrap_or(usual);
        let parts = parts::parts(&common, part_bytes).map_err(too_long)?;
        let kinds = common.iter().map(|signature| signature.kind);
        let lens = parts.iter().map(|part| part.len_bytes);
        let mut rooms = Rooms::of(self.config, kinds, lens)?;
        let is_whole = parts.len() == 1 && collectives.len() == calls.len();
        for (number, mut part) in parts.into_iter().enumerate() {
            tables.spans.push(part.spans(&common));
            part.calls.iter_mut().for_each(|at| *at = collectives[*at]);
            let (place, of_all) = ((agreed, number, is_whole), (total, &mut rooms));
            let block = self.part_block((calls, buckets), &part, of_all, place, &mut tables)?;
            tables.blocks.push(block);
        }
        tables.prove(common.len(), self.ranks.control.ranks())?;
        let messages = messages::messages(calls, self.ranks.rank);
        self.exchange_blocks(&messages, &mut tables)?;
        let records_bytes = (collectives.len() + messages.len()) * size_of::<Words>();
        let records = self.ranks.control.groups().alloc(records_bytes)?;
        let order = calls.first().map_or(self.config.order, |call| call.order(self.config));
        let record = Record::new(What::Group(GroupRecord {
            order,
            collectives: collectives.len() as u64,
            messages: messages.len() as u64,
            hash: agreed,
            words_offset: records.offset() as u64,
        }));
        tracing::info!(
            rank = self.ranks.rank,
            buckets = calls.len(),
            parts = tables.blocks.len(),
            messages = messages.len(),
            "planned a group"
        );
        let parts = Parts { collectives, messages, records: Some(records) };
        self.finish(identity, (record, Digest::of(&(agreed, order))), tables, parts)
    }

    pub(super) fn finish(
        &mut self,
        identity: Identity,
        told: (Record, Digest),
        tables: Tables,
        parts: Parts,
    ) -> Result<Prepared, Error> {
        let Tables { sources, segments, blocks, .. } = tables;
        let number = self.backend.add_tables(&blocks, &sources, segments)?;
        Ok(Prepared::new(self.ranks.rank, identity, told, (sources, blocks), number, parts))
    }

    /// The launch block of a part of a group with so many bytes. `place` tells it from other parts:
    /// what all ranks must agree on in the group, its number there, and whether it is all of it.
    fn part_block(
        &mut self,
        (calls, buckets): (&[CheckedCall], &[Signature]),
        part: &Part,
        (total_bytes, rooms): (usize, &mut Rooms),
        (of_group, number, is_whole): (u64, usize, bool),
        tables: &mut Tables,
    ) -> Result<Block, Error> {
        let (first, signature) = (&calls[part.calls[0]], &buckets[part.calls[0]]);
        let call = with_bytes(first, part.len_bytes)?;
        let whose = match part.is_virtual() {
            true => Whose::Virtual { part_bytes: part.len_bytes },
            false => Whose::OwnInGroup,
        };
        // A part is one of many, and what is in the cache is a matter of all.
        let whole = with_bytes(&call, part.class_bytes)?;
        let mut plan = self.plans.plan(self.config, &whole, signature.windows, whose)?;
        let room = rooms.of_part(signature.kind, part.len_bytes, plan.channels);
        plan.channels = plan.channels.min(room.len());
        plan.stream |= total_bytes.saturating_mul(call.collective.ranks)
            >= self.config.last_level_cache_bytes();
        crate::log::planned(self.ranks.rank, &call, &plan, "a part of a group");
        let verified = self.plans.verified(self.config, &call, &plan)?;
        let rank = self.ranks.rank;
        let program = self.plans.program(self.config, rank, &call, &plan, (whose, &room))?;
        // A kernel of one schedule runs no part behind another, and begins with the first channel.
        let hot = match is_whole && whose != Whose::OwnInGroup && room.start == 0 {
            true => self.plans.hot(
                self.config,
                rank,
                (&call, &plan, &program),
                (whose, part.calls.len()),
            )?,
            false => None,
        };
        let (kernel, extents) = hot.unzip();
        let agreed = Digest::of(&((of_group, number), digest(signature, &plan)));
        let entries = part.calls.iter().zip(&part.starts);
        let place = tables.sources.len();
        for (&call, &start) in entries {
            let source = Source { call, input_at: Some(0), output_at: Some(0) };
            tables.push(source, start, buckets[call].len_bytes());
        }
        tables.proofs.push((verified, program.rounds(), part.len_bytes, room.clone()));
        let launch =
            f::Launch { first_channel: room.start as u32, ..self.block_of(&call, &plan, extents) };
        let reduction = (call.data_type, call.op.lower().0);
        let code = self.backend.load(program, reduction, room.start, kernel)?;
        let (told, entries) = ((launch, agreed), (place, part.calls.len()));
        Ok(Block::of_collective(code, told, signature.kind.reduces(), entries, whose))
    }

    /// A call's launch block, which lacks its buffers. Kernels of one schedule have its extents and
    /// its root, and are told of averages.
    fn block_of(&self, call: &CheckedCall, plan: &Plan, extents: Option<Extents>) -> f::Launch {
        let blank = self.blank_block();
        let averages = match call.op.lower().1 {
            Scale::Average => f::LAUNCH_AVERAGES,
            _ => 0,
        };
        let flags = averages | if plan.stream { f::LAUNCH_STREAM } else { 0 };
        let root = call.collective.root as u32;
        f::Launch { flags, root, extents: extents.unwrap_or(blank.extents), ..blank }
    }

    /// A launch block with nothing but this rank's own tables.
    pub(super) fn blank_block(&self) -> f::Launch {
        let (done_stride, rank) = (self.config.max_channels as u32, self.ranks.rank as u32);
        f::Launch { done_stride, rank, ..self.backend.blank() }
    }
}

/// The tables of a launch while they grow.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) sources: Vec<Source>,
    segments: Vec<f::Segment>,
    pub(super) blocks: Vec<Block>,
    /// Of each part: where its buckets lie, and what is proven of it, with its rounds, its length
    /// in bytes, and whose channels' connections it uses.
    spans: Vec<Vec<Span>>,
    proofs: Vec<(Arc<Verified>, u64, usize, Room)>,
}

impl Tables {
    /// Proves the parts in a row, each with its buckets ready before it and done behind it, as the
    /// machine runs them.
    fn prove(&self, buckets: usize, ranks: usize) -> Result<(), Error> {
        let parts: Vec<GroupPart<'_>> = self
            .proofs
            .iter()
            .zip(&self.spans)
            .map(|((verified, rounds, len_bytes, room), spans)| GroupPart {
                verified,
                rounds: *rounds,
                spans: spans.clone(),
                len_bytes: *len_bytes,
                connections: room.clone(),
            })
            .collect();
        let steps = |rank: usize| {
            let of_part = |(number, part): (usize, &GroupPart<'_>)| {
                let until = part.len(rank);
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
    pub(super) fn push(&mut self, source: Source, start: usize, len_bytes: usize) {
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

/// A call with so many bytes for each rank's part, or in all where ranks have no parts; as it is
/// where parts differ.
fn with_bytes(call: &CheckedCall, bytes: usize) -> Result<CheckedCall, Error> {
    call.with_count(bytes / call.data_type.len_bytes())
}
