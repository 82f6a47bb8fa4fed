//! What went wrong: reads the other ranks' call logs and progress, names the culprit, and ends the communicator on all ranks.

use super::group::differences;
use super::logs;
use super::poll::Poll;
use crate::call::Described;
use crate::device::Control;
use crate::error::Error;
use oxccl_kernels::format as f;
use oxccl_transports::{Cause, Liveness};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long a failed rank waits for others to keep their hands off its buffers. They only finish what they copy, so this is never
/// reached unless a thread is stopped.
const QUIET_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the others are watched when the time-out has passed. A wait asks the poll function at least every few
/// milliseconds; a busy machine may keep a thread from running for some more.
const WATCHED: Duration = Duration::from_millis(300);

/// How long to wait for the answers of ranks of other nodes, where nobody else has said what happened.
const ANSWERS: Duration = Duration::from_millis(300);

/// All ranks, as one of them sees them while its calls run.
#[derive(Debug)]
pub(super) struct Ranks {
    pub(super) rank: usize,
    pub(super) control: Arc<Control>,
    pub(super) liveness: Arc<Liveness>,
    /// What waits ask.
    pub(super) poll: Poll,
    /// Why this communicator ended.
    failed: OnceLock<String>,
}

impl Ranks {
    pub(super) fn new(
        rank: usize,
        control: Arc<Control>,
        liveness: Arc<Liveness>,
        timeout: Duration,
    ) -> Ranks {
        let poll = Poll::new(liveness.clone(), control.clone(), rank, timeout);
        Ranks { rank, control, liveness, poll, failed: OnceLock::new() }
    }

