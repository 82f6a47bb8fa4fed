//! Plan, schedule, proof and program of a call.

use super::copied::algorithm;
use crate::call::{CheckedCall, Counts, Signature};
use crate::config::Config;
use crate::engine::links::Links;
use crate::engine::tally::Digest;
use crate::error::Error;
use crate::target::Device;
use oxccl_kernels::format::Extents;
use oxccl_plans::algorithms::{Algorithm, Encoding, find};
use oxccl_plans::collective::{Collective, Kind, Order};
use oxccl_plans::custom::carrier;
use oxccl_plans::hot::{self, Work};
use oxccl_plans::length::TooLong;
use oxccl_plans::lower::{CopyStep, Lowering, Program, copies, lower};
use oxccl_plans::schedule::Layout;
use oxccl_plans::topology::{Placement, Processor};
use oxccl_plans::tune::{Limits, Pin, Plan, Question, SystemReads, plan_by, plan_on_gpu};
use oxccl_plans::verify::{Verified, verify};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Where a program's buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Whose {
    /// They are the call's.
    Own,
    /// They are the call's, and the call is one of a group.
    OwnInGroup,
    /// They are a group's virtual ones, with so many bytes for a rank's part, or in all where ranks
    /// have no parts.
    Virtual { part_bytes: usize },
}

impl Whose {
    fn are_virtual(self) -> bool {
        matches!(self, Whose::Virtual { .. })
    }
}

/// Whose channels' connections a program uses.
pub(super) type Room = Range<usize>;

/// Makes plans, and the programs that carry them out. What has been proven is not proven again.
#[derive(Debug, Default)]
pub(in crate::engine) struct Plans {
    proofs: HashMap<Proof, Arc<Verified>>,
    links: Option<Arc<Links>>,
    ways: Ways,
}

/// What plans may use where it serves.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct Ways {
    /// There is an LL128 lane.
    pub(in crate::engine) ll128: bool,
    /// So many ranks are joined by a switch that reduces: all, or those of each node.
    pub(in crate::engine) multicast: Option<usize>,
    /// The system reads peers' private memory.
    pub(in crate::engine) cma: Option<SystemReads>,
    /// Nodes have different numbers of ranks, and nobody has said how many are to be taken
    /// together.
    pub(in crate::engine) uneven: Option<Placement>,
}

/// What a proof holds for.
type Proof = (Collective, Placement, Algorithm, Encoding, Order, bool);

impl Plans {
    /// Nothing proven yet. Programs use these links and ways.
    pub(in crate::engine) fn new(links: Option<Arc<Links>>, ways: Ways) -> Plans {
        Plans { links, ways, ..Plans::default() }
    }

    fn placement(&self, config: &Config, ranks: usize) -> Placement {
        self.ways.uneven.unwrap_or_else(|| config.placement(ranks))
    }

    /// How many nodes the ranks are on.
    fn nodes(&self) -> usize {
        self.links.as_ref().map_or(1, |links| links.nodes())
    }

    /// The program of a call that is carried out as planned.
    pub(super) fn program(
        &mut self,
        config: &Config,
        rank: usize,
        call: &CheckedCall,
        plan: &Plan,
        (whose, room): (Whose, &Room),
    ) -> Result<Program, Error> {
        let kind = call.collective.kind;
        let verified = self.verified(config, call, plan)?;
        let (fold, scale) = call.op.lower();
        let (first_connections, most_channels) = match kind {
            Kind::SendRecv => {
                let (carrier, nodes) = (carrier(verified.schedule()), self.nodes());
                (config.max_channels, config.limits().channels_of_message(carrier, nodes))
            }
            _ => (room.start, room.len()),
        };
        let lowering = Lowering {
            data_type: call.data_type,
            fold,
            scale,
            channels: plan.channels,
            first_connections,
            most_channels,
            tile_bytes: plan.tile_bytes,
            stream: config.device == Device::Host,
            cma: plan.cma,
            virtual_bytes: match whose {
                Whose::Own | Whose::OwnInGroup => None,
                Whose::Virtual { part_bytes } => Some(part_bytes),
            },
        };
        let cannot = |why: String| {
            let detail = format!("{}/{}: {why}", plan.algorithm, plan.encoding);
            Error::NoAlgorithm { kind, order: call.order(config), detail }
        };
        let layout =
            layout(call, &verified, whose).map_err(Error::too_long(kind.name(), "buffers"))?;
        if let Some(links) = &self.links {
            links.check(verified.schedule()).map_err(cannot)?;
            links.open(verified.schedule(), &lowering)?;
        }
        lower(&verified, rank, &layout, &lowering).map_err(|refused| cannot(refused.to_string()))
    }

