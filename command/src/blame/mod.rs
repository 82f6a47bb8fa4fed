//! `oxccl blame`: who is at fault, by the files that ranks have left.

use std::path::PathBuf;

use clap::Args;
use oxccl::status::{RankSeen, Snapshot, read};
use serde::Serialize;

use crate::failure::Failure;
use crate::seen::{Verdict, by_communicator, listed, name, ranks, stragglers, verdict};
use crate::speak::{self, say};

/// Names the rank at fault, by the files that the ranks of a failed job have left.
///
/// Ranks leave files in the folder that OXCCL_FLIGHT_RECORDER names: when their communicator fails,
/// and with OXCCL_FLIGHT_SIGNAL=1 also when SIGUSR1 comes. Those of some ranks are enough to begin
/// with: each has what its rank saw of the others, and that a file is missing tells something, too.
#[derive(Args)]
pub(crate) struct BlameOptions {
    /// The files, of any number of jobs.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Prints an object for each communicator.
    #[arg(long)]
    json: bool,
}

/// A verdict as JSON.
#[derive(Serialize)]
struct Told<'a> {
    job: &'a str,
    communicator: &'a str,
    world: usize,
    culprits: &'a [usize],
    text: &'a str,
    missing: &'a [usize],
    ranks: Vec<&'a RankSeen>,
}

pub(crate) fn main(options: &BlameOptions) -> Result<(), Failure> {
    let all: Vec<Snapshot> =
        options.files.iter().map(|file| read(file)).collect::<Result<_, _>>()?;
    for snapshots in by_communicator(all) {
        let found = verdict(&snapshots);
        match options.json {
            true => say!("{}", json(&snapshots[0], &found)),
            false => say!("{}", text(&snapshots, &found)),
        }
    }
    Ok(())
}

fn json(one: &Snapshot, found: &Verdict<'_>) -> String {
    let Verdict { culprits, text, missing, ranks } = found;
    let told = Told {
        job: &one.job,
        communicator: &one.communicator,
        world: one.world,
        culprits,
        text,
        missing,
        ranks: ranks.iter().map(|(seen, _)| *seen).collect(),
    };
    speak::json(&told)
}

fn text(snapshots: &[Snapshot], found: &Verdict<'_>) -> String {
    let (name, world) = (name(&snapshots[0]), snapshots[0].world);
    let mut text =
        format!("{name}: files of {} of {world} ranks\n\n{}\n", snapshots.len(), found.text);
    if let [_, ..] = found.missing[..] {
        text += &format!(
            "There is no file of {}: a rank that is stopped, was killed, or has made no call since leaves none.\n",
            listed(&found.missing)
        );
    }
    text += &format!("\n{}", ranks(&found.ranks));
    let seen: Vec<&RankSeen> = found.ranks.iter().map(|(seen, _)| *seen).collect();
    if let Some(table) = stragglers(&seen) {
        text += &format!("\n{table}");
    }
    text
}
