//! What is known of the other ranks' state, fed by the control channel while calls run.
//!
//! The abort word is what executors poll: nonzero means stop. It is set after the cause, so
//! whoever sees it can ask why. The first cause wins and stays.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam::utils::CachePadded;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::process::has_ended;
use crate::reports::Reports;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use crate::sync::{Mutex, lock};

/// Why everything stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// A rank's process, or its communicator, ended without a goodbye.
    #[error("rank {rank} died or ended without closing its communicator")]
    Died {
        /// The rank.
        rank: usize,
    },
    /// Its machine does not answer any more.
    #[error(
        "the machine of rank {rank} does not answer any more: it is down or cut off from the network"
    )]
    CutOff {
        /// The rank.
        rank: usize,
    },
    /// The process with the rendezvous server, which holds no rank, ended.
    #[error("the process that serves the rendezvous (the launcher) ended")]
    ServerLost,
    /// A rank raised an abort.
    #[error("rank {rank} aborted: {reason}")]
    Aborted {
        /// The rank.
        rank: usize,
        /// What it gave as its reason.
        reason: String,
    },
    /// A rank called something else than the others.
    #[error("rank {rank} is out of step: {detail}")]
    Mismatch {
        /// The rank that found it out, or the one that is out of step.
        rank: usize,
        /// Who called what.
        detail: String,
        /// The ranks in which they differ, where the one that found it out knows them.
        ranks: Vec<usize>,
    },
    /// The link between ranks of different nodes broke, and neither of them is known to have died.
    #[error("rank {rank} lost its link to rank {peer}: {detail}")]
    LinkLost {
        /// The rank that noticed.
        rank: usize,
        /// The rank at the other end.
        peer: usize,
        /// What happened to it.
        detail: String,
    },
    /// A rank waited longer than its time-out allows.
    #[error("rank {rank} timed out: {detail}")]
    TimedOut {
        /// The rank that waited.
        rank: usize,
        /// What it waited for.
        detail: String,
        /// The ranks that it waited for, as far as it knows.
        ranks: Vec<usize>,
    },
    /// The machine of the process that serves the rendezvous, which holds no rank, does not answer
    /// any more.
    #[error(
        "the machine that serves the rendezvous does not answer any more: it is down, or this one is cut off from the network"
    )]
    ServerCutOff,
    /// The rendezvous has lost its server, and the rank whose turn it is does not answer.
    #[error(
        "the rendezvous has lost its server, and rank {rank} of those that started together, whose turn it is to serve, does not answer"
    )]
    Unserved {
        /// The rank, by its number at the start.
        rank: usize,
    },
    /// A rank's process failed, as the launcher that started it tells.
    #[error("rank {rank} {how}")]
    Ended {
        /// The rank.
        rank: usize,
        /// Its exit status, 128 + N where signal N ended it.
        status: u8,
        /// What became of it, to be read behind the rank's name.
        how: String,
    },
    /// A message between ranks of different nodes did not come as it was sent.
    #[error("what rank {peer} sent to rank {rank} was changed on its way (integrity)")]
    Corrupted {
        /// The rank that noticed.
        rank: usize,
        /// The rank that had sent it.
        peer: usize,
    },
}

impl Cause {
    /// The rank that is known to run no more.
    fn dead(&self) -> Option<usize> {
        match self {
            Cause::Died { rank } | Cause::Ended { rank, .. } => Some(*rank),
            _ => None,
        }
    }

    /// The rank that runs no more, or cannot be reached.
    pub(crate) fn lost(&self) -> Option<usize> {
        match self {
            Cause::CutOff { rank } => Some(*rank),
            cause => cause.dead(),
        }
    }

    /// The same where ranks have other numbers.
    pub(crate) fn renumbered(mut self, number: impl Fn(usize) -> usize) -> Cause {
        match &mut self {
            Cause::Died { rank }
            | Cause::CutOff { rank }
            | Cause::Ended { rank, .. }
            | Cause::Aborted { rank, .. } => *rank = number(*rank),
            Cause::Mismatch { rank, ranks, .. } | Cause::TimedOut { rank, ranks, .. } => {
                *rank = number(*rank);
                ranks.iter_mut().for_each(|rank| *rank = number(*rank));
            }
            Cause::LinkLost { rank, peer, .. } | Cause::Corrupted { rank, peer } => {
                (*rank, *peer) = (number(*rank), number(*peer));
            }
            Cause::ServerLost | Cause::ServerCutOff | Cause::Unserved { .. } => {}
        }
        self
    }

