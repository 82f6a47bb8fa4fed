//! All entries at all sizes.

use std::time::Instant;

use oxccl::algorithms::Entry;
use oxccl::schedule::{Layout, SLOTS};
use oxccl::simulate::{LinkUse, Prediction, SimulationError, Statement, Subject, simulate};

use super::args::{Study, name};
use crate::bench::{Row, rounded};
use crate::failure::Failure;

/// Up to so many ranks every schedule is proven before it is simulated.
const PROVEN: usize = 32;

/// What has been predicted.
pub(super) struct Sweep {
    /// Entry by entry, as in the study, and size by size; nothing where an entry cannot be simulated.
    pub(super) columns: Vec<Option<Vec<Point>>>,
    /// Entries that cannot be simulated, and why.
    pub(super) left_out: Vec<(String, String)>,
    pub(super) statement: String,
    pub(super) seconds: f64,
}

/// One entry at one size.
pub(super) struct Point {
    pub(super) row: Row,
    /// What links carry, the busiest first.
    pub(super) links: Vec<LinkUse>,
}

impl Sweep {
    /// Simulates.
    ///
    /// # Errors
    /// A wrong schedule, or nothing that can be simulated.
    pub(super) fn run(study: &Study) -> Result<Sweep, Failure> {
        let start = Instant::now();
        let (mut columns, mut left_out, mut statement) = (Vec::new(), Vec::new(), String::new());
        let mut last = None;
        for entry in &study.entries {
            match column(study, entry, &mut statement) {
                Ok(points) => columns.push(Some(points)),
                Err(Failure::Simulation(error)) if is_limit(&error) => {
                    left_out.push((name(entry), error.to_string()));
                    columns.push(None);
                    last = Some(error);
                }
                Err(other) => return Err(other),
            }
        }
        if let (true, Some(error)) = (columns.iter().all(Option::is_none), last) {
            return Err(error.into());
        }
        Ok(Sweep { columns, left_out, statement, seconds: start.elapsed().as_secs_f64() })
    }

    /// The fastest entry at a size, as an index into the study's.
    pub(super) fn best(&self, size: usize) -> Option<usize> {
        let time = |at: &usize| self.columns[*at].as_ref().map(|points| points[size].row.time_us);
        let known = (0..self.columns.len()).filter(|at| time(at).is_some());
        known.min_by(|a, b| time(a).partial_cmp(&time(b)).unwrap_or(std::cmp::Ordering::Equal))
    }
}

/// Whether an entry merely does not fit here, and another may.
fn is_limit(error: &SimulationError) -> bool {
    matches!(
        error,
        SimulationError::WindowAcross { .. }
            | SimulationError::Operands { .. }
            | SimulationError::SlotTooSmall(_)
            | SimulationError::TooLarge { .. }
    )
}

fn column(study: &Study, entry: &Entry, statement: &mut String) -> Result<Vec<Point>, Failure> {
    prove(study, entry)?;
    let subject = Subject::entry(entry, study.collective, study.placement(), study.order, SLOTS)?;
    let options = study.options(entry);
    let mut points = Vec::new();
    for &bytes in &study.sizes {
        let layout = layout(study, &subject, bytes);
        let prediction = simulate(&subject, &layout, &study.network, &options)?;
        *statement = describe(&prediction.statement, statement);
        points.push(point(study, entry, bytes, &prediction));
    }
    Ok(points)
}

/// Proves the schedule that is simulated, where the proof takes no time to speak of.
fn prove(study: &Study, entry: &Entry) -> Result<(), Failure> {
    if study.ranks() > PROVEN {
        return Ok(());
    }
    let schedule = entry
        .schedule(study.collective, study.placement(), study.order, SLOTS)
        .map_err(SimulationError::from)?;
    oxccl::verify::verify(schedule, study.order, entry.in_place).map_err(SimulationError::from)?;
    Ok(())
}

pub(super) fn layout(study: &Study, subject: &Subject<'_>, bytes: usize) -> Layout {
    let (input, output) = subject.chunking();
    // Parts start at cache lines, as in a call.
    let align = (64 / study.case.data_type.len_bytes()).max(1);
    Layout::even(&study.collective, input, output, study.shape(bytes).count, align)
}

fn point(study: &Study, entry: &Entry, bytes: usize, prediction: &Prediction) -> Point {
    let (case, shape) = (&study.case, study.shape(bytes));
    let bytes = shape.bytes(case.data_type);
    let time_us = prediction.time_ns / 1e3;
    let algbw = bytes as f64 / prediction.time_ns;
    let row = Row {
        op: case.kind.name(),
        data_type: oxccl::data_type_name(case.data_type),
        redop: case.op_name(),
        root: case.root_number(),
        ranks: study.ranks(),
        nodes: study.network.nodes(),
        bytes,
        count: shape.count,
        algorithm: entry.algorithm,
        encoding: entry.encoding,
        channels: study.channels(entry),
        in_place: false,
        time_us: rounded(time_us),
        min_us: rounded(time_us),
        algbw_gbps: rounded(algbw),
        busbw_gbps: rounded(algbw * case.bus_factor(study.ranks())),
        wrong: None,
        launches: 1,
        calls: 1,
    };
    Point { row, links: prediction.links.clone() }
}

/// How ranks were simulated; entries may differ.
fn describe(statement: &Statement, before: &str) -> String {
    let text = match statement {
        Statement::RankByRank => "all ranks one by one".to_owned(),
        Statement::NotFolded { why } => format!("all ranks one by one, because {why}"),
        Statement::Folded { ranks, why } => {
            format!("{ranks} ranks stand for all, because {why}; chunks padded to equal lengths")
        }
    };
    if before.is_empty() || before.contains(&text) {
        return if before.is_empty() { text } else { before.to_owned() };
    }
    format!("{before}; also: {text}")
}
