//! What is printed: one table of all entries, comma-separated values, or one JSON object a row. All of it says that it is predicted.

use serde::Serialize;

use super::args::{Study, name};
use super::sweep::{Point, Sweep};
use crate::bench::{CSV_COLUMNS, Row, csv_line, digits};
use crate::options::Size;

/// A row of bench, and what makes it a prediction.
#[derive(Serialize)]
struct Predicted<'a> {
    #[serde(flatten)]
    row: &'a Row,
    predicted: bool,
    topology: &'a str,
    in_network: bool,
    /// The busiest link.
    link: Option<&'a str>,
    /// The part of the time in which it carries data.
    utilisation: Option<f64>,
}

pub(super) fn json(study: &Study, sweep: &Sweep) -> String {
    let line = |point: &Point| {
        let predicted = Predicted {
            row: &point.row,
            predicted: true,
            topology: &study.topology.name,
            in_network: study.in_network,
            link: point.links.first().map(|link| link.name.as_str()),
            utilisation: point.links.first().map(|link| link.utilisation),
        };
        // Numbers and names only: this cannot fail.
        serde_json::to_string(&predicted).unwrap_or_default()
    };
    points(sweep).map(line).collect::<Vec<_>>().join("\n")
}

pub(super) fn csv(study: &Study, sweep: &Sweep) -> String {
    let heading = format!("{},predicted,topology", CSV_COLUMNS.join(","));
    let line = |point: &Point| format!("{},true,{}", csv_line(&point.row), study.topology.name);
    std::iter::once(heading).chain(points(sweep).map(line)).collect::<Vec<_>>().join("\n")
}

/// Size by size, entry by entry.
fn points(sweep: &Sweep) -> impl Iterator<Item = &Point> {
    let sizes = sweep.columns.iter().flatten().map(Vec::len).max().unwrap_or(0);
    (0..sizes).flat_map(|size| sweep.columns.iter().flatten().map(move |column| &column[size]))
}

pub(super) fn table(study: &Study, sweep: &Sweep) -> String {
    let mut text = header(study, sweep);
    let shown: Vec<usize> =
        (0..study.entries.len()).filter(|at| sweep.columns[*at].is_some()).collect();
    let columns: Vec<(String, usize)> = shown
        .iter()
        .map(|at| {
            let name = name(study.entries[*at]);
            let width = name.len().max(10);
            (name, width)
        })
        .collect();
    text += &format!("#\n# {:>10}", "size");
    for (name, width) in &columns {
        text += &format!("  {name:>width$}");
    }
    text += &format!("  {:>22}  {:>7}  {:>7}  busiest link\n", "fastest", "algbw", "busbw");
    text += &format!("# {:>10}", "(B)");
    for (_, width) in &columns {
        text += &format!("  {:>width$}", "(us)");
    }
    text += &format!("  {:>22}  {:>7}  {:>7}\n", "", "(GB/s)", "(GB/s)");
    for (size, bytes) in study.sizes.iter().enumerate() {
        text += &format!("  {:>10}", Size(*bytes).to_string());
        for (at, (_, width)) in shown.iter().zip(&columns) {
            let time = sweep.columns[*at].as_ref().map(|points| points[size].row.time_us);
            text += &format!("  {:>width$}", time.map_or("-".into(), |time| digits(time, 10)));
        }
        text += &best(study, sweep, size);
    }
    for (name, why) in &sweep.left_out {
        text += &format!("# left out {name}: {why}\n");
    }
    text
}

/// What each link carries at the largest size of the only entry.
pub(super) fn links(study: &Study, sweep: &Sweep) -> String {
    let last = sweep.columns.iter().flatten().filter_map(|points| points.last()).next();
    let (Some(point), Some(bytes)) = (last, study.sizes.last()) else { return String::new() };
    let mut text = format!(
        "#\n# links at {}, PREDICTED, of the simulated ranks\n# {:>16}  {:>11}  link\n",
        Size(*bytes),
        "bytes",
        "utilisation"
    );
    for link in &point.links {
        text +=
            &format!("  {:>16}  {:>9.1} %  {}\n", link.bytes, link.utilisation * 100.0, link.name);
    }
    text
}

fn best(study: &Study, sweep: &Sweep, size: usize) -> String {
    let best = sweep.best(size).and_then(|at| Some((at, sweep.columns[at].as_ref()?)));
    let Some((at, points)) = best else { return "\n".to_owned() };
    let point = &points[size];
    let busiest = point.links.first();
    format!(
        "  {:>22}  {:>7}  {:>7}  {}\n",
        name(study.entries[at]),
        digits(point.row.algbw_gbps, 7),
        digits(point.row.busbw_gbps, 7),
        busiest.map_or(String::new(), |link| {
            format!("{} {:.0} %", link.name, link.utilisation * 100.0)
        }),
    )
}

fn header(study: &Study, sweep: &Sweep) -> String {
    let network = &study.network;
    let switches = if study.in_network { ", switches reduce" } else { "" };
    format!(
        "# oxccl {} sim: PREDICTED times of {}, nothing was run\n\
         # topology {}, {} ranks on {} node(s), order {}{switches}\n\
         # simulated {} in {:.1} s\n",
        env!("CARGO_PKG_VERSION"),
        study.case.kind,
        study.topology.name,
        study.ranks(),
        network.nodes(),
        study.order,
        sweep.statement,
        sweep.seconds,
    )
}
