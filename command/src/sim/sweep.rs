//! All entries at all sizes.

use std::time::Instant;

use oxccl::plans::schedule::Layout;
use oxccl::plans::simulate::{
    LinkUse, Options, Prediction, SimulationError, Statement, Subject, simulate,
};

use super::args::Study;
use super::candidate::Candidate;
use crate::bench::{Row, rounded};
use crate::failure::Failure;

/// What has been predicted.
pub(super) struct Sweep {
    /// Candidate by candidate, as in the study, and size by size; nothing where one cannot be
    /// simulated.
    pub(super) columns: Vec<Option<Vec<Point>>>,
    /// Those that cannot be simulated, and why.
    pub(super) left_out: Vec<(String, String)>,
    pub(super) statement: String,
    pub(super) seconds: f64,
}

/// One candidate at one size.
pub(super) struct Point {
    pub(super) row: Row,
    /// Bytes that a channel handles per chunk and round.
    pub(super) tile_bytes: usize,
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
        for candidate in &study.candidates {
            match column(study, candidate, &mut statement) {
                Ok(points) => columns.push(Some(points)),
                Err(Failure::Simulation(error)) if is_limit(&error) && !candidate.is_custom() => {
                    left_out.push((candidate.name(), error.to_string()));
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

    /// What was predicted of a candidate at a size.
    pub(super) fn point(&self, candidate: usize, size: usize) -> Option<&Point> {
        self.columns[candidate].as_ref().map(|points| &points[size])
    }

    /// The candidates at a size, the fastest first, as indices into the study's.
    pub(super) fn ranking(&self, size: usize) -> Vec<usize> {
        let timed =
            (0..self.columns.len()).filter_map(|at| Some((self.point(at, size)?.row.time_us, at)));
        let mut timed: Vec<(f64, usize)> = timed.collect();
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        timed.into_iter().map(|(_, at)| at).collect()
    }

    /// The fastest at a size.
    pub(super) fn best(&self, size: usize) -> Option<usize> {
        self.ranking(size).first().copied()
    }
}

/// Whether an algorithm merely does not fit here, and another may.
fn is_limit(error: &SimulationError) -> bool {
    matches!(
        error,
        SimulationError::WindowAcross { .. }
            | SimulationError::Operands { .. }
            | SimulationError::SlotTooSmall(_)
            | SimulationError::TooLarge { .. }
    )
}

fn column(
    study: &Study,
    candidate: &Candidate,
    statement: &mut String,
) -> Result<Vec<Point>, Failure> {
    candidate.prove(study)?;
    let subject = candidate.subject(study)?;
    let mut points = Vec::new();
    for &bytes in &study.sizes {
        let layout = layout(study, &subject, bytes)?;
        let options = study.options(candidate, bytes);
        let prediction = simulate(&subject, &layout, &study.network, &options)?;
        *statement = describe(&prediction.statement, statement);
        points.push(point(study, candidate, bytes, &options, &prediction));
    }
    Ok(points)
}

pub(super) fn layout(
    study: &Study,
    subject: &Subject<'_>,
    bytes: usize,
) -> Result<Layout, SimulationError> {
    let (input, output) = subject.chunking();
    // Parts start at cache lines, as in a call.
    let align = (64 / study.case.data_type.len_bytes()).max(1);
    Ok(Layout::even(&study.collective, input, output, study.shape(bytes).count, align)?)
}

fn point(
    study: &Study,
    candidate: &Candidate,
    bytes: usize,
    options: &Options,
    prediction: &Prediction,
) -> Point {
    let (case, shape) = (&study.case, study.shape(bytes));
    let bytes = shape.bytes(case.data_type);
    let time_us = prediction.time_ns / 1e3;
    let algbw = bytes as f64 / prediction.time_ns;
    let row = Row {
        op: case.kind.name(),
        data_type: case.data_type.name(),
        redop: case.op_name(),
        root: case.root_number(),
        ranks: study.ranks(),
        nodes: study.network.nodes(),
        bytes,
        count: shape.count,
        algorithm: candidate.algorithm(),
        encoding: candidate.encoding(),
        channels: options.channels,
        in_place: false,
        time_us: rounded(time_us),
        min_us: rounded(time_us),
        algbw_gbps: rounded(algbw),
        busbw_gbps: rounded(algbw * case.bus_factor(study.ranks())),
        wrong: None,
        launches: 1,
        calls: 1,
        missed_wakes: 0,
        cma: false,
        buffers: 1,
        ops: 1,
    };
    Point { row, tile_bytes: options.tile_bytes, links: prediction.links.clone() }
}

/// How ranks were simulated; candidates may differ.
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