    /// Fails once the communicator has ended in an earlier call.
    #[inline]
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.failed.get() {
            None => Ok(()),
            Some(first) => Err(Error::Broken { first: first.clone() }),
        }
    }

    /// Ends the communicator after a call that did not end well, and says why. `last` is the number of this rank's last call, and `odd`
    /// the rank whose message was of another call, if one was. No kernel of this rank runs any more.
    #[cold]
    pub(super) fn fail(
        &self,
        call: &Described,
        last: u64,
        outcome: f::Outcome,
        odd: Option<usize>,
    ) -> Error {
        let cause = self.liveness.cause();
        if cause.is_none() {
            self.ask_others();
        }
        let error = match (logs::mismatch(&self.control, self.rank), cause, outcome) {
            (Some(error), _, _) => error,
            (None, Some(cause), _) => Error::from_cause(cause, self.named(call)),
            (None, None, f::Outcome::Aborted | f::Outcome::Done) => self.silent(call),
            (None, None, f::Outcome::Mismatch | f::Outcome::BadProgram) => {
                self.odd_message(call, odd.unwrap_or(self.rank), last)
            }
        };
        self.end(&error, last);
        error
    }

    /// The number of this rank's last call.
    pub(super) fn last_entered(&self) -> u64 {
        self.control.log(self.rank).entered()
    }

    /// Ends the communicator, for this reason, on all ranks.
    #[cold]
    pub(super) fn end(&self, error: &Error, last: u64) {
        let (rank, detail) = (self.rank, error.to_string());
        // The first reason stays.
        let _ = self.failed.set(detail.clone());
        self.liveness.abort(match error {
            Error::Mismatch { .. } => Cause::Mismatch { rank, detail },
            Error::TimedOut { .. } => Cause::TimedOut { rank, detail },
            _ => Cause::Aborted { rank, reason: detail },
        });
        self.control.log(self.rank).leave_at_least(last);
        self.wait_for_quiet();
    }

    /// Asks the ranks of other nodes how far they have come, and waits for their answers.
    fn ask_others(&self) {
        let mirrored =
            || self.control.mirrored().filter(|rank| self.liveness.left(*rank).is_none());
        let before: Vec<_> = mirrored().map(|rank| (rank, self.control.reports(rank))).collect();
        let start = Instant::now();
        self.liveness.ask();
        while before.iter().any(|(rank, reports)| self.control.reports(*rank) == *reports)
            && start.elapsed() < ANSWERS
        {
            // Others may be watching this rank.
            self.control.log(self.rank).beat();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn named(&self, call: &Described) -> String {
        format!("{} #{}", call.text(), call.collective)
    }

    /// A message of another call came, and the logs don't say which: in send/recv, whose calls have no common number.
    fn odd_message(&self, call: &Described, rank: usize, number: u64) -> Error {
        let bucket = differences::first_message(&self.control, self.rank, rank, false);
        Error::Mismatch {
            call: number,
            bucket: bucket.map(|(bucket, _)| bucket),
            argument: "the message that came",
            rank,
            ours: self.named(call),
            theirs: "another call, type or count".into(),
            what: call.text(),
        }
    }

    /// Nobody told anything: a rank has left, or the time-out has passed.
    fn silent(&self, call: &Described) -> Error {
        if let Some((rank, calls)) = self.poll.left_before() {
            return Error::Left { rank, calls, during: self.named(call) };
        }
        Error::TimedOut {
            what: call.text(),
            call: call.collective,
            seconds: self.poll.timeout().as_secs_f64(),
            detail: self.whereabouts(call),
        }
    }

    /// Which ranks are behind, and where the others wait.
    fn whereabouts(&self, call: &Described) -> String {
        let mut parts = Vec::new();
        for rank in (0..self.control.ranks()).filter(|rank| *rank != self.rank) {
            let last = logs::recent(&self.control, rank).pop();
            let made = last.map_or(0, |last| last.collective);
            if call.collective > made {
                let last = last.map_or("it has called nothing".into(), |last| {
                    format!("its last was {}", self.named(&last))
                });
                parts.push(format!("rank {rank} has not called {} ({last})", self.named(call)));
            }
        }
        parts.extend(self.lone_message());
        let stalled = self.stalled();
        parts.extend(stalled.iter().map(|rank| {
            let watched_ms = WATCHED.as_millis();
            format!("rank {rank} is inside a call, but has not run for {watched_ms} ms (stopped, or busy without waiting)")
        }));
        // What a stalled rank last waited for may have come since.
        let running = (0..self.control.ranks()).filter(|rank| !stalled.contains(rank));
        parts.extend(running.filter_map(|rank| self.wait_of(rank)));
        if parts.is_empty() { "no rank says what it waits for".into() } else { parts.join("; ") }
    }

    /// A message of this rank's group that its other end takes no part in.
    fn lone_message(&self) -> Option<String> {
        let mut waits =
            (0..self.control.channels()).map(|channel| self.control.progress(self.rank, channel));
        let wait = waits.find(|wait| wait.call != 0 && wait.lane != f::LANE_READY)?;
        let (peer, sends) = (wait.peer as usize, wait.head != 0);
        let (bucket, message) = differences::first_message(&self.control, self.rank, peer, sends)?;
        let does = if sends { "receive" } else { "send" };
        Some(format!("rank {peer} did not {does} bucket {bucket}, a {message}"))
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
            self.control.log(self.rank).beat();
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
    fn wait_of(&self, rank: usize) -> Option<String> {
        let waits =
            (0..self.control.channels()).map(|channel| self.control.progress(rank, channel));
        let wait = waits.into_iter().find(|progress| progress.call != 0)?;
        if wait.lane == f::LANE_READY {
            return Some(format!(
                "bucket {} has not been marked ready on rank {rank}",
                wait.awaited
            ));
        }
        let what = if wait.head != 0 { "a free slot from" } else { "data from" };
        Some(format!("rank {rank} waits at step {} for {what} rank {}", wait.step, wait.peer))
    }

    /// Waits until no living rank of this node is inside a call, so that nobody touches this rank's buffers any more.
    fn wait_for_quiet(&self) {
        let start = Instant::now();
        let busy = |rank: &usize| {
            *rank != self.rank
                && !self.control.is_mirror(*rank)
                && self.control.log(*rank).is_inside()
                && !self.liveness.is_over(*rank)
        };
        while (0..self.control.ranks()).any(|rank| busy(&rank)) {
            if start.elapsed() > QUIET_TIMEOUT {
                let rank = (0..self.control.ranks()).find(busy);
                tracing::error!(
                    ?rank,
                    "a rank has not left its call a minute after the abort; its memory may still be written"
                );
                return;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}
