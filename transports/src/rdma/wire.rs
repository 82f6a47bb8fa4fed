//! Messages and counters over queue pairs.
//!
//! A message is written straight into its slot at the peer: short ones whole, on one path after the
//! other; long ones in parts, one a path. Each part comes with immediate data, which the adapter
//! there reports after the part's bytes; a message has arrived once all of its parts have. So
//! nothing relies on an order between paths. Counters go by a `Send` of 16 bytes, those of one port
//! on one path.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use super::completion::{Completion, CompletionQueue};
use super::flush::Part;
use super::immediate::Brought;
use super::path::{Path, Progress};
use crate::proxy::{
    Content, Counter, Ledger, PortNumber, PortShape, Ports, Socket, Wire, WireError,
};

/// A message is cut into parts of at least this length.
const PART_BYTES: usize = 32 << 10;

/// The longest that an end waits, when it is dropped, for what it has sent to arrive. A peer that
/// has stopped answering ends that before.
const DRAIN: Duration = Duration::from_secs(5);

/// How long the reason for which requests were given up may come after them.
const REASON: Duration = Duration::from_millis(100);

/// A wire over RDMA.
pub(super) struct RdmaWire {
    paths: Vec<Path>,
    ports: Arc<dyn Ports>,
    /// Carries nothing: it ends when the peer does.
    socket: Socket,
    /// The path that the next short message takes.
    next_path: usize,
    /// For each port, where its slots begin in `outgoing` and `incoming`.
    first_slot: Vec<u32>,
    /// For each slot: parts of its message that are still being read, and its number.
    outgoing: Vec<Slot>,
    /// For each slot: parts of its message that have come, and their bytes.
    incoming: Vec<Slot>,
    /// Slots whose messages were taken at once.
    taken: Vec<u32>,
    /// Parts that one flush was for.
    released: Vec<Part>,
    /// Completions of one poll.
    polled: Vec<Completion>,
    /// Whether all paths report the next completion, and none has been found since.
    armed: bool,
    /// Whether the proxy may have slept, so that what descriptors tell must be seen to.
    slept: bool,
    /// Whether the peer has been seen to have ended.
    ended: bool,
    failed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    port: PortNumber,
    message: u64,
    parts: usize,
    len_bytes: usize,
}

impl RdmaWire {
    pub(super) fn new(
        paths: Vec<Path>,
        ports: Arc<dyn Ports>,
        socket: Socket,
    ) -> Result<RdmaWire, WireError> {
        let nonblocking = socket.stream().set_nonblocking(true);
        nonblocking.map_err(WireError::io("setting up its socket"))?;
        let (mut first_slot, mut slots) = (Vec::new(), Vec::new());
        for port in 0..ports.count() as PortNumber {
            first_slot.push(slots.len() as u32);
            if let PortShape::Slots { slots: count, .. } = ports.shape(port) {
                let slot = Slot { port, ..Slot::default() };
                slots.extend(std::iter::repeat_n(slot, count as usize));
            }
        }
        Ok(RdmaWire {
            paths,
            ports,
            socket,
            next_path: 0,
            first_slot,
            taken: Vec::with_capacity(slots.len()),
            incoming: slots.clone(),
            outgoing: slots,
            polled: Vec::with_capacity(CompletionQueue::POLLED_AT_ONCE),
            released: Vec::new(),
            armed: false,
            slept: true,
            ended: false,
            failed: false,
        })
    }

    /// The number of a message's slot among those of all ports.
    fn slot(&self, port: PortNumber, message: u64) -> Option<u32> {
        let first = *self.first_slot.get(usize::from(port))?;
        match self.ports.shape(port) {
            PortShape::Slots { slots, .. } => Some(first + (message % u64::from(slots)) as u32),
            PortShape::Counter => None,
        }
    }

    /// The first path of a message in so many parts, if it can be sent now.
    fn path_for(&mut self, parts: usize) -> Option<usize> {
        if parts > 1 {
            return self.paths[..parts].iter().all(Path::has_room).then_some(0);
        }
        let count = self.paths.len();
        let path = (0..count)
            .map(|ahead| (self.next_path + ahead) % count)
            .find(|&path| self.paths[path].has_room())?;
        self.next_path = (path + 1) % count;
        Some(path)
    }

