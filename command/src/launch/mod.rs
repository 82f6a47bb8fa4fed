//! Starts ranks as processes of this machine and sees them through.

mod ending;
mod ends;
mod rank;
mod signals;
mod watch;

use std::ffi::{OsStr, OsString};
use std::net::TcpListener;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::channel;
use std::time::Duration;

use oxccl_transports::{LauncherChannel, Secret, Server, UniqueId};

use crate::failure::Failure;
use crate::machine;
pub(crate) use ends::JobEnd;
use rank::Rank;
use signals::Signals;
pub(crate) use signals::name as signal_name;
use watch::Watch;

/// What to start.
pub(crate) struct Job<'a> {
    /// The program.
    pub(crate) program: &'a OsStr,
    /// Its arguments.
    pub(crate) arguments: &'a [OsString],
    /// What its environment has besides.
    pub(crate) variables: &'a [(&'static str, OsString)],
    /// How many ranks here.
    pub(crate) ranks: usize,
    /// Where others are started, if not all are here.
    pub(crate) share: Option<Share<'a>>,
    /// How many nodes this machine is to stand for.
    pub(crate) nodes: Option<usize>,
    /// Whether each gets a core.
    pub(crate) bind: bool,
    /// How long ranks may go on after one has failed, or after they were asked to stop.
    pub(crate) grace: Duration,
    /// Whether the others go on as long as they like after one has failed.
    pub(crate) keeps_going: bool,
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

    /// The ranks of this machine.
    fn ranks_here(&self) -> Range<usize> {
        self.first_rank()..self.first_rank() + self.ranks
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
        server.iter().for_each(|server| server.expect_launchers(share.machines));
        Ok((id, server))
    }
}

/// Without a secret whoever reaches the port could take a rank. Launchers do not know of each other
/// before they meet, so none can make one for all: the user does, with a line that has a new one.
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
/// How ranks failed, here or on another machine, and which the others failed of; none of those
/// started here runs any more.
pub(crate) fn launch(job: &Job) -> Result<(), Failure> {
    // Before any thread starts, so that none of them takes the signals.
    let signals = Signals::take().map_err(Failure::system("taking signals"))?;
    let (id, server) = job.meet()?;
    let (tell, news) = channel();
    // Nobody listens any more once the ranks have ended.
    let hear = move |cause| drop(tell.send(cause));
    let channel = LauncherChannel::open(&id, job.ranks_here(), job.world(), hear)?;
    let result = match start(job, &id, &channel) {
        Ok(running) => Watch::new(job, running, &signals, &channel, &news).run(),
        Err(failure) => Err(failure),
    };
    // What it has told reaches the server before that ends.
    drop(channel);
    drop(server);
    result
}

/// Starts all ranks, or none.
fn start(job: &Job, id: &UniqueId, channel: &LauncherChannel) -> Result<Running, Failure> {
    let store = store(job, id)?;
    let cores = if job.bind { machine::usable_cores() } else { Vec::new() };
    let mut running = Running(Vec::new());
    for local_rank in 0..job.ranks {
        let core = (!cores.is_empty()).then(|| cores[local_rank % cores.len()]);
        match Rank::start(job, local_rank, &id.to_string(), &store, core) {
            Ok(rank) => running.0.push(rank),
            Err(failure) => {
                let how = format!("could not be started: {failure}");
                channel.tell_end(job.first_rank() + local_rank, failure.exit_status(), &how);
                return Err(failure);
            }
        }
    }
    Ok(running)
}

/// Where rank 0 of PyTorch's programs is to serve its store: here at a port that is free just now,
/// on several machines at the one behind the rendezvous'.
fn store(job: &Job, id: &UniqueId) -> Result<(String, u16), Failure> {
    let port = match job.share {
        Some(_) => id.port().wrapping_add(1),
        None => TcpListener::bind((id.host(), 0))
            .and_then(|listener| listener.local_addr())
            .map_err(Failure::system("finding a free port"))?
            .port(),
    };
    Ok((id.host().to_owned(), port))
}

/// The processes that still run. Dropping kills them.
struct Running(Vec<Rank>);

impl Drop for Running {
    fn drop(&mut self) {
        for rank in &mut self.0 {
            rank.kill();
        }
    }
}
