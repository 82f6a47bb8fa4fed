//! A socket to a peer that has proven the job's secret.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::wire::WireError;
use crate::seal::Seals;

/// The longest message of a [`Socket::swap`].
pub const SWAP_LIMIT_BYTES: usize = 16 << 10;

/// A socket to a peer that has proven the job's secret. Blocking; no bytes are under way.
#[derive(Debug)]
pub struct Socket {
    stream: TcpStream,
    seals: Option<Seals>,
}

impl Socket {
    /// Takes a stream both ends of which have proven the secret.
    pub fn new(stream: TcpStream) -> Socket {
        Socket { stream, seals: None }
    }

    /// The same with what seals messages, which follows from how both ends have proven it.
    pub(super) fn with_seals(self, seals: Seals) -> Socket {
        Socket { seals: Some(seals), ..self }
    }

    /// Gives the peer some bytes and takes what it gives in the same swap. Both ends call it.
    ///
    /// # Errors
    /// [`WireError::Io`] if nothing comes until the deadline, or the connection ends;
    /// [`WireError::Protocol`] for a message of more than [`SWAP_LIMIT_BYTES`].
    ///
    /// # Panics
    /// If `bytes` are more than that.
    pub fn swap(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<u8>, WireError> {
        assert!(bytes.len() <= SWAP_LIMIT_BYTES);
        // Both ends write first: what is so short fits the system's buffers.
        let mut message = (bytes.len() as u32).to_le_bytes().to_vec();
        message.extend_from_slice(bytes);
        self.write(&message, deadline)?;
        let mut len = [0; 4];
        self.read(&mut len, deadline)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > SWAP_LIMIT_BYTES {
            return Err(WireError::Protocol(format!("a message of {len} bytes")));
        }
        let mut theirs = vec![0; len];
        self.read(&mut theirs, deadline)?;
        Ok(theirs)
    }

    /// The socket itself, and what seals messages, if its ends have proven the secret.
    pub(crate) fn into_parts(self) -> (TcpStream, Option<Seals>) {
        (self.stream, self.seals)
    }

    /// The socket itself.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(super) fn write(&mut self, bytes: &[u8], deadline: Instant) -> Result<(), WireError> {
        let doing = "sending to it";
        self.stream.set_write_timeout(Some(left(deadline))).map_err(WireError::io(doing))?;
        self.stream.write_all(bytes).map_err(WireError::io(doing))
    }

    /// Fills `bytes`, however slowly they drip in, until the deadline and no longer.
    pub(super) fn read(&mut self, bytes: &mut [u8], deadline: Instant) -> Result<(), WireError> {
        let doing = "waiting for it";
        let mut filled = 0;
        while filled < bytes.len() {
            self.stream.set_read_timeout(Some(left(deadline))).map_err(WireError::io(doing))?;
            match self.stream.read(&mut bytes[filled..]) {
                Ok(0) => return Err(WireError::Closed),
                Ok(len) => filled += len,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(source) => return Err(WireError::Io { doing, source }),
            }
        }
        Ok(())
    }
}

/// What is left until a deadline; never zero, which would mean for ever.
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}
