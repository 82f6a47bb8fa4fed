//! Starts ranks as processes of this machine and sees them through.

mod rank;
mod signals;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use oxccl_transports::{Secret, Server, UniqueId};

use crate::failure::Failure;
use crate::machine;
use rank::Rank;
use signals::{Event, Signals};

/// How long ranks may take to end after SIGTERM.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// How long to sleep at most before looking at the children again.
const LOOK: Duration = Duration::from_millis(200);

/// What to start.
pub(crate) struct Job<'a> {
    /// The program.
    pub(crate) program: &'a OsStr,
    /// Its arguments.
    pub(crate) arguments: &'a [OsString],
    /// How many ranks here.
    pub(crate) ranks: usize,
    /// Where others are started, if not all are here.
    pub(crate) share: Option<Share<'a>>,
    /// How many nodes this machine is to stand for.
    pub(crate) nodes: Option<usize>,
    /// Whether each gets a core.
    pub(crate) bind: bool,
    /// How long ranks may go on after one has failed.
    pub(crate) grace: Duration,
}

/// This machine's part of a job over several.
#[derive(Clone, Copy)]
pub(crate) struct Share<'a> {
    /// How many machines there are, each with as many ranks.
    pub(crate) machines: usize,
    /// Which of them this is.
    pub(crate) machine: usize,
    /// Where the ranks of all meet, `host:port`: on machine 0.
    pub(crate) meeting: &'a str,
}

impl Job<'_> {
    /// How many ranks there are on all machines.
    fn world(&self) -> usize {
        self.ranks * self.share.map_or(1, |share| share.machines)
    }

    /// The first rank of this machine.
    fn first_rank(&self) -> usize {
        self.ranks * self.share.map_or(0, |share| share.machine)
    }

    /// Where the ranks meet, and the server, if it is here.
    fn meet(&self) -> Result<(UniqueId, Option<Server>), Failure> {
        let Some(share) = self.share else {
            let (id, server) = UniqueId::create()?;
            return Ok((id, Some(server)));
        };
        let secret = std::env::var_os("OXCCL_SECRET").filter(|secret| !secret.is_empty());
        let id = UniqueId::meeting(share.meeting, secret.as_deref().map(OsStr::as_bytes))?;
        if secret.is_none() && !id.is_on_loopback() {
            return Err(no_secret(share.meeting)?);
        }
        let server = if share.machine == 0 { Some(id.serve()?) } else { None };
        Ok((id, server))
    }
}

/// Without a secret whoever reaches the port could take a rank. Launchers do not know of each other before they meet, so none can make one
/// for all: the user does, with a line that has a new one.
fn no_secret(meeting: &str) -> Result<Failure, Failure> {
    let random = Secret::random()?;
    let line = random
        .as_bytes()
        .iter()
        .fold("export OXCCL_SECRET=".to_owned(), |line, byte| line + &format!("{byte:02x}"));
    Ok(Failure::Usage(format!(
        "OXCCL_SECRET is not set, and whoever reaches {meeting} could take a rank: set it to the same random bytes for this command on \
         every machine, such as these new ones\n{line}"
    )))
}

/// Starts the ranks and waits for all of them.
///
/// # Errors
/// The first rank that failed; none of the others runs any more.
pub(crate) fn launch(job: &Job) -> Result<(), Failure> {
    // Before any thread starts, so that none of them takes the signals.
    let signals = Signals::take().map_err(Failure::system("taking signals"))?;
    let (id, server) = job.meet()?;
    let cores = if job.bind { machine::usable_cores() } else { Vec::new() };
    let mut ranks = Ranks { running: Vec::new() };
    for local_rank in 0..job.ranks {
        let core = (!cores.is_empty()).then(|| cores[local_rank % cores.len()]);
        ranks.running.push(Rank::start(job, local_rank, &id.to_string(), core)?);
    }
    let failed = ranks.wait(&signals, job.grace);
    drop(server);
    failed
}

/// The processes that still run. Dropping kills them.
struct Ranks {
    running: Vec<Rank>,
}

impl Ranks {
    /// Waits until no rank runs, and hurries them once something has failed.
    fn wait(&mut self, signals: &Signals, grace: Duration) -> Result<(), Failure> {
        let mut outcome = Ok(());
        let mut end = End::None;
        loop {
            for (rank, status) in self.reap()? {
                if outcome.is_ok() && !status.success() {
                    outcome = Err(rank.failure(status));
                    end.begin(grace);
                }
            }
            if self.running.is_empty() {
                return outcome;
            }
            if let Some(signal) = end.due() {
                self.running.iter().for_each(|rank| rank.signal(signal));
            }
            let pause = end.remaining().map_or(LOOK, |left| left.min(LOOK));
            if let Event::Stop { signal } = signals.wait(pause) {
                self.running.iter().for_each(|rank| rank.signal(signal));
                if outcome.is_ok() {
                    outcome = Err(Failure::Signal { signal });
                }
                end.begin(grace);
            }
        }
    }

    /// Takes out those that have ended.
    fn reap(&mut self) -> Result<Vec<(Rank, ExitStatus)>, Failure> {
        let mut ended = Vec::new();
        for mut rank in std::mem::take(&mut self.running) {
            match rank.ended()? {
                Some(status) => ended.push((rank, status)),
                None => self.running.push(rank),
            }
        }
        Ok(ended)
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.running {
            rank.kill();
        }
    }
}

/// How far the ending of the ranks has come.
enum End {
    None,
    /// They may end by themselves until then.
    Grace(Instant),
    /// They were told to, and have until then.
    Told(Instant),
    Forced,
}

impl End {
    fn begin(&mut self, grace: Duration) {
        if matches!(self, End::None) {
            *self = End::Grace(Instant::now() + grace);
        }
    }

    /// The signal that is due now, once.
    fn due(&mut self) -> Option<i32> {
        let now = Instant::now();
        match *self {
            End::Grace(until) if now >= until => {
                *self = End::Told(now + TERM_GRACE);
                Some(libc::SIGTERM)
            }
            End::Told(until) if now >= until => {
                *self = End::Forced;
                Some(libc::SIGKILL)
            }
            _ => None,
        }
    }

    fn remaining(&self) -> Option<Duration> {
        match self {
            End::Grace(until) | End::Told(until) => {
                Some(until.saturating_duration_since(Instant::now()))
            }
            End::None | End::Forced => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_first_and_forced_then() {
        let mut end = End::None;
        assert_eq!(end.due(), None);
        end.begin(Duration::ZERO);
        assert_eq!(end.due(), Some(libc::SIGTERM));
        end.begin(Duration::ZERO);
        assert_eq!(end.due(), None, "told once, and not yet forced");
        end = End::Told(Instant::now());
        assert_eq!(end.due(), Some(libc::SIGKILL));
        assert_eq!(end.due(), None);
    }
}
