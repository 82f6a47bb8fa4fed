//! How the ranks of a job that failed have ended, and which of them the others failed of.

use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use oxccl_transports::Cause;

/// Of what fails within this time of the first failure, any may be what the others failed of.
pub(super) const TOGETHER: Duration = Duration::from_millis(500);

/// How many of the ranks that failed after the first are described.
const SHOWN: usize = 16;

/// How ranks have ended, as far as it matters to a job that failed.
#[derive(Debug)]
pub(super) struct Ends {
    /// The ranks that this process has started.
    ours: Range<usize>,
    failed: Vec<End>,
    /// Ranks that ended only when this process told them to.
    told: Vec<usize>,
    /// What happened first, as the rendezvous knows it.
    cause: Option<Cause>,
}

/// One rank's failure, or what else ended the job.
#[derive(Clone, Debug)]
pub(super) struct End {
    rank: Option<usize>,
    /// The exit status to hand on.
    status: u8,
    /// What happened, to be read behind the rank's name.
    how: String,
    at: Instant,
}

impl Ends {
    /// Nothing has happened to these ranks.
    pub(super) fn new(ours: Range<usize>) -> Ends {
        Ends { ours, failed: Vec::new(), told: Vec::new(), cause: None }
    }

    /// A rank has failed.
    pub(super) fn add(&mut self, rank: usize, status: u8, how: String) {
        self.failed.push(End { rank: Some(rank), status, how, at: Instant::now() });
    }

    /// A rank has ended because this process told it to.
    pub(super) fn add_told(&mut self, rank: usize) {
        self.told.push(rank);
    }

    /// The rendezvous tells something. Returns whether it ends the job here, too.
    pub(super) fn hear(&mut self, cause: Cause) -> bool {
        match cause {
            Cause::ServerLost | Cause::ServerCutOff => {
                let (how, at) = (cause.to_string(), Instant::now());
                self.failed.push(End { rank: None, status: 1, how, at });
                return true;
            }
            // What comes first is what the rest follows from.
            _ => self.cause.get_or_insert_with(|| cause.clone()),
        };
        match cause {
            Cause::Ended { rank, status, how } if !self.ours.contains(&rank) => {
                self.add(rank, status, how);
                true
            }
            _ => false,
        }
    }

    /// Whether something has failed, and the rendezvous has not said yet what happened first.
    pub(super) fn is_unclear(&self) -> bool {
        !self.failed.is_empty() && self.cause.is_none()
    }

    /// What to report, if anything failed.
    pub(super) fn report(mut self) -> Option<JobEnd> {
        let culprit = self.failed.remove(self.culprit()?);
        self.told.sort_unstable();
        let cause = self.cause.filter(|cause| match cause {
            Cause::Died { rank } | Cause::Ended { rank, .. } => culprit.rank != Some(*rank),
            _ => true,
        });
        Some(JobEnd { ours: self.ours, culprit, others: self.failed, told: self.told, cause })
    }

    /// The one that the others failed of: the one that the rendezvous names, or of those that
    /// failed together one that a signal ended, or else the first.
    fn culprit(&self) -> Option<usize> {
        let first = self.failed.first()?;
        let named = match self.cause {
            // That is what this process has told, in the order in which it saw its ranks end.
            Some(Cause::Ended { rank, .. }) if self.ours.contains(&rank) => None,
            Some(
                Cause::Died { rank }
                | Cause::CutOff { rank }
                | Cause::Aborted { rank, .. }
                | Cause::Ended { rank, .. },
            ) => self.failed.iter().position(|end| end.rank == Some(rank)),
            _ => None,
        };
        let signalled = |end: &End| end.status > 128 && end.at <= first.at + TOGETHER;
        Some(named.or_else(|| self.failed.iter().position(signalled)).unwrap_or(0))
    }
}

/// How a job failed.
#[derive(Debug)]
pub struct JobEnd {
    ours: Range<usize>,
    culprit: End,
    others: Vec<End>,
    told: Vec<usize>,
    cause: Option<Cause>,
}

