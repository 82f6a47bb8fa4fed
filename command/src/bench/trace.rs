//! One call with the time of every step on every rank, for a trace viewer. Its step numbers are
//! those of `oxccl sim --trace`.

use std::path::Path;

use oxccl::plans::algorithms::find;
use oxccl::{Collective, Collectives, Config, Error, Kind, StepTrace, TracedStep};
use serde_json::{Value, json};

use super::args::BenchOptions;
use super::buffers::{Buffers, Whose};
use super::case::{Case, Placement, Shape};
use super::rank::Comms;
use super::sample::Sample;
use crate::failure::Failure;
use crate::for_type;

/// Words of a step between ranks.
const WORDS: usize = 5;

/// Traces the last size of the only case; rank 0 writes the file.
///
/// # Errors
/// A call that fails, or a file that cannot be written.
pub(super) fn write(options: &BenchOptions, comms: &mut Comms) -> Result<(), Failure> {
    let Some(path) = &options.trace else { return Ok(()) };
    let cases = options.cases(comms.control.world_size())?;
    let sizes = options.sweep.sizes()?;
    let (Some(case), Some(&bytes)) = (cases.first(), sizes.last()) else { return Ok(()) };
    let bytes = if case.kind == Kind::Barrier { 0 } else { bytes };
    let shape = case.shape(comms.control.world_size(), bytes);
    let plan = for_type!(case.data_type, T => call::<T>(options, comms, case, shape))?;
    let config = options.config()?;
    let traces = gathered(comms)?;
    if comms.control.rank() > 0 {
        return Ok(());
    }
    let lost: u64 = traces.iter().map(|trace| trace.lost).sum();
    if lost > 0 {
        eprintln!(
            "oxccl: the trace lacks the first {lost} steps, for which there was no room: set OXCCL_TRACE_STEPS higher"
        );
    }
    let text = chrome(case, shape, &config, &plan, &traces);
    std::fs::write(path, text.to_string())
        .map_err(Failure::system(format!("writing the trace {}", Path::display(path))))
}

/// Traces the second of two calls: the first prepares it.
fn call<T: Sample>(
    options: &BenchOptions,
    comms: &mut Comms,
    case: &Case,
    shape: Shape,
) -> Result<oxccl::plans::tune::Plan, Error> {
    let mut buffers = Buffers::<T>::allocate(&comms.measured, shape, Whose::of(options), 1)?;
    buffers.call(&comms.measured, case, shape, Placement::OutOfPlace)?;
    comms.control.barrier()?;
    comms.measured.set_trace(true)?;
    buffers.call(&comms.measured, case, shape, Placement::OutOfPlace)?;
    let windows = Whose::of(options).is_reached();
    comms.measured.plan::<T>(case.kind, case.op, shape.count, case.root, false, windows)
}

/// Every rank's steps.
fn gathered(comms: &mut Comms) -> Result<Vec<StepTrace>, Error> {
    let own = comms.measured.take_trace()?;
    comms.measured.set_trace(false)?;
    let ranks = comms.control.world_size();
    let mut counts = vec![0u64; 2 * ranks];
    comms.control.all_gather(&[own.steps.len() as u64, own.lost], &mut counts)?;
    let of_rank = |rank: usize| (counts[2 * rank] as usize, counts[2 * rank + 1]);
    let most = (0..ranks).map(|rank| of_rank(rank).0).max().unwrap_or(0) * WORDS;
    let mut words: Vec<u64> = own
        .steps
        .iter()
        .flat_map(|step| {
            [u64::from(step.channel), step.round, u64::from(step.step), step.start_ns, step.end_ns]
        })
        .collect();
    words.resize(most.max(1), 0);
    let mut all = vec![0u64; words.len() * ranks];
    comms.control.all_gather(&words, &mut all)?;
    let step = |words: &[u64]| TracedStep {
        channel: words[0] as u32,
        round: words[1],
        step: words[2] as u32,
        start_ns: words[3],
        end_ns: words[4],
    };
    let trace = |(rank, part): (usize, &[u64])| {
        let (count, lost) = of_rank(rank);
        StepTrace { steps: part.chunks_exact(WORDS).take(count).map(step).collect(), lost }
    };
    Ok(all.chunks_exact(words.len()).enumerate().map(trace).collect())
}

fn chrome(
    case: &Case,
    shape: Shape,
    config: &Config,
    plan: &oxccl::plans::tune::Plan,
    ranks: &[StepTrace],
) -> Value {
    let world = ranks.len();
    let collective = match case.kind {
        Kind::SendRecv => Collective::send_recv(world, 0, 1 % world),
        kind if kind.is_rooted() => Collective::rooted(kind, world, case.root),
        kind => Collective::new(kind, world),
    };
    let (placement, order) = (config.placement(world), config.order);
    let pipeline = config.limits().pipeline();
    let schedule = find(case.kind, plan.algorithm, plan.encoding)
        .and_then(|entry| entry.schedule(collective, placement, order, pipeline).ok());
    let name = |rank: usize, step: u32| {
        let instruction = schedule.as_ref().and_then(|of| of.step(rank, step as usize));
        let text = instruction.map(ToString::to_string);
        let text = text.unwrap_or_else(|| format!("step {step}"));
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let steps = ranks.iter().flat_map(|trace| &trace.steps);
    let start = steps.map(|step| step.start_ns).min().unwrap_or(0);
    let mut events: Vec<Value> = (0..world)
        .map(|rank| {
            let args = json!({"name": format!("rank {rank}")});
            json!({"name": "process_name", "ph": "M", "pid": rank, "args": args})
        })
        .collect();
    for (rank, trace) in ranks.iter().enumerate() {
        events.extend(trace.steps.iter().map(|step| {
            let args = json!({"step": step.step, "round": step.round, "predicted": false});
            json!({
                "name": name(rank, step.step),
                "ph": "X",
                "pid": rank,
                "tid": step.channel,
                "ts": (step.start_ns - start) as f64 / 1e3,
                "dur": (step.end_ns - step.start_ns) as f64 / 1e3,
                "args": args,
            })
        }));
    }
    json!({
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "predicted": false,
            "op": case.kind.name(),
            "type": case.data_type.name(),
            "bytes": shape.bytes(case.data_type),
            "algorithm": plan.algorithm,
            "encoding": plan.encoding,
            "channels": plan.channels,
            "lost": ranks.iter().map(|trace| trace.lost).sum::<u64>(),
        },
    })
}
