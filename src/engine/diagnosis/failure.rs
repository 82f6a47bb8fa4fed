//! What went wrong: reads the other ranks' call logs and progress, names the culprit, and ends the
//! communicator on all ranks.
//!
//! # Buffers of a call that has failed
//!
//! Before a failed call returns, this rank waits until no living rank of its node is inside a call:
//! then nobody touches its buffers. All have been told the cause before, so they only finish what
//! they copy. What if one does not, since its process is stopped?
//!
//! - Ranks of other processes reach no memory of the caller's own, but what is in slots, and what
//!   `comm.alloc` gave. The wait ends with the time-out; the error says which rank was not awaited,
//!   and that part of the heap is not given out again ([`Heap::retire`]). Buffers of `comm.alloc`
//!   may change until that rank has ended.
//! - Ranks that are threads of one process write straight to the caller's memory. There the wait
//!   has no end: a thread is not stopped by itself, so it comes out, and the caller's memory must
//!   not be given up before.
//! - On GPUs the wait ends with the time-out, too: what may still run there is a kernel that has
//!   been told to stop.

use super::poll::Poll;
use super::{buckets, logs};
use crate::call::Record;
use crate::config::{Config, patience};
use crate::device::{Control, Heap};
use crate::error::{Error, First};
use crate::status::FlightRecorder;
use crate::target::Device;
use oxccl_kernels::format as f;
use oxccl_transports::user_signal::{Listen, listens_to_signal};
use oxccl_transports::{Cause, Liveness, Reach};
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long at least a failed rank waits for others to leave their calls, where it has waited for
/// the whole time-out before.
const QUIET_LEAST: Duration = Duration::from_secs(1);

/// Whoever waits longer than this for others to leave their calls says so.
const QUIET_SOON: Duration = Duration::from_millis(200);

/// How long the others are watched when the time-out has passed. A wait asks the poll function at
/// least every few milliseconds; a busy machine may keep a thread from running for some more.
const WATCHED: Duration = Duration::from_millis(300);

/// How long the logs may need to show a mismatch of which a message has told.
const LOGS: Duration = Duration::from_secs(2);

/// How long it may take until a process whose memory has gone is known to have ended.
const END: Duration = Duration::from_secs(2);

/// How long to wait for the answers of ranks of other nodes, where nobody else has said what
/// happened.
const ANSWERS: Duration = Duration::from_millis(300);

/// What a channel that did not end well has found.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Odd {
    /// Of which rank.
    pub(in crate::engine) peer: usize,
    /// As in [`f::Status`].
    pub(in crate::engine) found: u32,
}

impl Odd {
    pub(in crate::engine) fn of(status: &f::Status) -> Odd {
        Odd { peer: status.peer as usize, found: status.found }
    }
}

/// What a rank waits for.
struct Waiting {
    text: String,
    peer: usize,
    /// It is that its own program marks a bucket.
    is_own: bool,
}

/// All ranks, as one of them sees them while its calls run.
#[derive(Debug)]
pub(in crate::engine) struct Ranks {
    pub(in crate::engine) rank: usize,
    pub(in crate::engine) control: Arc<Control>,
    pub(in crate::engine) liveness: Arc<Liveness>,
    /// What waits ask.
    pub(in crate::engine) poll: Poll,
    /// What `comm.alloc` gives, where other ranks may write.
    heap: Arc<Heap>,
    /// Whether others write to memory that the caller alone gives up.
    are_threads: bool,
    /// Why this communicator ended.
    failed: OnceLock<First>,
    /// It has what is given back to the heap kept.
    keeps_heap: AtomicBool,
    /// It is being ended by a thread that makes none of its calls.
    aborted: AtomicBool,
    /// Who writes down what this rank was doing when it fails, where that is wanted.
    recorder: Option<FlightRecorder>,
}

