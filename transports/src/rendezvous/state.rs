//! The server's side of the rendezvous, without sockets and clocks: what has happened goes in,
//! what is to be done comes out.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use crate::rendezvous::auth::{Nonce, Secret};
use crate::rendezvous::gathering::{Gathering, OutOfTurn};
use crate::rendezvous::launchers::Launchers;
use crate::rendezvous::message::{
    FrameError, HANDSHAKE_LIMIT_BYTES, MESSAGE_LIMIT_BYTES, Message, Piece, REPORT_LIMIT_BYTES,
    Refusal,
};
use crate::silence::SILENCE;
use crate::{Cause, NodeId, Nodes};

/// A connection, by a number that is never used again.
pub(crate) type Conn = u64;

/// What the server is to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Send(Vec<Conn>, Message),
    /// From here on what this connection sends and receives is sealed, for these nonces.
    Seal(Conn, [Nonce; 2]),
    /// Close it when everything is sent.
    Close(Conn),
    /// The machines at the other ends may be silent for so long.
    Grant(Vec<Conn>, Duration),
}

/// No world has more ranks.
pub const WORLD_LIMIT: usize = 1 << 16;

pub(crate) struct Rendezvous {
    secret: Secret,
    /// The process that the server runs in.
    process: [u8; 16],
    serving_rank: Option<usize>,
    phase: Phase,
    /// One for each rank, once the first one has told the size of the world.
    members: Vec<Member>,
    /// Where the ranks that have joined are.
    nodes: Vec<Option<NodeId>>,
    gathering: Gathering,
    /// Ranks that want to know how far those of other nodes have come.
    asking: BTreeSet<usize>,
    /// Those for whom the ranks have been asked last, and those of the time before: an answer to
    /// that may be under way.
    told: [BTreeSet<usize>; 2],
    launchers: Launchers,
    /// The longest silence that a rank grants, and so what launchers are granted.
    silence: Duration,
    stages: BTreeMap<Conn, Stage>,
    actions: Vec<Action>,
}

enum Phase {
    Joining,
    Running { stopped: bool },
    Failed(Refusal),
}

#[derive(Clone, Copy, PartialEq)]
enum Member {
    Absent,
    Here(Conn),
    Gone,
}

/// What a rank says of itself when it joins.
struct Joiner {
    rank: usize,
    world: usize,
    process: [u8; 16],
    node: NodeId,
}

/// How far a connection has come.
enum Stage {
    Greeting { nonce: Nonce },
    Proving { client: Nonce, server: Nonce },
    Joining,
    Member(usize),
    Launcher,
    Refused,
}

impl Rendezvous {
    pub(crate) fn new(secret: Secret, process: [u8; 16]) -> Rendezvous {
        Rendezvous {
            secret,
            process,
            serving_rank: None,
            phase: Phase::Joining,
            members: Vec::new(),
            nodes: Vec::new(),
            gathering: Gathering::new(0),
            asking: BTreeSet::new(),
            told: Default::default(),
            launchers: Launchers::default(),
            silence: SILENCE,
            stages: BTreeMap::new(),
            actions: Vec::new(),
        }
    }

    /// What is to be done since this was last asked.
    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// How long a message of this connection may be.
    pub(crate) fn limit_bytes(&self, conn: Conn) -> usize {
        match self.stages.get(&conn) {
            Some(Stage::Joining | Stage::Member(_) | Stage::Launcher) => MESSAGE_LIMIT_BYTES,
            _ => HANDSHAKE_LIMIT_BYTES,
        }
    }

    /// Whether this connection has proven the secret, and is heard.
    pub(crate) fn has_proven(&self, conn: Conn) -> bool {
        matches!(self.stages.get(&conn), Some(Stage::Joining | Stage::Member(_) | Stage::Launcher))
    }

    /// Whether this connection has said nothing yet.
    pub(crate) fn is_silent(&self, conn: Conn) -> bool {
        matches!(self.stages.get(&conn), Some(Stage::Greeting { .. }))
    }

    /// The job's secret.
    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Whether this connection belongs to a rank that has joined, or to a launcher.
    pub(crate) fn is_member(&self, conn: Conn) -> bool {
        matches!(self.stages.get(&conn), Some(Stage::Member(_) | Stage::Launcher))
    }

