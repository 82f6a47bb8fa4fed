//! The proxy's thread.
//!
//! ```text
//! for each wire: what the executor has written goes to it; what has come is delivered
//! nothing to do? while a call is in flight and there are cores for it: look again; otherwise sleep
//! ```
//!
//! It sleeps on the wires' descriptors and on one of its own, which executors write to when they
//! find it sleeping. As between executors, no fence orders that look behind what they have written:
//! a wake can be missed, so while a call is in flight a nap is short.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use super::connector::Connector;
use super::ledger::Ledger;
use super::ports::PortNumber;
use super::thread::Shared;
use super::wire::{Wire, WireError};
use super::{Emulation, connector::Made};
use crate::{Cause, Liveness};

/// Turns without work before it sleeps, where it has a core.
const IDLE_TURNS: u32 = 4000;

/// The longest nap while a call is in flight, where executors ring; where they do not, it is all
/// that a message waits for.
pub(super) const NAP: Duration = Duration::from_millis(1);
pub(super) const NAP_UNRUNG: Duration = Duration::from_micros(20);

/// When a wire breaks, the control channel has so long to say that its peer died or left, which
/// explains more.
const GRACE: Duration = Duration::from_millis(500);

/// The same for a wire that the peer ended: it says why once its own [`GRACE`] is over, and on a
/// busy machine that takes longer than its own clock says.
const GRACE_FOR_PEER: Duration = Duration::from_secs(5);

/// How long the end waits for messages to leave by a wire that is there.
const ENDING_TIMEOUT: Duration = Duration::from_secs(5);

/// What the thread is told.
pub(super) enum News {
    /// This rank's programs use these ports to a peer.
    Wanted { peer: usize, ports: Vec<PortNumber> },
    /// A wire was made, or not.
    Made(Made),
    /// It is to end.
    End,
}

/// What the thread owns.
pub(super) struct Worker {
    pub(super) rank: usize,
    pub(super) peers: Vec<Peer>,
    pub(super) news: Receiver<News>,
    pub(super) shared: Arc<Shared>,
    pub(super) liveness: Arc<Liveness>,
    pub(super) spins: bool,
    pub(super) nap: Duration,
    /// How long making a wire may take.
    pub(super) timeout: Duration,
    pub(super) emulation: Emulation,
    /// Goes last, after wires.
    pub(super) connector: Connector,
}

/// A rank of another node.
pub(super) struct Peer {
    rank: usize,
    ledger: Ledger,
    /// The ports that programs use.
    used: Vec<PortNumber>,
    link: Link,
}

enum Link {
    /// No program has needed it yet.
    Unwanted,
    /// It is being made, here or there.
    Awaited,
    Open(Box<dyn Wire>),
    /// It broke, and nobody has said why yet.
    Lost(Instant, WireError),
    /// Everybody knows.
    Over,
}

impl Peer {
    pub(super) fn new(rank: usize, ledger: Ledger) -> Peer {
        Peer { rank, ledger, used: Vec::new(), link: Link::Unwanted }
    }

    /// One turn. Returns whether there was anything to do.
    fn turn(&mut self) -> Result<bool, WireError> {
        let carried = self.carry()?;
        let Link::Open(wire) = &mut self.link else { return Ok(false) };
        Ok(wire.progress(&mut self.ledger)? || carried)
    }

    /// Gives the wire what the executor has written.
    fn carry(&mut self) -> Result<bool, WireError> {
        let Link::Open(wire) = &mut self.link else { return Ok(false) };
        let mut any = false;
        for port in &self.used {
            any |= self.ledger.carry(*port, &mut **wire)?;
        }
        Ok(any)
    }

    /// Whether messages wait for the wire to be made.
    fn awaits_its_wire(&self) -> bool {
        let untaken = || self.used.iter().any(|port| self.ledger.has_untaken(*port));
        matches!(self.link, Link::Awaited) && untaken()
    }

    /// Notes how a step ended.
    fn settle(&mut self, result: Result<bool, WireError>) -> bool {
        match result {
            Ok(any) => any,
            Err(error) => {
                tracing::debug!(peer = self.rank, %error, "a link broke");
                self.link = Link::Lost(Instant::now(), error);
                true
            }
        }
    }
}

impl Worker {
    pub(super) fn run(mut self) {
        make_naps_exact();
        let mut idle = 0;
        loop {
            if !self.take_news() {
                break;
            }
            self.explain_losses();
            if self.turn() {
                idle = 0;
            } else if self.spins && idle < IDLE_TURNS && self.shared.is_in_flight() {
                idle += 1;
                std::hint::spin_loop();
            } else {
                self.sleep();
            }
        }
        self.finish();
    }

    /// Returns false at the end.
    fn take_news(&mut self) -> bool {
        let mut goes_on = true;
        while let Ok(news) = self.news.try_recv() {
            match news {
                News::Wanted { peer, ports } => self.want(peer, ports),
                News::Made(Made { peer, wire }) => self.made(peer, wire),
                News::End => goes_on = false,
            }
        }
        goes_on
    }

