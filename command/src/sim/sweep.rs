//! All entries at all sizes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use oxccl::plans::algorithms::{Algorithm, Encoding};
use oxccl::plans::schedule::Layout;
use oxccl::plans::simulate::{
    Band, Class, Fold, LinkUse, NcclCall, NcclWay, Prediction, RANK_BY_RANK, SimulationError,
    Statement, Subject, Whose, nccl, simulate,
};

use super::args::Study;
use super::candidate::Candidate;
use super::report::NCCL;
use crate::bench::{Row, rounded};
use crate::failure::Failure;

/// What has been predicted.
pub(super) struct Sweep {
    /// Candidate by candidate, as in the study, and size by size; nothing where one cannot be
    /// simulated.
    pub(super) columns: Vec<Option<Vec<Point>>>,
    /// What NCCL takes, size by size, where that is asked for and it has the collective.
    pub(super) nccl: Vec<Option<(NcclWay, Point)>>,
    /// Those that cannot be simulated, and why.
    pub(super) left_out: Vec<(String, String)>,
    /// How each candidate's ranks were simulated.
    statements: Vec<Option<Statement>>,
    pub(super) seconds: f64,
}

/// Who follows a sweep.
pub(super) trait Watch: Sync {
    /// A candidate's turn has come.
    fn begins(&self, _at: usize) {}

    /// Another one has been predicted.
    ///
    /// # Errors
    /// It cannot be printed.
    fn comes(&self, _sweep: &Sweep) -> Result<(), Failure> {
        Ok(())
    }

    /// Now and then, while one takes its time. What is there may be the last: this need not return.
    fn waits(&self, _sweep: &Sweep) {}
}

/// Nobody does.
pub(super) struct Unwatched;

impl Watch for Unwatched {}

/// How often whoever waits looks up.
const LOOK: Duration = Duration::from_millis(50);
/// The main thread's, as simulations of many ranks have had.
const STACK_BYTES: usize = 8 << 20;

/// What has been predicted at a size: a candidate, or NCCL.
enum Came {
    Candidate(usize, Result<(Point, Statement), Failure>),
    Nccl(Result<Option<(NcclWay, Point)>, Failure>),
}

/// One candidate at one size.
pub(super) struct Point {
    pub(super) row: Row,
    /// Bytes that a channel handles per chunk and round.
    pub(super) tile_bytes: usize,
    /// What links carry, the busiest first.
    pub(super) links: Vec<LinkUse>,
    /// How far predictions of its class are off, where that has been measured.
    pub(super) band: Option<Band>,
}

impl Sweep {
    /// Nothing simulated yet. What cannot be is said now.
    ///
    /// # Errors
    /// A wrong schedule, or nothing that can be simulated.
    pub(super) fn new(study: &Study) -> Result<(Sweep, Vec<Option<Subject<'_>>>), Failure> {
        let mut sweep = Sweep {
            columns: study.candidates.iter().map(|_| Some(Vec::new())).collect(),
            nccl: Vec::new(),
            left_out: Vec::new(),
            statements: vec![None; study.candidates.len()],
            seconds: 0.0,
        };
        let mut subjects = Vec::new();
        for (at, candidate) in study.candidates.iter().enumerate() {
            let possible = candidate.prove(study).map_err(Failure::from).and_then(|()| {
                let subject = candidate.subject(study)?;
                subject.check_size(&study.network, study.fold())?;
                Ok(subject)
            });
            subjects.push(sweep.kept(study, at, possible)?);
        }
        Ok((sweep, subjects))
    }

