//! One connection of the server.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use crate::door::PROOF_TIMEOUT;
use crate::fork::Unshared;
use crate::rendezvous::joining::is_transient;
use crate::rendezvous::message::{Frame, FrameReader};
use crate::seal::{Seal, Seals};
use crate::silence::is_of_silence;

pub(super) struct Connection {
    pub(super) stream: Unshared<TcpStream>,
    pub(super) frames: FrameReader,
    pub(super) unsent: VecDeque<Arc<[u8]>>,
    /// How much of the first unsent frame is gone.
    sent_bytes: usize,
    /// Nothing more is read; it ends when all is sent and the other side has seen it.
    pub(super) closing: bool,
    /// When it is dropped, unless it has become a member's by then.
    pub(super) expires: Instant,
    /// The machine at the other end does not answer.
    pub(super) silent: bool,
    /// Where it comes from, and since when.
    pub(super) from: IpAddr,
    pub(super) since: Instant,
    /// What is sent is sealed.
    seal: Option<Seal>,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, from: IpAddr) -> Connection {
        let since = Instant::now();
        Connection {
            stream: Unshared::new(stream),
            from,
            since,
            seal: None,
            frames: FrameReader::default(),
            unsent: VecDeque::new(),
            sent_bytes: 0,
            closing: false,
            expires: since + PROOF_TIMEOUT,
            silent: false,
        }
    }

    /// From the next message on both ends seal what they send.
    pub(super) fn seal(&mut self, Seals { sending, receiving }: Seals) {
        self.seal = Some(sending);
        self.frames.expect_seals(receiving);
    }

    /// Appends a message to what is to be sent.
    pub(super) fn push(&mut self, frame: &Frame) {
        self.unsent.push_back(frame.bytes.clone());
        if let Some(seal) = &mut self.seal {
            self.unsent.push_back(Arc::new(frame.tag(seal)));
        }
    }

    /// Reads once. An error means that the connection has ended.
    pub(super) fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; 64 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) if self.closing => Ok(()),
            Ok(len) => {
                self.frames.extend(&bytes[..len]);
                Ok(())
            }
            Err(error) if is_transient(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Writes what it can without waiting. If the other side takes nothing any more, the rest is
    /// dropped; what it said before is still read, and the end is found there.
    pub(super) fn write(&mut self) {
        if let Err(error) = self.try_write() {
            tracing::debug!(%error, "a connection of the rendezvous takes no more");
            self.silent |= is_of_silence(&error);
            self.unsent.clear();
            self.sent_bytes = 0;
        }
    }

    fn try_write(&mut self) -> io::Result<()> {
        while let Some(frame) = self.unsent.front() {
            match self.stream.write(&frame[self.sent_bytes..]) {
                Ok(len) => self.sent_bytes += len,
                Err(error) if is_transient(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
            if self.sent_bytes == frame.len() {
                self.unsent.pop_front();
                self.sent_bytes = 0;
            }
        }
        if self.closing {
            // The other side reads to the end and closes; until then its bytes are read and
            // dropped, since closing on unread bytes would take the refusal back.
            self.stream.shutdown(Shutdown::Write)?;
        }
        Ok(())
    }
}
