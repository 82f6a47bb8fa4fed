//! Links over TCP, for machines with plain Ethernet.
//!
//! Slots are written to the socket from where they lie and read to where they belong; only headers,
//! and messages of up to 4 KiB, pass through a buffer. MSG_ZEROCOPY is not used. Where it has been
//! measured (2 GiB in writes of 512 KiB on 2 cores, beside other programs) the system copied all
//! the same, later, and said so of 4,089 to 4,094 of 4,096 writes: over the loopback device the
//! sender took 0.80 to 0.89 s of processor time instead of 0.38 to 0.49, the receiver 0.64 to 0.73
//! instead of 0.31 to 0.35; over veth 0.67 to 0.77 instead of 0.51, and 0.76 to 0.83 instead of
//! 0.55. No machine with a network adapter has been measured.
//!
//! With integrity, each header and each content has a tag behind it (`frame`), which the receiver
//! checks before it does what the header says, or delivers the content.

mod assembly;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
mod inflow;
mod outflow;
mod wire;

#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

use crate::proxy::{Fabric, Link, Wire, WireError};
use crate::silence::{self, SILENCE};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use fuzz::link_frames;
use tracing::field::display;
use wire::TcpWire;

/// How much longer than the control channel a link bears silence: that says more of a machine that
/// is gone.
const LONGER: Duration = Duration::from_secs(5);

/// Makes wires of TCP sockets.
#[derive(Clone, Debug)]
pub struct Tcp {
    sockets: usize,
    write_limit_bytes: usize,
    silence: Duration,
    sealed: bool,
}

impl Tcp {
    /// With so many sockets a wire, at least one.
    pub fn new(sockets: usize) -> Tcp {
        let (sockets, write_limit_bytes) = (sockets.max(1), usize::MAX);
        Tcp { sockets, write_limit_bytes, silence: SILENCE, sealed: false }
    }

    /// A peer's machine may be silent for so long, instead of [`SILENCE`], and some more: the
    /// control channel tells of one that is gone.
    pub fn with_silence(self, silence: Duration) -> Tcp {
        Tcp { silence, ..self }
    }

    /// Wires seal what they carry: what is changed on its way is [`WireError::Changed`], and never
    /// delivered. Both ends need the same.
    pub fn with_integrity(self) -> Tcp {
        Tcp { sealed: true, ..self }
    }

    /// For tests: no write is given more bytes than this, at least one.
    pub fn with_short_writes(self, limit_bytes: usize) -> Tcp {
        Tcp { write_limit_bytes: limit_bytes.max(1), ..self }
    }
}

impl Fabric for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn sockets(&self) -> usize {
        self.sockets
    }

    fn open(&self, link: Link) -> Result<Box<dyn Wire>, WireError> {
        let (rank, peer, sockets) = (link.rank, link.peer, link.sockets.len());
        let mut streams = Vec::with_capacity(sockets);
        for socket in link.sockets {
            let (stream, seals) = socket.into_parts();
            let seals = seals.filter(|_| self.sealed);
            if self.sealed && seals.is_none() {
                let detail = "its messages cannot be sealed: the socket was not authenticated";
                return Err(WireError::Unfit(detail.into()));
            }
            let prepared = stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true));
            prepared.map_err(WireError::io("preparing a socket"))?;
            let granted = silence::grant(&stream, self.silence.saturating_add(LONGER));
            granted.map_err(WireError::io("preparing a socket"))?;
            streams.push((stream, seals));
        }
        let first = streams.first().map(|(stream, _)| stream);
        let local = first.and_then(|stream| stream.local_addr().ok()).map(display);
        let remote = first.and_then(|stream| stream.peer_addr().ok()).map(display);
        tracing::info!(
            rank,
            peer,
            sockets,
            local,
            remote,
            sealed = self.sealed,
            "a link over TCP is made"
        );
        Ok(Box::new(TcpWire::new(streams, link.ports, self.write_limit_bytes)))
    }
}

/// The result of a call on a socket that does not block: `None` is not now.
fn not_now(len: libc::ssize_t) -> io::Result<Option<usize>> {
    if let Ok(len) = usize::try_from(len) {
        return Ok(Some(len));
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
        _ => Err(error),
    }
}
