//! A wire of TCP sockets.

use std::collections::HashMap;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use nix::poll::PollFlags;

use super::assembly::Assembly;
use super::frame::Frame;
use super::inflow::Inflow;
use super::outflow::Outflow;
use crate::proxy::{Content, Counter, Ledger, PortNumber, Ports, Wire, WireError};
use crate::seal::Seals;

/// Messages of at least twice this are dealt to several sockets, in parts of at least so many
/// bytes.
const PART_BYTES: usize = 64 << 10;

/// A wire of TCP sockets: short messages and counters go over the first, parts of long messages
/// over all of them.
pub(super) struct TcpWire {
    stripes: Vec<Stripe>,
    assembly: Assembly,
    /// Messages of which so many parts, more than one, are not written yet.
    parts: HashMap<(PortNumber, u64), u32>,
    /// The stripe that gets the next long message's first part.
    turn: usize,
    /// Keeps the memory of the slots.
    _ports: Arc<dyn Ports>,
}

/// One socket.
struct Stripe {
    stream: TcpStream,
    outflow: Outflow,
    inflow: Inflow,
}

impl TcpWire {
    /// Over these sockets, which do not block, and with what seals what they carry, if something
    /// does.
    pub(super) fn new(
        streams: Vec<(TcpStream, Option<Seals>)>,
        ports: Arc<dyn Ports>,
        write_limit_bytes: usize,
    ) -> TcpWire {
        let stripe = |(stream, seals): (TcpStream, Option<Seals>)| {
            let (sending, receiving) = seals.map(|seals| (seals.sending, seals.receiving)).unzip();
            let outflow = Outflow::new(write_limit_bytes, sending);
            Stripe { stream, outflow, inflow: Inflow::new(receiving) }
        };
        let stripes = streams.into_iter().map(stripe).collect();
        TcpWire {
            stripes,
            assembly: Assembly::default(),
            parts: HashMap::new(),
            turn: 0,
            _ports: ports,
        }
    }

    /// Over how many sockets a message goes, and which is the first.
    fn deal(&mut self, len_bytes: usize) -> (usize, usize) {
        let stripes = self.stripes.len();
        if len_bytes < PART_BYTES {
            return (1, 0);
        }
        self.turn = (self.turn + 1) % stripes;
        ((len_bytes / PART_BYTES).clamp(1, stripes), self.turn)
    }
}

impl Wire for TcpWire {
    fn send(
        &mut self,
        port: PortNumber,
        message: u64,
        content: Content,
    ) -> Result<bool, WireError> {
        let (count, first) = self.deal(content.len_bytes);
        let part_bytes = content.len_bytes.div_ceil(count).next_multiple_of(64);
        let offsets = (0..content.len_bytes).step_by(part_bytes.max(1));
        if offsets.len() > 1 {
            self.parts.insert((port, message), offsets.len() as u32);
        }
        for (index, offset) in offsets.enumerate() {
            let frame = Frame::Part {
                port,
                message,
                offset: offset as u32,
                len_bytes: part_bytes.min(content.len_bytes - offset) as u32,
                content_bytes: content.len_bytes as u32,
            };
            let stripe = (first + index) % self.stripes.len();
            let bytes = content.start.wrapping_add(offset);
            // SAFETY: within the content, which the outbox keeps until the ledger is told that it
            // was sent.
            unsafe { self.stripes[stripe].outflow.send(frame, bytes) };
        }
        Ok(true)
    }

    fn tell(&mut self, port: PortNumber, counter: Counter, value: u64) -> Result<bool, WireError> {
        self.stripes[0].outflow.tell(Frame::Told { port, counter, value });
        Ok(true)
    }

    fn progress(&mut self, ledger: &mut Ledger) -> Result<bool, WireError> {
        let mut any = false;
        for Stripe { stream, outflow, inflow } in &mut self.stripes {
            let parts = &mut self.parts;
            let done = |port, message| {
                if let Some(left) = parts.get_mut(&(port, message)) {
                    *left -= 1;
                    if *left > 0 {
                        return;
                    }
                    parts.remove(&(port, message));
                }
                ledger.sent(port, message);
            };
            any |= outflow.write(stream, done).map_err(WireError::io("sending to it"))?;
            any |= inflow.read(stream, &mut self.assembly, ledger)?;
        }
        Ok(any)
    }

    fn arm(&mut self) -> Result<bool, WireError> {
        Ok(!self.stripes.iter().any(|stripe| stripe.inflow.has_more()))
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let interest = |stripe: &Stripe| match stripe.outflow.is_empty() {
            true => PollFlags::POLLIN,
            false => PollFlags::POLLIN | PollFlags::POLLOUT,
        };
        self.stripes.iter().map(|stripe| (stripe.stream.as_fd(), interest(stripe))).collect()
    }

    fn is_drained(&self) -> bool {
        self.stripes.iter().all(|stripe| stripe.outflow.is_empty() && unsent(&stripe.stream) == 0)
    }
}

/// Bytes that the other end's system has not acknowledged.
fn unsent(stream: &TcpStream) -> libc::c_int {
    let mut bytes = 0;
    // SAFETY: the request writes one integer.
    let asked = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    // A socket that cannot be asked has ended, and will send nothing more.
    if asked == 0 { bytes } else { 0 }
}