    fn advance(&mut self, ledger: &mut Ledger) -> Result<bool, WireError> {
        let mut moved = !self.taken.is_empty();
        for slot in self.taken.drain(..) {
            let Slot { port, message, .. } = self.outgoing[slot as usize];
            ledger.sent(port, message);
        }
        for path in 0..self.paths.len() {
            moved |= self.poll(path, ledger)?;
        }
        if moved {
            self.armed = false;
        }
        if self.slept {
            self.slept = false;
            self.look_at_descriptors(moved)?;
        }
        Ok(moved)
    }

    /// Books what has completed on a path.
    fn poll(&mut self, path: usize, ledger: &mut Ledger) -> Result<bool, WireError> {
        let mut polled = std::mem::take(&mut self.polled);
        let count = self.paths[path].completions().poll(|completion| polled.push(completion))?;
        // Of several failures at once the first that is not another's consequence tells why.
        polled.sort_by_key(|completion| completion.is_flushed());
        for completion in polled.drain(..) {
            let given_up = completion.is_flushed();
            let progress = match self.paths[path].complete(completion) {
                Err(consequence) if given_up => {
                    return Err(self.reason(path)?.unwrap_or_else(|| consequence.into()));
                }
                progress => progress?,
            };
            match progress {
                Progress::Nothing => {}
                Progress::Sent { tag } => self.sent(tag, ledger)?,
                Progress::Part(part) => self.arrived(part, ledger)?,
                Progress::Told { port, counter, value } => ledger.told(port, counter, value)?,
                Progress::Flushed => self.flushed(path, ledger)?,
            }
        }
        self.polled = polled;
        if count > 0 {
            self.paths[path].follow_up()?;
        }
        Ok(count > 0)
    }

