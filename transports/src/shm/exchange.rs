//! File descriptors change hands: every rank with every other of its node, over abstract Unix
//! sockets.
//!
//! Of a pair, the higher rank connects and sends, the lower one answers with its own. A packet
//! proves its sender: an HMAC under the job's secret over both ranks and both sockets' names, which
//! are random and new each time. The system vouches for the user on the other side. Whoever else
//! connects (abstract sockets have no permissions) is dropped.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
    UnixAddr, accept4, bind, connect, getsockopt, listen as listen_on, recvmsg, sendmsg, socket,
    sockopt,
};
use nix::unistd::{Pid, getpid, getuid};

use crate::rendezvous::random_bytes;
use crate::{Error, Liveness, Secret, process};

/// The random part of a socket's name.
pub(super) type Name = [u8; 16];

/// The most descriptors that the system lets one packet carry.
pub(super) const DESCRIPTORS_LIMIT: usize = 253;

/// How often a rank that waits looks whether the others still live.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

const PACKET_BYTES: usize = 8 + 32;

/// Opens a socket under a new name.
pub(super) fn listen() -> Result<(OwnedFd, Name), Error> {
    let name = random_bytes()?;
    let listener = new_socket()?;
    let bound = bind(listener.as_raw_fd(), &address(&name)?);
    bound.map_err(Error::os("binding a Unix socket"))?;
    listen_on(&listener, Backlog::MAXCONN).map_err(Error::os("listening on a Unix socket"))?;
    Ok((listener, name))
}

fn new_socket() -> Result<OwnedFd, Error> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let made = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None);
    made.map_err(Error::os("making a Unix socket"))
}

fn address(name: &Name) -> Result<UnixAddr, Error> {
    let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    let address = UnixAddr::new_abstract(format!("oxccl-{hex}").as_bytes());
    address.map_err(Error::os("naming a Unix socket"))
}

