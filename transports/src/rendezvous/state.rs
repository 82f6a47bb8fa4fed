//! The server's side of the rendezvous, without sockets and clocks: what has happened goes in,
//! what is to be done comes out.

mod takeover;

pub(crate) use takeover::Succession;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use crate::rendezvous::auth::{Nonce, Secret};
use crate::rendezvous::gathering::OutOfTurn;
use crate::rendezvous::launchers::Launchers;
use crate::rendezvous::message::{
    FrameError, HANDSHAKE_LIMIT_BYTES, MESSAGE_LIMIT_BYTES, Message, RealmId, Refusal, Said, WORLD,
};
use crate::rendezvous::realm::{Member, Realm};
use crate::silence::SILENCE;
use crate::{Cause, NodeId, Nodes};
use takeover::Takeover;

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

/// So many ranks, the first, may take the duty over.
const SUCCESSORS_LIMIT: usize = 1024;

/// No world has more ranks.
pub const WORLD_LIMIT: usize = 1 << 16;

pub(crate) struct Rendezvous {
    secret: Secret,
    /// The process that the server runs in.
    process: [u8; 16],
    serving_rank: Option<usize>,
    phase: Phase,
    /// All ranks, once the first one has told how many there are.
    world: Realm,
    /// By rank: its connection, whatever realms it is in.
    seats: Vec<Member>,
    /// By rank: where it will serve, should it be its turn.
    listens: Vec<Option<SocketAddr>>,
    /// It has taken the duty over.
    takeover: Option<Takeover>,
    /// How many ranks' machines have fallen silent.
    cut_off: usize,
    parts: BTreeMap<RealmId, Part>,
    launchers: Launchers,
    /// The longest silence that a rank grants, and so what launchers are granted.
    silence: Duration,
    stages: BTreeMap<Conn, Stage>,
    actions: Vec<Action>,
}

enum Phase {
    Joining,
    Running,
    Failed(Refusal),
}

/// Some of the ranks, that have a communicator of their own.
struct Part {
    /// Their numbers in the world.
    ranks: Vec<usize>,
    realm: Realm,
}

impl Part {
    /// A rank's number here.
    fn find(&self, rank: usize) -> Option<usize> {
        self.ranks.iter().position(|&other| other == rank)
    }
}

