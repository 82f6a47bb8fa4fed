//! One self-contained page: plots, crossover points, a schedule to be played, and what links carry
//! meanwhile.

use std::collections::HashSet;

use oxccl::plans::schedule::{Instruction, Operand, Schedule};
use oxccl::plans::simulate::Trace;
use oxccl::plans::topology::Network;
use serde_json::{Value, json};

use super::args::Study;
use super::candidate::Candidate;
use super::small;
use super::sweep::Sweep;
use crate::bench::Case;
use crate::failure::Failure;

/// Ranks of the calls that are played, at most.
const RANKS: usize = 8;
/// Their bytes: few rounds.
const BYTES: usize = 256 << 10;
/// At each size so many of the fastest are plotted at first.
const BEST: usize = 2;
/// Events of a call that is played, at most: more would not be read.
const EVENTS: usize = 6000;

/// The page's text.
///
/// # Errors
/// A small call that cannot be simulated.
pub(super) fn page(study: &Study, sweep: &Sweep) -> Result<String, Failure> {
    let data = json!({
        "op": study.case.kind.name(),
        "topology": study.topology.name,
        "ranks": study.ranks(),
        "nodes": study.network.nodes(),
        "type": study.case.data_type.name(),
        "order": study.order.to_string(),
        "in_network": study.in_network,
        "version": env!("CARGO_PKG_VERSION"),
        "simulated": sweep.statement,
        "left_out": sweep.left_out,
        "series": series(study, sweep),
        "crossovers": crossovers(study, sweep),
        "plays": plays(study)?,
    });
    // In a script element only "</" could end the data early.
    let text = serde_json::to_string(&data).unwrap_or_default().replace("</", "<\\/");
    Ok(include_str!("page.html").replace("\"__DATA__\"", &text))
}

fn series(study: &Study, sweep: &Sweep) -> Vec<Value> {
    let best: HashSet<usize> = (0..study.sizes.len())
        .flat_map(|size| sweep.ranking(size).into_iter().take(BEST))
        .collect();
    let columns = study.candidates.iter().zip(&sweep.columns).enumerate();
    columns
        .filter_map(|(at, (candidate, points))| {
            let shown = candidate.is_custom() || best.contains(&at);
            let points: Vec<Value> = points
                .as_ref()?
                .iter()
                .map(|point| json!([point.row.bytes, point.row.time_us, point.row.busbw_gbps]))
                .collect();
            Some(json!({
                "name": candidate.name(),
                "encoding": candidate.encoding(),
                "shown": shown,
                "points": points,
            }))
        })
        .collect()
}

/// Where another candidate becomes the fastest: between which sizes.
fn crossovers(study: &Study, sweep: &Sweep) -> Vec<Value> {
    let best: Vec<Option<usize>> = (0..study.sizes.len()).map(|size| sweep.best(size)).collect();
    let mut found = Vec::new();
    for size in 1..best.len() {
        let (Some(before), Some(after)) = (best[size - 1], best[size]) else { continue };
        if before == after {
            continue;
        }
        let (low, high) = (study.sizes[size - 1], study.sizes[size]);
        let bytes =
            crossing(sweep, before, after, size).unwrap_or((low as f64 * high as f64).sqrt());
        let names = [before, after].map(|at| study.candidates[at].name());
        found.push(
            json!({"from": names[0], "to": names[1], "bytes": bytes, "between": [low, high]}),
        );
    }
    found
}

/// Where two lines cross between a size and the one before, on logarithmic axes.
fn crossing(sweep: &Sweep, before: usize, after: usize, size: usize) -> Option<f64> {
    let column = |at: usize| sweep.columns[at].as_ref();
    let (one, other) = (column(before)?, column(after)?);
    let log = |value: f64| value.max(1e-12).ln();
    let gap = |at: usize| log(one[at].row.time_us) - log(other[at].row.time_us);
    let (left, right) = (gap(size - 1), gap(size));
    let part = if left == right { 0.5 } else { left / (left - right) };
    let bytes = |at: usize| log(one[at].row.bytes.max(1) as f64);
    Some((bytes(size - 1) + part.clamp(0.0, 1.0) * (bytes(size) - bytes(size - 1))).exp())
}

