//! oxccl as a contestant: its schedules on the GPU, with several algorithms, encodings and numbers of channels.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oxccl::algorithms::{Algorithm, Encoding, Entry, catalogue};
use oxccl::cuda::{Arguments, Gpu, Image, Prepared, Setup, Stream};
use oxccl::schedule::{Layout, Lowering, SLOTS, lower};
use oxccl::topology::Placement;
use oxccl::verify::{Verified, verify};
use oxccl::{Collective, Config, Kind, OpKind, Order, Pin, StagingShape};
use oxccl_kernels::format::Tokens;
use oxccl_kernels::{Fold, Scale};
use oxccl_transports::cuda::Context;
use oxccl_transports::{Bootstrap, Cause, LocalBootstrap};

use super::contestant::{Contestant, Form, Placed, Setting, Task};
use super::not_compared;
use crate::bench::case::Case;
use crate::failure::Failure;

/// Blocks that all ranks together may have: an H100 or H200 has 132 multiprocessors.
const MOST_BLOCKS: usize = 128;
/// At most 80 % of a large call's bound is to be reached with so many.
const FEW_BLOCKS: usize = 64;
/// Above, every byte with a flag beside it costs more than a barrier.
const LL_MAX_BYTES: usize = 256 << 10;
/// Below, a barrier costs more than flags.
const WINDOWS_MIN_BYTES: usize = 4 << 10;
/// All calls are of one communicator, in one order, so one signature serves for all.
const SIGNATURE: u32 = 0x0bec_0bec;

/// One rank's part.
pub(super) struct Own {
    bootstrap: LocalBootstrap,
    gpu: Gpu,
    config: Config,
    pin: Pin,
    proofs: HashMap<(Kind, usize, Algorithm, Encoding), Arc<Verified>>,
    /// One a setting.
    ready: Vec<Ready>,
    calls: u64,
}

/// A setting's programs, one a call.
struct Ready {
    programs: Vec<Prepared>,
    channels: usize,
}

impl Own {
    /// Sets a rank up. All ranks do so together.
    pub(super) fn start(
        mut bootstrap: LocalBootstrap,
        context: &Context,
        image: Image,
        config: &Config,
    ) -> Result<Own, Failure> {
        let ranks = bootstrap.world();
        let shape = StagingShape {
            ranks,
            channels: most_channels(ranks).max(config.pin.channels.unwrap_or(1)),
            ll_slots: SLOTS.ll,
            ll_slot_bytes: config.ll_slot_bytes,
            slots: SLOTS.slots,
            slot_bytes: config.slot_bytes,
        };
        // All ranks are in one process, where tokens are addresses.
        let windows = Some(vec![std::ptr::null_mut(); ranks]);
        let setup = Setup { context: context.clone(), image, shape, heap_bytes: 1, windows };
        let gpu = Gpu::start(&mut bootstrap, &setup, Instant::now() + config.timeout)?;
        let (config, pin) = (config.clone(), config.pin);
        let (proofs, ready) = (HashMap::new(), Vec::new());
        Ok(Own { bootstrap, gpu, config, pin, proofs, ready, calls: 0 })
    }

    /// How long it takes until a kernel that waits for nobody has been stopped. Nothing can be called afterwards.
    pub(super) fn abort_time(
        &mut self,
        setting: usize,
        task: &Task,
        stream: &Stream,
    ) -> Result<Duration, Failure> {
        self.put(setting, task, stream)?;
        std::thread::sleep(Duration::from_millis(20));
        if stream.is_done()? {
            return Err(Failure::Usage("a call of one rank alone has ended".to_owned()));
        }
        let start = Instant::now();
        let rank = self.bootstrap.rank();
        let reason = "to see how long it takes".to_owned();
        self.bootstrap.liveness().abort(Cause::Aborted { rank, reason });
        stream.synchronize()?;
        Ok(start.elapsed())
    }

