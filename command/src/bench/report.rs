//! What is printed: nccl-tests' table, comma-separated values, or one JSON object a row.

use oxccl::plans::algorithms::{Algorithm, Encoding};
use serde::Serialize;

use super::case::{Case, Shape};
use super::measure::Timing;
use crate::speak;

/// How rows are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// nccl-tests' table.
    Table,
    /// Comma-separated values under a line of names.
    Csv,
    /// One JSON object a row.
    Json,
}

/// One measured (case, size, placement).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) op: &'static str,
    #[serde(rename = "type")]
    pub(crate) data_type: &'static str,
    pub(crate) redop: &'static str,
    pub(crate) root: i64,
    pub(crate) ranks: usize,
    pub(crate) nodes: usize,
    pub(crate) bytes: usize,
    pub(crate) count: usize,
    pub(crate) algorithm: Algorithm,
    pub(crate) encoding: Encoding,
    pub(crate) channels: usize,
    pub(crate) in_place: bool,
    pub(crate) time_us: f64,
    pub(crate) min_us: f64,
    pub(crate) algbw_gbps: f64,
    pub(crate) busbw_gbps: f64,
    /// Wrong elements on all ranks; none if results were not checked.
    pub(crate) wrong: Option<u64>,
    /// Launches a call.
    pub(crate) launches: u64,
    /// Calls in a timed loop.
    pub(crate) calls: usize,
    /// Wakes that waits of all ranks have missed, of all calls that were timed.
    pub(crate) missed_wakes: u64,
    /// Whether the system reads private memory for the ranks.
    pub(crate) cma: bool,
    /// Whether a GPU's copy engines carry the call out.
    pub(crate) copies: bool,
    /// How many buffers and operations timed calls rotate over.
    pub(crate) buffers: usize,
    pub(crate) ops: usize,
    /// The time of the same call in another run's log; none if there is no such row or log.
    pub(crate) against_us: Option<f64>,
    /// What is predicted of it on a topology; none without one.
    pub(crate) predicted_us: Option<f64>,
}

impl Row {
    /// Algorithm and bus bandwidth, in 10^9 bytes a second.
    pub(super) fn bandwidths(
        case: &Case,
        shape: Shape,
        ranks: usize,
        timing: &Timing,
    ) -> (f64, f64) {
        let bytes = shape.bytes(case.data_type) as f64;
        let algorithm = if bytes > 0.0 { bytes / timing.median_us / 1e3 } else { 0.0 };
        (rounded(algorithm), rounded(algorithm * case.bus_factor(ranks)))
    }
}

/// Six decimals: more are noise.
pub fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

impl Format {
    /// The lines in front of the rows.
    pub(super) fn heading(self, besides: &[&str]) -> Option<String> {
        match self {
            Format::Json => None,
            Format::Csv => Some(CSV_COLUMNS.join(",")),
            Format::Table => {
                let placement = |name: &str| format!("{name:^29}");
                let columns = |names: [&str; 4]| {
                    format!("{:>8} {:>6} {:>6} {:>6}", names[0], names[1], names[2], names[3])
                };
                let names = columns(["time", "algbw", "busbw", "#wrong"]);
                let units = columns(["(us)", "(GB/s)", "(GB/s)", ""]);
                let left = |texts: [&str; 5]| {
                    let [size, count, data_type, op, root] = texts;
                    format!("# {size:>10}  {count:>12}  {data_type:>8}  {op:>6}  {root:>6}")
                };
                let pair =
                    |one: &str, two: &str| format!("  {one:>8} {two:>6}").repeat(2 * besides.len());
                let besides: String = besides
                    .iter()
                    .map(|name| format!("  {name:^15}  {:^15}", "in-place"))
                    .collect();
                Some(format!(
                    "#\n{}  {}  {}{}\n{}  {names}  {names}{}\n{}  {units}  {units}{}",
                    left([""; 5]),
                    placement("out-of-place"),
                    placement("in-place"),
                    besides,
                    left(["size", "count", "type", "redop", "root"]),
                    pair("time", "ratio"),
                    left(["(B)", "(elements)", "", "", ""]),
                    pair("(us)", ""),
                ))
            }
        }
    }

    /// One size's rows.
    pub(super) fn rows(self, out_of_place: &Row, in_place: Option<&Row>) -> String {
        let rows = std::iter::once(out_of_place).chain(in_place);
        match self {
            Format::Table => table_line(out_of_place, in_place),
            Format::Csv => rows.map(csv_line).collect::<Vec<_>>().join("\n"),
            Format::Json => rows.map(speak::json).collect::<Vec<_>>().join("\n"),
        }
    }
}

pub(crate) const CSV_COLUMNS: [&str; 26] = [
    "op",
    "type",
    "redop",
    "root",
    "ranks",
    "nodes",
    "bytes",
    "count",
    "algorithm",
    "encoding",
    "channels",
    "in_place",
    "time_us",
    "min_us",
    "algbw_gbps",
    "busbw_gbps",
    "wrong",
    "launches",
    "calls",
    "missed_wakes",
    "cma",
    "buffers",
    "ops",
    "against_us",
    "predicted_us",
    "copies",
];

