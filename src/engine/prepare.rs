//! Prepared calls: plan, schedule, proof and program, made once for each signature.

use super::links::Links;
use super::tally::Signature;
use super::{Backend, chunk_align};
use crate::call::{Call, Counts, Key};
use crate::config::{Config, Device};
use crate::device::cuda;
use crate::error::Error;
use oxccl_kernels::format as f;
use oxccl_plans::algorithms::{Algorithm, Encoding};
use oxccl_plans::collective::{Collective, Kind, Order};
use oxccl_plans::length::TooLong;
use oxccl_plans::lower::{Lowering, Program, lower};
use oxccl_plans::schedule::{Layout, SLOTS};
use oxccl_plans::topology::Placement;
use oxccl_plans::tune::Pin;
use oxccl_plans::tune::{Plan, Question, plan_by, plan_on_gpu};
use oxccl_plans::verify::{Verified, verify};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

/// A call that is ready to be launched.
#[derive(Debug)]
pub(super) struct Prepared {
    counts: Option<Arc<Counts>>,
    pub(super) code: Code,
    pub(super) signature: Signature,
}

/// A program where it will run.
#[derive(Debug)]
pub(super) enum Code {
    Host(Program),
    Cuda(cuda::Prepared),
}

impl Code {
    /// Where the machine finds the program.
    pub(super) fn header(&self) -> *const f::Header {
        match self {
            Code::Host(program) => program.header(),
            Code::Cuda(prepared) => prepared.program().header(),
        }
    }

    /// Its channels.
    pub(super) fn channels(&self) -> usize {
        match self {
            Code::Host(program) => program.channels(),
            Code::Cuda(prepared) => prepared.channels(),
        }
    }

    /// The program, if it runs on the host.
    #[inline]
    pub(super) fn on_host(&self) -> Result<&Program, Error> {
        match self {
            Code::Host(program) => Ok(program),
            Code::Cuda(_) => Err(Error::OtherDevice { device: Device::Cuda(None) }),
        }
    }

    /// The program, if it runs on a GPU.
    #[inline]
    pub(super) fn on_gpu(&self) -> Result<&cuda::Prepared, Error> {
        match self {
            Code::Cuda(prepared) => Ok(prepared),
            Code::Host(_) => Err(Error::OtherDevice { device: Device::Host }),
        }
    }
}

/// Where a program's buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Buffers {
    /// They are the call's.
    Own,
    /// They are the call's, and the call is one of a group.
    OwnInGroup,
    /// They are a group's virtual ones, with so many bytes for a rank's part, or in all where ranks have no parts.
    Virtual { part_bytes: usize },
}

impl Buffers {
    fn are_virtual(self) -> bool {
        matches!(self, Buffers::Virtual { .. })
    }
}

/// All prepared calls.
#[derive(Debug, Default)]
pub(super) struct Cache {
    prepared: Vec<Prepared>,
    index: HashMap<Key, usize, BuildHasherDefault<Mix>>,
    proofs: HashMap<Proof, Arc<Verified>>,
    links: Option<Arc<Links>>,
    /// Whether there is an LL128 lane.
    ll128: bool,
    /// Whether a switch reduces between the ranks.
    multicast: bool,
}

/// What a proof holds for.
type Proof = (Collective, Placement, Algorithm, Encoding, Order, bool);

impl Cache {
    /// Nothing yet. Programs use these links, the LL128 lane if there is one, and a switch that reduces if there is one.
    pub(super) fn new(links: Option<Arc<Links>>, ll128: bool, multicast: bool) -> Cache {
        Cache { links, ll128, multicast, ..Cache::default() }
    }

    pub(super) fn clear(&mut self) {
        self.prepared.clear();
        self.index.clear();
    }