impl Ranks {
    pub(in crate::engine) fn new(
        rank: usize,
        control: Arc<Control>,
        liveness: Arc<Liveness>,
        heap: Arc<Heap>,
        (reach, config): (Reach, &Config),
    ) -> Result<Ranks, Error> {
        let poll = Poll::new(liveness.clone(), control.clone(), rank, config.timeout);
        let are_threads = reach == Reach::SameProcess && config.device == Device::Host;
        let (failed, aborted) = (OnceLock::new(), AtomicBool::new(false));
        let keeps_heap = AtomicBool::new(false);
        let recorder = config.flight_recorder.as_deref().map(FlightRecorder::new).transpose()?;
        Ok(Ranks {
            rank,
            control,
            liveness,
            poll,
            heap,
            are_threads,
            failed,
            keeps_heap,
            aborted,
            recorder,
        })
    }

    /// Tells the others that this rank makes no more calls than so many.
    pub(in crate::engine) fn close(&self, calls: u64) {
        if !self.control.own_log().is_closed() {
            tracing::info!(rank = self.rank, calls, "the communicator is closed");
        }
        // First where those of this node look that see the process end.
        self.control.own_log().close();
        self.liveness.close(calls);
    }

    /// Leaves, after so many collectives, where nobody is there to whom an error could be returned.
    pub(in crate::engine) fn leave(&self, collectives: u64) {
        // What has ended it is known.
        let is_open = self.liveness.cause().is_none();
        match logs::mismatch(&self.control, self.rank).filter(|_| is_open) {
            Some(error) => {
                eprintln!("oxccl: a communicator was dropped, not closed: {error}");
                self.end(&error, self.last_entered());
            }
            None => self.close(collectives),
        }
    }

    /// Leaves because the process ends, unless the communicator has ended or a call is under way,
    /// whose buffers others may use.
    pub(in crate::engine) fn leave_at_exit(&self) {
        if self.check().is_ok() && !self.control.own_log().is_inside() {
            let last = logs::recent(&self.control, self.rank).pop();
            self.leave(last.map_or(0, |last| last.collective));
        }
    }

    /// Whether it has left in order.
    pub(in crate::engine) fn has_left(&self) -> bool {
        self.control.own_log().is_closed()
    }

    /// Fails once the communicator has ended in an earlier call.
    #[inline]
    pub(in crate::engine) fn check(&self) -> Result<(), Error> {
        match self.failed.get() {
            None => Ok(()),
            Some(first) => Err(first.broken()),
        }
    }

    /// Ends the communicator after a call that did not end well, and says why. `last` is the number
    /// of this rank's last call, and `odd` the rank whose message was of another call, if one was.
    /// No kernel of this rank runs any more.
    #[cold]
    pub(in crate::engine) fn fail(
        &self,
        call: &Record,
        last: u64,
        outcome: f::Outcome,
        odd: Option<Odd>,
    ) -> Error {
        if outcome == f::Outcome::Unreadable {
            self.await_cause();
        }
        let mismatch = self.find_mismatch(call, outcome);
        let mut error = match (mismatch, self.liveness.cause(), outcome) {
            // Others gave up before this rank called anything, or somebody has ended all.
            (_, Some(cause @ (Cause::TimedOut { .. } | Cause::Aborted { .. })), _) => {
                Error::from_cause(cause, self.named(call))
            }
            (Some(error), _, _) => error,
            (None, Some(cause), _) => Error::from_cause(cause, self.named(call)),
            (None, None, f::Outcome::Aborted | f::Outcome::Done) => self.silent(call),
            (None, None, f::Outcome::Mismatch | f::Outcome::BadProgram) => {
                self.odd_message(call, odd.map_or(self.rank, |odd| odd.peer), last)
            }
            (None, None, f::Outcome::Beside) => {
                Error::ReplayedBeside { rank: self.rank, during: self.named(call) }
            }
            (None, None, f::Outcome::Unreadable) => {
                let Odd { peer, found } = odd.unwrap_or(Odd { peer: self.rank, found: 0 });
                let source = std::io::Error::from_raw_os_error(found as i32);
                Error::Unreadable { rank: self.rank, peer, source, during: self.named(call) }
            }
        };
        if let Some(busy) = self.end(&error, last) {
            error.add(&format!(
                "; rank {busy} has not left its call since: until it has ended, memory of comm.alloc may change"
            ));
        }
        error
    }

