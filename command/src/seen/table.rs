//! Ranks as tables.

use super::time;
use oxccl::status::{CallTimes, ProcessState, RankSeen, WaitFor, WaitSeen, lateness_s};
use std::fmt::Write;

/// A line for each rank; of those that another has seen, which.
pub(crate) fn ranks(rows: &[(&RankSeen, Option<usize>)]) -> String {
    let mut text = format!("{:>6} {:>9} {:>8} {:>9}  doing\n", "rank", "process", "state", "calls");
    for (seen, by) in rows {
        let process = seen.process.map_or("-".to_owned(), |process| process.to_string());
        let state = state(seen);
        let by = by.map_or(String::new(), |by| format!(" (as rank {by} saw it)"));
        let (rank, calls, doing) = (seen.rank, seen.entered, doing(seen));
        let _ = writeln!(text, "{rank:>6} {process:>9} {state:>8} {calls:>9}  {doing}{by}");
    }
    text
}

fn state(seen: &RankSeen) -> &'static str {
    match seen.state {
        Some(ProcessState::Alive) => "alive",
        Some(ProcessState::Stopped) => "stopped",
        Some(ProcessState::Ended) => "ended",
        _ => "unknown",
    }
}

/// What a rank is doing.
fn doing(seen: &RankSeen) -> String {
    let last = seen.last().map_or("a call".to_owned(), |call| call.name());
    let since = seen.waiting_s.map_or(String::new(), |waited| format!(", for {}", time(waited)));
    match (seen.is_closed, seen.is_inside, seen.waits.first()) {
        (true, ..) => "closed".to_owned(),
        (_, false, _) if seen.has_failed => format!("has failed in or after {last}"),
        (_, true, Some(wait)) => format!("waits in {last} {}{since}", waits_for(wait)),
        (_, true, None) => format!("in {last}{since}"),
        (_, false, _) if seen.entered == 0 => "has called nothing yet".to_owned(),
        (_, false, _) => format!("between calls; the last was {last}"),
    }
}

/// Where a call waits, and what for.
pub(super) fn waits_for(wait: &WaitSeen) -> String {
    let step = wait.step;
    match wait.wait_for {
        WaitFor::Data { peer } => format!("at step {step} for data from rank {peer}"),
        WaitFor::FreeSlot { peer } => format!("at step {step} for a free slot from rank {peer}"),
        WaitFor::Bucket { bucket } => format!("for bucket {bucket} to be marked ready"),
        _ => format!("at step {step}"),
    }
}

/// Who comes late to calls, the latest first; nothing if no times are kept.
pub(crate) fn stragglers(seen: &[&RankSeen]) -> Option<String> {
    let timed: Vec<(usize, CallTimes)> =
        seen.iter().filter_map(|seen| Some((seen.rank, seen.times?))).collect();
    let calls = timed.iter().map(|(_, times)| times.calls).max().filter(|calls| *calls > 0)?;
    let times: Vec<CallTimes> = timed.iter().map(|(_, times)| *times).collect();
    let mut rows: Vec<_> = timed.iter().zip(lateness_s(&times)).collect();
    rows.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let mut text = format!(
        "stragglers of {calls} calls, by how much less they waited than who came first\n{:>6} {:>12} {:>12}\n",
        "rank", "late a call", "in a call"
    );
    for ((rank, times), late) in rows {
        let (late, mean) = (time(late), time(times.mean_s()));
        let _ = writeln!(text, "{rank:>6} {late:>12} {mean:>12}");
    }
    Some(text)
}