    /// Why a path's requests were given up. Receives may be reported before the send that failed,
    /// and an adapter whose port goes down may give that one up, too: then the port's event alone
    /// tells.
    fn reason(&mut self, path: usize) -> Result<Option<WireError>, WireError> {
        let deadline = Instant::now() + REASON;
        while Instant::now() < deadline {
            self.look_at_devices()?;
            let mut polled = Vec::new();
            self.paths[path].completions().poll(|completion| polled.push(completion))?;
            for completion in polled.into_iter().filter(|completion| !completion.is_flushed()) {
                if let Err(reason) = self.paths[path].complete(completion) {
                    return Ok(Some(reason.into()));
                }
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(None)
    }

    /// A part of an outbox slot has been read.
    fn sent(&mut self, slot: u32, ledger: &mut Ledger) -> Result<(), WireError> {
        let slot = &mut self.outgoing[slot as usize];
        slot.parts -= 1;
        if slot.parts == 0 {
            ledger.sent(slot.port, slot.message);
        }
        Ok(())
    }

    /// Parts that were held back have arrived.
    fn flushed(&mut self, path: usize, ledger: &mut Ledger) -> Result<(), WireError> {
        let mut parts = std::mem::take(&mut self.released);
        self.paths[path].flushed(&mut parts);
        let result = parts.drain(..).try_for_each(|part| self.arrived(part, ledger));
        self.released = parts;
        result
    }

    /// A part of a message is in its slot.
    fn arrived(&mut self, part: Part, ledger: &mut Ledger) -> Result<(), WireError> {
        let Part { port, message: low, parts, len_bytes } = part;
        if usize::from(port) >= self.first_slot.len() {
            let detail = format!("port {port} of {}", self.first_slot.len());
            return Err(WireError::Protocol(detail));
        }
        // None that has not come whole is consumed, so the number is within a few of those that
        // are.
        let consumed = self.ports.consumed(port);
        let message = consumed + u64::from(low.wrapping_sub(consumed as u8));
        let Some(slot) = self.slot(port, message) else {
            return Err(WireError::Protocol(format!("a message on port {port}, a counter's")));
        };
        let slot = &mut self.incoming[slot as usize];
        if slot.parts > 0 && slot.message != message {
            let detail = format!("message {message} on port {port} before all of an earlier one");
            return Err(WireError::Protocol(detail));
        }
        slot.message = message;
        slot.parts += 1;
        slot.len_bytes += len_bytes;
        if slot.parts < parts {
            return Ok(());
        }
        let len_bytes = slot.len_bytes;
        (slot.parts, slot.len_bytes) = (0, 0);
        ledger.place(port, message, len_bytes)?;
        ledger.arrived(port, message)
    }

    /// The failure of a device, if one reports it.
    fn look_at_devices(&self) -> Result<(), WireError> {
        for path in &self.paths {
            while let Some(event) = path.device().event() {
                if event.fatal {
                    let device = path.device().name();
                    return Err(WireError::Device(format!("{device}: {}", event.what)));
                }
            }
        }
        Ok(())
    }

    /// Sees to what woke the proxy besides completions: a device's failure, or the end of the peer.
    fn look_at_descriptors(&mut self, moved: bool) -> Result<(), WireError> {
        self.look_at_devices()?;
        match self.socket.stream().read(&mut [0]) {
            // What the peer sent before it ended has been acknowledged to it, so it is here; but it
            // may have come since the poll, or be behind a flush.
            Ok(0) if !self.ended || moved || self.paths.iter().any(Path::is_flushing) => {
                (self.ended, self.slept) = (true, true);
                Ok(())
            }
            Ok(0) => Err(WireError::Closed),
            Ok(_) => Err(WireError::Protocol("bytes on the socket beside RDMA".to_owned())),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(source) => Err(WireError::Io { doing: "watching it", source }),
        }
    }

    /// Waits until the peer has all that was sent, but not long.
    fn drain(&mut self) -> Result<(), WireError> {
        let deadline = Instant::now() + DRAIN;
        while Instant::now() < deadline {
            let mut drained = true;
            for path in &mut self.paths {
                let mut polled = Vec::new();
                path.completions().poll(|completion| polled.push(completion))?;
                for completion in polled {
                    path.complete(completion)?;
                }
                drained &= path.drain()?;
            }
            if drained {
                break;
            }
            thread::yield_now();
        }
        Ok(())
    }
}

impl Wire for RdmaWire {
    fn send(
        &mut self,
        port: PortNumber,
        message: u64,
        content: Content,
    ) -> Result<bool, WireError> {
        let parts = content.len_bytes.div_ceil(PART_BYTES).clamp(1, self.paths.len());
        let Some(first) = self.path_for(parts) else { return Ok(false) };
        let slot = self.slot(port, message).expect("the proxy sends messages to slots only");
        let place = self.ports.inbox_offset(port, message);
        let part_bytes = content.len_bytes.div_ceil(parts).next_multiple_of(64);
        let what = Brought::Part { port, message: message as u8, parts };
        let mut reading = 0;
        for part in 0..parts {
            let offset = part * part_bytes;
            let len_bytes = part_bytes.min(content.len_bytes - offset);
            let start = content.start.wrapping_add(offset);
            let path = &mut self.paths[first + part];
            let taken = path.write(start, len_bytes, place + offset, what, slot)?;
            reading += usize::from(!taken);
        }
        let outgoing = &mut self.outgoing[slot as usize];
        (outgoing.message, outgoing.parts) = (message, reading);
        if reading == 0 {
            self.taken.push(slot);
        }
        Ok(true)
    }

    fn tell(&mut self, port: PortNumber, counter: Counter, value: u64) -> Result<bool, WireError> {
        let path = usize::from(port) % self.paths.len();
        let path = &mut self.paths[path];
        let room = path.has_room();
        if room {
            path.tell(Brought::Value { port, counter }, value)?;
        }
        Ok(room)
    }

    fn progress(&mut self, ledger: &mut Ledger) -> Result<bool, WireError> {
        let moved = self.advance(ledger);
        self.failed |= moved.is_err();
        moved
    }

    fn arm(&mut self) -> Result<bool, WireError> {
        self.slept = true;
        if self.armed {
            return Ok(self.taken.is_empty());
        }
        // What completed before does not wake: the proxy looks once more.
        self.paths.iter().try_for_each(|path| path.completions().arm())?;
        self.armed = true;
        Ok(false)
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let paths = self.paths.iter();
        let paths = paths.flat_map(|path| [path.completions().as_fd(), path.device().as_fd()]);
        let all = paths.chain([self.socket.stream().as_fd()]);
        all.map(|descriptor| (descriptor, PollFlags::POLLIN)).collect()
    }

    fn is_drained(&self) -> bool {
        // Requests whose completion nobody asked for are seen to when this is dropped.
        self.paths.iter().all(Path::is_drained)
    }
}

impl Drop for RdmaWire {
    fn drop(&mut self) {
        let has_gone = || matches!(self.socket.stream().read(&mut [0]), Ok(0));
        if !self.failed && !has_gone() {
            // The peer may wait for what queue pairs still hold. A failure says that it does no
            // more.
            let _ = self.drain();
        }
    }
}