    /// The longest text that is told to other ranks; the rest is cut off.
    pub const TEXT_LIMIT_BYTES: usize = 16 << 10;

    pub(crate) fn clipped(mut self) -> Cause {
        if let Cause::Aborted { reason: text, .. }
        | Cause::Mismatch { detail: text, .. }
        | Cause::LinkLost { detail: text, .. }
        | Cause::TimedOut { detail: text, .. }
        | Cause::Ended { how: text, .. } = &mut self
        {
            let mut end = text.len().min(Self::TEXT_LIMIT_BYTES);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
        }
        self
    }
}

/// How a rank's news reach the other ranks. Telling is bounded in time, and done at best effort:
/// a peer that cannot be told notices the missing rank itself.
pub(crate) trait Peers: Send + Sync {
    fn tell_abort(&self, cause: &Cause);
    fn tell_goodbye(&self, calls: u64);
    /// Asks the ranks of other nodes for reports, which come to [`Liveness::reports`].
    fn ask(&self);
}

const STILL_HERE: u64 = u64::MAX;

/// The state of all ranks as one of them knows it.
pub struct Liveness {
    rank: usize,
    abort: CachePadded<AtomicU32>,
    cause: Mutex<Option<Cause>>,
    left: Box<[AtomicU64]>,
    /// Ranks that died, also after the first cause.
    dead: Box<[AtomicBool]>,
    /// The processes of other ranks of this node: that one has ended shows here, too, where nobody
    /// is left to tell it.
    processes: Mutex<Vec<(usize, Arc<OwnedFd>)>>,
    peers: Box<dyn Peers>,
    /// Held while the other ranks are told: the end of this one, which may follow at once in
    /// another thread, does not overtake why.
    telling: Mutex<()>,
    reports: Reports,
    /// What else is told that this rank stops.
    listeners: Mutex<Vec<Listener>>,
}

type Listener = Box<dyn Fn() + Send>;

impl Liveness {
    pub(crate) fn new(rank: usize, world: usize, peers: Box<dyn Peers>) -> Liveness {
        Liveness {
            rank,
            abort: CachePadded::new(AtomicU32::new(0)),
            cause: Mutex::new(None),
            left: (0..world).map(|_| AtomicU64::new(STILL_HERE)).collect(),
            dead: (0..world).map(|_| AtomicBool::new(false)).collect(),
            processes: Mutex::new(Vec::new()),
            peers,
            telling: Mutex::new(()),
            reports: Reports::default(),
            listeners: Mutex::new(Vec::new()),
        }
    }

    /// The word that executors poll: 0 is go on, anything else is stop. Its address stays the same
    /// for as long as this object lives.
    pub fn abort_word(&self) -> &AtomicU32 {
        &self.abort
    }

    /// Has something done once this rank stops, or at once if it has: memory of a GPU cannot be
    /// polled from here, so an executor that runs there has an abort word of its own, which this
    /// raises. It is called in any thread, once, and must neither wait nor come back here.
    pub fn on_stop(&self, act: impl Fn() + Send + 'static) {
        let mut listeners = lock(&self.listeners);
        if self.abort.load(Ordering::Acquire) != 0 {
            act();
        } else {
            listeners.push(Box::new(act));
        }
    }

    /// Sets what this rank answers to ranks of other nodes that ask how far it has come
    /// ([`ask`](Liveness::ask)), and what it does with their answers, each of which comes with its
    /// rank. Both are called in any thread, at any time until this object is dropped, and must
    /// neither wait nor come back here. An answer over 64 KiB is not sent.
    pub fn on_ask(
        &self,
        answer: impl Fn() -> Vec<u8> + Send + 'static,
        listener: impl Fn(usize, &[u8]) + Send + 'static,
    ) {
        self.reports.set(Box::new(answer), Box::new(listener));
    }

    /// Asks all ranks of other nodes how far they have come. Answers come within a fraction of a
    /// second where there are some ten ranks, within some ten seconds where there are a thousand,
    /// or not at all; asking more often is no faster.
    pub fn ask(&self) {
        self.peers.ask();
    }

