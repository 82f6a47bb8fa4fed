//! Who is at fault, as far as what was seen of a communicator's ranks tells.
//!
//! Ranks that have failed say whom they blame, and how they saw it. Where none has failed, the one
//! that others wait for, and that waits for nobody itself, holds them up.

use super::table::waits_for;
use super::{listed, time};
use oxccl::status::{CallSeen, Ended, ProcessState, RankSeen, Snapshot};
use std::collections::{BTreeMap, BTreeSet};

/// Who is at fault.
#[derive(Debug)]
pub(crate) struct Verdict<'a> {
    /// The ranks at fault; none if nobody is.
    pub(crate) culprits: Vec<usize>,
    /// It in sentences.
    pub(crate) text: String,
    /// Ranks of which there is no snapshot of their own.
    pub(crate) missing: Vec<usize>,
    /// Each rank that was seen, and by whom, where not by itself.
    pub(crate) ranks: Vec<(&'a RankSeen, Option<usize>)>,
}

/// The verdict over the snapshots of one communicator.
pub(crate) fn verdict(all: &[Snapshot]) -> Verdict<'_> {
    let seen = merged(all);
    let world = all.iter().map(|one| one.world).max().unwrap_or(0);
    let own: BTreeSet<usize> = all.iter().map(|one| one.seen.rank).collect();
    let missing = (0..world).filter(|rank| !own.contains(rank)).collect();
    let ranks: Vec<(&RankSeen, Option<usize>)> = seen.into_values().collect();
    let (culprits, text) = match first_failure(all) {
        Some((snapshot, ended)) => failed(snapshot, ended, &ranks),
        None => held_up(&ranks),
    };
    Verdict { culprits, text, missing, ranks }
}

/// Each rank as it saw itself, or else as another saw it that could read its memory, or has heard
/// of it last.
fn merged(all: &[Snapshot]) -> BTreeMap<usize, (&RankSeen, Option<usize>)> {
    let others = all.iter().flat_map(|one| one.others.iter().map(move |other| (other, one)));
    let mut others: Vec<_> = others.collect();
    others.sort_by_key(|(other, one)| (!other.is_told, one.at_ns));
    let others = others.into_iter().map(|(other, one)| (other.rank, (other, Some(one.seen.rank))));
    others.chain(all.iter().map(|one| (one.seen.rank, (&one.seen, None)))).collect()
}

/// The failure of which the others have heard, as far as it is there.
fn first_failure(all: &[Snapshot]) -> Option<(&Snapshot, &Ended)> {
    let failed = all.iter().filter_map(|one| Some((one, one.ended.as_ref()?)));
    failed.min_by_key(|(one, ended)| (ended.told_by.is_some(), one.at_ns))
}

/// A rank has failed.
fn failed(
    by: &Snapshot,
    ended: &Ended,
    ranks: &[(&RankSeen, Option<usize>)],
) -> (Vec<usize>, String) {
    let (noticed, error) = (by.seen.rank, &ended.error);
    let said = match ended.told_by {
        None => format!("Rank {noticed} noticed it on {}: {error}.", by.host),
        Some(teller) => format!("Rank {noticed} was told by rank {teller}: {error}."),
    };
    let all: Vec<&RankSeen> = ranks.iter().map(|(seen, _)| *seen).collect();
    let (culprits, why) = differing(&all).unwrap_or_else(|| {
        // As it was then: it may have come since.
        let then = by.others.iter().chain([&by.seen]);
        let at_fault: Vec<_> = then.filter(|seen| ended.ranks.contains(&seen.rank)).collect();
        (ended.ranks.clone(), blamed(&at_fault, by.seen.last()))
    });
    (culprits, format!("{why} {said}").trim_start().to_owned())
}

/// No rank has failed: who holds the others up.
fn held_up(ranks: &[(&RankSeen, Option<usize>)]) -> (Vec<usize>, String) {
    let all: Vec<&RankSeen> = ranks.iter().map(|(seen, _)| *seen).collect();
    if let Some(differing) = differing(&all) {
        return differing;
    }
    let waiting: Vec<&RankSeen> = all.iter().copied().filter(|seen| waits(seen)).collect();
    let longest = waiting.iter().filter_map(|seen| seen.waiting_s).fold(0.0, f64::max);
    let newest = waiting.iter().filter_map(|seen| seen.last()).max_by_key(|call| call.collective);
    let stopped = |seen: &&RankSeen| {
        matches!(seen.state, Some(ProcessState::Stopped | ProcessState::Ended)) && !seen.is_closed
    };
    let mut culprits: Vec<&RankSeen> = all.iter().copied().filter(stopped).collect();
    if culprits.is_empty() && longest < LONG_S {
        return (Vec::new(), "No rank has waited for long.".to_owned());
    }
    if culprits.is_empty() {
        let peers: BTreeSet<usize> = waiting
            .iter()
            .flat_map(|seen| seen.waits.iter().filter_map(|wait| wait.wait_for.peer()))
            .collect();
        let behind = |seen: &RankSeen| {
            newest.is_some_and(|call| call.collective > 0 && seen.collective() < call.collective)
        };
        let at_fault =
            |seen: &&RankSeen| !waits(seen) && (behind(seen) || peers.contains(&seen.rank));
        culprits = all.iter().copied().filter(at_fault).collect();
    }
    if culprits.is_empty() {
        let computes = |seen: &&RankSeen| seen.waits.iter().any(|w| w.wait_for.peer().is_none());
        culprits = waiting.iter().copied().filter(computes).collect();
    }
    let held: Vec<usize> = waiting.iter().map(|seen| seen.rank).collect();
    let held: Vec<usize> =
        held.into_iter().filter(|rank| culprits.iter().all(|seen| seen.rank != *rank)).collect();
    let why = match culprits[..] {
        [] => "None that is seen holds the others up: it may be one that is not seen.".to_owned(),
        _ => blamed(&culprits, newest),
    };
    let wait = match held.len() {
        0 => String::new(),
        1 => format!(" {} has waited for {}.", capital(&held), time(longest)),
        _ => format!(" {} have waited for up to {}.", capital(&held), time(longest)),
    };
    (culprits.iter().map(|seen| seen.rank).collect(), why + &wait)
}