    /// Ends the communicator on all ranks for a reason of the caller's, whoever waits meanwhile.
    pub(in crate::engine) fn abort(&self, reason: &str) {
        let (rank, reason) = (self.rank, reason.to_owned());
        tracing::warn!(rank, reason, "the communicator is aborted");
        self.control.groups().retire();
        self.liveness.abort(Cause::Aborted { rank, reason });
        self.aborted.store(true, Ordering::Release);
    }

    /// Whether this rank may make no more calls, though none has failed.
    #[inline]
    pub(in crate::engine) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    /// What a call gets then.
    #[cold]
    pub(in crate::engine) fn aborted(&self) -> Error {
        let (rank, reason) = (self.rank, "abort".to_owned());
        let unknown = || Error::from_cause(Cause::Aborted { rank, reason }, String::new());
        self.error().unwrap_or_else(unknown)
    }

    /// Why the communicator has ended, if it has, otherwise than by being closed.
    pub(in crate::engine) fn error(&self) -> Option<Error> {
        let told = || Some(Error::from_cause(self.liveness.cause()?, "no call".into()));
        self.failed.get().map(First::broken).or_else(told)
    }

    /// In what ranks differ, for one that has been stopped beside the machine.
    pub(in crate::engine) fn differing(&self, call: &Record) -> Option<Error> {
        self.find_mismatch(call, f::Outcome::Aborted)
    }

    /// In what ranks differ, as far as the logs tell: they may need some time to tell it, and who
    /// of more than two ranks is the odd one.
    fn find_mismatch(&self, call: &Record, outcome: f::Outcome) -> Option<Error> {
        let start = Instant::now();
        let patience = match outcome {
            // A message of another collective has come: whoever sent it has that in its log.
            f::Outcome::Mismatch if call.collective != 0 => LOGS,
            _ if self.control.mirrored().next().is_some() => ANSWERS,
            _ => Duration::ZERO,
        };
        let is_told = || matches!(self.liveness.cause(), Some(Cause::Mismatch { .. }));
        let undecided = if self.control.mirrored().next().is_some() { LOGS } else { ANSWERS };
        let mut found = None;
        let is_over = |found: &Option<logs::Found>| match found {
            Some(found) => found.is_decided || is_told() || start.elapsed() >= undecided,
            None => self.liveness.cause().is_some() || start.elapsed() >= patience,
        };
        loop {
            found = logs::find(&self.control, self.rank).or(found);
            if is_over(&found) {
                // Whoever has told of it may know who is the odd one.
                return found
                    .filter(|found| found.is_decided || !is_told())
                    .map(|found| found.error);
            }
            self.ask_others();
            // Others may be watching this rank.
            self.control.own_log().beat();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Has what this rank is doing recorded when SIGUSR1 comes to its process.
    pub(in crate::engine) fn record_on_signal(self: &Arc<Ranks>) -> Result<(), Error> {
        listens_to_signal(self).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Error::Config {
                variable: "flight_signal",
                detail: "this process handles SIGUSR1 itself, or ignores it".into(),
            },
            _ => Error::System { doing: "taking SIGUSR1", source: error },
        })
    }

    /// The number of this rank's last call.
    pub(in crate::engine) fn last_entered(&self) -> u64 {
        self.control.own_log().entered()
    }

