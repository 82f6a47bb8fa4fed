//! File descriptors change hands: every rank sends its own to every other of its node, as one
//! datagram between abstract Unix sockets.
//!
//! A packet proves its sender: an HMAC under the job's secret over both ranks' sockets' names,
//! which are random and new each time. The system vouches for the user and the process that sent
//! it. Whatever else comes (abstract sockets have no permissions) is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    UnixCredentials, bind, recvmsg, sendmsg, setsockopt, socket, sockopt,
};
use nix::unistd::{Pid, Uid, getpid, getuid};

use crate::rendezvous::random_bytes;
use crate::{Error, Liveness, Secret, process};

/// The random part of a socket's name.
pub(super) type Name = [u8; 16];

/// The most descriptors that the system lets one packet carry.
pub(super) const DESCRIPTORS_LIMIT: usize = 253;

/// How often a rank that waits looks whether the others still live.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// When a rank tries again whose packet had no room: a socket takes some ten that are not read.
const ROOM_PAUSE: Duration = Duration::from_millis(1);

const PACKET_BYTES: usize = 8 + 32;

/// Opens a socket under a new name.
pub(super) fn open() -> Result<(OwnedFd, Name), Error> {
    let name = random_bytes()?;
    let socket = new_socket()?;
    // Of each packet the system tells who sent it.
    setsockopt(&socket, sockopt::PassCred, &true).map_err(Error::os("preparing a Unix socket"))?;
    let bound = bind(socket.as_raw_fd(), &address(&name)?);
    bound.map_err(Error::os("binding a Unix socket"))?;
    Ok((socket, name))
}

