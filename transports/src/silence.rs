//! How long a machine may be silent, that is acknowledge nothing of what it is sent, before it
//! counts as cut off.
//!
//! A process that is only stopped is alive to its machine, which acknowledges for it. Nobody can
//! tell a machine that is down from one that the network will reach again, so the silence is also
//! the longest break of the network that ends nothing.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

/// What is granted where nothing else is said.
pub const SILENCE: Duration = Duration::from_secs(30);

/// The least that is granted: a busy network is silent for a moment.
pub const LEAST_SILENCE: Duration = Duration::from_secs(1);

/// The longest pause before TCP tries again. Left alone it doubles its pauses, so that going on
/// after a break takes as long as the break.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The option that bounds these pauses (Linux 6.15).
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Grants the machine at the other end this silence.
pub(crate) fn grant(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    let ms =
        |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX).min(i32::MAX as u32);
    setsockopt(&stream.as_fd(), sockopt::TcpUserTimeout, &ms(silence.max(LEAST_SILENCE)))?;
    let pause = ms(RETRY_PAUSE);
    // SAFETY: the option is a number, which lives until the call returns. An older system refuses
    // it, and goes on after a break later.
    unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw const pause).cast(),
            size_of_val(&pause) as libc::socklen_t,
        );
    }
    Ok(())
}

/// Whether the machine at the other end has acknowledged nothing for a second, though there is
/// something to acknowledge.
pub(crate) fn is_silent(stream: &TcpStream) -> bool {
    // SAFETY: a structure of numbers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the system writes at most `len` bytes of it.
    let told = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    told == 0
        && info.tcpi_unacked > 0
        && u128::from(info.tcpi_last_ack_recv) >= RETRY_PAUSE.as_millis()
}

/// Whether a connection broke because the other side's machine did not answer.
pub(crate) fn is_of_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
    matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable | NetworkDown)
}
