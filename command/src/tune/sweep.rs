//! The points of one collective over one kind of memory: coarse at first, then more of them where
//! another entry becomes the best. Later all of them once more: on virtual machines cores lie near
//! to one another for a while and then far apart, and which entry is the best depends on it.

use std::collections::BTreeMap;

use oxccl::plans::algorithms::{Algorithm, Encoding, Entry};
use oxccl::plans::tune::{Curve, MemoryKind, Point, Table, distinct};
use oxccl::{Kind, Order};
use serde::Serialize;

use super::points::{between, near, sizes_of};
use super::{Plan, Time, memory_name, name};
use crate::bench::{Comms, Comparison, Rounds, Taken};
use crate::failure::Failure;
use crate::speak::{self, say};

/// An entry whose fastest turn takes more than so many times as long as the best one's …
const FAR: f64 = 4.0;
/// … at so many sizes in a row is measured no further.
const GIVEN_UP_AFTER: usize = 2;
/// How often the ranges of sizes in which another entry becomes the best are halved: between two
/// points times are taken from a line, and where two lines cross, little decides which of the
/// entries is picked.
const REFINEMENTS: usize = 2;

/// One collective over one kind of memory, and what has been measured of it so far.
pub(super) struct Sweep<'a> {
    plan: &'a Plan,
    kind: Kind,
    ranks: usize,
    windows: bool,
    prints: bool,
    candidates: Vec<Candidate>,
    /// By size.
    measured: BTreeMap<usize, Measured>,
}

/// What was measured at a size.
struct Measured {
    /// Of these candidates.
    candidates: Vec<usize>,
    rounds: Rounds,
}

/// An entry with what has been measured of it.
struct Candidate {
    entry: &'static Entry,
    /// In order of their sizes.
    points: Vec<Point>,
    /// Behind one another, by now, at which it was far slower than the best.
    far_sizes: usize,
}

impl<'a> Sweep<'a> {
    /// Measures all entries of a kind that differ with so many ranks. Rank 0 prints the best ones
    /// of each size.
    pub(super) fn run(
        comms: &mut Comms,
        plan: &'a Plan,
        kind: Kind,
        windows: bool,
    ) -> Result<Sweep<'a>, Failure> {
        let (ranks, prints) = (comms.world(), comms.rank() == 0);
        let entries = distinct(&plan.question(kind, ranks, plan.largest(), windows));
        let candidate = |entry| Candidate { entry, points: Vec::new(), far_sizes: 0 };
        let candidates: Vec<Candidate> = entries.into_iter().map(candidate).collect();
        if prints && !plan.json {
            let count = candidates.len();
            say!("\n{kind} over {ranks} ranks, {}, {count} entries", memory_name(windows));
            say!("{:>10}  {:>10}  {:<36}  next", "bytes", "us", "best");
        }
        let measured = BTreeMap::new();
        let mut sweep = Sweep { plan, kind, ranks, windows, prints, candidates, measured };
        let mut comparison = sweep.comparison(comms)?;
        let mut last_bytes = 0;
        for &size in &plan.sizes {
            let bytes = plan.question(kind, ranks, size, windows).total_bytes;
            if bytes > last_bytes {
                let goes_on = |candidate: &Candidate| candidate.far_sizes < GIVEN_UP_AFTER;
                sweep.measure(&mut comparison, bytes, goes_on)?;
            }
            last_bytes = last_bytes.max(bytes);
        }
        for _ in 0..REFINEMENTS {
            sweep.refine(&mut comparison)?;
        }
        Ok(sweep)
    }

    /// Measures everything once more.
    pub(super) fn repeat(&mut self, comms: &mut Comms) -> Result<(), Failure> {
        let mut comparison = self.comparison(comms)?;
        for (bytes, mut measured) in std::mem::take(&mut self.measured) {
            let entries = self.entries(&measured.candidates);
            measured.rounds.append(comparison.rounds(bytes, &entries, &self.plan.turns)?);
            for (&at, taken) in measured.candidates.iter().zip(&measured.rounds.taken()) {
                self.candidates[at].note(bytes, taken);
            }
        }
        Ok(())
    }

    fn comparison<'c>(&self, comms: &'c mut Comms) -> Result<Comparison<'c>, Failure> {
        Comparison::new(comms, (self.kind, 0), self.plan.largest(), !self.windows, Order::Any)
    }

    /// Measures those that are wanted, at a size.
    fn measure(
        &mut self,
        comparison: &mut Comparison<'_>,
        bytes: usize,
        wanted: impl Fn(&Candidate) -> bool,
    ) -> Result<(), Failure> {
        let all = 0..self.candidates.len();
        let candidates: Vec<usize> = all.filter(|at| wanted(&self.candidates[*at])).collect();
        let rounds = comparison.rounds(bytes, &self.entries(&candidates), &self.plan.turns)?;
        let times = rounds.taken();
        let best_us = times.iter().map(Taken::fastest_us).fold(f64::INFINITY, f64::min);
        for (&at, taken) in candidates.iter().zip(&times) {
            let candidate = &mut self.candidates[at];
            let is_far = taken.fastest_us() > FAR * best_us;
            candidate.far_sizes = if is_far { candidate.far_sizes + 1 } else { 0 };
            candidate.note(bytes, taken);
        }
        if self.prints {
            let times = by_time(&self.entries(&candidates), &times);
            say!("{}", if self.plan.json { self.json(bytes, times) } else { row(bytes, &times) });
        }
        self.measured.insert(bytes, Measured { candidates, rounds });
        Ok(())
    }

    fn json(&self, bytes: usize, times: Vec<Time>) -> String {
        let (op, memory) = (self.kind, MemoryKind::of(self.windows));
        speak::json(&Measurement { op, ranks: self.ranks, memory, bytes, times })
    }

    fn entries(&self, candidates: &[usize]) -> Vec<&'static Entry> {
        candidates.iter().map(|at| self.candidates[*at].entry).collect()
    }

    /// Measures between every two sizes of which each has another best entry. All that have not
    /// been given up there: cores lie nearer to one another at one time than at another, so that a
    /// time compares with those of its own size alone.
    fn refine(&mut self, comparison: &mut Comparison<'_>) -> Result<(), Failure> {
        let table = self.plan.table(self.ranks, self.curves());
        let sizes = sizes_of(&table, self.kind, self.windows);
        for bytes in between(&sizes) {
            let after = sizes.partition_point(|size| *size < bytes);
            if self.best(&table, sizes[after - 1])? != self.best(&table, sizes[after])? {
                self.measure(comparison, bytes, |candidate| candidate.reaches(bytes))?;
            }
        }
        Ok(())
    }

    /// The best entry at a size, by what has been measured.
    fn best(&self, table: &Table, bytes: usize) -> Result<Option<(Algorithm, Encoding)>, Failure> {
        let question = self.plan.question(self.kind, self.ranks, bytes, self.windows);
        let best = near(table, &question)?.into_iter().next();
        Ok(best.map(|best| (best.algorithm, best.encoding)))
    }

    /// What has been measured.
    pub(super) fn curves(&self) -> Vec<Curve> {
        let measured = self.candidates.iter().filter(|candidate| !candidate.points.is_empty());
        let curve = |candidate: &Candidate| Curve {
            kind: self.kind,
            memory: MemoryKind::of(self.windows),
            algorithm: candidate.entry.algorithm,
            encoding: candidate.entry.encoding,
            points: candidate.points.clone(),
        };
        measured.map(curve).collect()
    }
}

