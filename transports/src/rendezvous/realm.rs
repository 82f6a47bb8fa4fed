//! The ranks of one communicator, as the server knows them: those of the world, or of a part of it.
//! What one says there, the others hear.

use std::collections::BTreeSet;

use crate::rendezvous::gathering::{Gathering, OutOfTurn};
use crate::rendezvous::message::{REPORT_LIMIT_BYTES, RealmId, Said};
use crate::rendezvous::state::{Action, Conn};
use crate::{Cause, NodeId};

/// A rank of a realm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Member {
    /// It has not come yet.
    Absent,
    Here(Conn),
    /// It has left, or is lost.
    Gone,
}

pub(super) struct Realm {
    id: RealmId,
    members: Vec<Member>,
    /// Where they are.
    nodes: Vec<Option<NodeId>>,
    gathering: Gathering,
    /// Ranks that want to know how far those of other nodes have come.
    asking: BTreeSet<usize>,
    /// Those for whom the ranks have been asked last, and those of the time before: an answer to
    /// that may be under way.
    told: [BTreeSet<usize>; 2],
    /// What has stopped its ranks.
    stopped: Option<Cause>,
    /// What all have been told while some were absent, who hear it when they come.
    early: Vec<Said>,
    /// What is to be sent.
    unsent: Vec<Action>,
    /// Ranks tell again what others have said.
    has_moved: bool,
}

impl Realm {
    /// Of so many ranks, of which none is there.
    pub(super) fn new(id: RealmId, ranks: usize) -> Realm {
        Realm {
            id,
            members: vec![Member::Absent; ranks],
            nodes: vec![None; ranks],
            gathering: Gathering::new(ranks),
            asking: BTreeSet::new(),
            told: Default::default(),
            stopped: None,
            early: Vec::new(),
            unsent: Vec::new(),
            has_moved: false,
        }
    }

    /// The same of ranks that have been together at another server, and tell again what they said.
    pub(super) fn resumed(id: RealmId, ranks: usize) -> Realm {
        Realm { gathering: Gathering::resumed(ranks), has_moved: true, ..Realm::new(id, ranks) }
    }

    /// How many ranks it has.
    pub(super) fn ranks(&self) -> usize {
        self.members.len()
    }

    /// What is known of a rank, if there is such.
    pub(super) fn member(&self, rank: usize) -> Option<Member> {
        self.members.get(rank).copied()
    }

    /// Where the ranks are.
    pub(super) fn nodes(&self) -> &[Option<NodeId>] {
        &self.nodes
    }

    /// A rank comes, and hears what it has missed.
    pub(super) fn add(&mut self, rank: usize, conn: Conn, node: Option<NodeId>) {
        self.members[rank] = Member::Here(conn);
        self.nodes[rank] = node;
        for said in self.early.clone() {
            self.unsent.push(Action::Send(vec![conn], said.among(self.id)));
        }
        if !self.has_absent() {
            self.early = Vec::new();
        }
    }

    fn has_absent(&self) -> bool {
        self.members.contains(&Member::Absent)
    }

    /// The ranks that have not come yet.
    pub(super) fn missing(&self) -> Vec<usize> {
        let absent = |&(_, member): &(usize, &Member)| *member == Member::Absent;
        self.members.iter().enumerate().filter(absent).map(|(rank, _)| rank).collect()
    }

    /// The connections of those that are there.
    pub(super) fn here(&self) -> Vec<Conn> {
        self.others(usize::MAX)
    }

    fn others(&self, rank: usize) -> Vec<Conn> {
        let here = |(other, member): (usize, &Member)| match *member {
            Member::Here(conn) if other != rank => Some(conn),
            _ => None,
        };
        self.members.iter().enumerate().filter_map(here).collect()
    }

    /// Whether a rank still runs that has not said goodbye, with nothing having stopped it.
    pub(super) fn is_needed(&self) -> bool {
        let is_here = |member: &Member| matches!(member, Member::Here(_));
        self.stopped.is_none() && self.members.iter().any(is_here)
    }

    /// Whether all have gone.
    pub(super) fn is_over(&self) -> bool {
        self.members.iter().all(|member| *member == Member::Gone)
    }