    /// Whether a rank still runs that has not said goodbye, with nothing having stopped it.
    pub(crate) fn is_needed(&self) -> bool {
        matches!(self.phase, Phase::Running { stopped: false }) && !self.here().is_empty()
    }

    /// Whether some of so many launchers, or their ranks, have yet to hear of a rank that has
    /// failed.
    pub(crate) fn awaits(&self, launchers: usize) -> bool {
        self.launchers.are_awaited(launchers)
    }

    /// A connection was made; the nonce is for its challenge.
    pub(crate) fn opened(&mut self, conn: Conn, nonce: Nonce) {
        self.stages.insert(conn, Stage::Greeting { nonce });
    }

    /// A connection sent a message.
    pub(crate) fn received(&mut self, conn: Conn, message: Message) {
        let Some(stage) = self.stages.get(&conn) else { return };
        match (stage, message) {
            (Stage::Refused, _) => {}
            (&Stage::Greeting { nonce: server }, Message::Hello { nonce: client }) => {
                self.stages.insert(conn, Stage::Proving { client, server });
                self.send(vec![conn], Message::Challenge { nonce: server });
            }
            (&Stage::Proving { client, server }, Message::Proof { proof }) => {
                if !self.secret.verify("client", &[&client, &server], &proof) {
                    return self.refuse(conn, Refusal::WrongSecret);
                }
                self.stages.insert(conn, Stage::Joining);
                let proof = self.secret.prove("server", &[&client, &server]);
                self.send(vec![conn], Message::Proven { proof });
                self.actions.push(Action::Seal(conn, [client, server]));
            }
            (Stage::Joining, Message::Join { rank, world, process, node }) => {
                self.join(conn, &Joiner { rank, world, process, node });
            }
            (Stage::Joining, Message::Watch { ranks }) => self.watch(conn, ranks),
            (&Stage::Member(rank), message) => self.said(conn, rank, message),
            (Stage::Launcher, message) => self.launcher_said(conn, message),
            _ => self.refuse(conn, Refusal::Protocol("a message out of turn".to_owned())),
        }
    }

    /// A connection sent something that is no message.
    pub(crate) fn broken(&mut self, conn: Conn, error: &FrameError) {
        if !matches!(self.stages.get(&conn), Some(Stage::Refused)) {
            self.refuse(conn, error.refusal());
        }
    }

    /// A connection has ended; `silent`: because the machine at its other end does not answer.
    pub(crate) fn closed(&mut self, conn: Conn, silent: bool) {
        match self.stages.remove(&conn) {
            Some(Stage::Member(rank)) => {
                self.lost(rank, if silent { Cause::CutOff { rank } } else { Cause::Died { rank } });
            }
            Some(Stage::Launcher) => self.launcher_lost(conn, silent),
            _ => {}
        }
    }

    /// Whether pieces of exchanges wait to be told: see [`tell_pieces`](Self::tell_pieces).
    pub(crate) fn has_untold_pieces(&self) -> bool {
        self.gathering.has_untold()
    }

    /// Tells the ranks the pieces that have come, though others are missing.
    pub(crate) fn tell_pieces(&mut self) {
        for message in self.gathering.tell() {
            self.send(self.here(), message);
        }
    }

    /// Whether a rank wants to know how far others have come: see [`ask_all`](Self::ask_all).
    pub(crate) fn is_asked(&self) -> bool {
        !self.asking.is_empty()
    }

    /// Asks all ranks how far they have come.
    pub(crate) fn ask_all(&mut self) {
        self.told.rotate_right(1);
        self.told[0] = std::mem::take(&mut self.asking);
        self.send(self.here(), Message::Asked);
    }

    /// How many ranks there are, once one has said so.
    pub(crate) fn world(&self) -> usize {
        self.members.len()
    }

    /// The server stops: tells everybody that its end is no death.
    pub(crate) fn stop(&mut self) {
        match self.phase {
            Phase::Joining => self.fail(Refusal::Closed),
            Phase::Running { .. } => {
                self.tell_pieces();
                self.send(self.here(), Message::Closing);
            }
            Phase::Failed(_) => {}
        }
        self.send(self.launchers.conns(), Message::Closing);
    }

