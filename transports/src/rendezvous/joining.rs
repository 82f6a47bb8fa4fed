//! One attempt of a rank to join: connect, prove the secret, say who it is, wait for the others.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use nix::sys::socket::{Backlog, listen};

use crate::rendezvous::auth::{random_bytes, seals_of_client};
use crate::rendezvous::message::{
    Frame, FrameError, FrameReader, MESSAGE_LIMIT_BYTES, Message, PROTOCOL_VERSION, Refusal,
};
use crate::rendezvous::server::BACKLOG;
use crate::seal::{Seal, Seals};
use crate::silence::{self, SILENCE};
use crate::{Cancel, Cause, Error, Nodes, Seat, UniqueId, identity};

/// How long to wait, after the deadline, for the server's word on who is missing.
const VERDICT_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a wait looks whether it is still wanted.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// How long one attempt to connect may take; a lost packet then costs no more than this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Sets what every connection of the rendezvous has: small messages at once, and a machine that has
/// vanished without closing noticed once it has been silent for long.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    silence::grant(stream, SILENCE)
}

/// Why an attempt to join ended.
pub(super) enum Failure {
    Final(Error),
    Again(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Again(error)
    }
}

/// A connection on its way to joining.
pub(super) struct Joining<'a> {
    pub(super) stream: TcpStream,
    pub(super) frames: FrameReader,
    pub(super) seat: Seat,
    /// What is sent is sealed, once both sides have proven the secret.
    pub(super) seal: Option<Seal>,
    /// Where this rank will serve, should it be its turn, once it has joined.
    pub(super) listener: Option<TcpListener>,
    id: &'a UniqueId,
    cancel: Cancel,
}

/// What a rank learns once all have joined.
pub(super) struct Joined {
    /// The rank, if any, whose process serves the rendezvous.
    pub(super) serving: Option<usize>,
    pub(super) nodes: Nodes,
    /// By rank, as far as they may serve: where they listen.
    pub(super) successors: Vec<Option<SocketAddr>>,
}

