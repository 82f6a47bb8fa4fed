//! oxccl as a contestant: a communicator whose calls are planned by the tuner, and pinned to others
//! that may be faster. Its ranks share their launches, unless the user wants each to launch by
//! itself.

use std::time::Instant;

use oxccl::cuda::Stream;
use oxccl::plans::algorithms::{Algorithm, Encoding, Entry, catalogue};
use oxccl::plans::schedule::SLOTS;
use oxccl::plans::topology::Placement;
use oxccl::plans::tune::Plan;
use oxccl::{Call, Collectives, Communicator, Config, Element, Memory, Pin, Work};
use oxccl_command::for_type;
use oxccl_command::shared::{Failure, Form, Sample};
use oxccl_transports::cuda::Context;

use crate::contestant::{Contestant, Placed, Setting, Task};
use crate::report::Started;

/// Blocks that all ranks together may have: an H100 or H200 has 132 multiprocessors.
const MOST_BLOCKS: usize = 128;
/// 80 % of a large call's bound is to be reached with so many.
pub(crate) const FEW_BLOCKS: usize = 64;
/// Above, every byte with a flag beside it costs more than a barrier.
const LL_MAX_BYTES: usize = 256 << 10;
/// Above, reading in place is faster than slots, whatever their flags cost.
const LL128_MAX_BYTES: usize = 4 << 20;
/// What groups' tables take of a heap.
const TABLES_BYTES: usize = 8 << 20;
/// Below, a barrier costs more than flags.
const WINDOWS_MIN_BYTES: usize = 4 << 10;

/// One rank's part.
pub(crate) struct Own {
    comm: Communicator,
    /// Whether ranks share its launches.
    joined: bool,
    /// What the user has pinned.
    wish: Pin,
    /// What each setting is.
    settings: Vec<Pin>,
    /// The setting that the communicator is pinned to.
    pinned: Option<usize>,
    calls: Vec<Call<'static>>,
    last: Option<Work>,
}

/// A user's configuration with room for as many channels as are compared, and a heap for groups'
/// tables only, since buffers are the contestants' own.
pub(crate) fn wide_config(usual: &Config, ranks: usize) -> Config {
    let max_channels = most_channels(ranks).max(usual.pin.channels.unwrap_or(1));
    Config { max_channels, heap_bytes: TABLES_BYTES, ..usual.clone() }
}

/// What the start of a communicator takes, over all ranks; it is ended again.
pub(crate) fn start_time(
    context: &Context,
    ranks: usize,
    config: &Config,
) -> Result<Started, Failure> {
    let (before, begin) = (context.free_bytes()?, Instant::now());
    let comms = Communicator::local_with(ranks, config)?;
    let time_ms = begin.elapsed().as_secs_f64() * 1e3;
    let device_bytes = before.saturating_sub(context.free_bytes()?) / ranks;
    // Each waits for the others' calls, of which there are none.
    drop(comms);
    Ok(Started { op: "start", contestant: "oxccl", ranks, time_ms, device_bytes })
}

impl Own {
    /// One rank of it, whether ranks share its launches, and what is pinned.
    pub(crate) fn new(comm: Communicator, joined: bool, wish: Pin) -> Own {
        let (settings, calls) = (Vec::new(), Vec::new());
        Own { comm, joined, wish, settings, pinned: None, calls, last: None }
    }

    /// Those with a chance at such a task. Groups have no LL128.
    fn entries(&self, task: &Task) -> Vec<&'static Entry> {
        let (kind, bytes) = (task.case().kind, planned_bytes(task));
        let lines = task.form != Some(Form::Fused);
        let (ranks, wish) = (self.comm.world_size(), self.wish);
        let there_is = |entry: &&Entry| {
            // The ranks share a GPU, which no switch joins with itself.
            entry.kind == kind
                && !entry.is_in_network()
                && entry.check(ranks, Placement::one_node(ranks), SLOTS).is_ok()
        };
        let pinned = |entry: &&Entry| {
            wish.algorithm.is_none_or(|algorithm| algorithm == entry.algorithm)
                && wish.encoding.is_none_or(|encoding| encoding == entry.encoding)
        };
        let likely = |entry: &&Entry| match entry.encoding {
            Encoding::Ll => bytes <= LL_MAX_BYTES && is_short(entry.algorithm),
            Encoding::Ll128 => lines && bytes <= LL128_MAX_BYTES && is_short(entry.algorithm),
            Encoding::Windows => bytes >= WINDOWS_MIN_BYTES,
            _ => false,
        };
        let free = wish.algorithm.is_none() && wish.encoding.is_none();
        catalogue().filter(there_is).filter(pinned).filter(|entry| !free || likely(entry)).collect()
    }

    fn channel_counts(&self, encoding: Encoding) -> Vec<usize> {
        let ranks = self.comm.world_size();
        let (few, most) = ((FEW_BLOCKS / ranks).max(1), most_channels(ranks));
        let mut counts = match encoding {
            Encoding::Windows => vec![few, most],
            Encoding::Ll128 => vec![1, 4.min(most), few],
            _ => vec![1, 4.min(most)],
        };
        counts.dedup();
        counts
    }

    /// Pins what a setting is made of, where another was pinned before.
    fn pin(&mut self, setting: usize) -> Result<(), Failure> {
        if self.pinned != Some(setting) {
            self.comm.set_pin(self.settings[setting])?;
            self.pinned = Some(setting);
        }
        Ok(())
    }

    /// What a setting comes to for a call.
    fn describe(&mut self, setting: usize, task: &Task) -> Result<Setting, Failure> {
        self.pin(setting)?;
        let call = &task.calls[0];
        let grouped = task.form == Some(Form::Fused);
        let count = match grouped {
            true => planned_bytes(task) / task.case().data_type.len_bytes(),
            false => call.shape.count,
        };
        let plan =
            for_type!(call.case.data_type, T => plan::<T>(&self.comm, call, (count, grouped)))?;
        let name = format!("{}/{} x{}", plan.algorithm, plan.encoding, plan.channels);
        let (family, name) = match setting {
            0 => ("tuned", format!("tuned: {name}")),
            _ => (family(plan.encoding), name),
        };
        let blocks = Some(plan.channels * self.comm.world_size());
        Ok(Setting { family, name, blocks })
    }
}