    fn join(&mut self, conn: Conn, joiner: &Joiner) {
        let Joiner { rank, world, process, node } = *joiner;
        if let Phase::Failed(refusal) = &self.phase {
            return self.refuse(conn, refusal.clone());
        }
        if world > WORLD_LIMIT {
            return self.refuse(conn, Refusal::WorldTooLarge { world });
        }
        if rank >= world {
            return self.refuse(conn, Refusal::RankOutOfRange { rank, world });
        }
        if self.members.is_empty() {
            self.members = vec![Member::Absent; world];
            self.nodes = vec![None; world];
            self.gathering = Gathering::new(world);
        }
        if self.members.len() != world {
            let ours = self.members.len();
            let refusal = Refusal::WorldMismatch { rank, theirs: world, ours };
            // No world of either size can come together any more.
            if matches!(self.phase, Phase::Joining) {
                self.fail(refusal.clone());
            }
            return self.refuse(conn, refusal);
        }
        match self.members[rank] {
            Member::Here(_) => return self.refuse(conn, Refusal::RankTwice { rank }),
            Member::Gone => return self.refuse(conn, Refusal::Busy),
            Member::Absent => {}
        }
        self.members[rank] = Member::Here(conn);
        self.nodes[rank] = Some(node);
        self.stages.insert(conn, Stage::Member(rank));
        if process == self.process {
            self.serving_rank = Some(self.serving_rank.map_or(rank, |first| first.min(rank)));
        }
        if self.missing().is_empty() {
            self.phase = Phase::Running { stopped: false };
            let nodes = Nodes::of(&self.nodes).numbers();
            let started = Message::Started { serving_rank: self.serving_rank, nodes };
            self.send(self.here(), started);
        }
    }

    /// A rank that has joined said something.
    fn said(&mut self, conn: Conn, rank: usize, message: Message) {
        // Who hears that a rank has left or failed has heard all that it gave before.
        if matches!(message, Message::Goodbye { .. } | Message::Abort(_)) {
            self.tell_pieces();
        }
        match (&mut self.phase, message) {
            (Phase::Joining, Message::GaveUp) => {
                let missing = self.missing();
                self.fail(Refusal::Timeout { missing });
            }
            // It was sent before the news that all are there arrived.
            (_, Message::GaveUp) => {}
            (_, Message::Ping) => {}
            (_, Message::Silence { ms }) => self.grant(conn, Duration::from_millis(ms)),
            (Phase::Running { .. }, Message::Gather { round, piece }) => {
                self.gather(conn, rank, round, piece);
            }
            (Phase::Running { .. }, Message::Ask) => {
                self.asking.insert(rank);
            }
            (Phase::Running { .. }, Message::Report(report)) => self.report(rank, report),
            (Phase::Running { stopped }, Message::Abort(cause)) => {
                *stopped = true;
                self.send(self.others(rank), Message::Abort(cause.clone()));
                self.tell_launchers(cause);
            }
            (Phase::Running { .. }, Message::Goodbye { calls }) => {
                self.members[rank] = Member::Gone;
                self.send(self.here(), Message::Left { rank, calls });
            }
            (Phase::Failed(_), _) => {}
            _ => self.refuse(conn, Refusal::Protocol("a message out of turn".to_owned())),
        }
    }

