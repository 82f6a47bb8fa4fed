//! `oxccl diff`: where two schedules differ, rank by rank and step by step.

use std::ops::Range;
use std::path::PathBuf;

use clap::Args;
use oxccl::plans::msccl::Blocks;
use oxccl::plans::schedule::{Notes, Schedule, ScheduleFile};
use oxccl::plans::verify::infer_raw;
use serde::Serialize;
use similar::{Algorithm, DiffOp, capture_diff_slices, group_diff_ops};

use crate::failure::Failure;
use crate::speak;

/// Shows where two custom schedules differ: in what they promise, and in the steps of each rank.
///
/// They need not be right. Comments are no difference, nor is whether `raw` is said. The status is
/// 0 if they do the same, and 1 if they differ.
#[derive(Args)]
pub(crate) struct DiffOptions {
    /// A file with a custom schedule, JSON or MSCCL's XML.
    #[arg(value_name = "A")]
    old: PathBuf,
    /// The other one.
    #[arg(value_name = "B")]
    new: PathBuf,
    /// So many equal steps are shown around those that differ.
    #[arg(long, short = 'U', default_value_t = 2)]
    context: usize,
    /// Only this rank's steps.
    #[arg(long)]
    rank: Option<usize>,
    /// What becomes of the thread blocks of MSCCL's XML: merged to one list of each rank, or lists
    /// that run side by side, each on a channel of its own.
    #[arg(long, value_name = "merged|lists", default_value = "merged")]
    blocks: Blocks,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
}

/// Where two files differ, as `--json` prints it.
#[derive(Serialize)]
struct Difference {
    differ: bool,
    promises: Vec<Promise>,
    ranks: Vec<Steps>,
}

/// What they do not promise alike.
#[derive(Serialize)]
struct Promise {
    what: &'static str,
    old: String,
    new: String,
}

/// A rank whose steps differ.
#[derive(Serialize)]
struct Steps {
    rank: usize,
    old_steps: usize,
    new_steps: usize,
    changes: Vec<Change>,
}

/// Steps that others have taken the place of.
#[derive(Serialize)]
struct Change {
    /// The number of the first.
    old_step: usize,
    old: Vec<String>,
    new_step: usize,
    new: Vec<String>,
}

pub(crate) fn main(options: &DiffOptions) -> Result<(), Failure> {
    let [old, new] = [&options.old, &options.new].map(|path| {
        let mut file = ScheduleFile::read_with(path, options.blocks)?;
        infer_raw(&mut file.schedule);
        Ok::<ScheduleFile, Failure>(file)
    });
    let (old, new) = (old?, new?);
    let ranks: Vec<RankDiff> =
        (0..old.schedule.collective.ranks.max(new.schedule.collective.ranks))
            .filter(|rank| options.rank.is_none_or(|only| only == *rank))
            .filter_map(|rank| RankDiff::of(rank, &old, &new))
            .collect();
    let promises = broken_promises(&old, &new);
    let differ = !promises.is_empty() || !ranks.is_empty();
    if options.json {
        let ranks = ranks.iter().map(RankDiff::steps).collect();
        println!("{}", speak::json(&Difference { differ, promises, ranks }));
    } else {
        for Promise { what, old, new } in promises {
            println!("{what:<12} {old} -> {new}");
        }
        ranks.iter().for_each(|rank| rank.print(&old.notes, &new.notes, options.context));
    }
    if differ { Err(Failure::Differ) } else { Ok(()) }
}

/// What the files say that is not alike.
fn broken_promises(old: &ScheduleFile, new: &ScheduleFile) -> Vec<Promise> {
    let both = promises(old).into_iter().zip(promises(new));
    let promise = both.map(|((what, old), (_, new))| Promise { what, old, new });
    promise.filter(|promise| promise.old != promise.new).collect()
}

/// What a file says besides its steps.
fn promises(file: &ScheduleFile) -> Vec<(&'static str, String)> {
    let ScheduleFile { schedule, order, in_place, .. } = file;
    let Schedule { collective, input, output, scratch, slots, lists_per_rank, .. } = schedule;
    vec![
        ("collective", collective.kind.to_string()),
        ("ranks", collective.ranks.to_string()),
        ("root", collective.root.to_string()),
        ("receiver", collective.receiver.to_string()),
        ("order", order.to_string()),
        ("in place", in_place.to_string()),
        ("input", format!("{input:?}")),
        ("output", format!("{output:?}")),
        ("lists a rank", lists_per_rank.to_string()),
        ("scratch", scratch.to_string()),
        ("slots", format!("ll {}, ll128 {}, slots {}", slots.ll, slots.ll128, slots.slots)),
    ]
}

/// A rank's steps in both files, which differ.
struct RankDiff {
    rank: usize,
    before: Vec<String>,
    after: Vec<String>,
    ops: Vec<DiffOp>,
}

impl RankDiff {
    /// None if its steps are the same.
    fn of(rank: usize, old: &ScheduleFile, new: &ScheduleFile) -> Option<RankDiff> {
        let [before, after] = [old, new].map(|file| {
            let schedule = (rank < file.schedule.collective.ranks).then_some(&file.schedule);
            let steps = schedule.into_iter().flat_map(|schedule| schedule.steps(rank));
            steps.map(|(_, instruction)| instruction.to_string()).collect::<Vec<String>>()
        });
        let ops = capture_diff_slices(Algorithm::Myers, &before, &after);
        let differ = ops.iter().any(|op| !matches!(op, DiffOp::Equal { .. }));
        differ.then_some(RankDiff { rank, before, after, ops })
    }

    fn print(&self, old: &Notes, new: &Notes, context: usize) {
        let RankDiff { rank, before, after, ops } = self;
        println!("\nrank {rank}: {} steps -> {} steps", before.len(), after.len());
        for (number, group) in group_diff_ops(ops.clone(), context).into_iter().enumerate() {
            if number > 0 {
                println!("         …");
            }
            for op in group {
                let (tag, old_steps, new_steps) = op.as_tag_tuple();
                if tag == similar::DiffTag::Equal {
                    print(" ", (*rank, new_steps), after, new);
                } else {
                    print("-", (*rank, old_steps), before, old);
                    print("+", (*rank, new_steps), after, new);
                }
            }
        }
    }

    fn steps(&self) -> Steps {
        let differs = self.ops.iter().filter(|op| !matches!(op, DiffOp::Equal { .. }));
        let change = |op: &DiffOp| Change {
            old_step: op.old_range().start,
            old: self.before[op.old_range()].to_vec(),
            new_step: op.new_range().start,
            new: self.after[op.new_range()].to_vec(),
        };
        Steps {
            rank: self.rank,
            old_steps: self.before.len(),
            new_steps: self.after.len(),
            changes: differs.map(change).collect(),
        }
    }
}

fn print(sign: &str, (rank, steps): (usize, Range<usize>), list: &[String], notes: &Notes) {
    for step in steps {
        match notes.step(rank, step) {
            Some(note) => println!("{sign} {step:>6}  {}    # {note}", list[step]),
            None => println!("{sign} {step:>6}  {}", list[step]),
        }
    }
}
