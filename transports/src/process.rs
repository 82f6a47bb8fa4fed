//! Processes of this machine, by descriptors that become readable when they end.

use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;

/// A descriptor of a process. `None` where the system has none: an old kernel, or a process that is
/// in no namespace of this one's.
pub(crate) fn watch(process: Pid) -> Option<OwnedFd> {
    if process.as_raw() <= 0 {
        return None;
    }
    // SAFETY: the call takes two numbers and makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process.as_raw(), 0) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the system has just made it, and nobody else has it. It is closed on exec, as all of
    // its kind.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether a process has ended, every thread of it.
pub(crate) fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_end_of_a_process_shows() {
        if watch(Pid::this()).is_none() {
            eprintln!("skipped: the_end_of_a_process_shows: the system has no pidfd_open");
            return;
        }
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = watch(Pid::from_raw(child.id() as i32)).unwrap();
        assert!(!has_ended(&process));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_ended(&process));
        assert!(watch(Pid::from_raw(0)).is_none());
    }
}
