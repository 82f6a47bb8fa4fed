//! A server that goes on where another one has ended: the ranks come over, and tell again what was
//! said.

use std::collections::BTreeSet;

use super::{Conn, Message, Phase, Rendezvous, Stage};
use crate::rendezvous::auth::Secret;
use crate::rendezvous::message::{Refusal, WORLD};
use crate::rendezvous::realm::{Member, Realm};
use crate::{Cause, NodeId};

/// What a rank knows that takes the duty of the rendezvous over.
#[derive(Clone, Debug)]
pub(crate) struct Succession {
    /// Which rank it is, of how many.
    pub(crate) rank: usize,
    pub(crate) world: usize,
    /// The rank that has had the duty, if its machine does not answer.
    pub(crate) before: Option<usize>,
    /// Ranks that were lost before.
    pub(crate) lost: BTreeSet<usize>,
    /// The machine that has had the duty does not answer. It may live, with ranks that reach it; so
    /// this one goes on only with more than half of the ranks.
    pub(crate) silent: bool,
}

/// The same as the server keeps it.
pub(super) struct Takeover {
    before: Option<usize>,
    silent: bool,
    /// How many ranks there are that are not known to be lost.
    most: usize,
    /// What has come while there may be another server.
    pub(super) held: Option<Vec<(Conn, Message)>>,
}

impl Rendezvous {
    /// One that takes over from another server, with ranks that have been together there.
    pub(crate) fn succeeding(
        secret: Secret,
        process: [u8; 16],
        succession: Succession,
    ) -> Rendezvous {
        let Succession { rank, world, before, lost, silent } = succession;
        let held = silent.then(Vec::new);
        let takeover = Takeover { before, silent, most: world - lost.len(), held };
        let mut rendezvous = Rendezvous {
            serving_rank: Some(rank),
            phase: Phase::Running,
            world: Realm::resumed(WORLD, world),
            seats: vec![Member::Absent; world],
            takeover: Some(takeover),
            ..Rendezvous::new(secret, process)
        };
        for rank in lost {
            rendezvous.seats[rank] = Member::Gone;
            rendezvous.lost(rank, Cause::Died { rank });
        }
        rendezvous
    }

    /// A rank comes over from the server whose duty this one has.
    pub(super) fn rejoin(&mut self, conn: Conn, (rank, world): (usize, usize), node: NodeId) {
        if let Phase::Failed(refusal) = &self.phase {
            return self.refuse(conn, refusal.clone());
        }
        if self.takeover.is_none() || world != self.seats.len() || rank >= world {
            return self.refuse(conn, Refusal::Protocol("there is nothing to go on".to_owned()));
        }
        match self.seats[rank] {
            Member::Here(_) => return self.refuse(conn, Refusal::RankTwice { rank }),
            // Whoever comes too late has been given up.
            Member::Gone => return self.refuse(conn, Refusal::Stopped(Cause::CutOff { rank })),
            Member::Absent => {}
        }
        self.seats[rank] = Member::Here(conn);
        if self.world.member(rank) == Some(Member::Absent) {
            self.world.add(rank, conn, Some(node));
        }
        self.stages.insert(conn, Stage::Member(rank));
        let here = self.here().len();
        let Some(takeover) = &mut self.takeover else { return };
        if 2 * here > takeover.most {
            let held = takeover.held.take().unwrap_or_default();
            held.into_iter().for_each(|(conn, message)| self.received(conn, message));
        }
    }

    /// Whether ranks may still come over.
    pub(crate) fn awaits_ranks(&self) -> bool {
        self.takeover.is_some() && self.seats.contains(&Member::Absent)
    }

    /// No more ranks are waited for: those that have not come are lost.
    pub(crate) fn await_no_more(&mut self) {
        let Some(takeover) = &self.takeover else { return };
        let (silent, before) = (takeover.silent, takeover.before);
        if takeover.held.is_some() {
            let cause = before.map_or(Cause::ServerCutOff, |rank| Cause::CutOff { rank });
            return self.give_up(cause);
        }
        for rank in 0..self.seats.len() {
            if self.seats[rank] == Member::Absent {
                self.seats[rank] = Member::Gone;
                self.lost(rank, if silent { Cause::CutOff { rank } } else { Cause::Died { rank } });
            }
        }
    }
}