    pub(crate) fn reports(&self) -> &Reports {
        &self.reports
    }

    /// Why everything stopped, once it has.
    pub fn cause(&self) -> Option<Cause> {
        lock(&self.cause).clone()
    }

    /// Stops this rank, and tells every other rank to stop. The first cause wins; after it this
    /// does nothing.
    pub fn abort(&self, cause: Cause) {
        let cause = cause.clipped();
        let telling = lock(&self.telling);
        if self.raise(cause.clone()) {
            self.peers.tell_abort(&cause);
        }
        drop(telling);
    }

    /// Waits until the other ranks have been told of an abort that another thread is at.
    pub(crate) fn wait_told(&self) {
        drop(lock(&self.telling));
    }

    /// The number of calls that a rank had issued when it closed in order, or `None` while it has
    /// not closed.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn left(&self, rank: usize) -> Option<u64> {
        let calls = self.left[rank].load(Ordering::Acquire);
        (calls != STILL_HERE).then_some(calls)
    }

    /// Whether a rank touches no memory of others any more: it has closed in order, or it died, be
    /// that the first cause or a later one.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn is_over(&self, rank: usize) -> bool {
        let ended = |(other, process): &(usize, Arc<OwnedFd>)| *other == rank && has_ended(process);
        self.left(rank).is_some()
            || self.dead[rank].load(Ordering::Acquire)
            || lock(&self.processes).iter().any(ended)
    }

    /// The ranks of this node whose processes have ended, as the system says, whatever they have
    /// said before. It knows of none that joined where processes have no descriptors (before Linux
    /// 5.3).
    pub fn ended(&self) -> Vec<usize> {
        let processes = lock(&self.processes);
        processes.iter().filter(|(_, process)| has_ended(process)).map(|(rank, _)| *rank).collect()
    }

    /// Watches the process of a rank of this node, unless it is watched.
    pub(crate) fn watch(&self, rank: usize, process: impl FnOnce() -> Option<OwnedFd>) {
        let mut processes = lock(&self.processes);
        if processes.iter().all(|(other, _)| *other != rank)
            && let Some(process) = process()
        {
            processes.push((rank, Arc::new(process)));
        }
    }

    /// Watches the processes of these ranks of the whole, of which this is a part.
    pub(crate) fn watch_as(&self, whole: &Liveness, ranks: &[usize]) {
        let watched = lock(&whole.processes);
        let watched = watched.iter().filter_map(|(other, process)| {
            let rank = ranks.iter().position(|rank| rank == other)?;
            Some((rank, process.clone()))
        });
        lock(&self.processes).extend(watched);
    }

    /// Says goodbye to the other ranks: `calls` is the number of calls that this rank has issued.
    /// What follows, the end of the process included, is no death to them. Only the first goodbye
    /// counts.
    pub fn close(&self, calls: u64) {
        if self.record_left(self.rank, calls) {
            self.peers.tell_goodbye(calls);
        }
    }

    /// Fails once something has stopped this rank.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.cause().map_or(Ok(()), |cause| Err(Error::Stopped(cause)))
    }

    /// Stops this rank only. Returns whether this cause is the first.
    pub(crate) fn raise(&self, cause: Cause) -> bool {
        if let Some(dead) = cause.dead().and_then(|rank| self.dead.get(rank)) {
            dead.store(true, Ordering::Release);
        }
        let mut first = lock(&self.cause);
        if first.is_some() {
            return false;
        }
        *first = Some(cause);
        self.abort.store(1, Ordering::Release);
        drop(first);
        for listener in lock(&self.listeners).drain(..) {
            listener();
        }
        true
    }

    /// Notes another rank's goodbye. Returns whether it is its first.
    pub(crate) fn record_left(&self, rank: usize, calls: u64) -> bool {
        let Some(left) = self.left.get(rank) else { return false };
        let calls = calls.min(STILL_HERE - 1);
        left.compare_exchange(STILL_HERE, calls, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl fmt::Debug for Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left: Vec<_> = (0..self.left.len()).filter(|&r| self.left(r).is_some()).collect();
        f.debug_struct("Liveness")
            .field("rank", &self.rank)
            .field("cause", &self.cause())
            .field("left", &left)
            .finish()
    }
}
