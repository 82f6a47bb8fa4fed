//! Other processes' memory, which the system reads for this one (cross-memory attach).

use std::io;

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

/// Reads from an address of a process, all or nothing.
///
/// # Errors
/// What the system says: it reads for processes that might trace the other one (`ptrace(2)`), where
/// no filter of system calls forbids it.
pub fn read_process(process: u32, address: u64, to: &mut [u8]) -> io::Result<()> {
    let pid = i32::try_from(process).map_err(|_| io::Error::from(Errno::ESRCH))?;
    let remote = [RemoteIoVec { base: address as usize, len: to.len() }];
    let wanted = to.len();
    let read = process_vm_readv(Pid::from_raw(pid), &mut [io::IoSliceMut::new(to)], &remote)?;
    if read == wanted { Ok(()) } else { Err(Errno::EFAULT.into()) }
}

/// Whom the Yama module lets read a process' memory, by its number: 0 processes of the same user, 1
/// ancestors and whom it names, 2 those with a capability, 3 nobody. `None` without that module.
pub fn tracing_scope() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?;
    text.trim().parse().ok()
}

/// Lets processes of this one's parent read its memory where the Yama module allows that to
/// ancestors alone (`kernel.yama.ptrace_scope` = 1, as on Debian and Ubuntu): ranks have their
/// launcher as a parent. Ancestors may read it in any case.
pub fn share_memory_with_siblings() {
    if tracing_scope() != Some(1) {
        return;
    }
    let parent = nix::unistd::getppid().as_raw();
    // SAFETY: it takes no memory of ours.
    let set = Errno::result(unsafe { libc::prctl(libc::PR_SET_PTRACER, parent, 0, 0, 0) });
    if let Err(error) = set {
        tracing::debug!(%error, "the memory is not shared with other processes of the parent");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_or_refused() {
        let from = [1u8, 2, 3];
        let mut to = [0; 3];
        let own = std::process::id();
        read_process(own, from.as_ptr() as u64, &mut to).unwrap();
        assert_eq!(to, from);
        let error = read_process(own, 64, &mut to).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        // There is no such number, and 0 is none.
        for process in [0, u32::MAX, i32::MAX as u32] {
            assert!(read_process(process, from.as_ptr() as u64, &mut to).is_err(), "{process}");
        }
    }
}