/// Each candidate on few ranks and one channel, step by step.
fn plays(study: &Study) -> Result<Vec<Value>, Failure> {
    let mut plays = Vec::new();
    for candidate in &study.candidates {
        let Some(small) = smaller(study, candidate)? else { continue };
        // The page shows what the table shows; what does not fit here was left out there.
        let bytes = if small.case.kind == oxccl::Kind::Barrier { 0 } else { BYTES };
        let Ok(prediction) = small::recorded(&small, candidate, bytes, Some(1)) else { continue };
        let Some(trace) = prediction.trace.filter(|trace| trace.events.len() <= EVENTS) else {
            continue;
        };
        let schedule = candidate.schedule(&small)?;
        plays.push(play(&small, candidate, &schedule, &trace, prediction.time_ns, bytes));
    }
    Ok(plays)
}

/// The same study on few ranks: spread over the nodes, if there are several. None where there
/// cannot be one.
fn smaller(study: &Study, candidate: &Candidate) -> Result<Option<Study>, Failure> {
    if candidate.is_custom() {
        return Ok((study.ranks() <= RANKS).then(|| study.clone()));
    }
    let ranks = study.ranks().min(RANKS);
    let several = study.network.nodes() > 1;
    let per_node = if several { study.network.per_node().min(RANKS / 2) } else { ranks };
    let nodes = ranks.div_ceil(per_node);
    let mut topology = study.topology.clone();
    topology.nodes = topology.nodes.max(nodes);
    let network = Network::new(&topology, ranks, Some(per_node))?;
    let root = study.case.root.min(ranks - 1);
    if study.case.kind == oxccl::Kind::SendRecv && ranks < 2 {
        return Ok(None);
    }
    let mut collective = oxccl::Collective { ranks, root, ..study.collective };
    collective.receiver =
        if study.case.kind == oxccl::Kind::SendRecv { (root + 1) % ranks } else { 0 };
    let case = Case { root, ..study.case };
    Ok(Some(study.on(topology, network, collective, case)))
}

fn play(
    small: &Study,
    candidate: &Candidate,
    schedule: &Schedule,
    trace: &Trace,
    time_ns: f64,
    bytes: usize,
) -> Value {
    let critical: HashSet<usize> =
        trace.critical_path.segments.iter().map(|segment| segment.event).collect();
    let events: Vec<Value> = trace
        .events
        .iter()
        .enumerate()
        .map(|(at, event)| {
            let place = (event.rank, schedule.ranks.len());
            let peers = peers(&schedule.ranks[event.rank][event.step], place);
            json!([
                event.rank,
                event.step,
                event.round,
                tenths(event.start_ns),
                tenths(event.end_ns),
                event.bytes,
                peers,
                u8::from(critical.contains(&at)),
            ])
        })
        .collect();
    let occupations: Vec<Value> = trace
        .occupations
        .iter()
        .map(|one| json!([one.link, one.event, tenths(one.start_ns), tenths(one.end_ns)]))
        .collect();
    let steps = |rank: usize| -> Vec<String> {
        (0..schedule.ranks[rank].len()).map(|step| small::name(schedule, rank, step)).collect()
    };
    let path = &trace.critical_path;
    json!({
        "name": candidate.name(),
        "ranks": small.ranks(),
        "devices": (0..small.ranks()).map(|rank| small.network.device_name(rank)).collect::<Vec<_>>(),
        "bytes": bytes,
        "time_ns": tenths(time_ns),
        "steps": (0..small.ranks()).map(steps).collect::<Vec<_>>(),
        "events": events,
        "links": trace.links,
        "occupations": occupations,
        "path": [tenths(path.launch_ns), tenths(path.steps_ns), tenths(path.latency_ns)],
    })
}

/// Whom an instruction reads from (negative, less one) and writes to.
fn peers(instruction: &Instruction, (rank, ranks): (usize, usize)) -> Vec<i64> {
    let Instruction::ReduceCopy { sources, destinations, .. } = instruction else {
        return Vec::new();
    };
    let members = |operand: Operand| operand.members(rank, ranks);
    let from = sources.iter().flat_map(|source| members(source.operand));
    let from = from.filter_map(|operand| match operand {
        Operand::Window { peer, .. } => Some(-(peer as i64) - 1),
        _ => None,
    });
    let to = destinations.iter().flat_map(|operand| members(*operand));
    let to = to.filter_map(|operand| match operand {
        Operand::PeerSlot { link, .. } => Some(link.peer as i64),
        Operand::Window { peer, .. } => Some(peer as i64),
        _ => None,
    });
    from.chain(to).collect()
}

fn tenths(ns: f64) -> f64 {
    (ns * 10.0).round() / 10.0
}