/// What a rank says of itself when it joins.
struct Joiner {
    rank: usize,
    world: usize,
    process: [u8; 16],
    node: NodeId,
    listens: Option<SocketAddr>,
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
            world: Realm::new(WORLD, 0),
            seats: Vec::new(),
            listens: Vec::new(),
            takeover: None,
            cut_off: 0,
            parts: BTreeMap::new(),
            launchers: Launchers::default(),
            silence: SILENCE,
            stages: BTreeMap::new(),
            actions: Vec::new(),
        }
    }

    /// What is to be done since this was last asked.
    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        self.collect();
        std::mem::take(&mut self.actions)
    }

    /// Takes what the realms want done, which comes after what was wanted before.
    fn collect(&mut self) {
        self.actions.extend(self.world.take_actions());
        for part in self.parts.values_mut() {
            self.actions.extend(part.realm.take_actions());
        }
    }

    fn realms(&self) -> impl Iterator<Item = &Realm> {
        std::iter::once(&self.world).chain(self.parts.values().map(|part| &part.realm))
    }

    fn realms_mut(&mut self) -> impl Iterator<Item = &mut Realm> {
        std::iter::once(&mut self.world).chain(self.parts.values_mut().map(|part| &mut part.realm))
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
        matches!(self.phase, Phase::Running) && self.realms().any(Realm::is_needed)
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
            (Stage::Joining, Message::Join { rank, world, process, node, listens })
                if self.takeover.is_none() =>
            {
                self.join(conn, &Joiner { rank, world, process, node, listens });
            }
            (Stage::Joining, Message::Rejoin { rank, world, node }) => {
                self.rejoin(conn, (rank, world), node);
            }
            (Stage::Joining, Message::Watch { ranks }) => self.watch(conn, ranks),
            (&Stage::Member(rank), message) => match &mut self.takeover {
                Some(Takeover { held: Some(held), .. }) => held.push((conn, message)),
                _ => self.said(conn, rank, message),
            },
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
                self.seats[rank] = Member::Gone;
                let cause = if silent { Cause::CutOff { rank } } else { Cause::Died { rank } };
                self.lost(rank, cause.clone());
                self.cut_off += usize::from(silent);
                // The larger part may go on by itself.
                if self.here().len() < self.cut_off {
                    self.give_up(cause);
                }
            }
            Some(Stage::Launcher) => self.launcher_lost(conn, silent),
            _ => {}
        }
    }

    /// Whether pieces of exchanges wait to be told: see [`tell_pieces`](Self::tell_pieces).
    pub(crate) fn has_untold_pieces(&self) -> bool {
        self.realms().any(Realm::has_untold_pieces)
    }

    /// Tells the ranks the pieces that have come, though others are missing.
    pub(crate) fn tell_pieces(&mut self) {
        self.realms_mut().for_each(Realm::tell_pieces);
    }

    /// Whether a rank wants to know how far others have come: see [`ask_all`](Self::ask_all).
    pub(crate) fn is_asked(&self) -> bool {
        self.realms().any(Realm::is_asked)
    }

    /// Asks all ranks how far they have come.
    pub(crate) fn ask_all(&mut self) {
        self.realms_mut().for_each(Realm::ask_all);
    }

    /// How many ranks there are, once one has said so.
    pub(crate) fn world(&self) -> usize {
        self.world.ranks()
    }

    /// The server stops: tells everybody that its end is no death.
    pub(crate) fn stop(&mut self) {
        match self.phase {
            Phase::Joining => self.fail(Refusal::Closed),
            Phase::Running => {
                self.tell_pieces();
                let here: BTreeSet<Conn> = self.realms().flat_map(Realm::here).collect();
                self.send(here.into_iter().collect(), Message::Closing);
            }
            Phase::Failed(_) => {}
        }
        self.send(self.launchers.conns(), Message::Closing);
    }

    fn join(&mut self, conn: Conn, joiner: &Joiner) {
        let Joiner { rank, world, process, node, listens } = *joiner;
        if let Phase::Failed(refusal) = &self.phase {
            return self.refuse(conn, refusal.clone());
        }
        if world > WORLD_LIMIT {
            return self.refuse(conn, Refusal::WorldTooLarge { world });
        }
        if rank >= world {
            return self.refuse(conn, Refusal::RankOutOfRange { rank, world });
        }
        if self.world.ranks() == 0 {
            self.world = Realm::new(WORLD, world);
            self.seats = vec![Member::Absent; world];
            self.listens = vec![None; world];
        }
        if self.world.ranks() != world {
            let ours = self.world.ranks();
            let refusal = Refusal::WorldMismatch { rank, theirs: world, ours };
            // No world of either size can come together any more.
            if matches!(self.phase, Phase::Joining) {
                self.fail(refusal.clone());
            }
            return self.refuse(conn, refusal);
        }
        match self.world.member(rank) {
            Some(Member::Here(_)) => return self.refuse(conn, Refusal::RankTwice { rank }),
            Some(Member::Gone) => return self.refuse(conn, Refusal::Busy),
            Some(Member::Absent) | None => {}
        }
        self.world.add(rank, conn, Some(node));
        self.seats[rank] = Member::Here(conn);
        self.listens[rank] = listens;
        self.stages.insert(conn, Stage::Member(rank));
        if process == self.process {
            self.serving_rank = Some(self.serving_rank.map_or(rank, |first| first.min(rank)));
        }
        if self.world.missing().is_empty() {
            self.phase = Phase::Running;
            let nodes = Nodes::of(self.world.nodes()).numbers();
            let mut successors = std::mem::take(&mut self.listens);
            successors.truncate(SUCCESSORS_LIMIT);
            let serving_rank = self.serving_rank;
            let started = Message::Started { serving_rank, nodes, successors };
            self.send(self.world.here(), started);
        }
    }

    /// The connections of all ranks that are here.
    fn here(&self) -> Vec<Conn> {
        let conn = |seat: &Member| match *seat {
            Member::Here(conn) => Some(conn),
            Member::Absent | Member::Gone => None,
        };
        self.seats.iter().filter_map(conn).collect()
    }

    /// Nobody goes on here any more.
    fn give_up(&mut self, cause: Cause) {
        let refusal = Refusal::Stopped(cause);
        self.phase = Phase::Failed(refusal.clone());
        for conn in self.here() {
            self.stages.insert(conn, Stage::Refused);
            self.send(vec![conn], Message::Refused(refusal.clone()));
            self.actions.push(Action::Close(conn));
        }
    }

    /// A rank that has joined said something.
    fn said(&mut self, conn: Conn, rank: usize, message: Message) {
        match (&self.phase, message) {
            (Phase::Joining, Message::GaveUp) => {
                let missing = self.world.missing();
                self.fail(Refusal::Timeout { missing });
            }
            // It was sent before the news that all are there arrived.
            (_, Message::GaveUp) => {}
            (Phase::Joining, Message::Withdraw { reason }) => {
                let cause = Cause::Aborted { rank, reason }.clipped();
                self.fail(Refusal::Stopped(cause));
            }
            // By its connection's end the others hear of it.
            (_, Message::Withdraw { .. }) => {}
            (_, Message::Ping) => {}
            (_, Message::Silence { ms }) => self.grant(conn, Duration::from_millis(ms)),
            (Phase::Running, Message::Among { realm, said }) => {
                if let Err(OutOfTurn) = self.said_among(rank, realm, said) {
                    self.refuse(conn, Refusal::Protocol("a message out of turn".to_owned()));
                }
            }
            (Phase::Running, Message::Open { realm, ranks }) => {
                if !self.open(rank, realm, ranks) {
                    self.refuse(conn, Refusal::Protocol("a realm that cannot be".to_owned()));
                }
            }
            (Phase::Failed(_), _) => {}
            _ => self.refuse(conn, Refusal::Protocol("a message out of turn".to_owned())),
        }
    }

    /// A rank said something to those of a realm. One that is over has nobody who could hear it.
    fn said_among(&mut self, rank: usize, realm: RealmId, said: Said) -> Result<(), OutOfTurn> {
        if realm == WORLD {
            if let Some(cause) = self.world.said(rank, said)? {
                self.tell_launchers(cause);
            }
            return Ok(());
        }
        let Some(part) = self.parts.get_mut(&realm) else { return Ok(()) };
        let at = part.find(rank).ok_or(OutOfTurn)?;
        part.realm.said(at, said)?;
        self.forget_parts();
        Ok(())
    }

    /// A rank comes to a realm of these ranks. All of them do; the first one's word makes it.
    fn open(&mut self, rank: usize, id: RealmId, ranks: Vec<usize>) -> bool {
        let (Member::Here(conn), node) = (self.seats[rank], self.world.nodes()[rank]) else {
            return false;
        };
        let has_moved = self.takeover.is_some();
        if let Some(part) = self.parts.get_mut(&id) {
            let Some(at) = part.find(rank).filter(|_| part.ranks == ranks) else { return false };
            return match part.realm.member(at) {
                Some(Member::Absent) => {
                    part.realm.add(at, conn, node);
                    true
                }
                // Another one has told that it has left.
                member => has_moved && member == Some(Member::Gone),
            };
        }
        let known = ranks.iter().all(|&rank| rank < self.seats.len());
        let distinct = ranks.iter().collect::<BTreeSet<_>>().len() == ranks.len();
        if id == WORLD || !known || !distinct || !ranks.contains(&rank) {
            return false;
        }
        let mut realm = match has_moved {
            true => Realm::resumed(id, ranks.len()),
            false => Realm::new(id, ranks.len()),
        };
        for (at, &other) in ranks.iter().enumerate() {
            if other == rank {
                realm.add(at, conn, node);
            } else if self.seats[other] == Member::Gone {
                realm.lost(at, Cause::Died { rank: at });
            }
        }
        self.parts.insert(id, Part { ranks, realm });
        true
    }

    /// Forgets realms in which nobody is any more.
    fn forget_parts(&mut self) {
        self.collect();
        self.parts.retain(|_, part| !part.realm.is_over());
    }

    /// A rank is lost, where it has not left before. `cause` names it by its number in the world.
    fn lost(&mut self, rank: usize, cause: Cause) {
        match self.phase {
            Phase::Joining => {
                self.world.lost(rank, cause.clone());
                self.world.take_actions();
                self.fail(Refusal::Stopped(cause.clone()));
            }
            Phase::Running => {
                if self.world.lost(rank, cause.clone()) {
                    self.tell_launchers(cause.clone());
                }
            }
            Phase::Failed(_) => {}
        }
        for part in self.parts.values_mut() {
            if let Some(at) = part.find(rank) {
                part.realm.lost(at, cause.clone().renumbered(|_| at));
            }
        }
        self.forget_parts();
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
            self.send(vec![conn], Message::Failed(cause));
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
        let runs = |rank: &usize| self.world.member(*rank) != Some(Member::Gone);
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
        match (self.world.member(rank), &self.phase) {
            (Some(Member::Here(_) | Member::Gone), _) => self.lost(rank, cause.clone()),
            (_, Phase::Joining) => self.fail(Refusal::Stopped(cause.clone())),
            _ => {}
        }
        self.tell_launchers(cause);
    }

    fn tell_launchers(&mut self, cause: Cause) {
        let to = self.launchers.hear(&cause);
        self.send(to, Message::Failed(cause));
    }

    /// Nobody starts, and everybody hears why, also who comes later.
    fn fail(&mut self, refusal: Refusal) {
        self.phase = Phase::Failed(refusal.clone());
        for conn in self.world.here() {
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
        self.collect();
        if !to.is_empty() {
            self.actions.push(Action::Send(to, message));
        }
    }
}

#[cfg(test)]
mod tests;
