//! What is read from a socket, straight into the slots.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use super::assembly::Assembly;
use super::frame::{Frame, HEADER_BYTES};
use crate::proxy::{Ledger, PortNumber, WireError};
use crate::seal::{Seal, TAG_BYTES};

/// Headers and short messages are read into a buffer of this length; what is behind them of a long
/// one goes to its slot.
const BUFFER_BYTES: usize = 4096;

/// What one turn reads at most, so that other wires have theirs.
const TURN_BYTES: usize = 1 << 20;

/// The reading side of a socket.
pub(super) struct Inflow {
    buffer: Box<[u8; BUFFER_BYTES]>,
    start: usize,
    end: usize,
    part: Option<Part>,
    /// The last turn ended before the socket was empty.
    more: bool,
    /// What checks the tags, if there are any.
    seal: Option<Seal>,
}

/// The rest of a part that is being read.
struct Part {
    port: PortNumber,
    message: u64,
    at: *mut u8,
    left: usize,
    len_bytes: usize,
}

// SAFETY: the address is of an inbox slot, which is this wire's until it reports the message, in
// whatever thread.
unsafe impl Send for Part {}

impl Inflow {
    pub(super) fn new(seal: Option<Seal>) -> Inflow {
        let buffer = Box::new([0; BUFFER_BYTES]);
        Inflow { buffer, start: 0, end: 0, part: None, more: false, seal }
    }

    pub(super) fn has_more(&self) -> bool {
        self.more
    }

    /// Reads what has come. Returns whether anything had.
    pub(super) fn read(
        &mut self,
        stream: &TcpStream,
        assembly: &mut Assembly,
        ledger: &mut Ledger,
    ) -> Result<bool, WireError> {
        let mut total = 0;
        self.more = false;
        loop {
            self.digest(assembly, ledger)?;
            if total >= TURN_BYTES {
                self.more = true;
                return Ok(true);
            }
            let (len, wanted) = match self.receive(stream) {
                Ok(Some((0, _))) => return Err(self.end()),
                Ok(Some(received)) => received,
                Ok(None) => return Ok(total > 0),
                Err(source) => return Err(WireError::Io { doing: "receiving from it", source }),
            };
            total += len;
            if len < wanted {
                self.digest(assembly, ledger)?;
                return Ok(true);
            }
        }
    }

    /// Takes in what lies in the buffer, as far as it goes.
    fn digest(&mut self, assembly: &mut Assembly, ledger: &mut Ledger) -> Result<(), WireError> {
        loop {
            if let Some(part) = &mut self.part {
                let len = part.left.min(self.end - self.start);
                // SAFETY: the part's bytes are within its slot, which the ledger has said is free
                // and which nobody else touches before it is reported; the buffer is this object's.
                unsafe {
                    let from = self.buffer.as_ptr().add(self.start);
                    std::ptr::copy_nonoverlapping(from, part.at, len);
                }
                part.advance(len);
                self.start += len;
                if part.left > 0 {
                    return Ok(());
                }
                let (port, message) = (part.port, part.message);
                if let Some(seal) = &mut self.seal {
                    let Some(tag) = self.buffer[self.start..self.end].first_chunk() else {
                        return Ok(());
                    };
                    if !seal.check(part.content(), tag) {
                        return Err(WireError::Changed);
                    }
                    self.start += TAG_BYTES;
                }
                self.part = None;
                assembly.came(ledger, port, message)?;
            }
            let Some(header) = self.buffer[self.start..self.end].first_chunk::<HEADER_BYTES>()
            else {
                return Ok(());
            };
            let mut head_bytes = HEADER_BYTES;
            if let Some(seal) = &mut self.seal {
                let behind = &self.buffer[self.start + HEADER_BYTES..self.end];
                let Some(tag) = behind.first_chunk() else { return Ok(()) };
                if !seal.check(header, tag) {
                    return Err(WireError::Changed);
                }
                head_bytes += TAG_BYTES;
            }
            let frame = Frame::decode(header)?;
            self.start += head_bytes;
            match frame {
                Frame::Told { port, counter, value } => ledger.told(port, counter, value)?,
                Frame::Part { port, message, offset, len_bytes, content_bytes } => {
                    let slot = ledger.place(port, message, content_bytes as usize)?;
                    assembly.begin(port, message, len_bytes, content_bytes)?;
                    let at = slot.wrapping_add(offset as usize);
                    let len_bytes = len_bytes as usize;
                    self.part = Some(Part { port, message, at, left: len_bytes, len_bytes });
                }
            }
        }
    }

    /// One read: to the slot first, then to the buffer. `None`: nothing has come. Returns also what
    /// was asked for.
    fn receive(&mut self, stream: &TcpStream) -> io::Result<Option<(usize, usize)>> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let (at, left) = self.part.as_ref().map_or((std::ptr::null_mut(), 0), |p| (p.at, p.left));
        let rest = &mut self.buffer[self.end..];
        let parts = [
            libc::iovec { iov_base: at.cast(), iov_len: left },
            libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() },
        ];
        let wanted = left + rest.len();
        // SAFETY: the first is the rest of the part's place in its slot, as in `digest`, the second
        // this object's buffer. The socket does not block.
        let len = unsafe { libc::readv(stream.as_raw_fd(), parts.as_ptr(), 2) };
        let Some(len) = super::not_now(len)? else { return Ok(None) };
        let direct = len.min(left);
        if let Some(part) = &mut self.part {
            part.advance(direct);
        }
        self.end += len - direct;
        Ok(Some((len, wanted)))
    }

    fn end(&self) -> WireError {
        if self.part.is_none() && self.start == self.end {
            return WireError::Closed;
        }
        let source = io::ErrorKind::UnexpectedEof.into();
        WireError::Io { doing: "receiving the rest of a message from it", source }
    }
}

impl Part {
    /// All of it, once nothing is left to be read.
    fn content(&self) -> &[u8] {
        debug_assert_eq!(self.left, 0);
        let start = self.at.wrapping_sub(self.len_bytes);
        // SAFETY: the part's bytes are within its slot, and have all been read into it. Nobody else
        // touches it before the message is reported.
        unsafe { std::slice::from_raw_parts(start, self.len_bytes) }
    }

    fn advance(&mut self, len: usize) {
        self.at = self.at.wrapping_add(len);
        self.left -= len;
    }
}