    /// Ends the communicator, for this reason, on all ranks, and waits until they have left their
    /// calls. A rank that has not.
    #[cold]
    pub(in crate::engine) fn end(&self, error: &Error, last: u64) -> Option<usize> {
        let (rank, detail) = (self.rank, error.to_string());
        // While all are as they were.
        let looks = self.recorder.is_some() && self.failed.get().is_none();
        let seen = looks.then(|| FlightRecorder::look(&self.control, Some(error))).flatten();
        // The first reason stays.
        let _ = self.failed.set(First::of(error));
        self.control.own_badge().fail();
        // Others may read what this rank's groups were after it has gone.
        self.control.groups().retire();
        self.liveness.abort(match error {
            Error::Mismatch { .. } => Cause::Mismatch { rank, detail, ranks: error.ranks() },
            Error::TimedOut { .. } => Cause::TimedOut { rank, detail, ranks: error.ranks() },
            _ => Cause::Aborted { rank, reason: detail },
        });
        self.control.own_log().leave_at_least(last);
        tracing::error!(rank, %error, culprits = ?error.ranks(), "the communicator has ended");
        if let (Some(recorder), Some(seen)) = (&self.recorder, &seen) {
            recorder.leave(seen);
        }
        self.wait_for_quiet(error)
    }

