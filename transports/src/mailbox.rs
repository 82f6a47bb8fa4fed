//! Where the pieces of a collective exchange arrive, and where its caller waits for them.
//!
//! Exchanges are numbered by rounds. Pieces may come early (a fast rank is one round ahead) and in
//! any order; each is kept until its round is collected. A piece for a round that this rank has
//! given up is dropped.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Instant;

use crate::sync::{Condvar, Mutex, lock};
use crate::{Error, Liveness};

pub(crate) struct Mailbox<P> {
    world: usize,
    state: Mutex<State<P>>,
    changed: Condvar,
}

struct State<P> {
    /// The first round that has not been collected.
    next: u64,
    rounds: BTreeMap<u64, Vec<Option<P>>>,
    /// Why nothing more will come.
    end: Option<Box<dyn Fn() -> Error + Send>>,
}

impl<P> Mailbox<P> {
    pub(crate) fn new(world: usize) -> Mailbox<P> {
        let state = State { next: 0, rounds: BTreeMap::new(), end: None };
        Mailbox { world, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Puts a rank's piece of a round in. Only the first one counts.
    pub(crate) fn deposit(&self, round: u64, rank: usize, piece: P) {
        self.deposit_all(round, [(rank, piece)]);
    }

    /// Puts some ranks' pieces of a round in.
    pub(crate) fn deposit_all(&self, round: u64, pieces: impl IntoIterator<Item = (usize, P)>) {
        let mut state = lock(&self.state);
        if round < state.next {
            return;
        }
        let empty = || (0..self.world).map(|_| None).collect();
        let kept = state.rounds.entry(round).or_insert_with(empty);
        for (rank, piece) in pieces {
            if let Some(place) = kept.get_mut(rank) {
                place.get_or_insert(piece);
            }
        }
        self.changed.notify_all();
    }

    /// Says that nothing more will come, and why.
    pub(crate) fn end(&self, why: impl Fn() -> Error + Send + 'static) {
        lock(&self.state).end.get_or_insert(Box::new(why));
        self.changed.notify_all();
    }

    /// Lets a waiting caller look at the liveness again.
    pub(crate) fn wake(&self) {
        // The lock orders this after the waiter's look and before its sleep, or before both.
        drop(lock(&self.state));
        self.changed.notify_all();
    }

    /// Waits for every rank's piece of a round. A round that is complete is collected, also after
    /// something has stopped the ranks: what one rank got, all get.
    pub(crate) fn collect(
        &self,
        round: u64,
        doing: &'static str,
        deadline: Instant,
        liveness: &Liveness,
    ) -> Result<Vec<P>, Error> {
        let mut state = lock(&self.state);
        loop {
            if let Some(outcome) = self.outcome(&state, round, doing, deadline, liveness) {
                let pieces = state.rounds.remove(&round);
                state.next = state.next.max(round + 1);
                return outcome.map(|()| pieces.into_iter().flatten().flatten().collect());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether a round is complete, or why it never will be; `None` while that is open.
    fn outcome(
        &self,
        state: &State<P>,
        round: u64,
        doing: &'static str,
        deadline: Instant,
        liveness: &Liveness,
    ) -> Option<Result<(), Error>> {
        let missing = state.missing(round, self.world);
        if missing.is_empty() {
            return Some(Ok(()));
        }
        if let Err(stopped) = liveness.check() {
            return Some(Err(stopped));
        }
        if let Some(why) = &state.end {
            return Some(Err(why()));
        }
        if let Some((rank, calls)) = missing.iter().find_map(|&r| Some((r, liveness.left(r)?))) {
            return Some(Err(Error::Left { rank, calls }));
        }
        (Instant::now() >= deadline).then_some(Err(Error::Timeout { doing, missing }))
    }
}

impl<P> State<P> {
    fn missing(&self, round: u64, world: usize) -> Vec<usize> {
        match self.rounds.get(&round) {
            Some(pieces) => (0..world).filter(|&rank| pieces[rank].is_none()).collect(),
            None => (0..world).collect(),
        }
    }
}

impl<P> std::fmt::Debug for Mailbox<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mailbox").field("world", &self.world).finish_non_exhaustive()
    }
}
