//! SIGUSR1, by which somebody asks a process what it is doing.
//!
//! The handler does nothing but write to a descriptor (`eventfd`); a thread of its own, which
//! starts when the first one asks for it, reads that and asks all who listen. So what they do need
//! not be safe in a handler, and they are asked whatever the threads of the process wait for.

use crate::fork::Origin;
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Somebody who is asked when the signal comes.
pub trait Listen: Send + Sync {
    /// The signal has come to this process.
    fn asked(&self);
}

/// Those who are asked, and in which process they are.
type Listeners = Vec<(Origin, Weak<dyn Listen>)>;

static LISTENERS: Mutex<Listeners> = Mutex::new(Vec::new());
/// What the handler writes to; -1 before there is one.
static BELL: AtomicI32 = AtomicI32::new(-1);
/// The process whose bell it is: a forked one has the descriptor, but no thread.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Asks it, as long as it lives, whenever SIGUSR1 comes to this process.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] where the program has a handler of SIGUSR1, or ignores it,
/// which stays; otherwise what the system refused.
pub fn listens_to_signal(who: &Arc<impl Listen + 'static>) -> io::Result<()> {
    let who: Weak<dyn Listen> = Arc::downgrade(who) as Weak<dyn Listen>;
    let mut listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    begin()?;
    listeners.retain(|(_, other)| other.strong_count() > 0);
    listeners.push((Origin::here(), who));
    Ok(())
}

/// Starts the thread and takes the signal, once a process. Nobody else does so meanwhile.
fn begin() -> io::Result<()> {
    // SAFETY: it only asks.
    let process = unsafe { libc::getpid() };
    if PROCESS.load(Ordering::Acquire) == process {
        return Ok(());
    }
    if !is_free(PROCESS.load(Ordering::Acquire) != 0)? {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    // SAFETY: the call makes a descriptor.
    let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if bell < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system has just made it, and nobody else has it.
    let mut file = unsafe { File::from_raw_fd(bell) };
    let thread = std::thread::Builder::new().name("oxccl-signal".into());
    // It ends with the process, and keeps the descriptor until then.
    thread.spawn(move || {
        let mut rings = [0; 8];
        while file.read_exact(&mut rings).is_ok() {
            ask_all();
        }
        let _ = file.into_raw_fd();
    })?;
    BELL.store(bell, Ordering::Release);
    take(handler as *const () as libc::sighandler_t)?;
    PROCESS.store(process, Ordering::Release);
    Ok(())
}

fn ask_all() {
    let listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    let here = listeners.iter().filter(|(origin, _)| origin.is_here());
    // Not locked while they do it: others may come and go meanwhile.
    let all: Vec<_> = here.filter_map(|(_, who)| who.upgrade()).collect();
    drop(listeners);
    all.iter().for_each(|who| who.asked());
}

extern "C" fn handler(_: libc::c_int) {
    let one = 1u64;
    // SAFETY: these calls may be made in a handler; eight bytes are written of eight. What the
    // program's own calls have left in errno stays.
    unsafe {
        let errno = *libc::__errno_location();
        if libc::getpid() == PROCESS.load(Ordering::Acquire) {
            let bell = BELL.load(Ordering::Acquire);
            libc::write(bell, std::ptr::from_ref(&one).cast(), size_of::<u64>());
        }
        *libc::__errno_location() = errno;
    }
}

/// Whether nobody has the signal, or in a forked process its parent had it here.
fn is_free(inherited: bool) -> io::Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no new action is given; the old one is written to memory of its size.
    if unsafe { libc::sigaction(libc::SIGUSR1, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, and all zeros were a valid value before.
    let action = unsafe { action.assume_init() }.sa_sigaction;
    let own = inherited && action == handler as *const () as libc::sighandler_t;
    Ok(action == libc::SIG_DFL || own)
}

fn take(handler: libc::sighandler_t) -> io::Result<()> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros is a valid action; the set is in it.
    let action = unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = handler;
        // Calls of the program that the signal interrupts go on.
        action.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&mut action.sa_mask);
        action
    };
    // SAFETY: the handler does what a handler may do. The old action is not asked for.
    match unsafe { libc::sigaction(libc::SIGUSR1, action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    struct Ear(Mutex<Sender<()>>);

    impl Listen for Ear {
        fn asked(&self) {
            let _ = self.0.lock().unwrap().send(());
        }
    }

    #[test]
    fn who_listens_is_asked() {
        let (tell, asked) = channel();
        let ear = Arc::new(Ear(Mutex::new(tell)));
        listens_to_signal(&ear).unwrap();
        for _ in 0..3 {
            // SAFETY: it sends a signal to this process, which has a handler.
            unsafe { libc::kill(libc::getpid(), libc::SIGUSR1) };
            asked.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        drop(ear);
        // SAFETY: as above.
        unsafe { libc::kill(libc::getpid(), libc::SIGUSR1) };
        // Nobody is asked any more, and the process goes on.
        assert!(asked.recv_timeout(Duration::from_millis(50)).is_err());
    }
}