    /// Simulates all candidates at one size, side by side.
    ///
    /// # Errors
    /// Nothing that can be simulated.
    pub(super) fn run(
        &mut self,
        study: &Study,
        subjects: &[Option<Subject<'_>>],
        size: usize,
        watch: &impl Watch,
    ) -> Result<(), Failure> {
        let start = Instant::now();
        let wanted = subjects.iter().enumerate().zip(&self.columns);
        let wanted = wanted.filter(|(_, column)| column.is_some());
        let wanted: Vec<(usize, &Subject<'_>)> =
            wanted.filter_map(|((at, subject), _)| Some((at, subject.as_ref()?))).collect();
        let (bytes, next, said) = (study.sizes[size], AtomicUsize::new(0), self.left_out.len());
        let (sender, comes) = channel();
        let work = |sender: Sender<Came>| {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let came = if let Some((at, subject)) = wanted.get(number) {
                    watch.begins(*at);
                    let candidate = &study.candidates[*at];
                    Came::Candidate(*at, predicted(study, candidate, subject, bytes))
                } else if number == wanted.len() && study.nccl {
                    Came::Nccl(by_nccl(study, bytes))
                } else {
                    break;
                };
                if sender.send(came).is_err() {
                    break;
                }
            }
        };
        let done = thread::scope(|scope| {
            let work = &work;
            for _ in 0..workers(study).min(wanted.len() + 1) {
                let sender = sender.clone();
                let thread = thread::Builder::new().stack_size(STACK_BYTES);
                let begun = thread.spawn_scoped(scope, move || work(sender));
                begun.map_err(Failure::system("starting a thread"))?;
            }
            drop(sender);
            loop {
                let taken = match comes.recv_timeout(LOOK) {
                    Ok(came) => self.take(study, came).and_then(|()| watch.comes(self)),
                    Err(RecvTimeoutError::Timeout) => {
                        watch.waits(self);
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => break Ok(()),
                };
                if taken.is_err() {
                    // What is under way ends, and nothing else begins.
                    next.store(wanted.len() + 1, Ordering::Relaxed);
                    break taken;
                }
            }
        });
        if self.nccl.len() == size {
            self.nccl.push(None);
        }
        // In the candidates' order, and not as they came.
        let place = |name: &str| study.candidates.iter().position(|one| one.name() == name);
        self.left_out[said..].sort_by_key(|(name, _)| place(name).unwrap_or(usize::MAX));
        self.seconds += start.elapsed().as_secs_f64();
        done
    }

    fn take(&mut self, study: &Study, came: Came) -> Result<(), Failure> {
        match came {
            Came::Candidate(at, result) => {
                let Some((point, statement)) = self.kept(study, at, result)? else {
                    return Ok(());
                };
                self.statements[at].get_or_insert(statement);
                if let Some(points) = &mut self.columns[at] {
                    points.push(point);
                }
            }
            Came::Nccl(Err(Failure::Simulation(error))) if is_limit(&error) => {
                let left_out = (NCCL.to_owned(), error.to_string());
                if !self.left_out.contains(&left_out) {
                    self.left_out.push(left_out);
                }
            }
            Came::Nccl(found) => self.nccl.push(found?),
        }
        Ok(())
    }

    /// A candidate that does not fit here is left out, unless it is the last.
    fn kept<T>(
        &mut self,
        study: &Study,
        at: usize,
        result: Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        let candidate = &study.candidates[at];
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Failure::Simulation(error)) if is_limit(&error) && !candidate.is_custom() => {
                self.left_out.push((candidate.name(), error.to_string()));
                self.columns[at] = None;
                match self.columns.iter().all(Option::is_none) {
                    true => Err(error.into()),
                    false => Ok(None),
                }
            }
            Err(other) => Err(other),
        }
    }

    /// What was predicted of a candidate at a size.
    pub(super) fn point(&self, candidate: usize, size: usize) -> Option<&Point> {
        self.columns[candidate].as_ref()?.get(size)
    }

    /// The candidates at a size, the fastest first, as indices into the study's.
    pub(super) fn ranking(&self, size: usize) -> Vec<usize> {
        let timed =
            (0..self.columns.len()).filter_map(|at| Some((self.point(at, size)?.row.time_us, at)));
        let mut timed: Vec<(f64, usize)> = timed.collect();
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        timed.into_iter().map(|(_, at)| at).collect()
    }

    /// How ranks were simulated; candidates may differ.
    pub(super) fn statement(&self) -> String {
        let all = self.statements.iter().flatten();
        all.fold(String::new(), |before, statement| describe(statement, &before))
    }

    /// The fastest at a size.
    pub(super) fn best(&self, size: usize) -> Option<usize> {
        self.ranking(size).first().copied()
    }
}

/// How many candidates are simulated at once: as many as there are cores, but one of very many
/// ranks, which takes gigabytes.
fn workers(study: &Study) -> usize {
    match study.ranks() <= RANK_BY_RANK {
        true => std::thread::available_parallelism().map_or(1, usize::from),
        false => 1,
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

pub(super) fn predicted(
    study: &Study,
    candidate: &Candidate,
    subject: &Subject<'_>,
    bytes: usize,
) -> Result<(Point, Statement), Failure> {
    let layout = layout(study, subject, bytes)?;
    let options = study.options(candidate, bytes);
    let prediction = simulate(subject, &layout, &study.network, &options)?;
    let (algorithm, encoding) = (candidate.algorithm(), candidate.encoding());
    let how = (algorithm, encoding, Whose::Own);
    let mut point = point(study, how, bytes, (options.channels, options.tile_bytes), &prediction);
    // No measurement of that is among those that are published.
    point.band = point.band.filter(|_| !candidate.is_in_fabric());
    Ok((point, prediction.statement))
}

/// What NCCL takes.
fn by_nccl(study: &Study, bytes: usize) -> Result<Option<(NcclWay, Point)>, Failure> {
    let call = NcclCall {
        collective: study.collective,
        count: study.shape(bytes).count,
        element_bytes: study.case.data_type.len_bytes(),
        // Only times are asked for.
        fold: if study.chance.differs() { Fold::Never } else { Fold::Always },
        noise: study.chance.noise(),
    };
    let Some((way, prediction)) = nccl(&call, &study.network, |_| true)? else { return Ok(None) };
    // Its own names are printed.
    let how = (Algorithm::Custom, Encoding::Slots, Whose::Nccl);
    let channels = study.network.nccl_costs().map_or(1, |costs| costs.channels);
    let point = point(study, how, bytes, (channels, way.tile_bytes()), &prediction);
    Ok(Some((way, point)))
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
    (algorithm, encoding, whose): (Algorithm, Encoding, Whose),
    bytes: usize,
    (channels, tile_bytes): (usize, usize),
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
        algorithm,
        encoding,
        channels,
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
        copies: false,
        buffers: 1,
        ops: 1,
        against_us: None,
        predicted_us: None,
    };
    let band = Class::of(whose, &study.network, bytes as u64).and_then(Class::band);
    Point { row, tile_bytes, links: prediction.links.clone(), band }
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
