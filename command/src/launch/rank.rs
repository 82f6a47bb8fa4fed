//! One rank's process.

use std::io::{self, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

use super::{Job, signals};
use crate::failure::Failure;
use crate::machine;

/// A rank's process.
pub(super) struct Rank {
    rank: usize,
    child: Child,
}

impl Rank {
    /// Starts it. It dies with this process.
    pub(super) fn start(
        job: &Job,
        local_rank: usize,
        id: &str,
        (store, port): &(String, u16),
        core: Option<usize>,
    ) -> Result<Rank, Failure> {
        let rank = job.first_rank() + local_rank;
        let mut command = Command::new(job.program);
        command
            .args(job.arguments)
            .env("OXCCL_RANK", rank.to_string())
            .env("OXCCL_WORLD_SIZE", job.world().to_string())
            .env("OXCCL_LOCAL_RANK", local_rank.to_string())
            .env("OXCCL_LOCAL_WORLD_SIZE", job.ranks.to_string())
            .env("OXCCL_UNIQUE_ID", id)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", job.world().to_string())
            .env("LOCAL_RANK", local_rank.to_string())
            .env("LOCAL_WORLD_SIZE", job.ranks.to_string())
            .env("MASTER_ADDR", store)
            .env("MASTER_PORT", port.to_string())
            .envs(job.variables.iter().map(|(name, value)| (name, value)))
            .envs(job.nodes.map(|nodes| ("OXCCL_NODES", nodes.to_string())));
        // A group of its own, so that a signal reaches what a rank has started, too. Such a group
        // may not read from the terminal.
        command.process_group(0);
        if rank > 0 || io::stdin().is_terminal() {
            command.stdin(Stdio::null());
        }
        let parent = std::process::id();
        let prepare = move || {
            signals::fresh()?;
            die_with(parent)?;
            core.map_or(Ok(()), machine::pin_to)
        };
        // SAFETY: between fork and exec `prepare` makes system calls only: it neither allocates nor
        // takes a lock.
        unsafe { command.pre_exec(prepare) };
        let program = job.program.to_string_lossy();
        let child = command
            .spawn()
            .map_err(Failure::system(format!("starting {program} as rank {rank}")))?;
        Ok(Rank { rank, child })
    }

    /// Its exit status, once it has ended.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        self.child.try_wait().map_err(Failure::system(format!("waiting for rank {}", self.rank)))
    }

    /// Which rank it is.
    pub(super) fn number(&self) -> usize {
        self.rank
    }

    /// The exit status to hand on, and what to say of its end behind the rank's name.
    pub(super) fn end(&self, status: ExitStatus) -> (u8, String) {
        let (how, status) = match (status.code(), status.signal()) {
            (Some(0), _) => ("ended".to_owned(), 0),
            (Some(code), _) => (format!("failed with exit status {code}"), code),
            (None, Some(signal)) => {
                (format!("was ended by signal {}", signals::name(signal)), 128 + signal)
            }
            (None, None) => (format!("failed: {status}"), 1),
        };
        (status as u8, format!("(process {}) {how}", self.child.id()))
    }

    /// Sends a signal to it and to what it has started.
    pub(super) fn signal(&self, signal: i32) {
        // SAFETY: no memory is passed. The process has not been waited for, since only running
        // ranks are kept, so the group's number is still its own.
        unsafe { libc::kill(-(self.child.id() as libc::pid_t), signal) };
    }

    /// Kills it and waits for its end, which is then certain.
    pub(super) fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        // Fails only if it has ended already.
        let _ = self.child.wait();
    }
}

/// Lets the kernel kill this process when its parent ends.
fn die_with(parent: u32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no memory is passed.
    if unsafe { libc::getppid() } as u32 != parent {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}
