//! How good a table's picks are at sizes between its points.

use oxccl::Kind;
use oxccl::Order;
use oxccl::plans::algorithms::{Entry, find};
use oxccl::plans::tune::{MemoryKind, Prediction, Table};
use serde::Serialize;

use super::points::{between, near, sizes_of};
use super::{Plan, Time, memory_name, name};
use crate::bench::{Comms, Comparison, Taken, Turns};
use crate::failure::Failure;
use crate::speak::{self, say};

/// A pick is good if it takes at most so many times as long as the best entry.
const GOOD: f64 = 1.1;
/// What seems worse is measured again, with so many times the rounds: of several noisy figures the
/// smallest is too small.
const AGAIN: usize = 5;

/// How many points there were, and at how many the pick was good.
#[derive(Clone, Copy, Default)]
struct Score {
    points: usize,
    good: usize,
}

/// Measures the entries near the pick at all sizes between the table's, and prints how often the
/// pick was good.
pub(super) fn verify(comms: &mut Comms, plan: &Plan, table: &Table) -> Result<(), Failure> {
    let mut score = Score::default();
    for kind in plan.kinds(table.ranks) {
        for windows in [true, false] {
            let one = verify_kind(comms, plan, table, kind, windows)?;
            score.points += one.points;
            score.good += one.good;
        }
    }
    if comms.rank() == 0 {
        let Score { points, good } = score;
        let percent = 100.0 * good as f64 / points.max(1) as f64;
        plan.remark(format_args!(
            "the pick was within 10 % of the best at {good} of {points} points: {percent:.1} %"
        ));
    }
    Ok(())
}

fn verify_kind(
    comms: &mut Comms,
    plan: &Plan,
    table: &Table,
    kind: Kind,
    windows: bool,
) -> Result<Score, Failure> {
    let (ranks, prints) = (comms.world(), comms.rank() == 0);
    let up_to = plan.sizes.last().copied().unwrap_or(0);
    let mut sizes = between(&sizes_of(table, kind, windows));
    sizes.retain(|size| *size <= up_to);
    let mut score = Score::default();
    let Some(&largest) = sizes.last() else { return Ok(score) };
    if prints && !plan.json {
        say!("\n{kind} over {ranks} ranks, {}", memory_name(windows));
        say!(
            "{:>10}  {:<36}  {:>10}  {:>10}  {:>6}  best",
            "bytes",
            "pick",
            "predicted",
            "measured",
            "ratio"
        );
    }
    let mut comparison = Comparison::new(comms, (kind, 0), largest, !windows, Order::Any)?;
    for size in sizes {
        let question = plan.question(kind, ranks, size, windows);
        let near = near(table, &question)?;
        let entries: Vec<&Entry> =
            near.iter().filter_map(|one| find(kind, one.algorithm, one.encoding)).collect();
        let medians = |taken: Vec<Taken>| taken.iter().map(Taken::median_us).collect::<Vec<f64>>();
        let mut times_us = medians(comparison.times(size, &entries, &plan.turns)?);
        let mut best =
            (0..near.len()).min_by(|a, b| times_us[*a].total_cmp(&times_us[*b])).unwrap_or(0);
        if times_us[0] > GOOD * times_us[best] {
            let turns = Turns { rounds: AGAIN * plan.turns.rounds, ..plan.turns };
            let again = medians(comparison.times(size, &[entries[0], entries[best]], &turns)?);
            (times_us[0], times_us[best]) = (again[0], again[1]);
            best = if again[0] <= again[1] { 0 } else { best };
        }
        let ratio = times_us[0] / times_us[best];
        score.points += 1;
        score.good += usize::from(ratio <= GOOD);
        let pick = Pick {
            op: kind,
            ranks,
            memory: MemoryKind::of(windows),
            bytes: question.total_bytes,
            pick: time(&near[0], times_us[0]),
            predicted_us: near[0].time_us,
            best: time(&near[best], times_us[best]),
            ratio,
            good: ratio <= GOOD,
        };
        if prints {
            say!("{}", if plan.json { speak::json(&pick) } else { pick.row() });
        }
    }
    Ok(score)
}

/// A table's pick beside the best, as `--json` prints it.
#[derive(Serialize)]
struct Pick {
    op: Kind,
    ranks: usize,
    memory: MemoryKind,
    bytes: usize,
    pick: Time,
    predicted_us: f64,
    best: Time,
    /// How many times as long as the best it takes.
    ratio: f64,
    good: bool,
}

impl Pick {
    fn row(&self) -> String {
        let name = |time: &Time| name(time.algorithm, time.encoding);
        format!(
            "{:>10}  {:<36}  {:>10.3}  {:>10.3}  {:>6.3}  {}{}",
            self.bytes,
            name(&self.pick),
            self.predicted_us,
            self.pick.time_us,
            self.ratio,
            name(&self.best),
            if self.good { "" } else { "  <-" },
        )
    }
}

fn time(entry: &Prediction, time_us: f64) -> Time {
    Time { algorithm: entry.algorithm, encoding: entry.encoding, time_us }
}
