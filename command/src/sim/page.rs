//! One self-contained page: plots, crossover points, schedules to be played, and what links carry
//! meanwhile.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::World;
use super::args::Study;
use super::plays;
use super::report::NCCL;
use super::sweep::{Point, Sweep};
use crate::failure::Failure;

/// At each size so many of the fastest are plotted at first.
const BEST: usize = 2;

/// The page's text. Worlds of several numbers of nodes are shown by turns and in a plot of their
/// own; schedules are played on few ranks, so that of one world they are those of all.
///
/// # Errors
/// A small call that cannot be simulated.
pub(super) fn page(worlds: &[World<'_>]) -> Result<String, Failure> {
    let Some(World { study, .. }) = worlds.last() else { return Ok(String::new()) };
    let world = |World { study, sweep }: &World<'_>| {
        json!({
            "topology": study.topology.name,
            "ranks": study.ranks(),
            "nodes": study.network.nodes(),
            "simulated": sweep.statement(),
            "left_out": sweep.left_out,
            "series": series(study, sweep),
            "crossovers": crossovers(study, sweep),
        })
    };
    let data = json!({
        "op": study.case.kind.name(),
        "type": study.case.data_type.name(),
        "order": study.order.to_string(),
        "in_network": study.in_network,
        "version": env!("CARGO_PKG_VERSION"),
        "sizes": study.sizes,
        "worlds": worlds.iter().map(world).collect::<Vec<_>>(),
        "played": plays::played(study)?,
    });
    // In a script element only "</" could end the data early.
    let text = serde_json::to_string(&data).unwrap_or_default().replace("</", "<\\/");
    let page = include_str!("page.html").replace("\"__PARTS__\"", &plays::PARTS.to_string());
    Ok(page.replace("\"__DATA__\"", &text))
}

fn series(study: &Study, sweep: &Sweep) -> Vec<Value> {
    let points = |of: &mut dyn Iterator<Item = &Point>| -> Vec<Value> {
        let point = |point: &Point| {
            let error = point.band.map(|band| band.percent);
            json!([point.row.bytes, point.row.time_us, point.row.busbw_gbps, error])
        };
        of.map(point).collect()
    };
    let nccl = study.nccl.then(|| {
        let found = &mut sweep.nccl.iter().flatten().map(|(_, point)| point);
        json!({"name": NCCL, "encoding": "slots", "shown": true, "points": points(found)})
    });
    let best: HashSet<usize> = (0..study.sizes.len())
        .flat_map(|size| sweep.ranking(size).into_iter().take(BEST))
        .collect();
    let columns = study.candidates.iter().zip(&sweep.columns).enumerate();
    columns
        .filter_map(|(at, (candidate, found))| {
            let shown = candidate.is_custom() || best.contains(&at);
            let points = points(&mut found.as_ref()?.iter());
            Some(json!({
                "name": candidate.name(),
                "encoding": candidate.encoding(),
                "shown": shown,
                "points": points,
            }))
        })
        .chain(nccl)
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
    let gap = |at: usize| Some(log(one.get(at)?.row.time_us) - log(other.get(at)?.row.time_us));
    let (left, right) = (gap(size - 1)?, gap(size)?);
    let part = if left == right { 0.5 } else { left / (left - right) };
    let bytes = |at: usize| log(one[at].row.bytes.max(1) as f64);
    Some((bytes(size - 1) + part.clamp(0.0, 1.0) * (bytes(size) - bytes(size - 1))).exp())
}