    /// The hot kernel that a call's program has, if it has one, and how its buffers are divided. Of
    /// a group's virtual buffer it is one of so many buckets.
    pub(super) fn hot(
        &mut self,
        config: &Config,
        rank: usize,
        (call, plan, program): (&CheckedCall, &Plan, &Program),
        (whose, buckets): (Whose, usize),
    ) -> Result<Option<(&'static str, Extents)>, Error> {
        let serves = config.device != Device::Host
            && config.advanced.hot_kernels
            && !config.advanced.bulk_copies
            && self.links.is_none();
        if !serves {
            return Ok(None);
        }
        let verified = self.verified(config, call, plan)?;
        let layout = layout(call, &verified, whose)
            .map_err(Error::too_long(call.collective.kind.name(), "buffers"))?;
        let (fold, scale) = call.op.lower();
        let work = Work {
            data_type: call.data_type,
            fold,
            scale,
            channels: program.channels(),
            rounds: program.rounds(),
            buckets: whose.are_virtual().then_some(buckets),
        };
        Ok(hot::kernel(verified.schedule(), rank, &layout, &work))
    }

    /// What copy engines do for a call that is carried out as planned.
    pub(super) fn copies(
        &mut self,
        config: &Config,
        rank: usize,
        call: &CheckedCall,
        plan: &Plan,
    ) -> Result<Vec<CopyStep>, Error> {
        let kind = call.collective.kind;
        let verified = self.verified(config, call, plan)?;
        let layout =
            layout(call, &verified, Whose::Own).map_err(Error::too_long(kind.name(), "buffers"))?;
        copies(&verified, rank, &layout, call.data_type.len_bytes()).map_err(|refused| {
            let detail = format!("{}/{}: {refused}", plan.algorithm, plan.encoding);
            Error::NoAlgorithm { kind, order: call.order(config), detail }
        })
    }

    /// The plan of a call that copy engines can carry out.
    pub(in crate::engine) fn plan_of_copies(
        &self,
        config: &Config,
        call: &CheckedCall,
    ) -> Option<Plan> {
        let entry = find(call.collective.kind, algorithm(call, config)?, Encoding::Windows)?;
        Some(Plan {
            algorithm: entry.algorithm,
            encoding: entry.encoding,
            channels: 1,
            tile_bytes: call.total_bytes(),
            stream: false,
            cma: false,
            copies: true,
            reason: "copy engines: zero_sm is set, and nothing is reduced".to_owned(),
            predicted_ns: None,
        })
    }