/// A shorter wait is nothing to speak of.
const LONG_S: f64 = 0.1;

/// Whether a rank waits for another, or for its program.
fn waits(seen: &RankSeen) -> bool {
    seen.is_inside && (!seen.waits.is_empty() || seen.last().is_some_and(|call| call.is_meeting))
}

/// Who is at fault, in sentences, of a call that others wait in.
fn blamed(culprits: &[&RankSeen], awaited: Option<&CallSeen>) -> String {
    match culprits {
        [] => String::new(),
        [one] => format!("Rank {} is at fault: it {}.", one.rank, described(one, awaited)),
        some => {
            let ranks: Vec<usize> = some.iter().map(|seen| seen.rank).collect();
            let each = some
                .iter()
                .map(|seen| format!(" Rank {} {}.", seen.rank, described(seen, awaited)));
            format!("{} are at fault.{}", capital(&ranks), each.collect::<String>())
        }
    }
}

/// Ranks at the beginning of a sentence.
fn capital(ranks: &[usize]) -> String {
    let mut text = listed(ranks);
    text[..1].make_ascii_uppercase();
    text
}

/// The first call of all ranks that is another on some.
fn differing(all: &[&RankSeen]) -> Option<(Vec<usize>, String)> {
    let numbers: BTreeSet<u64> = all
        .iter()
        .flat_map(|seen| seen.calls.iter().map(|call| call.collective))
        .filter(|number| *number > 0)
        .collect();
    numbers.into_iter().find_map(|number| {
        let made: Vec<(usize, &CallSeen)> = all
            .iter()
            .filter_map(|seen| {
                let call = seen.calls.iter().find(|call| call.collective == number)?;
                Some((seen.rank, call))
            })
            .collect();
        let alike = |one: &CallSeen| made.iter().filter(|(_, other)| same(one, other)).count();
        // What most have called is right.
        let (_, right) = made.iter().rev().max_by_key(|(_, call)| alike(call))?;
        let odd: Vec<_> = made.iter().filter(|(_, call)| !same(right, call)).collect();
        let (rank, theirs) = odd.first()?;
        let most = 2 * alike(right) > made.len();
        let at_fault = if most { &odd.iter().map(|made| **made).collect() } else { &made };
        let ranks = at_fault.iter().map(|(rank, _)| *rank).collect();
        let text = format!(
            "Call #{number} differs: rank {rank} has {}, {} of {} ranks {}.",
            theirs.text,
            alike(right),
            made.len(),
            right.text
        );
        Some((ranks, text))
    })
}

/// Whether two calls are the same to all ranks, as far as it is told.
fn same(one: &CallSeen, other: &CallSeen) -> bool {
    (&one.text, &one.op, one.root) == (&other.text, &other.op, other.root)
}