    /// The call of this key, prepared now if it is new.
    pub(super) fn look_up(
        &mut self,
        config: &Config,
        rank: usize,
        key: Key,
        call: &Call,
        backend: &mut Backend,
    ) -> Result<&Prepared, Error> {
        let known =
            self.index.get(&key).copied().filter(|at| self.prepared[*at].counts == call.counts);
        let at = match known {
            Some(at) => at,
            None => {
                let prepared = self.prepare(config, rank, key, call, backend)?;
                self.prepared.push(prepared);
                self.index.insert(key, self.prepared.len() - 1);
                self.prepared.len() - 1
            }
        };
        Ok(&self.prepared[at])
    }

    fn prepare(
        &mut self,
        config: &Config,
        rank: usize,
        key: Key,
        call: &Call,
        backend: &mut Backend,
    ) -> Result<Prepared, Error> {
        let plan = self.plan(config, call, key.windows, Buffers::Own)?;
        crate::log::planned(rank, call, &plan, "a call");
        let program = self.program(config, rank, call, &plan, Buffers::Own)?;
        let signature = signature(config, &key, &plan);
        let code = backend.load(program, call.data_type, call.op.lower().0)?;
        Ok(Prepared { counts: call.counts.clone(), code, signature })
    }

    /// The program of a call that is carried out as planned.
    pub(super) fn program(
        &mut self,
        config: &Config,
        rank: usize,
        call: &Call,
        plan: &Plan,
        buffers: Buffers,
    ) -> Result<Program, Error> {
        let kind = call.collective.kind;
        let verified = self.verified(config, call, plan)?;
        let (fold, scale) = call.op.lower();
        let (first_connections, most_channels) = match kind {
            Kind::SendRecv => (config.max_channels, 1),
            _ => (0, config.max_channels),
        };
        let lowering = Lowering {
            data_type: call.data_type,
            fold,
            scale,
            channels: plan.channels,
            first_connections,
            most_channels,
            tile_bytes: plan.tile_bytes,
            stream: plan.stream,
            virtual_bytes: match buffers {
                Buffers::Own | Buffers::OwnInGroup => None,
                Buffers::Virtual { part_bytes } => Some(part_bytes),
            },
        };
        let cannot = |why: String| {
            let detail = format!("{}/{}: {why}", plan.algorithm, plan.encoding);
            Error::NoAlgorithm { kind, order: config.order, detail }
        };
        let layout =
            layout(call, &verified, buffers).map_err(Error::too_long(kind.name(), "buffers"))?;
        if let Some(links) = &self.links {
            links.check(verified.schedule()).map_err(cannot)?;
            links.open(verified.schedule(), &lowering);
        }
        lower(&verified, rank, &layout, &lowering).map_err(|refused| cannot(refused.to_string()))
    }

    /// The tuner's answer for a call.
    pub(super) fn plan(
        &self,
        config: &Config,
        call: &Call,
        windows: bool,
        buffers: Buffers,
    ) -> Result<Plan, Error> {
        // Buckets begin in the middle of LL128 lines, and processors gain nothing by them.
        let ll128_serves = buffers == Buffers::Own
            && (config.device != Device::Host
                || config.schedule.is_some()
                || config.pin.encoding == Some(Encoding::Ll128));
        // On processors windows stand for the switch.
        let pinned = config.device == Device::Host
            && (config.schedule.is_some() || config.pin.algorithm == Some(Algorithm::Nvls));
        // Groups are not reduced by switches.
        let multicast = buffers == Buffers::Own && (self.multicast || pinned);
        let most = |channels: usize| match call.channels {
            0 => channels,
            limit => channels.min(usize::from(limit)),
        };
        let pin = Pin { channels: config.pin.channels.map(most), ..config.pin };
        let question = Question {
            collective: call.collective,
            placement: config.placement(call.collective.ranks),
            data_type: call.data_type,
            op: call.op,
            total_bytes: call.total_bytes(),
            order: if call.collective.kind.reduces() { config.order } else { Order::Any },
            in_place: call.in_place,
            windows,
            several_nodes: self.links.is_some(),
            ll128: self.ll128 && ll128_serves,
            multicast,
            max_channels: most(config.max_channels),
            pin,
            slot_bytes: config.advanced.slot_bytes,
            ll_slot_bytes: config.advanced.ll_slot_bytes,
            cache_bytes: config.last_level_cache_bytes(),
        };
        let custom = config.schedule.as_ref().map(|custom| custom.plan(&question)).transpose()?;
        let usual = || match config.device {
            Device::Host => plan_by(config.tuning.as_deref(), &question),
            Device::Cuda(_) => plan_on_gpu(config.tuning.as_deref(), &question),
        };
        let mut plan = custom.flatten().map_or_else(usual, Ok)?;
        plan.channels = most(plan.channels);
        Ok(plan)
    }