impl JobEnd {
    /// The exit status of the rank that the others failed of.
    pub(crate) fn status(&self) -> u8 {
        self.culprit.status
    }
}

impl fmt::Display for JobEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.culprit.rank {
            Some(rank) => write!(f, "rank {rank} {}", self.culprit.how)?,
            None => write!(f, "{}", self.culprit.how)?,
        }
        if self.culprit.rank.is_some_and(|rank| !self.ours.contains(&rank)) {
            write!(f, ", on another machine")?;
        }
        if let Some(cause) = &self.cause {
            write!(f, "\n  ranks were stopped: {cause}")?;
        }
        for end in self.others.iter().take(SHOWN) {
            match end.rank {
                Some(rank) => write!(f, "\n  then rank {rank} {}", end.how)?,
                None => write!(f, "\n  then {}", end.how)?,
            }
        }
        if let Some(more @ 1..) = self.others.len().checked_sub(SHOWN) {
            write!(f, "\n  then {more} more failed")?;
        }
        match &self.told[..] {
            [] => Ok(()),
            [rank] => write!(f, "\n  rank {rank} still ran after the grace period and was ended"),
            ranks => {
                write!(
                    f,
                    "\n  ranks {} still ran after the grace period and were ended",
                    list(ranks)
                )
            }
        }
    }
}

/// Sorted ranks, consecutive ones as `first to last`.
fn list(ranks: &[usize]) -> String {
    let runs = ranks.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] if run.len() > 2 => format!("{first} to {last}"),
        run => run.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    });
    runs.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(failed: &[(usize, u8)]) -> Ends {
        let mut ends = Ends::new(0..4);
        failed.iter().for_each(|&(rank, status)| ends.add(rank, status, format!("got {status}")));
        ends
    }

    fn report(ends: Ends) -> (String, u8) {
        let report = ends.report().expect("something failed");
        (report.to_string(), report.status())
    }

    #[test]
    fn of_ranks_that_fail_together_one_that_a_signal_ended_is_named_first() {
        let (text, status) = report(ends(&[(0, 1), (1, 137), (2, 1)]));
        assert_eq!(text, "rank 1 got 137\n  then rank 0 got 1\n  then rank 2 got 1");
        assert_eq!(status, 137);
        let mut late = ends(&[(0, 1), (1, 137)]);
        late.failed[1].at += 2 * TOGETHER;
        assert_eq!(report(late).1, 1);
        assert!(ends(&[]).report().is_none());
    }

    #[test]
    fn the_rendezvous_knows_better() {
        let ends_of = |cause| {
            let mut ends = ends(&[(0, 134), (2, 7)]);
            assert!(ends.is_unclear());
            assert!(!ends.hear(cause));
            report(ends)
        };
        assert_eq!(ends_of(Cause::Died { rank: 2 }).0, "rank 2 got 7\n  then rank 0 got 134");
        let reason = "a reason".to_owned();
        let (text, status) = ends_of(Cause::Aborted { rank: 2, reason });
        assert!(text.starts_with("rank 2 got 7\n  ranks were stopped: rank 2 aborted: a reason"));
        assert_eq!(status, 7);
        let how = "got 7".to_owned();
        assert_eq!(
            ends_of(Cause::Ended { rank: 2, status: 7, how }).1,
            134,
            "this process told it"
        );
        assert_eq!(ends_of(Cause::Died { rank: 3 }).1, 134, "which has not failed");
    }

    #[test]
    fn other_machines_ranks_are_named() {
        let mut ends = ends(&[]);
        let how = "got 9".to_owned();
        assert!(ends.hear(Cause::Ended { rank: 8, status: 9, how }));
        ends.add_told(3);
        ends.add_told(1);
        ends.add_told(2);
        let (text, status) = report(ends);
        let told = "ranks 1 to 3 still ran after the grace period and were ended";
        assert_eq!(text, format!("rank 8 got 9, on another machine\n  {told}"));
        assert_eq!(status, 9);
        assert_eq!(list(&[1, 2, 4, 6, 7, 8]), "1, 2, 4, 6 to 8");
    }
}
