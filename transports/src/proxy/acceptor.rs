//! Who connects to this rank, until it has proven the job's secret.
//!
//! One thread hears them all and waits for none, so that strangers who connect and say nothing hold
//! up nobody.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::bell::Wakeup;
use super::handshake::{Accepting, Claim, Proven};
use crate::Secret;
use crate::door::{self, Guest, PROOF_TIMEOUT};
use crate::error::lacks_descriptor;

/// How long to leave the listener alone when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// How many connections are accepted before others have their turn.
const ACCEPTED_AT_ONCE: usize = 64;

/// Accepts connections, and hears them out until they have proven the secret.
pub(super) struct Acceptor {
    listener: TcpListener,
    secret: Secret,
    waiting: Vec<Waiting>,
    /// How many may wait.
    places: usize,
    accept_from: Instant,
}

struct Waiting {
    accepting: Accepting,
    from: SocketAddr,
    since: Instant,
}

impl Acceptor {
    /// On a listener that does not block.
    pub(super) fn new(listener: TcpListener, secret: Secret) -> Acceptor {
        let accept_from = Instant::now();
        Acceptor { listener, secret, waiting: Vec::new(), places: door::places(), accept_from }
    }

    /// Hands on who has proven the secret, and what it claims, until it is woken.
    pub(super) fn run(mut self, ending: &Wakeup, mut proven: impl FnMut(Proven, Claim)) {
        loop {
            let Some((accepts, ready)) = self.wait(ending) else { return };
            for index in (0..ready.len()).rev().filter(|index| ready[*index]) {
                self.hear(index, &mut proven);
            }
            let accepts = if accepts { ACCEPTED_AT_ONCE } else { 0 };
            let _ = (0..accepts).try_for_each(|_| self.accept(&mut proven));
            let now = Instant::now();
            self.waiting.retain(|waiting| now < waiting.since + PROOF_TIMEOUT);
        }
    }

    /// Waits until somebody connects, or which of those that wait have said something. `None`: it
    /// is to end.
    fn wait(&self, ending: &Wakeup) -> Option<(bool, Vec<bool>)> {
        let now = Instant::now();
        let listens = now >= self.accept_from;
        let listen = if listens { PollFlags::POLLIN } else { PollFlags::empty() };
        let mut fds = vec![
            PollFd::new(ending.descriptor(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), listen),
        ];
        let streams = self.waiting.iter().map(|waiting| waiting.accepting.stream().as_fd());
        fds.extend(streams.map(|stream| PollFd::new(stream, PollFlags::POLLIN)));
        let expiries = self.waiting.iter().map(|waiting| waiting.since + PROOF_TIMEOUT);
        let due = expiries.chain((!listens).then_some(self.accept_from)).min();
        // Rounded up, so that what is waited for has come.
        let wait = due.map(|due| due.saturating_duration_since(now) + Duration::from_millis(1));
        let timeout = wait.map_or(PollTimeout::NONE, |wait| {
            PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => {
                tracing::error!(%error, "no more links are accepted");
                return None;
            }
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        (!ready[0]).then(|| (ready[1], ready[2..].to_vec()))
    }

    /// Takes one that has connected. Where too many wait, it takes another's place. It breaks off
    /// where there is none to take.
    fn accept(&mut self, proven: &mut impl FnMut(Proven, Claim)) -> ControlFlow<()> {
        let (guests, now) = (self.guests(), Instant::now());
        let leaves = door::makes_room(&guests, now);
        let full = guests.len() >= self.places;
        if full && leaves.is_none() {
            self.accept_from = door::room_from(&guests).unwrap_or(now);
            return ControlFlow::Break(());
        }
        match self.listener.accept() {
            Ok((stream, from)) => {
                if let Some(leaves) = leaves.filter(|_| full) {
                    self.waiting.remove(leaves);
                }
                self.welcome(stream, from, proven);
                return ControlFlow::Continue(());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if lacks_descriptor(&error) && leaves.is_some() => {
                leaves.into_iter().for_each(|leaves| drop(self.waiting.remove(leaves)));
                return ControlFlow::Continue(());
            }
            // The connection has gone again, or there is no descriptor for it.
            Err(error) => {
                tracing::debug!(%error, "accepting a link");
                self.accept_from = now + ACCEPT_PAUSE;
            }
        }
        ControlFlow::Break(())
    }

    fn welcome(
        &mut self,
        stream: TcpStream,
        from: SocketAddr,
        proven: &mut impl FnMut(Proven, Claim),
    ) {
        match Accepting::new(stream) {
            Ok(accepting) => {
                self.waiting.push(Waiting { accepting, from, since: Instant::now() });
                // Ranks speak at once, and are then not taken for one that never will.
                self.hear(self.waiting.len() - 1, proven);
            }
            Err(error) => tracing::debug!(%from, %error, "a connection was dropped"),
        }
    }

    fn guests(&self) -> Vec<Guest<usize>> {
        let guest = |(key, waiting): (usize, &Waiting)| Guest {
            key,
            from: waiting.from.ip().to_canonical(),
            since: waiting.since,
            has_spoken: waiting.accepting.has_spoken(),
        };
        self.waiting.iter().enumerate().map(guest).collect()
    }

    /// Hears one that may have said something.
    fn hear(&mut self, index: usize, proven: &mut impl FnMut(Proven, Claim)) {
        let heard = self.waiting[index].accepting.advance(&self.secret);
        if matches!(heard, Ok(false)) {
            return;
        }
        let Waiting { accepting, from, .. } = self.waiting.remove(index);
        match heard.and_then(|_| accepting.proven()) {
            Ok((socket, claim)) => proven(socket, claim),
            // Not a rank of this job, or one that says itself what is wrong.
            Err(error) => tracing::debug!(%from, %error, "a connection was dropped"),
        }
    }
}