    /// What is to be done since this was last asked.
    pub(super) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.unsent)
    }

    /// A rank says something. What it stops the others for, if it does.
    ///
    /// # Errors
    /// [`OutOfTurn`]: what no rank says, or not now.
    pub(super) fn said(&mut self, rank: usize, said: Said) -> Result<Option<Cause>, OutOfTurn> {
        if !matches!(self.members[rank], Member::Here(_)) {
            return Ok(None);
        }
        // Who hears that a rank has left or failed has heard all that it gave before.
        if matches!(said, Said::Goodbye { .. } | Said::Abort(_)) {
            self.tell_pieces();
        }
        match said {
            Said::Gather { round, piece } => {
                let told = self.gathering.add(rank, round, piece)?;
                told.into_iter().for_each(|said| self.tell(said));
            }
            Said::Ask => drop(self.asking.insert(rank)),
            Said::Report(report) => self.report(rank, report),
            Said::Abort(cause) if self.has_moved && self.is_lost(&cause) => {
                if let Some(rank) = cause.lost() {
                    self.lost(rank, cause);
                }
            }
            Said::Abort(cause) => {
                self.stopped.get_or_insert_with(|| cause.clone());
                let said = Said::Abort(cause.clone());
                self.keep(&said);
                self.send(self.others(rank), said);
                return Ok(Some(cause));
            }
            Said::Goodbye { calls } => {
                self.members[rank] = Member::Gone;
                self.tell(Said::Left { rank, calls });
            }
            Said::Gone => drop(self.lost(rank, Cause::Died { rank })),
            Said::Left { rank: other, calls } if self.has_moved => {
                if self.members.get(other) == Some(&Member::Absent) {
                    self.members[other] = Member::Gone;
                    self.tell(Said::Left { rank: other, calls });
                }
            }
            Said::Gathered { .. } | Said::Asked | Said::Reported { .. } | Said::Left { .. } => {
                return Err(OutOfTurn);
            }
        }
        Ok(None)
    }

    /// Whether a cause says that a rank is lost which has not come.
    fn is_lost(&self, cause: &Cause) -> bool {
        let member = cause.lost().and_then(|rank| self.members.get(rank));
        member.is_some_and(|member| *member == Member::Absent)
    }

    /// A rank is lost, be it that it had not come yet. Whether it had not left before.
    pub(super) fn lost(&mut self, rank: usize, cause: Cause) -> bool {
        if self.members[rank] == Member::Gone {
            return false;
        }
        self.tell_pieces();
        self.members[rank] = Member::Gone;
        self.stopped.get_or_insert_with(|| cause.clone());
        self.tell(Said::Abort(cause));
        true
    }

    /// Whether pieces of exchanges wait to be told.
    pub(super) fn has_untold_pieces(&self) -> bool {
        self.gathering.has_untold()
    }

    /// Tells the ranks the pieces that have come, though others are missing.
    pub(super) fn tell_pieces(&mut self) {
        for said in self.gathering.tell() {
            self.tell(said);
        }
    }

    /// Whether a rank wants to know how far others have come.
    pub(super) fn is_asked(&self) -> bool {
        !self.asking.is_empty()
    }

    /// Asks all ranks how far they have come, if one wants to know.
    pub(super) fn ask_all(&mut self) {
        if self.is_asked() {
            self.told.rotate_right(1);
            self.told[0] = std::mem::take(&mut self.asking);
            self.send(self.here(), Said::Asked);
        }
    }

    /// Tells a rank's report to those that asked and are on other nodes.
    fn report(&mut self, rank: usize, report: Vec<u8>) {
        if report.len() > REPORT_LIMIT_BYTES {
            return;
        }
        let [last, before] = &self.told;
        let apart = last.union(before).filter(|&&other| self.nodes[other] != self.nodes[rank]);
        let conns = apart.filter_map(|&other| match self.members[other] {
            Member::Here(conn) => Some(conn),
            Member::Absent | Member::Gone => None,
        });
        self.send(conns.collect(), Said::Reported { rank, report });
    }

    /// Tells all, also those that come later.
    fn tell(&mut self, said: Said) {
        self.keep(&said);
        self.send(self.here(), said);
    }

    fn keep(&mut self, said: &Said) {
        if self.has_absent() {
            self.early.push(said.clone());
        }
    }

    fn send(&mut self, to: Vec<Conn>, said: Said) {
        if !to.is_empty() {
            self.unsent.push(Action::Send(to, said.among(self.id)));
        }
    }
}
