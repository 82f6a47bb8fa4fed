//! `oxccl diff`: where two schedules differ, rank by rank and step by step.

use std::ops::Range;
use std::path::PathBuf;

use clap::Args;
use oxccl::plans::schedule::{Notes, Schedule, ScheduleFile};
use oxccl::plans::verify::infer_raw;
use similar::{Algorithm, DiffOp, capture_diff_slices, group_diff_ops};

use crate::failure::Failure;

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
}

pub(crate) fn main(options: &DiffOptions) -> Result<(), Failure> {
    let [old, new] = [&options.old, &options.new].map(|path| {
        let mut file = ScheduleFile::read(path)?;
        infer_raw(&mut file.schedule);
        Ok::<ScheduleFile, Failure>(file)
    });
    let (old, new) = (old?, new?);
    let mut differ = false;
    for ((name, old), (_, new)) in promises(&old).into_iter().zip(promises(&new)) {
        if old != new {
            differ = true;
            println!("{name:<12} {old} -> {new}");
        }
    }
    let ranks = 0..old.schedule.ranks.len().max(new.schedule.ranks.len());
    for rank in ranks.filter(|rank| options.rank.is_none_or(|only| only == *rank)) {
        differ |= rank_differs(rank, &old, &new, options.context);
    }
    if differ { Err(Failure::Differ) } else { Ok(()) }
}

/// What a file says besides its steps.
fn promises(file: &ScheduleFile) -> Vec<(&'static str, String)> {
    let ScheduleFile { schedule, order, in_place, .. } = file;
    let Schedule { collective, input, output, scratch, slots, .. } = schedule;
    vec![
        ("collective", collective.kind.to_string()),
        ("ranks", collective.ranks.to_string()),
        ("root", collective.root.to_string()),
        ("receiver", collective.receiver.to_string()),
        ("order", order.to_string()),
        ("in place", in_place.to_string()),
        ("input", format!("{input:?}")),
        ("output", format!("{output:?}")),
        ("scratch", scratch.to_string()),
        ("slots", format!("ll {}, ll128 {}, slots {}", slots.ll, slots.ll128, slots.slots)),
    ]
}

/// Prints where a rank's steps differ. Whether they do.
fn rank_differs(rank: usize, old: &ScheduleFile, new: &ScheduleFile, context: usize) -> bool {
    let [before, after] = [old, new].map(|file| {
        let list = file.schedule.ranks.get(rank);
        list.into_iter().flatten().map(ToString::to_string).collect::<Vec<String>>()
    });
    let ops = capture_diff_slices(Algorithm::Myers, &before, &after);
    if ops.iter().all(|op| matches!(op, DiffOp::Equal { .. })) {
        return false;
    }
    println!("\nrank {rank}: {} steps -> {} steps", before.len(), after.len());
    for (number, group) in group_diff_ops(ops, context).into_iter().enumerate() {
        if number > 0 {
            println!("         …");
        }
        for op in group {
            let (tag, old_steps, new_steps) = op.as_tag_tuple();
            if tag == similar::DiffTag::Equal {
                print(" ", (rank, new_steps), &after, &new.notes);
            } else {
                print("-", (rank, old_steps), &before, &old.notes);
                print("+", (rank, new_steps), &after, &new.notes);
            }
        }
    }
    true
}

fn print(sign: &str, (rank, steps): (usize, Range<usize>), list: &[String], notes: &Notes) {
    for step in steps {
        match notes.step(rank, step) {
            Some(note) => println!("{sign} {step:>6}  {}    # {note}", list[step]),
            None => println!("{sign} {step:>6}  {}", list[step]),
        }
    }
}