    /// The proven schedule of a call that is carried out as planned.
    pub(super) fn verified(
        &mut self,
        config: &Config,
        call: &Call,
        plan: &Plan,
    ) -> Result<Arc<Verified>, Error> {
        if let (Algorithm::Custom, Some(custom)) = (plan.algorithm, &config.schedule) {
            return Ok(custom.verified().clone());
        }
        let placement = config.placement(call.collective.ranks);
        let proof = (
            call.collective,
            placement,
            plan.algorithm,
            plan.encoding,
            config.order,
            call.in_place,
        );
        if let Some(verified) = self.proofs.get(&proof) {
            return Ok(verified.clone());
        }
        let kind = call.collective.kind;
        let no_algorithm =
            |detail: String| Error::NoAlgorithm { kind, order: config.order, detail };
        let entry = plan.entry(kind).ok_or_else(|| no_algorithm("the plan names none".into()))?;
        let schedule = entry
            .schedule(call.collective, placement, config.order, SLOTS)
            .map_err(|unavailable| no_algorithm(unavailable.to_string()))?;
        let verified = verify(schedule, config.order, entry.in_place)
            .map_err(|violation| no_algorithm(violation.to_string()))?;
        let rounds = !verified.single_rounding() && !call.data_type.accumulates_in_itself();
        if config.order != Order::Any && kind.reduces() && rounds {
            return Err(no_algorithm("partial results would be rounded".into()));
        }
        let verified = Arc::new(verified);
        self.proofs.insert(proof, verified.clone());
        Ok(verified)
    }
}

fn layout(call: &Call, verified: &Verified, buffers: Buffers) -> Result<Layout, TooLong> {
    let schedule = verified.schedule();
    match call.counts.as_deref() {
        None if buffers.are_virtual() => Layout::of_virtual(
            &call.collective,
            schedule.input,
            schedule.output,
            call.count,
            chunk_align(call),
        ),
        None => Layout::even(
            &call.collective,
            schedule.input,
            schedule.output,
            call.count,
            chunk_align(call),
        ),
        Some(Counts::PerRank(counts)) if call.collective.kind == Kind::AllGather => {
            Layout::all_gather_v(counts)
        }
        Some(Counts::PerRank(counts)) => Layout::reduce_scatter_v(counts),
        Some(Counts::Matrix(counts)) => Layout::all_to_all_v(counts),
        Some(Counts::Own { .. }) => unreachable!("messages have no schedule of all ranks"),
    }
}

/// What all ranks must agree on. In place does not count unless it changes the plan.
pub(super) fn signature(config: &Config, key: &Key, plan: &Plan) -> Signature {
    let planned = (plan.algorithm, plan.encoding, plan.channels, plan.tile_bytes);
    Signature::of(&(key, config.order, planned))
}

/// Counts as one word that is not 0.
pub(super) fn counts_hash(counts: &Counts) -> u64 {
    let mut mix = Mix::default();
    match counts {
        Counts::PerRank(counts) => counts.hash(&mut mix),
        Counts::Matrix(counts) => counts.hash(&mut mix),
        Counts::Own { send, recv } => (send, recv).hash(&mut mix),
    }
    mix.finish() | 1
}

/// A short multiplicative hash: the same on every rank, which the standard library's is not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 32)
    }
}