    fn want(&mut self, rank: usize, ports: Vec<PortNumber>) {
        let own = self.rank;
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.rank == rank) else { return };
        peer.used.extend(ports);
        peer.used.sort_unstable();
        peer.used.dedup();
        if matches!(peer.link, Link::Unwanted) {
            peer.link = Link::Awaited;
            if own < rank {
                self.connector.dial(rank);
            }
        }
    }

    fn made(&mut self, rank: usize, wire: Result<Box<dyn Wire>, WireError>) {
        let seed = (self.rank as u64) << 32 | rank as u64;
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.rank == rank) else { return };
        if !matches!(peer.link, Link::Unwanted | Link::Awaited) {
            // A rank dials once; the first wire stays.
            return;
        }
        peer.link = match wire {
            Ok(wire) => Link::Open(self.emulation.applied(wire, seed + 1)),
            Err(error) => Link::Lost(Instant::now(), error),
        };
    }

    fn turn(&mut self) -> bool {
        self.each(Peer::turn)
    }

    fn each(&mut self, step: impl Fn(&mut Peer) -> Result<bool, WireError>) -> bool {
        let mut any = false;
        for peer in &mut self.peers {
            let result = step(peer);
            any |= peer.settle(result);
        }
        any
    }

    /// A peer that has died or left explains the end of its wire. If none has in a while, the
    /// wire's own error does.
    fn explain_losses(&mut self) {
        for peer in &mut self.peers {
            let Link::Lost(since, error) = &peer.link else { continue };
            let known = self.liveness.cause().is_some() || self.liveness.left(peer.rank).is_some();
            if !known && since.elapsed() < grace(error) {
                continue;
            }
            let (rank, peer_rank) = (self.rank, peer.rank);
            if matches!(error, WireError::Changed) {
                // Also if the peer has left: its last messages are lost.
                self.liveness.abort(Cause::Corrupted { rank, peer: peer_rank });
            } else if !known {
                let detail = error.to_string();
                self.liveness.abort(Cause::LinkLost { rank, peer: peer_rank, detail });
            }
            peer.link = Link::Over;
        }
    }

    /// Sleeps until there may be something to do.
    fn sleep(&mut self) {
        self.shared.bell().announce_sleep();
        let in_flight = self.shared.is_in_flight();
        let arm = |peer: &mut Peer| match &mut peer.link {
            Link::Open(wire) => Ok(!wire.arm()?),
            _ => Ok(false),
        };
        let busy = self.each(Peer::carry) | self.each(arm);
        if !busy {
            self.nap(in_flight);
        }
        self.shared.bell().end_sleep();
    }

    fn nap(&self, in_flight: bool) {
        let wires = self.peers.iter().filter_map(|peer| match &peer.link {
            Link::Open(wire) => Some(wire),
            _ => None,
        });
        let own = (self.shared.wakeup().descriptor(), PollFlags::POLLIN);
        let mut descriptors = vec![own];
        descriptors.extend(wires.clone().flat_map(|wire| wire.descriptors()));
        let now = Instant::now();
        let due = wires.filter_map(|wire| wire.due()).map(|due| due.saturating_duration_since(now));
        let lost = self.peers.iter().any(|peer| matches!(peer.link, Link::Lost(..)));
        let nap = (in_flight || lost).then_some(self.nap);
        if wait(&descriptors, due.chain(nap).min()) {
            self.shared.wakeup().clear();
        }
    }

    /// Lets everything leave that this rank's last calls have written: others may wait for it, also
    /// those that have yet to make the call in which they make their end of the wire.
    fn finish(&mut self) {
        let start = Instant::now();
        while self.liveness.cause().is_none() {
            self.take_news();
            let busy = self.turn();
            let elapsed = start.elapsed();
            if !busy && !self.peers.iter().any(|peer| self.may_still_send(peer, elapsed)) {
                break;
            }
            if !busy {
                self.nap(true);
            }
        }
        for peer in self.peers.iter().filter(|peer| peer.awaits_its_wire()) {
            tracing::warn!(rank = self.rank, peer = peer.rank, "messages were never taken");
        }
    }

    /// Whether the end, which has lasted so long, waits for what goes to a peer.
    fn may_still_send(&self, peer: &Peer, elapsed: Duration) -> bool {
        match &peer.link {
            Link::Open(wire) => !wire.is_drained() && elapsed < ENDING_TIMEOUT,
            _ => {
                peer.awaits_its_wire()
                    && self.liveness.left(peer.rank).is_none()
                    && elapsed < self.timeout
            }
        }
    }
}

/// How long a wire's end may wait for an explanation better than its own.
fn grace(error: &WireError) -> Duration {
    match error {
        WireError::Protocol(_) | WireError::Changed => Duration::ZERO,
        error if error.is_end() => GRACE_FOR_PEER,
        _ => GRACE,
    }
}

/// Waits for a descriptor; returns whether the first is ready.
fn wait(descriptors: &[(BorrowedFd<'_>, PollFlags)], timeout: Option<Duration>) -> bool {
    let poll = |(fd, events): &(BorrowedFd<'_>, PollFlags)| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: events.bits(),
        revents: 0,
    };
    let mut fds: Vec<libc::pollfd> = descriptors.iter().map(poll).collect();
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the table and the time live until the call returns; no signal mask is given.
    unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout, std::ptr::null()) };
    fds[0].revents != 0
}

/// The system lets a sleep last 50 us longer than asked, unless told otherwise.
fn make_naps_exact() {
    // SAFETY: sets a number of the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000 as libc::c_ulong) };
}