/// The values of [`CSV_COLUMNS`].
pub(crate) fn csv_line(row: &Row) -> String {
    [
        row.op.to_string(),
        row.data_type.to_string(),
        row.redop.to_string(),
        row.root.to_string(),
        row.ranks.to_string(),
        row.nodes.to_string(),
        row.bytes.to_string(),
        row.count.to_string(),
        row.algorithm.to_string(),
        row.encoding.to_string(),
        row.channels.to_string(),
        row.in_place.to_string(),
        row.time_us.to_string(),
        row.min_us.to_string(),
        row.algbw_gbps.to_string(),
        row.busbw_gbps.to_string(),
        row.wrong.map_or("N/A".to_owned(), |wrong| wrong.to_string()),
        row.launches.to_string(),
        row.calls.to_string(),
        row.missed_wakes.to_string(),
        row.cma.to_string(),
        row.buffers.to_string(),
        row.ops.to_string(),
        row.against_us.map_or("N/A".to_owned(), |theirs| theirs.to_string()),
        row.predicted_us.map_or("N/A".to_owned(), |predicted| predicted.to_string()),
        row.copies.to_string(),
    ]
    .join(",")
}

fn table_line(out_of_place: &Row, in_place: Option<&Row>) -> String {
    let columns = |row: Option<&Row>| match row {
        None => format!("{:>8} {:>6} {:>6} {:>6}", "N/A", "N/A", "N/A", "N/A"),
        Some(row) => format!(
            "{:>8} {:>6} {:>6} {:>6}",
            digits(row.time_us, 8),
            digits(row.algbw_gbps, 6),
            digits(row.busbw_gbps, 6),
            row.wrong.map_or("N/A".to_owned(), |wrong| wrong.to_string()),
        ),
    };
    let row = out_of_place;
    format!(
        "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}  {}  {}",
        row.bytes,
        row.count,
        row.data_type,
        row.redop,
        row.root,
        columns(Some(row)),
        columns(in_place)
    )
}

/// As many decimals as the width allows, three at most.
pub(crate) fn digits(value: f64, width: usize) -> String {
    let texts = (0..=3).rev().map(|decimals| format!("{value:.decimals$}"));
    texts.into_iter().find(|text| text.len() < width).unwrap_or_else(|| format!("{value:.1e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{against, predict};
    use oxccl::{DataType, Kind, OpKind};

    fn row() -> Row {
        Row {
            op: "all_reduce",
            data_type: "float",
            redop: "sum",
            root: -1,
            ranks: 2,
            nodes: 1,
            bytes: 1 << 20,
            count: 1 << 18,
            algorithm: Algorithm::TwoShot,
            encoding: Encoding::Windows,
            channels: 1,
            in_place: false,
            time_us: 81.25,
            min_us: 80.0,
            algbw_gbps: 12.9,
            busbw_gbps: 12.9,
            wrong: Some(0),
            launches: 1,
            calls: 128,
            missed_wakes: 0,
            cma: false,
            copies: false,
            buffers: 16,
            ops: 4,
            against_us: Some(90.5),
            predicted_us: Some(75.5),
        }
    }

    #[test]
    fn lines_are_as_wide_as_their_heading() {
        let heading = Format::Table.heading(&[]).unwrap();
        let names = heading.lines().nth(2).unwrap();
        let both = Format::Table.rows(&row(), Some(&row()));
        assert_eq!(both.len(), names.len(), "\n{heading}\n{both}");
        let held = both + &against::columns(&row(), None) + &predict::columns(&row(), Some(&row()));
        let heading = Format::Table.heading(&["the log's", "predicted"]).unwrap();
        assert!(
            heading.lines().skip(1).all(|line| line.len() == held.len()),
            "\n{heading}\n{held}"
        );
        let one = Format::Table.rows(&row(), None);
        assert_eq!(one.len(), names.len());
        assert!(one.ends_with("N/A"));
    }

    #[test]
    fn columns_and_values_of_csv_agree_with_json() {
        let json = Format::Json.rows(&row(), None);
        let object: serde_json::Value = serde_json::from_str(&json).unwrap();
        let object = object.as_object().unwrap();
        // And the versions of the format and of the command.
        assert_eq!(object.len(), CSV_COLUMNS.len() + 2);
        let line = csv_line(&row());
        for (name, value) in CSV_COLUMNS.iter().zip(line.split(',')) {
            let theirs = object[*name].to_string();
            let same = theirs.trim_matches('"') == value
                || theirs.parse::<f64>().ok() == value.parse::<f64>().ok();
            assert!(same, "{name}: {theirs} {value}");
        }
        assert_eq!(Format::Csv.rows(&row(), Some(&row())).lines().count(), 2);
    }

    #[test]
    fn numbers_fit_their_columns() {
        assert_eq!(digits(0.1391, 8), "0.139");
        assert_eq!(digits(158.1234, 8), "158.123");
        assert_eq!(digits(11800.26, 8), "11800.3");
        assert_eq!(digits(51600123.0, 8), "5.2e7");
        assert_eq!(digits(130.44, 6), "130.4");
    }

    #[test]
    fn bandwidths_are_bytes_over_time() {
        let case =
            Case { kind: Kind::AllReduce, data_type: DataType::F32, op: OpKind::Sum, root: 0 };
        let timing = Timing { median_us: 1000.0, min_us: 1.0, calls: 1 };
        let (algorithm, bus) = Row::bandwidths(&case, case.shape(4, 1_000_000), 4, &timing);
        assert_eq!((algorithm, bus), (1.0, 1.5));
        assert_eq!(Row::bandwidths(&case, case.shape(4, 0), 4, &timing), (0.0, 0.0));
    }
}
