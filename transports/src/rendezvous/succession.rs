//! Who serves the rendezvous once its process has ended: the first of the ranks that are not lost.
//! Each rank finds it by itself. All come to the same one: each goes past a rank only if that has
//! ended, which its port tells by refusing, and never past one that does not answer.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use crate::fork::Unshared;
use crate::rendezvous::joining::{Failure, Joining};
use crate::rendezvous::state::Succession;
use crate::{Cancel, Error, Seat, Secret, Server, UniqueId};

/// The pause between attempts to reach a rank.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// How long one attempt may take, and so how long giving up does.
const ATTEMPT: Duration = Duration::from_secs(1);

/// What a rank needs to find the next server.
#[derive(Debug)]
pub(super) struct Successors {
    pub(super) seat: Seat,
    pub(super) secret: Secret,
    /// By which of its addresses this rank had reached the server.
    pub(super) address: IpAddr,
    /// By rank, as far as they may take over: where they listen.
    pub(super) listen: Vec<Option<SocketAddr>>,
    /// Where this rank does, until it serves.
    pub(super) listener: Option<Unshared<TcpListener>>,
}

/// The next server, and how to reach it.
pub(super) struct Next {
    pub(super) rank: usize,
    pub(super) stream: std::net::TcpStream,
    pub(super) frames: crate::rendezvous::message::FrameReader,
    pub(super) seal: Option<crate::seal::Seal>,
    /// Where this rank is it.
    pub(super) server: Option<Server>,
}

impl Successors {
    /// Finds the next server, or serves. `ended` is told of ranks that have ended.
    ///
    /// # Errors
    /// The rank whose turn it is, which cannot be reached; none, if there is nobody any more.
    pub(super) fn find(
        &mut self,
        mut succession: Succession,
        deadline: Instant,
        cancel: &Cancel,
        mut ended: impl FnMut(usize),
    ) -> Result<Next, Option<usize>> {
        let own = self.seat.rank;
        for (rank, listens) in self.listen.clone().into_iter().enumerate() {
            if succession.lost.contains(&rank) || succession.before == Some(rank) {
                continue;
            }
            // One that cannot serve, as without a descriptor, is passed over by all.
            let Some(listens) = listens else { continue };
            // Only who has come over the server's loopback address itself is beside it there.
            if listens.ip().is_loopback() && !self.address.is_loopback() {
                return Err(Some(rank));
            }
            let mut server = None;
            if rank == own {
                let listener = self.listener.take().ok_or(Some(own))?;
                let started = Server::succeed(listener, self.secret.clone(), succession.clone());
                server = Some(started.map_err(|error| {
                    tracing::error!(%error, "cannot take the rendezvous over");
                    Some(own)
                })?);
            }
            let id = UniqueId::new(listens.ip().to_string(), listens.port(), self.secret.clone());
            match self.reach(&id, deadline, cancel) {
                Ok(Joining { stream, frames, seal, .. }) => {
                    return Ok(Next { rank, stream, frames, seal, server });
                }
                Err(Reached::Ended) => {
                    ended(rank);
                    succession.lost.insert(rank);
                }
                Err(Reached::NoAnswer) => return Err(Some(rank)),
            }
        }
        Err(None)
    }

    /// Connects, and proves the secret. A rank answers once it knows that it is its turn.
    fn reach<'a>(
        &self,
        id: &'a UniqueId,
        deadline: Instant,
        cancel: &Cancel,
    ) -> Result<Joining<'a>, Reached> {
        loop {
            let until = deadline.min(Instant::now() + ATTEMPT);
            match Joining::open(id, self.seat, until, cancel) {
                Ok(joining) => return Ok(joining),
                Err(Failure::Again(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    return Err(Reached::Ended);
                }
                Err(Failure::Final(Error::Stopped(_))) => return Err(Reached::NoAnswer),
                // Somebody else has the port by now.
                Err(Failure::Final(error)) => {
                    tracing::debug!(%error, "a rank's port is another's");
                    return Err(Reached::Ended);
                }
                Err(Failure::Again(_))
                    if Instant::now() >= deadline || cancel.reason().is_some() =>
                {
                    return Err(Reached::NoAnswer);
                }
                Err(Failure::Again(_)) => std::thread::sleep(RETRY_PAUSE),
            }
        }
    }
}

/// Why a rank cannot be reached.
enum Reached {
    Ended,
    NoAnswer,
}