/// What is to be said of a rank at fault, and of the call that others wait in.
fn described(seen: &RankSeen, awaited: Option<&CallSeen>) -> String {
    let process = seen.process.map_or(String::new(), |process| format!(" (process {process})"));
    let is = match seen.state {
        Some(ProcessState::Stopped) => format!("is stopped{process}"),
        Some(ProcessState::Ended) => format!("has ended{process}"),
        _ if seen.is_closed => "has closed its communicator".to_owned(),
        Some(_) => format!("lives{process}"),
        None if seen.is_told => "is of another node".to_owned(),
        None => "is there".to_owned(),
    };
    let last = seen.last().map_or("a call".to_owned(), |call| call.name());
    let behind = awaited.filter(|call| call.collective > seen.collective());
    let place = match (seen.is_inside, behind, seen.waits.first()) {
        (true, _, Some(wait)) => format!("inside {last}, where it waits {}", waits_for(wait)),
        (true, _, None) => format!("inside {last}, where it waits for nobody"),
        (false, Some(call), _) if seen.entered == 0 => {
            format!("and has not called {}, nor anything before", call.name())
        }
        (false, Some(call), _) => {
            format!("and has not called {}; its last call was {last}", call.name())
        }
        (false, None, _) if seen.entered == 0 => "and has called nothing".to_owned(),
        (false, None, _) => format!("between calls; its last was {last}"),
    };
    format!("{is}, {place}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A rank that has made so many calls of all ranks.
    fn rank(rank: usize, calls: u64) -> Value {
        let call = |number: u64| json!({"number": number, "collective": number, "text": "barrier", "is_meeting": false});
        json!({
            "rank": rank, "process": 100 + rank, "state": "alive", "is_told": false,
            "entered": calls, "is_inside": false, "is_closed": false, "has_failed": false, "waits": [],
            "calls": (1..=calls).map(call).collect::<Vec<_>>(),
        })
    }

    /// One that waits for another.
    fn waiting(own: usize, calls: u64, peer: usize) -> Value {
        let mut seen = rank(own, calls);
        seen["is_inside"] = true.into();
        seen["waiting_s"] = 2.0.into();
        seen["waits"] = json!([{"channel": 0, "step": 4, "for": "data", "peer": peer}]);
        seen
    }

    fn snapshot(seen: Value, others: &[Value], ended: Option<Value>) -> Snapshot {
        let world = 3;
        serde_json::from_value(json!({
            "oxccl": "0", "job": "a", "communicator": "a", "world": world, "host": "h", "at_ns": 1,
            "ended": ended, "seen": seen, "others": others,
        }))
        .expect("it is one")
    }

    fn alone(seen: [Value; 3]) -> Vec<Snapshot> {
        seen.into_iter().map(|seen| snapshot(seen, &[], None)).collect()
    }

    #[track_caller]
    fn is(all: &[Snapshot], culprits: &[usize], says: &str) {
        let found = verdict(all);
        assert_eq!(found.culprits, culprits, "{}", found.text);
        assert!(found.text.contains(says), "{}", found.text);
    }

    #[test]
    fn who_holds_the_others_up_is_found() {
        let moving = alone([rank(0, 5), rank(1, 5), rank(2, 5)]);
        is(&moving, &[], "No rank has waited for long.");
        let behind = alone([waiting(0, 5, 2), waiting(1, 5, 0), rank(2, 4)]);
        is(
            &behind,
            &[2],
            "has not called barrier #5; its last call was barrier #4. Ranks 0 and 1 have waited",
        );
        let nothing = alone([waiting(0, 1, 1), waiting(1, 1, 2), rank(2, 0)]);
        is(&nothing, &[2], "has not called barrier #1, nor anything before");
        let mut busy = rank(1, 5);
        busy["is_inside"] = true.into();
        let busy = alone([waiting(0, 5, 1), busy, waiting(2, 5, 1)]);
        is(&busy, &[1], "inside barrier #5, where it waits for nobody");
        let mut bucket = waiting(1, 5, 0);
        bucket["waits"] = json!([{"channel": 0, "step": 0, "for": "bucket", "bucket": 7}]);
        let bucket = alone([waiting(0, 5, 1), bucket, waiting(2, 5, 1)]);
        is(&bucket, &[1], "where it waits for bucket 7 to be marked ready");
        let circle = alone([waiting(0, 5, 1), waiting(1, 5, 2), waiting(2, 5, 0)]);
        is(&circle, &[], "it may be one that is not seen");
        let mut stopped = waiting(1, 5, 2);
        stopped["state"] = "stopped".into();
        let stopped = alone([waiting(0, 5, 1), stopped, waiting(2, 5, 1)]);
        is(&stopped, &[1], "Rank 1 is at fault: it is stopped (process 101)");
    }

    #[test]
    fn calls_that_differ_are_found_by_what_most_have_called() {
        let mut odd = rank(1, 5);
        odd["calls"][3]["text"] = "scatter".into();
        is(
            &alone([rank(0, 5), odd.clone(), rank(2, 5)]),
            &[1],
            "Call #4 differs: rank 1 has scatter",
        );
        let two = vec![snapshot(rank(0, 5), &[], None), snapshot(odd, &[], None)];
        is(&two, &[0, 1], "1 of 2 ranks barrier");
    }

    #[test]
    fn who_has_failed_first_is_believed_as_it_was_then() {
        let ended = |told_by: Option<usize>| json!({"error": "it timed out", "ranks": [2], "told_by": told_by});
        let first = snapshot(waiting(1, 5, 2), &[rank(0, 5), rank(2, 4)], Some(ended(None)));
        let told = snapshot(waiting(0, 5, 2), &[rank(1, 5), rank(2, 5)], Some(ended(Some(1))));
        // It has come since.
        let late = snapshot(waiting(2, 5, 0), &[], Some(ended(Some(1))));
        let all = [told, first, late];
        is(
            &all,
            &[2],
            "has not called barrier #5; its last call was barrier #4. Rank 1 noticed it on h: it timed out.",
        );
        is(&all[..1], &[2], "Rank 0 was told by rank 1: it timed out.");
        assert_eq!(verdict(&all[..1]).missing, [1, 2]);
        assert!(verdict(&all).missing.is_empty());
    }
}