fn new_socket() -> Result<OwnedFd, Error> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let made = socket(AddressFamily::Unix, SockType::Datagram, flags, None);
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
    socket: OwnedFd,
    user: Uid,
    /// Ranks that nothing has been sent to.
    unsent: Vec<usize>,
    received: BTreeMap<usize, Vec<OwnedFd>>,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(
        rank: usize,
        names: BTreeMap<usize, Name>,
        secret: &'a Secret,
        files: Vec<BorrowedFd<'a>>,
        socket: OwnedFd,
    ) -> Exchange<'a> {
        // Each begins with its next, so that not all begin with the same.
        let mut unsent: Vec<usize> = names.keys().copied().filter(|&peer| peer > rank).collect();
        unsent.extend(names.keys().copied().filter(|&peer| peer < rank));
        let (user, received) = (getuid(), BTreeMap::new());
        Exchange { rank, names, secret, files, socket, user, unsent, received }
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
            self.send_all()?;
            self.receive_all(liveness)?;
            if self.unsent.is_empty() && self.missing().next().is_none() {
                return Ok(self.received);
            }
            liveness.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // Also one that does not take what it is sent.
                let missing: BTreeSet<usize> =
                    self.missing().chain(self.unsent.iter().copied()).collect();
                let missing = missing.into_iter().collect();
                return Err(Error::Timeout { doing: "sharing regions", missing });
            }
            let pause = if self.unsent.is_empty() { LOOK_PAUSE } else { ROOM_PAUSE };
            self.wait(left.min(pause))?;
        }
    }

    fn missing(&self) -> impl Iterator<Item = usize> {
        self.names.keys().copied().filter(|rank| !self.received.contains_key(rank))
    }

    /// Waits for a packet.
    fn wait(&self, wait: Duration) -> Result<(), Error> {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        // Rounded up, so that the last turn does not spin.
        let wait = PollTimeout::try_from(wait + Duration::from_millis(1));
        match poll(&mut fds, wait.unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(Error::os("waiting for regions")(error)),
        }
    }

    /// Sends to those that nothing has been sent to, as far as their sockets have room.
    fn send_all(&mut self) -> Result<(), Error> {
        for peer in std::mem::take(&mut self.unsent) {
            if !self.send(peer)? {
                self.unsent.push(peer);
            }
        }
        Ok(())
    }

    /// Whether it need not be tried again.
    fn send(&self, peer: usize) -> Result<bool, Error> {
        let mut packet = [0; PACKET_BYTES];
        packet[..8].copy_from_slice(&(self.rank as u64).to_le_bytes());
        let proof = self.secret.prove("regions", &self.signed(self.rank, peer));
        packet[8..].copy_from_slice(&proof);
        let files: Vec<RawFd> = self.files.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&files)];
        let rights = if files.is_empty() { &[][..] } else { &rights[..] };
        let (fd, parts, to) =
            (self.socket.as_raw_fd(), [IoSlice::new(&packet)], address(&self.names[&peer])?);
        loop {
            return match sendmsg(fd, &parts, rights, MsgFlags::MSG_NOSIGNAL, Some(&to)) {
                Err(Errno::EINTR) => continue,
                // The last: so many descriptors of this user are under way that it may not send
                // more of them.
                Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ETOOMANYREFS) => Ok(false),
                Ok(_) => Ok(true),
                // It is gone; the control channel tells, or the deadline.
                Err(error @ (Errno::ECONNREFUSED | Errno::EPIPE | Errno::ECONNRESET)) => {
                    tracing::debug!(peer, %error, "cannot send to a rank");
                    Ok(true)
                }
                Err(error) => Err(Error::os("sending regions to a rank")(error)),
            };
        }
    }

    /// Takes the packets that are there.
    fn receive_all(&mut self, liveness: &Liveness) -> Result<(), Error> {
        while self.missing().next().is_some() {
            let packet = match Packet::receive(&self.socket) {
                Ok(packet) => packet,
                Err(Errno::EAGAIN) => break,
                Err(error) => return Err(Error::os("receiving regions")(error)),
            };
            let Some(peer) = self.sender(&packet) else { continue };
            liveness.watch(peer, || {
                let other = packet.process.filter(|process| *process != getpid());
                other.and_then(process::watch)
            });
            self.received.insert(peer, packet.files);
        }
        Ok(())
    }

    /// The rank that a packet is from, if it is still missing.
    fn sender(&self, packet: &Packet) -> Option<usize> {
        if packet.len != PACKET_BYTES || packet.user != Some(self.user) {
            return None;
        }
        let (rank, proof) = packet.bytes.split_at(8);
        let rank = usize::try_from(u64::from_le_bytes(rank.try_into().ok()?)).ok()?;
        let is_missing = self.names.contains_key(&rank) && !self.received.contains_key(&rank);
        let proof = proof.try_into().ok().filter(|_| is_missing)?;
        self.secret.verify("regions", &self.signed(rank, self.rank), proof).then_some(rank)
    }

    /// What a packet from one rank to another proves.
    fn signed(&self, from: usize, to: usize) -> [&[u8]; 2] {
        [&self.names[&from], &self.names[&to]]
    }
}

struct Packet {
    bytes: [u8; PACKET_BYTES],
    len: usize,
    /// Each that came with it is owned, whatever comes of the packet.
    files: Vec<OwnedFd>,
    process: Option<Pid>,
    user: Option<Uid>,
}

impl Packet {
    fn receive(socket: &OwnedFd) -> Result<Packet, Errno> {
        let mut bytes = [0; PACKET_BYTES];
        let mut space = cmsg_space!([RawFd; DESCRIPTORS_LIMIT], UnixCredentials);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
        let message = loop {
            match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags) {
                Err(Errno::EINTR) => {}
                received => break received?,
            }
        };
        let (mut files, mut sender) = (Vec::new(), None);
        // Control data that are cut off are descriptors that this process may not have.
        for control in message.cmsgs().map_err(|_| Errno::EMFILE)? {
            match control {
                ControlMessageOwned::ScmRights(received) => {
                    // SAFETY: the system has just made these for this process, and nobody else has
                    // them.
                    let owned = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
                    files.extend(received.into_iter().map(owned));
                }
                ControlMessageOwned::ScmCredentials(credentials) => sender = Some(credentials),
                _ => {}
            }
        }
        let len = message.bytes;
        let process = sender.map(|sender| Pid::from_raw(sender.pid()));
        let user = sender.map(|sender| Uid::from_raw(sender.uid()));
        Ok(Packet { bytes, len, files, process, user })
    }
}

#[cfg(test)]
mod tests;
