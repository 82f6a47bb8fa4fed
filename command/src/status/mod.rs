//! `oxccl status`: what the ranks of a job are doing.

mod prometheus;

use clap::Args;
use oxccl::status::{Found, RankSeen, Snapshot, of_all, of_process};

use crate::failure::Failure;
use crate::seen::{by_communicator, name, ranks, stragglers, verdict};
use crate::speak::{complain, say};

/// Prints what the ranks of a job are doing, whether they run or hang: each one's call, step and
/// wait, and who holds up the others.
///
/// It reads what ranks keep in memory anyway, so that looking costs them nothing, and they need not
/// be able to answer. It sees the ranks of this machine whose processes it may trace: as a rule
/// those of the same user, or all for root. With OXCCL_CALL_TIMES=1 it also prints who comes late
/// to calls.
#[derive(Args)]
pub(crate) struct StatusOptions {
    /// A rank's process, or one that has started it, such as `oxccl run`; or a job, by the name
    /// that is printed. All ranks without.
    #[arg(value_name = "PID|JOB")]
    target: Option<String>,
    /// Prints an array with an object for each rank.
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Prints metrics in Prometheus' text format.
    #[arg(long)]
    prometheus: bool,
}

pub(crate) fn main(options: &StatusOptions) -> Result<(), Failure> {
    let found = find(options.target.as_deref())?;
    found.refused.iter().for_each(complain);
    match (options.json, options.prometheus) {
        (true, _) => say!("{}", serde_json::to_string_pretty(&found.ranks).unwrap_or_default()),
        (_, true) => say!("{}", prometheus::metrics(&found.ranks).trim_end()),
        _ => say!("{}", text(found.ranks).trim_end()),
    }
    Ok(())
}

/// The ranks that are meant.
fn find(target: Option<&str>) -> Result<Found, Failure> {
    let Some(target) = target else { return Ok(of_all()) };
    let is_job = target.len() == 8 && target.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (found, place) = if is_job {
        let mut found = of_all();
        found.ranks.retain(|rank| rank.job.eq_ignore_ascii_case(target));
        (found, format!("in job {target}, as far as this user may look"))
    } else if let Ok(process) = target.parse() {
        (of_process(process)?, format!("in process {target}, or in what it has started"))
    } else {
        let detail =
            format!("{target:?} is neither a process nor a job: a number, or 8 hexadecimal digits");
        return Err(Failure::Usage(detail));
    };
    if found.ranks.is_empty() {
        found.refused.iter().for_each(complain);
        return Err(Failure::NoRank(place));
    }
    Ok(found)
}

fn text(all: Vec<Snapshot>) -> String {
    if all.is_empty() {
        return "no rank of oxccl runs here".to_owned();
    }
    let told = by_communicator(all).into_iter().map(|snapshots| {
        let (found, one) = (verdict(&snapshots), &snapshots[0]);
        let seen: Vec<&RankSeen> = found.ranks.iter().map(|(seen, _)| *seen).collect();
        let count = match found.missing.len() {
            0 => String::new(),
            _ => format!(", {} of which run here", seen.len()),
        };
        let (name, host, world) = (name(one), &one.host, one.world);
        let mut text = format!("{name} on {host}: {world} ranks{count}\n{}", ranks(&found.ranks));
        text += &format!("\n{}\n", found.text);
        if let Some(table) = stragglers(&seen) {
            text += &format!("\n{table}");
        }
        text
    });
    told.collect::<Vec<_>>().join("\n")
}
