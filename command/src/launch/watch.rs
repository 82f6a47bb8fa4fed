//! Sees started ranks through to their end.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use oxccl_transports::{Cause, LauncherChannel};

use super::ending::{Ending, Request};
use super::ends::{Ends, TOGETHER};
use super::rank::Rank;
use super::signals::{Event, Signals, name};
use super::{Job, Running};
use crate::failure::Failure;
use crate::speak::complain;

/// How long to sleep at most before looking at the children and at what the rendezvous tells again.
const LOOK: Duration = Duration::from_millis(100);

/// Ranks that run, and what is known of those that do not any more.
pub(super) struct Watch<'a> {
    running: Running,
    signals: &'a Signals,
    channel: &'a LauncherChannel,
    news: &'a Receiver<Cause>,
    grace: Duration,
    keeps_going: bool,
    /// A rank has ended with status 0.
    succeeded: bool,
    ends: Ends,
    ending: Ending,
    /// By what this process was asked to stop, before anything had failed.
    request: Option<Request>,
}

impl<'a> Watch<'a> {
    /// Of the ranks of a job.
    pub(super) fn new(
        job: &Job,
        running: Running,
        signals: &'a Signals,
        channel: &'a LauncherChannel,
        news: &'a Receiver<Cause>,
    ) -> Watch<'a> {
        Watch {
            running,
            signals,
            channel,
            news,
            grace: job.grace,
            keeps_going: job.keeps_going,
            succeeded: false,
            ends: Ends::new(job.ranks_here()),
            ending: Ending::None,
            request: None,
        }
    }

    /// Waits until no rank runs, and hurries them once something has failed.
    pub(super) fn run(mut self) -> Result<(), Failure> {
        loop {
            for (rank, status) in self.reap()? {
                self.ended(&rank, status);
            }
            while let Ok(cause) = self.news.try_recv() {
                self.hear(cause);
            }
            if self.running.0.is_empty() {
                return self.outcome();
            }
            if let Some(signal) = self.ending.due() {
                self.send(signal);
            }
            let pause = self.ending.remaining().map_or(LOOK, |left| left.min(LOOK));
            if let Event::Stop { signal } = self.signals.wait(pause) {
                self.stop(signal);
            }
        }
    }

    /// Takes out those that have ended; first those that a signal ended, of which others that ended
    /// meanwhile may have failed.
    fn reap(&mut self) -> Result<Vec<(Rank, ExitStatus)>, Failure> {
        let mut ended = Vec::new();
        for mut rank in std::mem::take(&mut self.running.0) {
            match rank.ended()? {
                Some(status) => ended.push((rank, status)),
                None => self.running.0.push(rank),
            }
        }
        ended.sort_by_key(|(_, status)| status.signal().is_none());
        Ok(ended)
    }

    fn ended(&mut self, rank: &Rank, status: ExitStatus) {
        let (status, mut how) = rank.end(status);
        if let Some(request) = &self.request {
            how = format!("{how} after its launcher got signal {}", name(request.signal));
        } else if status == 0 {
            self.succeeded = true;
            return;
        }
        self.channel.tell_end(rank.number(), status, &how);
        if self.keeps_going && self.request.is_none() {
            complain(format_args!("rank {} {how}; the others go on", rank.number()));
        }
        if self.ending.has_told() {
            self.ends.add_told(rank.number());
        } else if self.request.is_none() {
            self.ends.add(rank.number(), status, how);
        }
        self.fail();
    }

    /// A rank has failed.
    fn fail(&mut self) {
        if !self.keeps_going || self.request.is_some() {
            self.ending.begin(self.grace);
        }
    }

    fn hear(&mut self, cause: Cause) {
        tracing::debug!(%cause, "the rendezvous tells");
        // What other ranks come to after this process was asked to stop is a consequence.
        let is_of_rank = matches!(cause, Cause::Ended { .. });
        if self.request.is_none() && self.ends.hear(cause) {
            if is_of_rank {
                self.fail();
            } else {
                self.ending.begin(self.grace);
            }
        }
    }

    /// Somebody asks to stop: once, and the ranks are asked as well; twice, and they are ended.
    fn stop(&mut self, signal: i32) {
        match &self.request {
            Some(request) if request.is_repeated() => {
                self.ending = Ending::Forced;
                self.send(libc::SIGKILL);
            }
            Some(_) => {}
            None => {
                self.request = Some(Request::new(signal));
                self.ending.ask(signal, self.grace);
                self.send(signal);
            }
        }
    }

    fn send(&self, signal: i32) {
        self.running.0.iter().for_each(|rank| rank.signal(signal));
    }

    /// What to report, once all have ended.
    fn outcome(mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + TOGETHER;
        while self.ends.is_unclear() {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(cause) = self.news.recv_timeout(left) else { break };
            self.hear(cause);
        }
        if self.keeps_going && self.succeeded && self.request.is_none() {
            return Ok(());
        }
        match (self.ends.report(), self.request) {
            (Some(end), _) => Err(Failure::Job(Box::new(end))),
            (None, Some(Request { signal, .. })) => Err(Failure::Signal { signal }),
            (None, None) => Ok(()),
        }
    }
}
