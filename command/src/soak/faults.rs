//! What goes wrong on purpose.

use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use oxccl_transports::disturb::cut_connections;

/// The time-out where ranks stop.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// How long one has stopped before it goes on: long enough for the others to go on without it.
const STOPPED: u64 = 3 * TIMEOUT.as_secs();

/// One kind of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Fault {
    /// A rank's process is killed
    Kill,
    /// It is stopped, and goes on when the others have given it up
    Stop,
    /// All of its connections break
    Cut,
    /// Ranks are late now and then, by up to 20 ms
    Slow,
    /// Strangers connect to the ranks' ports and send random bytes
    Garbage,
}

impl Fault {
    /// Whether a rank is none any more.
    pub(super) fn ends_a_rank(&self) -> bool {
        matches!(self, Fault::Kill | Fault::Stop | Fault::Cut)
    }

    /// Has it befall this process.
    pub(super) fn befall(self) {
        match self {
            // SAFETY: it ends the process, past everything.
            Fault::Kill => unsafe { libc::_exit(9) },
            Fault::Stop => stop(),
            Fault::Cut => cut_connections(),
            Fault::Slow | Fault::Garbage => {}
        }
    }
}

/// Stops this process, until another one has it go on.
fn stop() {
    let own = std::process::id();
    let later = format!("sleep {STOPPED}; kill -CONT {own}");
    let alarm = Command::new("sh").args(["-c", &later]).spawn();
    if let Ok(mut alarm) = alarm {
        // SAFETY: it sends a signal to this process.
        unsafe { libc::raise(libc::SIGSTOP) };
        // It has ended, or does at once.
        let _ = alarm.wait();
    }
}