impl Candidate {
    /// Whether it has been measured at a larger size.
    fn reaches(&self, bytes: usize) -> bool {
        self.points.last().is_some_and(|last| last.bytes > bytes)
    }

    /// Notes what it has taken at a size, instead of what it had before.
    fn note(&mut self, bytes: usize, taken: &Taken) {
        // A nanosecond is less than what is between two runs.
        let time_us = (taken.median_us() * 1e3).round().max(1.0) / 1e3;
        let point = Point { bytes, time_us };
        match self.points.binary_search_by_key(&bytes, |point| point.bytes) {
            Ok(at) => self.points[at] = point,
            Err(at) => self.points.insert(at, point),
        }
    }
}

/// What entries have taken, the fastest first.
fn by_time(entries: &[&Entry], times: &[Taken]) -> Vec<Time> {
    let time = |(entry, taken): (&&Entry, &Taken)| Time {
        algorithm: entry.algorithm,
        encoding: entry.encoding,
        time_us: taken.median_us(),
    };
    let mut times: Vec<Time> = entries.iter().zip(times).map(time).collect();
    times.sort_by(|one, other| one.time_us.total_cmp(&other.time_us));
    times
}

/// The best entry of a size, and the two behind it.
fn row(bytes: usize, times: &[Time]) -> String {
    let name = |time: &Time| name(time.algorithm, time.encoding);
    let next = times.iter().skip(1).take(2);
    let next: Vec<String> =
        next.map(|time| format!("{} {:.3}", name(time), time.time_us)).collect();
    match times.first() {
        Some(best) => {
            format!("{bytes:>10}  {:>10.3}  {:<36}  {}", best.time_us, name(best), next.join(", "))
        }
        None => format!("{bytes:>10}  no algorithm"),
    }
}

/// What was measured at a size, as `--json` prints it.
#[derive(Serialize)]
struct Measurement {
    op: Kind,
    ranks: usize,
    memory: MemoryKind,
    bytes: usize,
    /// The fastest first.
    times: Vec<Time>,
}