    fn gather(&mut self, conn: Conn, rank: usize, round: u64, piece: Piece) {
        match self.gathering.add(rank, round, piece) {
            Ok(told) => told.into_iter().for_each(|message| self.send(self.here(), message)),
            Err(OutOfTurn) => {
                self.refuse(conn, Refusal::Protocol("an exchange out of turn".to_owned()));
            }
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
        self.send(conns.collect(), Message::Reported { rank, report });
    }

    /// A rank is lost, if it has not left before.
    fn lost(&mut self, rank: usize, cause: Cause) {
        if !matches!(self.members[rank], Member::Here(_)) {
            return;
        }
        self.tell_pieces();
        self.members[rank] = Member::Gone;
        match &mut self.phase {
            Phase::Joining => self.fail(Refusal::Stopped(cause)),
            Phase::Running { stopped } => {
                *stopped = true;
                self.send(self.here(), Message::Abort(cause.clone()));
                self.tell_launchers(cause);
            }
            Phase::Failed(_) => {}
        }
    }

    /// What a rank grants holds for its machine too, and for the launchers', which must not be
    /// given up before their ranks.
    fn grant(&mut self, conn: Conn, silence: Duration) {
        self.silence = self.silence.max(silence);
        self.actions.push(Action::Grant(vec![conn], silence));
        self.grant_launchers(self.launchers.conns());
    }

    fn grant_launchers(&mut self, conns: Vec<Conn>) {
        if self.silence > SILENCE && !conns.is_empty() {
            self.actions.push(Action::Grant(conns, self.silence));
        }
    }

    /// A launcher listens from here on. What it has missed, it is told.
    fn watch(&mut self, conn: Conn, ranks: Range<usize>) {
        self.stages.insert(conn, Stage::Launcher);
        self.grant_launchers(vec![conn]);
        for cause in self.launchers.add(conn, ranks) {
            self.send(vec![conn], Message::Abort(cause));
        }
    }

    fn launcher_said(&mut self, conn: Conn, message: Message) {
        match message {
            Message::Ended { rank, status, how } => self.ended(rank, status, how),
            Message::Done => drop(self.launchers.remove(conn)),
            Message::Ping => {}
            _ => self.refuse(conn, Refusal::Protocol("a message out of turn".to_owned())),
        }
    }

    /// A launcher is lost, and with it its ranks: they do not outlive it. Those that have joined
    /// are missed by themselves.
    fn launcher_lost(&mut self, conn: Conn, silent: bool) {
        let Some(mut ranks) = self.launchers.remove(conn) else { return };
        let first = ranks.start;
        let runs = |rank: &usize| self.members.get(*rank) != Some(&Member::Gone);
        let rank = ranks.find(runs).unwrap_or(first);
        let how = match silent {
            true => "is on a machine that does not answer any more",
            false => "ended with its launcher",
        };
        let cause = Cause::Ended { rank, status: 1, how: how.to_owned() };
        if matches!(self.phase, Phase::Joining) {
            self.fail(Refusal::Stopped(cause.clone()));
        }
        self.tell_launchers(cause);
    }

    /// A rank's process has failed, also one that has not joined and will not any more.
    fn ended(&mut self, rank: usize, status: u8, how: String) {
        let cause = Cause::Ended { rank, status, how }.clipped();
        match (self.members.get(rank), &self.phase) {
            (Some(Member::Here(_)), _) => self.lost(rank, cause.clone()),
            (Some(Member::Gone), _) => {}
            (_, Phase::Joining) => self.fail(Refusal::Stopped(cause.clone())),
            _ => {}
        }
        self.tell_launchers(cause);
    }

    fn tell_launchers(&mut self, cause: Cause) {
        let to = self.launchers.hear(&cause);
        self.send(to, Message::Abort(cause));
    }

    /// Nobody starts, and everybody hears why, also who comes later.
    fn fail(&mut self, refusal: Refusal) {
        self.phase = Phase::Failed(refusal.clone());
        for conn in self.here() {
            self.refuse(conn, refusal.clone());
        }
        if let Refusal::Stopped(cause) = refusal {
            self.tell_launchers(cause);
        }
    }

    fn refuse(&mut self, conn: Conn, refusal: Refusal) {
        let before = self.stages.insert(conn, Stage::Refused);
        match before {
            Some(Stage::Member(rank)) => {
                let reason = format!("the rendezvous dropped it: {refusal:?}");
                self.lost(rank, Cause::Aborted { rank, reason });
            }
            Some(Stage::Launcher) => drop(self.launchers.remove(conn)),
            _ => {}
        }
        self.send(vec![conn], Message::Refused(refusal));
        self.actions.push(Action::Close(conn));
    }

    fn send(&mut self, to: Vec<Conn>, message: Message) {
        if !to.is_empty() {
            self.actions.push(Action::Send(to, message));
        }
    }

    fn missing(&self) -> Vec<usize> {
        let absent = |&(_, member): &(usize, &Member)| *member == Member::Absent;
        self.members.iter().enumerate().filter(absent).map(|(rank, _)| rank).collect()
    }

    fn here(&self) -> Vec<Conn> {
        self.others(usize::MAX)
    }

    fn others(&self, rank: usize) -> Vec<Conn> {
        let here = |(other, member): (usize, &Member)| match *member {
            Member::Here(conn) if other != rank => Some(conn),
            _ => None,
        };
        self.members.iter().enumerate().filter_map(here).collect()
    }
}

#[cfg(test)]
mod tests;
