//! What waits to be written to a socket.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use super::frame::{Frame, HEADER_BYTES};
use crate::proxy::PortNumber;
use crate::seal::{Seal, TAG_BYTES, Tag};

/// Parts that one system call takes.
const BATCH: usize = 32;

/// Frames in the order in which they are written, straight from the slots.
pub(super) struct Outflow {
    frames: VecDeque<Outgoing>,
    /// Bytes of the first that are written.
    written: usize,
    /// What one system call is given at most; less than it could take only in tests.
    write_limit_bytes: usize,
    /// What makes the tags, if there are any.
    seal: Option<Seal>,
}

struct Outgoing {
    /// The header, and its tag.
    head: [u8; HEADER_BYTES + TAG_BYTES],
    head_bytes: usize,
    bytes: *const u8,
    len_bytes: usize,
    /// The tag of the bytes.
    tail: Tag,
    tail_bytes: usize,
    /// The message of which this is a part.
    message: Option<(PortNumber, u64)>,
}

// SAFETY: the addresses are of outbox slots, which keep their content, in whatever thread, until
// the ledger is told that they were sent.
unsafe impl Send for Outgoing {}

impl Outflow {
    pub(super) fn new(write_limit_bytes: usize, seal: Option<Seal>) -> Outflow {
        Outflow { frames: VecDeque::new(), written: 0, write_limit_bytes, seal }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Appends a counter.
    pub(super) fn tell(&mut self, frame: Frame) {
        self.push(frame, &[], None);
    }

    /// Appends a part of a message.
    ///
    /// # Safety
    ///
    /// `bytes` is readable for the frame's length and keeps its content until `write` has named the
    /// message.
    pub(super) unsafe fn send(&mut self, frame: Frame, bytes: *const u8) {
        let Frame::Part { port, message, len_bytes, .. } = frame else { return };
        // SAFETY: as the caller promises.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, len_bytes as usize) };
        self.push(frame, bytes, Some((port, message)));
    }

    fn push(&mut self, frame: Frame, content: &[u8], message: Option<(PortNumber, u64)>) {
        let mut outgoing = Outgoing {
            head: [0; HEADER_BYTES + TAG_BYTES],
            head_bytes: HEADER_BYTES,
            bytes: content.as_ptr(),
            len_bytes: content.len(),
            tail: [0; TAG_BYTES],
            tail_bytes: 0,
            message,
        };
        let (header, tag) = outgoing.head.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&frame.encode());
        if let Some(seal) = &mut self.seal {
            tag.copy_from_slice(&seal.tag(header));
            outgoing.head_bytes += TAG_BYTES;
            if !content.is_empty() {
                (outgoing.tail, outgoing.tail_bytes) = (seal.tag(content), TAG_BYTES);
            }
        }
        self.frames.push_back(outgoing);
    }

    /// Writes what the socket takes now; `done` is told the message of each part that is written
    /// whole. Returns whether anything was written.
    pub(super) fn write(
        &mut self,
        stream: &TcpStream,
        mut done: impl FnMut(PortNumber, u64),
    ) -> io::Result<bool> {
        let mut any = false;
        while !self.frames.is_empty() {
            let (mut parts, wanted) = self.batch();
            let Some(len) = send(stream, &mut parts)? else { break };
            any = true;
            self.advance(len, &mut done);
            if len < wanted && len < self.write_limit_bytes {
                break;
            }
        }
        Ok(any)
    }

    fn batch(&self) -> (Vec<libc::iovec>, usize) {
        let mut parts = Vec::with_capacity(3 * BATCH);
        let (mut skip, mut wanted) = (self.written, 0);
        for frame in self.frames.iter().take(BATCH) {
            for (start, len) in frame.pieces() {
                let skipped = skip.min(len);
                skip -= skipped;
                let len = (len - skipped).min(self.write_limit_bytes - wanted);
                if len > 0 {
                    let start = start.wrapping_add(skipped).cast_mut().cast();
                    parts.push(libc::iovec { iov_base: start, iov_len: len });
                    wanted += len;
                }
            }
        }
        (parts, wanted)
    }

    fn advance(&mut self, len: usize, done: &mut impl FnMut(PortNumber, u64)) {
        self.written += len;
        while let Some(frame) = self.frames.front() {
            let whole = frame.pieces().iter().map(|(_, len)| len).sum();
            if self.written < whole {
                return;
            }
            self.written -= whole;
            if let Some((port, message)) = frame.message {
                done(port, message);
            }
            self.frames.pop_front();
        }
    }
}

impl Outgoing {
    /// What of it is written, in this order.
    fn pieces(&self) -> [(*const u8, usize); 3] {
        let head = (self.head.as_ptr(), self.head_bytes);
        [head, (self.bytes, self.len_bytes), (self.tail.as_ptr(), self.tail_bytes)]
    }
}

/// One write. `None`: the socket takes nothing now.
fn send(stream: &TcpStream, parts: &mut [libc::iovec]) -> io::Result<Option<usize>> {
    // SAFETY: all fields of a message header may be zero.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = parts.as_mut_ptr();
    header.msg_iovlen = parts.len();
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the header's parts are readable: heads and tails that `frames` owns, and outbox
    // slots, by the contract of `send`.
    let len = unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const header, flags) };
    super::not_now(len)
}