/// One exchange, as one rank sees it.
pub(super) struct Exchange<'a> {
    rank: usize,
    /// The sockets of the ranks that take part, by rank.
    names: BTreeMap<usize, Name>,
    secret: &'a Secret,
    files: Vec<BorrowedFd<'a>>,
    listener: OwnedFd,
    /// Connections whose packet has not come yet.
    open: Vec<OwnedFd>,
    /// Lower ranks that have not been connected to.
    to_call: Vec<usize>,
    received: BTreeMap<usize, Vec<OwnedFd>>,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(
        rank: usize,
        names: BTreeMap<usize, Name>,
        secret: &'a Secret,
        files: Vec<BorrowedFd<'a>>,
        listener: OwnedFd,
    ) -> Exchange<'a> {
        let to_call = names.keys().copied().filter(|&peer| peer < rank).collect();
        let received = BTreeMap::new();
        Exchange { rank, names, secret, files, listener, open: Vec::new(), to_call, received }
    }

    /// Returns what each rank sent; of this rank itself, nothing. From then on the others'
    /// processes are watched.
    pub(super) fn run(
        mut self,
        deadline: Instant,
        liveness: &Liveness,
    ) -> Result<BTreeMap<usize, Vec<OwnedFd>>, Error> {
        self.received.insert(self.rank, Vec::new());
        loop {
            self.call()?;
            if self.received.len() == self.names.len() {
                return Ok(self.received);
            }
            liveness.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Timeout { doing: "sharing regions", missing: self.missing() });
            }
            self.turn(left.min(LOOK_PAUSE), liveness)?;
        }
    }

    fn missing(&self) -> Vec<usize> {
        self.names.keys().copied().filter(|rank| !self.received.contains_key(rank)).collect()
    }

    /// Connects to the lower ranks, as far as their queues have room.
    fn call(&mut self) -> Result<(), Error> {
        for peer in std::mem::take(&mut self.to_call) {
            let calling = new_socket()?;
            match connect(calling.as_raw_fd(), &address(&self.names[&peer])?) {
                Ok(()) if same_user(&calling) => {
                    self.send(&calling, peer)?;
                    self.open.push(calling);
                }
                // Somebody else has the name: the rank itself is gone, and will be missed.
                Ok(()) => {}
                Err(Errno::EAGAIN | Errno::EINTR) => self.to_call.push(peer),
                // It is gone; the control channel tells, or the deadline.
                Err(error) => tracing::debug!(peer, %error, "cannot connect to a rank"),
            }
        }
        Ok(())
    }

    /// Waits for connections and packets, and handles them.
    fn turn(&mut self, wait: Duration, liveness: &Liveness) -> Result<(), Error> {
        let sockets = std::iter::once(&self.listener).chain(&self.open);
        let mut fds: Vec<_> =
            sockets.map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
        // Rounded up, so that the last turn does not spin.
        let wait = PollTimeout::try_from(wait + Duration::from_millis(1));
        match poll(&mut fds, wait.unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(Error::os("waiting for regions")(error)),
        }
        let happened: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        let open = std::mem::take(&mut self.open);
        for (socket, ready) in open.into_iter().zip(&happened[1..]) {
            if !ready {
                self.open.push(socket);
            } else if let Some((peer, files)) = self.receive(&socket)? {
                if peer > self.rank {
                    self.send(&socket, peer)?;
                }
                if let Some(process) = process_behind(&socket) {
                    liveness.watch(peer, process);
                }
                self.received.insert(peer, files);
            }
        }
        if happened[0] { self.accept() } else { Ok(()) }
    }

    fn accept(&mut self) -> Result<(), Error> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        match accept4(self.listener.as_raw_fd(), flags) {
            Ok(accepted) => {
                // SAFETY: accept4 has just made it, and nobody else has it.
                let accepted = unsafe { OwnedFd::from_raw_fd(accepted) };
                if same_user(&accepted) {
                    self.open.push(accepted);
                }
                Ok(())
            }
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => Ok(()),
            Err(error) => Err(Error::os("accepting a rank")(error)),
        }
    }

    fn send(&self, socket: &OwnedFd, peer: usize) -> Result<(), Error> {
        let mut packet = [0; PACKET_BYTES];
        packet[..8].copy_from_slice(&(self.rank as u64).to_le_bytes());
        let proof = self.secret.prove("regions", &self.signed(self.rank, peer));
        packet[8..].copy_from_slice(&proof);
        let files: Vec<RawFd> = self.files.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&files)];
        let rights = if files.is_empty() { &[][..] } else { &rights[..] };
        let (fd, parts) = (socket.as_raw_fd(), [IoSlice::new(&packet)]);
        loop {
            match sendmsg::<()>(fd, &parts, rights, MsgFlags::MSG_NOSIGNAL, None) {
                Err(Errno::EINTR) => {}
                // The peer is gone; the control channel tells, or the deadline.
                Ok(_) | Err(Errno::EPIPE | Errno::ECONNRESET) => return Ok(()),
                Err(error) => return Err(Error::os("sending regions to a rank")(error)),
            }
        }
    }

    /// Takes a packet. `None`: it is not from a rank that is still missing, and to be dropped.
    fn receive(&self, socket: &OwnedFd) -> Result<Option<(usize, Vec<OwnedFd>)>, Error> {
        let mut packet = [0; PACKET_BYTES];
        let (len, files) = match receive_packet(socket, &mut packet) {
            Ok(received) => received,
            Err(Errno::ECONNRESET) => return Ok(None),
            Err(error) => return Err(Error::os("receiving regions")(error)),
        };
        let (rank, proof) = packet.split_at(8);
        let rank = rank.try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX);
        let rank = usize::try_from(rank).unwrap_or(usize::MAX);
        let known = len == PACKET_BYTES
            && self.names.contains_key(&rank)
            && !self.received.contains_key(&rank)
            && proof.try_into().is_ok_and(|proof| {
                self.secret.verify("regions", &self.signed(rank, self.rank), proof)
            });
        Ok(known.then_some((rank, files)))
    }

    /// What a packet from one rank to another proves.
    fn signed(&self, from: usize, to: usize) -> [&[u8]; 2] {
        [&self.names[&from], &self.names[&to]]
    }
}

fn same_user(socket: &OwnedFd) -> bool {
    let peer = getsockopt(socket, sockopt::PeerCredentials);
    peer.is_ok_and(|peer| peer.uid() == getuid().as_raw())
}

/// The process at the other end, if it is another than this.
fn process_behind(socket: &OwnedFd) -> Option<OwnedFd> {
    let peer = getsockopt(socket, sockopt::PeerCredentials).ok()?;
    let peer = Pid::from_raw(peer.pid());
    (peer != getpid()).then(|| process::watch(peer)).flatten()
}

/// Reads one packet; every descriptor that came with it is owned, whatever comes of it.
fn receive_packet(
    socket: &OwnedFd,
    packet: &mut [u8; PACKET_BYTES],
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = cmsg_space!([RawFd; DESCRIPTORS_LIMIT]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let mut parts = [IoSliceMut::new(packet)];
    let message = loop {
        match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags) {
            Err(Errno::EINTR) => {}
            received => break received?,
        }
    };
    let mut files = Vec::new();
    // Control data that are cut off are descriptors that this process may not have.
    for control in message.cmsgs().map_err(|_| Errno::EMFILE)? {
        if let ControlMessageOwned::ScmRights(received) = control {
            // SAFETY: the system has just made these for this process, and nobody else has them.
            files.extend(received.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok((message.bytes, files))
}

#[cfg(test)]
mod tests;