    /// The tuner's answer for a call.
    pub(in crate::engine) fn plan(
        &self,
        config: &Config,
        call: &CheckedCall,
        windows: bool,
        whose: Whose,
    ) -> Result<Plan, Error> {
        let options = call.options;
        let most = |channels: usize| match options.channels() {
            0 => channels,
            limit => channels.min(limit),
        };
        let pin = Pin {
            algorithm: options.algorithm().or(config.pin.algorithm),
            encoding: options.encoding().or(config.pin.encoding),
            channels: config.pin.channels.map(most),
        };
        // Buckets begin in the middle of LL128 lines, and processors gain nothing by them.
        let ll128_serves = whose == Whose::Own
            && (config.device != Device::Host
                || config.schedule.is_some()
                || pin.encoding == Some(Encoding::Ll128));
        let ranks = call.collective.ranks;
        let placement = self.placement(config, ranks);
        // On processors windows stand for switches.
        let stood_for = || {
            let custom = config.schedule.as_ref();
            let joined = custom.and_then(|custom| custom.schedule().switched().next());
            joined.or_else(|| pin.algorithm?.switched(ranks, placement))
        };
        let multicast = match config.device {
            Device::Host => stood_for(),
            Device::Cuda(_) => self.ways.multicast,
        };
        let question = Question {
            collective: call.collective,
            placement,
            data_type: call.data_type,
            op: call.op,
            total_bytes: call.total_bytes(),
            order: if call.collective.kind.reduces() { call.order(config) } else { Order::Any },
            in_place: call.in_place,
            windows,
            cma: self.ways.cma.filter(|_| !windows),
            nodes: self.nodes(),
            ll128: self.ways.ll128 && ll128_serves,
            // Groups are not reduced by switches.
            multicast: multicast.filter(|_| whose == Whose::Own),
            fabric_reduces: false,
            limits: Limits { max_channels: most(config.max_channels), ..config.limits() },
            pin,
            cache_bytes: config.last_level_cache_bytes(),
        };
        let processor = match config.device {
            Device::Host => Processor::Cpu,
            Device::Cuda(_) => Processor::Gpu,
        };
        let custom = config.schedule.as_ref().map(|custom| custom.plan(&question, processor));
        let custom = custom.transpose()?;
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
        call: &CheckedCall,
        plan: &Plan,
    ) -> Result<Arc<Verified>, Error> {
        if let (Algorithm::Custom, Some(custom)) = (plan.algorithm, &config.schedule) {
            return Ok(custom.verified().clone());
        }
        let placement = self.placement(config, call.collective.ranks);
        let order = call.order(config);
        let proof =
            (call.collective, placement, plan.algorithm, plan.encoding, order, call.in_place);
        if let Some(verified) = self.proofs.get(&proof) {
            return Ok(verified.clone());
        }
        let kind = call.collective.kind;
        let no_algorithm = |detail: String| Error::NoAlgorithm { kind, order, detail };
        let entry = plan.entry(kind).ok_or_else(|| no_algorithm("the plan names none".into()))?;
        let schedule = entry
            .schedule(call.collective, placement, order, config.limits().pipeline())
            .map_err(|unavailable| no_algorithm(unavailable.to_string()))?;
        let verified = verify(schedule, order, entry.in_place)
            .map_err(|violation| no_algorithm(violation.to_string()))?;
        let rounds = !verified.single_rounding() && !call.data_type.accumulates_in_itself();
        if order != Order::Any && kind.reduces() && rounds {
            return Err(no_algorithm("partial results would be rounded".into()));
        }
        let verified = Arc::new(verified);
        self.proofs.insert(proof, verified.clone());
        Ok(verified)
    }
}

fn layout(call: &CheckedCall, verified: &Verified, whose: Whose) -> Result<Layout, TooLong> {
    let schedule = verified.schedule();
    let parts = schedule.parts(chunk_align(call));
    match call.counts.as_deref() {
        None if whose.are_virtual() => Layout::of_virtual(
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
            Layout::all_gather_v(counts, parts)
        }
        Some(Counts::PerRank(counts)) => Layout::reduce_scatter_v(counts, parts),
        Some(Counts::Matrix(counts)) => Layout::all_to_all_v(counts, parts),
        Some(Counts::Own { .. }) => unreachable!("messages have no schedule of all ranks"),
    }
}

/// What all ranks must agree on. In place does not count unless it changes the plan.
pub(super) fn digest(signature: &Signature, plan: &Plan) -> Digest {
    let planned = (plan.algorithm, plan.encoding, plan.channels, plan.tile_bytes);
    // Factors come into it with each launch.
    Digest::of(&(Signature { factor_bits: 0, ..*signature }, planned))
}

/// Elements that a chunk of a whole buffer is aligned to: a cache line.
fn chunk_align(call: &CheckedCall) -> usize {
    64 / call.data_type.len_bytes()
}