impl<'a> Joining<'a> {
    /// Connects and proves the secret.
    pub(super) fn open(
        id: &'a UniqueId,
        seat: Seat,
        deadline: Instant,
        cancel: &Cancel,
    ) -> Result<Joining<'a>, Failure> {
        let stream = connect(id, deadline)?;
        let frames = FrameReader::default();
        let cancel = cancel.clone();
        let mut joining = Joining { stream, frames, seat, seal: None, listener: None, id, cancel };
        joining.prove(deadline)?;
        Ok(joining)
    }

    fn prove(&mut self, deadline: Instant) -> Result<(), Failure> {
        let secret = self.id.secret();
        let client = random_bytes().map_err(Failure::Final)?;
        self.send(&Message::Hello { nonce: client })?;
        let server = match self.receive(deadline)? {
            Message::Challenge { nonce } => nonce,
            other => return Err(self.unexpected(other)),
        };
        let proof = secret.prove("client", &[&client, &server]);
        self.send(&Message::Proof { proof })?;
        let proof = match self.receive(deadline)? {
            Message::Proven { proof } => proof,
            other => return Err(self.unexpected(other)),
        };
        if !secret.verify("server", &[&client, &server], &proof) {
            return Err(Failure::Final(Error::WrongSecret { address: self.id.address() }));
        }
        let Seals { sending, receiving } = seals_of_client(secret, &[client, server]);
        self.seal = Some(sending);
        self.frames.expect_seals(receiving);
        Ok(())
    }

    /// Joins, and waits until all ranks have.
    pub(super) fn join(&mut self, deadline: Instant) -> Result<Joined, Failure> {
        let (Seat { rank, world, node }, process) = (self.seat, identity::process());
        self.listener = self.listen();
        let listens = self.listener.as_ref().and_then(|listener| listener.local_addr().ok());
        self.send(&Message::Join { rank, world, process, node, listens })?;
        let answer = match self.receive(deadline) {
            // The server knows who is missing, and tells everybody.
            Err(Failure::Again(error)) if error.kind() == io::ErrorKind::TimedOut => {
                self.send(&Message::GaveUp)?;
                self.receive(Instant::now() + VERDICT_TIMEOUT)?
            }
            Err(Failure::Final(Error::Stopped(Cause::Aborted { rank: own, reason })))
                if own == rank =>
            {
                // The others need not wait any longer.
                let gives_up = Message::Withdraw { reason: reason.clone() };
                let told = self.send(&gives_up);
                tracing::debug!(?told, "a start is given up");
                let cause = Cause::Aborted { rank, reason };
                return Err(Failure::Final(Error::Stopped(cause)));
            }
            answer => answer?,
        };
        match answer {
            Message::Started { serving_rank, nodes, successors } if nodes.len() == world => {
                Ok(Joined { serving: serving_rank, nodes: Nodes::of(nodes), successors })
            }
            other => Err(self.unexpected(other)),
        }
    }

    /// Listens at the address by which this rank has reached the server. Without that it never
    /// serves.
    fn listen(&self) -> Option<TcpListener> {
        let listener = TcpListener::bind((self.stream.local_addr().ok()?.ip(), 0)).ok()?;
        let backlog = Backlog::new(BACKLOG).unwrap_or(Backlog::MAXCONN);
        listen(&listener, backlog).ok()?;
        listener.set_nonblocking(true).ok()?;
        Some(listener)
    }

    fn unexpected(&self, message: Message) -> Failure {
        match message {
            Message::Refused(Refusal::Busy) => {
                Failure::Again(io::Error::other("an earlier job with this rank is not over yet"))
            }
            Message::Refused(refusal) => {
                Failure::Final(refusal.into_error(&self.id.address(), self.seat.rank))
            }
            _ => Failure::Final(self.protocol("a message out of turn")),
        }
    }

    fn protocol(&self, detail: &str) -> Error {
        Error::Protocol { address: self.id.address(), detail: detail.to_owned() }
    }

    pub(super) fn send(&mut self, message: &Message) -> io::Result<()> {
        self.stream.write_all(&Frame::new(message).sealed(self.seal.as_mut()))
    }

    fn receive(&mut self, deadline: Instant) -> Result<Message, Failure> {
        loop {
            match self.frames.next(MESSAGE_LIMIT_BYTES) {
                Ok(Some(Message::Ping)) => continue,
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(FrameError::Version { theirs }) => {
                    let ours = PROTOCOL_VERSION;
                    return Err(Failure::Final(Error::Version { theirs, ours }));
                }
                Err(error) => {
                    return Err(Failure::Final(self.protocol(&format!("{:?}", error.refusal()))));
                }
            }
            check_wanted(&self.cancel, self.seat.rank).map_err(Failure::Final)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::Again(io::ErrorKind::TimedOut.into()));
            }
            self.stream.set_read_timeout(Some(left.min(LOOK_PAUSE)))?;
            let mut bytes = [0; 16 << 10];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(Failure::Again(io::ErrorKind::ConnectionReset.into())),
                Ok(len) => self.frames.extend(&bytes[..len]),
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(Failure::Again(error)),
            }
        }
    }
}

/// Fails once a rank's start is given up.
pub(super) fn check_wanted(cancel: &Cancel, rank: usize) -> Result<(), Error> {
    let aborted = |reason| Err(Error::Stopped(Cause::Aborted { rank, reason }));
    cancel.reason().map_or(Ok(()), aborted)
}

/// One attempt to connect, to each address that the host has.
fn connect(id: &UniqueId, deadline: Instant) -> io::Result<TcpStream> {
    let mut result = Err(io::Error::other("the host has no address"));
    for address in (id.host(), id.port()).to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now()).min(CONNECT_TIMEOUT);
        result = TcpStream::connect_timeout(&address, left.max(Duration::from_millis(1)));
        if result.is_ok() {
            break;
        }
    }
    let stream = result?;
    // Without a listener, a connection to a port of this machine can meet itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    prepare(&stream)?;
    stream.set_write_timeout(Some(CONNECT_TIMEOUT))?;
    Ok(stream)
}

/// Whether an operation may be tried again on the same connection.
pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