impl Contestant for Own {
    fn name(&self) -> &'static str {
        "oxccl"
    }

    fn captures_together(&self) -> bool {
        self.joined
    }

    fn settings(&mut self, task: &Task) -> Result<Vec<Setting>, Failure> {
        let mut pins = vec![self.wish];
        for entry in self.entries(task) {
            for channels in self.channel_counts(entry.encoding) {
                let (algorithm, encoding) = (Some(entry.algorithm), Some(entry.encoding));
                pins.push(Pin { algorithm, encoding, channels: Some(channels) });
            }
        }
        if self.wish.channels.is_some() {
            pins.truncate(1);
        }
        self.settings = pins;
        self.pinned = None;
        let call = |call: &Placed| for_type!(call.case.data_type, T => bare::<T>(&self.comm, call));
        self.calls = task.calls.iter().map(call).collect();
        (0..self.settings.len()).map(|setting| self.describe(setting, task)).collect()
    }

    fn put(&mut self, setting: usize, task: &Task, stream: &Stream) -> Result<(), Failure> {
        self.pin(setting)?;
        if task.form == Some(Form::Fused) {
            let (work, ()) = self.comm.on(stream).group(|group| {
                // SAFETY: as below, for each call; buckets do not overlap.
                self.calls.iter().try_for_each(|call| unsafe { group.run(*call) }.map(drop))
            })?;
            self.last = Some(work);
            return Ok(());
        }
        for call in self.calls.iter().copied() {
            // SAFETY: the buffers are device memory of the call's shape, and outlive the
            // measurement; a rank's calls are in one stream, and nothing else uses the buffers
            // before it has been waited for.
            self.last = Some(unsafe { self.comm.on(stream).run(call) }?);
        }
        Ok(())
    }

    fn ended(&mut self) -> Result<(), Failure> {
        match self.last.take() {
            None => Ok(()),
            Some(work) => Ok(work.wait()?),
        }
    }
}

/// The bytes that one plan is made for.
fn planned_bytes(task: &Task) -> usize {
    match task.form {
        Some(Form::Fused) => task.bytes(),
        _ => task.bytes() / task.calls.len(),
    }
}

/// What the communicator would do with so many elements, of a call or of a group, as it is pinned.
fn plan<T: Element>(
    comm: &Communicator,
    call: &Placed,
    (count, grouped): (usize, bool),
) -> Result<Plan, oxccl::Error> {
    let case = &call.case;
    let planned = if grouped { Communicator::plan_in_group::<T> } else { Communicator::plan::<T> };
    planned(comm, case.kind, case.op, count, case.root, false, true)
}

/// The call on bare memory.
fn bare<T: Sample>(comm: &Communicator, call: &Placed) -> Call<'static> {
    let Placed { case, shape, .. } = call;
    let input = Memory { address: call.input.cast_mut(), count: shape.input };
    let output = Memory { address: call.output, count: shape.output };
    let input = if case.has_input(comm.rank()) { input } else { Memory::NONE };
    let output = if case.has_output(comm.rank()) { output } else { Memory::NONE };
    let call = Call::of(case.kind, T::DATA_TYPE, input, output).reduce_op(T::reduce_op(case.op));
    if case.kind.is_rooted() { call.root(case.root) } else { call }
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
        Encoding::Ll128 => "ll128",
        Encoding::Windows => "windows",
        _ => "slots",
    }
}