    /// Those with a chance at calls of this size.
    fn entries(&self, kind: Kind, bytes: usize) -> Vec<&'static Entry> {
        let ranks = self.bootstrap.world();
        let there_is = |entry: &&Entry| {
            entry.kind == kind && entry.check(ranks, Placement::one_node(ranks), SLOTS).is_ok()
        };
        let pinned = |entry: &&Entry| {
            self.pin.algorithm.is_none_or(|algorithm| algorithm == entry.algorithm)
                && self.pin.encoding.is_none_or(|encoding| encoding == entry.encoding)
        };
        let likely = |entry: &&Entry| match entry.encoding {
            Encoding::Ll => bytes <= LL_MAX_BYTES && is_short(entry.algorithm),
            Encoding::Windows => bytes >= WINDOWS_MIN_BYTES,
            _ => false,
        };
        let free = self.pin.algorithm.is_none() && self.pin.encoding.is_none();
        let all: Vec<_> = catalogue().filter(there_is).filter(pinned).collect();
        let chosen: Vec<_> = all.iter().copied().filter(|entry| !free || likely(entry)).collect();
        if chosen.is_empty() { all } else { chosen }
    }

    fn channel_counts(&self, encoding: Encoding) -> Vec<usize> {
        if let Some(channels) = self.pin.channels {
            return vec![channels];
        }
        let ranks = self.bootstrap.world();
        let (few, most) = ((FEW_BLOCKS / ranks).max(1), most_channels(ranks));
        let mut counts = match encoding {
            Encoding::Windows => vec![few, most],
            _ => vec![1, 4.min(most)],
        };
        counts.dedup();
        counts
    }

    fn prepare(
        &mut self,
        entry: &'static Entry,
        call: &Placed,
        channels: usize,
    ) -> Result<Prepared, Failure> {
        let (case, ranks) = (call.case, self.bootstrap.world());
        let collective = match Case::is_rooted(case.kind) {
            true => Collective::rooted(case.kind, ranks, case.root),
            false => Collective::new(case.kind, ranks),
        };
        let verified = self.verified(entry, collective)?;
        let (input, output) = (verified.schedule().input, verified.schedule().output);
        let align = 64 / case.data_type.len_bytes();
        let layout = Layout::even(&collective, input, output, call.shape.count, align);
        let (fold, scale) = fold(case.op)?;
        let tile_bytes = match entry.encoding {
            Encoding::Ll => self.config.ll_slot_bytes,
            _ => self.config.slot_bytes,
        };
        let lowering = Lowering {
            data_type: case.data_type,
            fold,
            scale,
            channels,
            first_connections: 0,
            tile_bytes,
            stream: false,
            virtual_bytes: None,
        };
        let program = lower(&verified, self.bootstrap.rank(), &layout, &lowering)
            .map_err(|small| Failure::Usage(format!("{}: {small}", case.kind)))?;
        Ok(self.gpu.prepare(&program, case.data_type, fold)?)
    }

    fn verified(
        &mut self,
        entry: &'static Entry,
        collective: Collective,
    ) -> Result<Arc<Verified>, Failure> {
        let proof = (entry.kind, collective.root, entry.algorithm, entry.encoding);
        if let Some(verified) = self.proofs.get(&proof) {
            return Ok(verified.clone());
        }
        let wrong = |detail: String| Failure::Usage(format!("{}: {detail}", entry.kind));
        let placement = Placement::one_node(collective.ranks);
        let schedule = entry
            .schedule(collective, placement, Order::Any, SLOTS)
            .map_err(|unavailable| wrong(unavailable.to_string()))?;
        let verified = verify(schedule, Order::Any, entry.in_place)
            .map_err(|violation| wrong(violation.to_string()))?;
        let verified = Arc::new(verified);
        self.proofs.insert(proof, verified.clone());
        Ok(verified)
    }

    /// A setting's programs; calls of equal length share one.
    fn prepare_all(
        &mut self,
        entry: &'static Entry,
        task: &Task,
        channels: usize,
    ) -> Result<Ready, Failure> {
        let mut of_count: HashMap<usize, Prepared> = HashMap::new();
        let mut programs = Vec::with_capacity(task.calls.len());
        for call in &task.calls {
            let prepared = match of_count.get(&call.shape.count) {
                Some(prepared) => prepared.clone(),
                None => self.prepare(entry, call, channels)?,
            };
            programs.push(prepared.clone());
            of_count.insert(call.shape.count, prepared);
        }
        Ok(Ready { programs, channels })
    }
}

impl Contestant for Own {
    fn name(&self) -> &'static str {
        "oxccl"
    }

    fn takes(&self, task: &Task) -> bool {
        // Buckets in one launch need a communicator's tables, which this does without.
        task.form != Some(Form::Fused)
    }

    fn settings(&mut self, task: &Task) -> Result<Vec<Setting>, Failure> {
        self.ready.clear();
        let mut settings = Vec::new();
        let bytes = task.bytes() / task.calls.len();
        for entry in self.entries(task.case().kind, bytes) {
            for channels in self.channel_counts(entry.encoding) {
                let ready = self.prepare_all(entry, task, channels)?;
                self.ready.push(ready);
                settings.push(Setting {
                    family: family(entry.encoding),
                    name: format!("{}/{} x{channels}", entry.algorithm, entry.encoding),
                    blocks: Some(channels * self.bootstrap.world()),
                });
            }
        }
        if settings.is_empty() { Err(not_compared(task.case().kind)) } else { Ok(settings) }
    }

    fn put(&mut self, setting: usize, task: &Task, stream: &Stream) -> Result<(), Failure> {
        for (call, program) in task.calls.iter().zip(&self.ready[setting].programs) {
            self.calls += 1;
            let arguments = Arguments {
                input: call.input,
                output: call.output,
                tokens: Tokens { input: call.input as u64, output: call.output as u64 },
                scale_bits: 0,
                call: self.calls,
                signature: SIGNATURE,
                slot: 0,
            };
            // SAFETY: prepared by this rank, for this call, whose buffers outlive the measurement; tokens are their addresses,
            // which all ranks of the process share; a rank's calls are in one stream.
            unsafe { self.gpu.launch(stream, program, &arguments) }?;
        }
        Ok(())
    }

    fn ended(&self, setting: usize) -> Result<(), Failure> {
        self.gpu.tables().outcome(0, self.ready[setting].channels).map_err(|(channel, status)| {
            Failure::Usage(format!("channel {channel} ended with {status:?}"))
        })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.bootstrap.liveness().close(self.calls);
    }
}

fn most_channels(ranks: usize) -> usize {
    (MOST_BLOCKS / ranks).clamp(1, oxccl::MAX_CHANNELS)
}

/// Whether few messages follow each other.
fn is_short(algorithm: Algorithm) -> bool {
    use Algorithm::{Binomial, Direct, OneShot, RecursiveDoubling, TwoShot};
    matches!(algorithm, OneShot | TwoShot | Direct | RecursiveDoubling | Binomial)
}

fn family(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Ll => "ll",
        Encoding::Windows => "windows",
        _ => "slots",
    }
}

fn fold(op: OpKind) -> Result<(Fold, Scale), Failure> {
    Ok(match op {
        OpKind::Sum => (Fold::Sum, Scale::None),
        OpKind::Prod => (Fold::Prod, Scale::None),
        OpKind::Min => (Fold::Min, Scale::None),
        OpKind::Max => (Fold::Max, Scale::None),
        OpKind::Avg => (Fold::Sum, Scale::Average),
        _ => return Err(Failure::Usage(format!("--compare does not know op {op}"))),
    })
}
