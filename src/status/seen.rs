//! What is seen of a rank: plain data, as JSON in files.

use super::clock::Clock;
use super::process;
use crate::call::{Record, What};
use crate::device::{ControlCopy, Facts};
use crate::error::Error;
use oxccl_kernels::format as f;
use serde::{Deserialize, Serialize};

/// The calls that are shown of a rank, at most; its log has twice as many.
const CALLS: u64 = 64;
/// The same of each other rank, in a file that has all of them.
pub(super) const CALLS_OF_OTHERS: u64 = 8;

/// One rank at some moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// The release of oxccl that wrote it.
    pub oxccl: String,
    /// The job: the communicator by which it started.
    pub job: String,
    /// The communicator: the job's, or a part of it.
    pub communicator: String,
    /// How many ranks there are.
    pub world: usize,
    /// The machine.
    pub host: String,
    /// When, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Why the communicator has ended, where this was made because it has.
    pub ended: Option<Ended>,
    /// The rank.
    pub seen: RankSeen,
    /// The other ranks, as this one saw them; none where it was looked at from outside.
    pub others: Vec<RankSeen>,
}

/// Why a communicator has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ended {
    /// What the error says.
    pub error: String,
    /// The ranks that are at fault, as far as the error names them.
    pub ranks: Vec<usize>,
    /// The rank that had told of it, where this one has only heard.
    pub told_by: Option<usize>,
}

/// What is seen of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RankSeen {
    /// The rank.
    pub rank: usize,
    /// Its process; unknown of a rank of another machine.
    pub process: Option<u32>,
    /// How that is, where it can be seen.
    pub state: Option<ProcessState>,
    /// Whether it is of another node: it is then what the rank has last told.
    pub is_told: bool,
    /// Calls that it has made: groups count as one.
    pub entered: u64,
    /// Whether the last one has yet to end.
    pub is_inside: bool,
    /// Whether it has closed the communicator.
    pub is_closed: bool,
    /// Whether the communicator has failed on it.
    pub has_failed: bool,
    /// For how long the last call has been waiting, in seconds, once that is noticed.
    pub waiting_s: Option<f64>,
    /// What it waits for, by channel.
    pub waits: Vec<WaitSeen>,
    /// How long its calls took, where times are kept.
    pub times: Option<CallTimes>,
    /// Its last calls, the newest last.
    pub calls: Vec<CallSeen>,
}

/// How a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProcessState {
    /// It runs, or sleeps.
    Alive,
    /// A signal or a debugger has stopped it.
    Stopped,
    /// It has ended.
    Ended,
}

/// What a channel of a rank waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WaitSeen {
    /// The channel.
    pub channel: usize,
    /// The step of the schedule, as `oxccl explain` numbers them.
    pub step: u32,
    /// What for.
    #[serde(flatten)]
    pub wait_for: WaitFor,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "for", rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitFor {
    /// A message of a rank.
    Data {
        /// The rank.
        peer: usize,
    },
    /// That a rank has read earlier messages.
    FreeSlot {
        /// The rank.
        peer: usize,
    },
    /// That the program marks a bucket ready.
    Bucket {
        /// The bucket.
        bucket: u64,
    },
}

/// A call of a rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallSeen {
    /// Its number among the rank's calls.
    pub number: u64,
    /// Its number among the calls that all ranks make; 0 for messages alone.
    pub collective: u64,
    /// It in a few words.
    pub text: String,
    /// The collective, where it is one call.
    pub kind: Option<String>,
    /// Its element type.
    pub data_type: Option<String>,
    /// Its elements.
    pub count: Option<u64>,
    /// Its operation, where it reduces.
    pub op: Option<String>,
    /// Its root, where it has one.
    pub root: Option<u32>,
    /// Whether all ranks meet in it beside the machine, so that it has no steps: to close, to
    /// split, to tell each other something.
    pub is_meeting: bool,
    /// When it began, in nanoseconds since 1970, where times are kept.
    pub began_ns: Option<u64>,
    /// How long it took.
    pub took_ns: Option<u64>,
}

/// How long calls of a rank took, in seconds: those that no rank leaves before all have come.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallTimes {
    /// How many calls.
    pub calls: u64,
    /// How long all of them took together.
    pub total_s: f64,
}

impl CallTimes {
    pub(crate) fn of(calls: u64, total_ns: u64) -> CallTimes {
        CallTimes { calls, total_s: total_ns as f64 / 1e9 }
    }

    /// How long a call took on average.
    pub fn mean_s(&self) -> f64 {
        if self.calls == 0 { 0.0 } else { self.total_s / self.calls as f64 }
    }
}

/// How much later than the one that comes first each rank has come to a call, on average, in
/// seconds: as much as it has waited less.
pub fn lateness_s(times: &[CallTimes]) -> Vec<f64> {
    let longest = times.iter().map(CallTimes::mean_s).fold(0.0, f64::max);
    times.iter().map(|one| longest - one.mean_s()).collect()
}