    /// Asks the ranks of other nodes how far they have come, and waits for their answers.
    fn ask_others(&self) {
        let mirrored =
            || self.control.mirrored().filter(|rank| self.liveness.left(*rank).is_none());
        let before: Vec<_> = mirrored().map(|rank| (rank, self.control.reports(rank))).collect();
        let start = Instant::now();
        self.poll.ask();
        while before.iter().any(|(rank, reports)| self.control.reports(*rank) == *reports)
            && start.elapsed() < ANSWERS
        {
            // Others may be watching this rank.
            self.control.own_log().beat();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until somebody has told why, if it is that a process has ended.
    fn await_cause(&self) {
        let start = Instant::now();
        while self.liveness.cause().is_none() && start.elapsed() < END {
            self.control.own_log().beat();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn named(&self, call: &Record) -> String {
        format!("{} #{}", call.text(), call.collective)
    }

    /// A message of another call came, and the logs don't say which: in send/recv, whose calls have
    /// no common number.
    fn odd_message(&self, call: &Record, rank: usize, number: u64) -> Error {
        let bucket = buckets::first_message(&self.control, self.rank, rank, false);
        Error::Mismatch {
            call: number,
            bucket: bucket.map(|(bucket, _)| bucket),
            argument: "the message that came",
            rank,
            theirs: "another call, type or count".into(),
            compared_with: self.rank,
            ours: self.named(call),
            what: call.text().into(),
        }
    }

    /// The time-out has passed in a call that waits beside the machine.
    pub(in crate::engine) fn late(&self, call: &Record) -> Error {
        self.ask_others();
        logs::mismatch(&self.control, self.rank).unwrap_or_else(|| self.silent(call))
    }

    /// Nobody told anything: a rank has left, or the time-out has passed.
    fn silent(&self, call: &Record) -> Error {
        if let Some((rank, calls)) = self.poll.left_before() {
            return Error::Left { rank, calls, during: self.named(call) };
        }
        let (ranks, detail) = self.whereabouts(call);
        let (what, seconds) = (call.text(), self.poll.call_timeout().as_secs_f64());
        Error::TimedOut { what, call: call.collective, seconds, ranks, detail }
    }

    /// Which ranks are behind, and where the others wait.
    fn whereabouts(&self, call: &Record) -> (Vec<usize>, String) {
        let (mut parts, mut behind, mut late) = (Vec::new(), Vec::new(), Vec::new());
        for rank in (0..self.control.ranks()).filter(|rank| *rank != self.rank) {
            if let Some(calls) = self.liveness.left(rank) {
                behind.push(rank);
                parts.push(format!("rank {rank} has closed its communicator after {calls} calls"));
                continue;
            }
            if let Some(owed) = self.owed(rank) {
                behind.push(rank);
                parts.push(self.unknown(rank, owed));
                continue;
            }
            let last = logs::recent(&self.control, rank).pop();
            let made = last.map_or(0, |last| last.collective);
            if call.collective > made {
                let last = last.map_or("it has called nothing".into(), |last| {
                    format!("its last was {}", self.named(&last))
                });
                late.push(rank);
                parts.push(format!("rank {rank} has not called {} ({last})", self.named(call)));
            }
        }
        if let Some((peer, text)) = self.lone_message() {
            behind.push(peer);
            parts.push(text);
        }
        let stalled = self.stalled();
        behind.extend(&stalled);
        parts.extend(stalled.iter().map(|rank| {
            let watched_ms = WATCHED.as_millis();
            format!("rank {rank} is inside a call, but has not run for {watched_ms} ms (stopped, or busy without waiting)")
        }));
        // What a stalled rank last waited for may have come since.
        let known = |rank: &usize| self.owed(*rank).is_none();
        let running =
            (0..self.control.ranks()).filter(|rank| !stalled.contains(rank) && known(rank));
        for rank in running {
            let Some(wait) = self.wait_of(rank) else { continue };
            behind.extend(wait.is_own.then_some(rank));
            parts.push(wait.text);
        }
        behind.extend(self.at_fault(late, &behind));
        behind.sort_unstable();
        behind.dedup();
        let nothing = || "no rank says what it waits for".into();
        (behind, if parts.is_empty() { nothing() } else { parts.join("; ") })
    }

    /// Of ranks that have not called, those that do not wait, in an earlier call, for another one
    /// that is behind: that one is at fault.
    fn at_fault(&self, late: Vec<usize>, behind: &[usize]) -> Vec<usize> {
        let waits = |rank: usize| {
            let peer = self.wait_of(rank).filter(|wait| !wait.is_own)?.peer;
            (peer != rank && (behind.contains(&peer) || late.contains(&peer))).then_some(peer)
        };
        let first: Vec<usize> =
            late.iter().copied().filter(|rank| waits(*rank).is_none()).collect();
        // Those that wait for each other are all that can be told.
        if first.is_empty() && behind.is_empty() { late } else { first }
    }

    /// For how long a rank of another node has owed an answer, if that is longer than answers take.
    fn owed(&self, rank: usize) -> Option<Duration> {
        self.control.unanswered(rank).filter(|owed| *owed >= ANSWERS)
    }

    /// What can be said of a rank of another node that has owed an answer for so long.
    fn unknown(&self, rank: usize, owed: Duration) -> String {
        let known = logs::recent(&self.control, rank).pop().map_or(String::new(), |last| {
            format!("; the last call known of it is {}", self.named(&last))
        });
        format!(
            "rank {rank} has not answered for {} ms, so it may be stopped or cut off{known}",
            owed.as_millis()
        )
    }

    /// A message of this rank's group that its other end takes no part in.
    fn lone_message(&self) -> Option<(usize, String)> {
        let mut waits =
            (0..self.control.channels()).map(|channel| self.control.progress(self.rank, channel));
        let wait = waits.find(|wait| wait.call != 0 && wait.lane != f::LANE_READY)?;
        let (peer, sends) = (wait.peer as usize, wait.head != 0);
        let (bucket, message) = buckets::first_message(&self.control, self.rank, peer, sends)?;
        let does = if sends { "receive" } else { "send" };
        Some((peer, format!("rank {peer} did not {does} bucket {bucket}, a {message}")))
    }

    /// Ranks that are inside a call and neither wait there nor leave it.
    fn stalled(&self) -> Vec<usize> {
        let inside = |rank: &usize| {
            *rank != self.rank
                && self.liveness.left(*rank).is_none()
                && self.control.log(*rank).is_inside()
        };
        let watched: Vec<_> = (0..self.control.ranks())
            .filter(inside)
            .map(|rank| (rank, self.signs_of_life(rank)))
            .collect();
        let reports =
            || self.control.mirrored().map(|rank| self.control.reports(rank)).sum::<u64>();
        let (start, reports_before) = (Instant::now(), reports());
        while start.elapsed() < WATCHED {
            // Others may be watching this rank.
            self.control.own_log().beat();
            std::thread::sleep(Duration::from_millis(5));
        }
        self.ask_others();
        // A rank of another node shows no life, either, where no answers come: that says nothing.
        let answers = reports() > reports_before;
        let seen = |rank: &usize| !self.control.is_mirror(*rank) || answers;
        watched
            .into_iter()
            .filter(|(rank, before)| inside(rank) && self.signs_of_life(*rank) == *before)
            .map(|(rank, _)| rank)
            .filter(seen)
            .collect()
    }

    fn signs_of_life(&self, rank: usize) -> (u64, u64) {
        let log = self.control.log(rank);
        (log.entered(), log.beats())
    }

    /// What a rank waits for, if it does.
    fn wait_of(&self, rank: usize) -> Option<Waiting> {
        let waits =
            (0..self.control.channels()).map(|channel| self.control.progress(rank, channel));
        // A list that waits for another of its rank does so since that one waits.
        let waits = waits.filter(|progress| progress.call != 0);
        let on_own = |wait: &f::Progress| wait.lane != f::LANE_READY && wait.peer as usize == rank;
        let wait = waits.min_by_key(on_own)?;
        let (step, peer) = (wait.step, wait.peer as usize);
        let is_own = wait.lane == f::LANE_READY;
        let text = if is_own {
            format!("bucket {} has not been marked ready on rank {rank}", wait.awaited)
        } else {
            let what = if wait.head != 0 { "a free slot from" } else { "data from" };
            format!("rank {rank} waits at step {step} for {what} rank {peer}")
        };
        Some(Waiting { text, peer, is_own })
    }

    /// Waits until no living rank of this node is inside a call, so that nobody touches this rank's
    /// buffers any more: see above. One that still is.
    fn wait_for_quiet(&self, error: &Error) -> Option<usize> {
        let start = Instant::now();
        let most = self.poll.time_left().max(QUIET_LEAST.min(self.poll.call_timeout()));
        let most = patience(most);
        let (mut said, mut pause) = (false, Duration::from_micros(50));
        while let Some(busy) = self.busy() {
            let waited = start.elapsed();
            if waited >= most && !self.are_threads {
                tracing::error!(
                    busy,
                    "a rank has not left its call; its memory may still be written"
                );
                if !self.keeps_heap.swap(true, Ordering::AcqRel) {
                    self.heap.retire();
                }
                return Some(busy);
            }
            if waited >= QUIET_SOON && !said {
                said = true;
                self.say(error, busy, most);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        None
    }

    /// Those who could not be awaited are over: what this communicator has had kept need not be.
    pub(in crate::engine) fn release_heap(&self) {
        if self.keeps_heap.swap(false, Ordering::AcqRel) {
            self.heap.revive();
        }
    }

    /// A living rank of this node that is inside a call.
    fn busy(&self) -> Option<usize> {
        let busy = |rank: &usize| {
            *rank != self.rank
                && !self.control.is_mirror(*rank)
                && self.control.log(*rank).is_inside()
                && !self.liveness.is_over(*rank)
        };
        (0..self.control.ranks()).find(busy)
    }

    /// Tells people what went wrong while the call has not returned: whoever started the ranks may
    /// end this one before.
    fn say(&self, error: &Error, busy: usize, most: Duration) {
        let limit = match self.are_threads {
            true => "until".to_owned(),
            false => format!("at most {:.1} s until", most.as_secs_f64()),
        };
        let text = format!(
            "oxccl: rank {}: {error}; waiting {limit} rank {busy} leaves its call\n",
            self.rank
        );
        // In one piece, so that it is not written into another rank's line. Where it cannot be
        // written nobody reads it.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

impl Listen for Ranks {
    fn asked(&self) {
        // What was recorded of a failure stays, and who has closed does nothing any more.
        let is_over = self.has_left() || self.failed.get().is_some();
        let Some(recorder) = self.recorder.as_ref().filter(|_| !is_over) else { return };
        if let Some(seen) = FlightRecorder::look(&self.control, None) {
            recorder.leave(&seen);
        }
    }
}