impl Snapshot {
    /// One of a rank that looks at itself, or is looked at from outside.
    pub(super) fn new(facts: &Facts, copy: &ControlCopy, clock: Clock) -> Snapshot {
        let Facts { label, rank, world, .. } = *facts;
        Snapshot {
            oxccl: env!("CARGO_PKG_VERSION").to_owned(),
            job: format!("{:08x}", label.job),
            communicator: format!("{:08x}", label.communicator),
            world,
            host: host(),
            at_ns: clock.unix_ns,
            ended: None,
            seen: RankSeen::new(rank, copy, clock, CALLS),
            others: Vec::new(),
        }
    }

    /// Whether it is of a part of the job's ranks.
    pub fn is_part(&self) -> bool {
        self.job != self.communicator
    }
}

impl Ended {
    pub(super) fn of(error: &Error) -> Ended {
        let told_by = match error {
            Error::Stopped { rank, .. } => Some(*rank),
            _ => None,
        };
        let mut ranks = error.ranks();
        if let Error::Mismatch { .. } | Error::LinkLost { .. } | Error::Corrupted { .. } = error {
            // The other one is who has noticed.
            ranks.truncate(1);
        }
        Ended { error: error.to_string(), ranks, told_by }
    }
}

impl RankSeen {
    /// What a copy of a rank's memory says of it, and of so many calls.
    pub(super) fn new(rank: usize, copy: &ControlCopy, clock: Clock, calls: u64) -> RankSeen {
        let (log, badge) = (copy.log(), copy.badge());
        let (facts, entered, is_inside) = (badge.facts(), log.entered(), log.is_inside());
        let state = facts.and_then(|facts| process::state_of(facts.process, facts.process_started));
        let has_times = facts.is_some_and(|facts| facts.has_times);
        let times = has_times.then(|| {
            let took = badge.took();
            CallTimes::of(took.calls, took.total_ns)
        });
        // Calls are left in turn.
        let since = badge.waiting_since_ns(log.left() + 1).filter(|_| is_inside);
        let last = entered.saturating_sub(calls - 1).max(1)..=entered;
        let calls = last.filter_map(|number| {
            let record = Record::decode(&log.record(number)?)?;
            let (began, ended) = if has_times { badge.times(number) } else { (None, None) };
            Some(CallSeen {
                number,
                began_ns: began.map(|began| clock.unix_ns_of(began)),
                took_ns: began.zip(ended).map(|(began, ended)| ended.saturating_sub(began)),
                ..CallSeen::of(&record)
            })
        });
        let calls = calls.collect();
        // What was awaited when a call was stopped stays written.
        let waits = copy.waits().filter(|(_, wait)| wait.call > log.left()).map(WaitSeen::new);
        RankSeen {
            rank,
            process: facts.map(|facts| facts.process),
            state,
            is_told: facts.is_none(),
            entered,
            is_inside,
            is_closed: log.is_closed(),
            has_failed: badge.has_failed(),
            waiting_s: since.map(|since| clock.seconds_since(since)),
            waits: waits.collect(),
            times,
            calls,
        }
    }

    /// Its last call.
    pub fn last(&self) -> Option<&CallSeen> {
        self.calls.last().filter(|call| call.number == self.entered)
    }

    /// The number of the last call of all ranks that it has made.
    pub fn collective(&self) -> u64 {
        self.calls.iter().map(|call| call.collective).max().unwrap_or(0)
    }
}

impl WaitSeen {
    fn new((channel, wait): (usize, f::Progress)) -> WaitSeen {
        let peer = wait.peer as usize;
        let wait_for = match (wait.lane == f::LANE_READY, wait.head) {
            (true, _) => WaitFor::Bucket { bucket: wait.awaited },
            (false, 0) => WaitFor::Data { peer },
            (false, _) => WaitFor::FreeSlot { peer },
        };
        WaitSeen { channel, step: wait.step, wait_for }
    }
}

impl WaitFor {
    /// The rank that is waited for, if one is.
    pub fn peer(&self) -> Option<usize> {
        match self {
            WaitFor::Data { peer } | WaitFor::FreeSlot { peer } => Some(*peer),
            WaitFor::Bucket { .. } => None,
        }
    }
}

impl CallSeen {
    fn of(record: &Record) -> CallSeen {
        let call = CallSeen {
            collective: record.collective,
            text: record.text(),
            is_meeting: matches!(record.what, What::Meeting(_)),
            ..CallSeen::default()
        };
        let What::Call(signature) = &record.what else { return call };
        let kind = signature.kind;
        CallSeen {
            kind: Some(kind.to_string()),
            data_type: Some(signature.data_type.name().to_owned()),
            count: Some(signature.count),
            op: kind.reduces().then(|| signature.op.name().to_owned()),
            root: kind.is_rooted().then_some(signature.root),
            ..call
        }
    }

    /// The call with its number, as errors name it.
    pub fn name(&self) -> String {
        match self.collective {
            0 => self.text.clone(),
            number => format!("{} #{number}", self.text),
        }
    }
}

/// This machine's name.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
