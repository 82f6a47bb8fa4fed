//! What a rank does with what the server says, and where the server has ended.

use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::fork::Unshared;
use crate::rendezvous::heard::{Heard, Lost, Realms, server_lost};
use crate::rendezvous::joining::is_transient;
use crate::rendezvous::message::{
    CHANGED, FrameError, FrameReader, MESSAGE_LIMIT_BYTES, Message, REPORT_LIMIT_BYTES, RealmId,
    Refusal, Said,
};
use crate::rendezvous::outlet::{Outlet, TELL_TIMEOUT};
use crate::rendezvous::server::COMING_OVER;
use crate::rendezvous::state::Succession;
use crate::rendezvous::succession::{Next, Successors};
use crate::silence::{self, SILENCE};
use crate::{Cancel, Cause, Seat, Server};

/// How long the server may say nothing before this side does. Longer than the server's own pause,
/// so that as a rule it need not.
pub(super) const PING_PAUSE: Duration = Duration::from_millis(500);

/// What the thread that listens to the server owns.
pub(super) struct Reader {
    pub(super) source: Unshared<TcpStream>,
    pub(super) frames: FrameReader,
    pub(super) hearing: Hearing,
    /// The rank that serves the rendezvous, if one does.
    pub(super) serving: Option<usize>,
    pub(super) successors: Successors,
    pub(super) cancel: Cancel,
    pub(super) serves: Arc<Mutex<Option<Server>>>,
}

/// How a connection has ended.
#[derive(PartialEq)]
enum End {
    /// The server has said that it goes.
    Closing,
    Broken,
    /// The server is there, but not for this rank.
    Dropped,
}

/// What a rank does with what the server says.
pub(super) struct Hearing {
    pub(super) outlet: Arc<Outlet>,
    pub(super) realms: Arc<Realms>,
}

impl Reader {
    pub(super) fn run(mut self) {
        loop {
            let end = self.listen();
            let Hearing { outlet, realms } = &self.hearing;
            let silent = outlet.silent.load(Ordering::Acquire);
            let serving = self.serving;
            let goes_on = || {
                let all = realms.all();
                all.iter().any(|heard| !heard.has_left())
            };
            if outlet.dropped.load(Ordering::Acquire) || !goes_on() {
                return realms.end(Lost::Closed);
            }
            if end == End::Dropped || outlet.stuck.load(Ordering::Acquire) {
                return realms.end(Lost::Unreached { rank: serving, silent });
            }
            if end == End::Broken {
                // Its own realms need not wait for another server to hear it.
                let all = realms.all().into_iter().filter(|heard| !heard.has_left());
                let of = |heard: &Heard| serving.and_then(|rank| heard.number(rank)).is_some();
                all.filter(of).for_each(|heard| heard.raise(server_lost(&heard, serving, silent)));
            }
            outlet.moves.store(true, Ordering::Release);
            let moved = self.go_on(&end, silent);
            let Hearing { outlet, realms } = &self.hearing;
            outlet.moves.store(false, Ordering::Release);
            if let Err(rank) = moved {
                if outlet.dropped.load(Ordering::Acquire) {
                    return realms.end(Lost::Closed);
                }
                tracing::warn!(?rank, "no other rank can serve the rendezvous");
                return realms.end(match (end, rank) {
                    (End::Closing, _) => Lost::Closed,
                    (_, Some(rank)) => Lost::Unserved { rank },
                    (_, None) => Lost::Unreached { rank: serving, silent },
                });
            }
        }
    }

    /// Hears the server until the connection ends.
    fn listen(&mut self) -> End {
        let mut closing = false;
        loop {
            match self.frames.next(MESSAGE_LIMIT_BYTES) {
                Ok(Some(Message::Closing)) => closing = true,
                Ok(Some(Message::Refused(refusal))) => {
                    self.hearing.refused(refusal);
                    return End::Dropped;
                }
                Ok(Some(message)) => self.hearing.heard(message),
                Ok(None) if self.read() => {}
                Err(FrameError::Changed) => {
                    for heard in self.hearing.realms.all() {
                        let (rank, reason) = (heard.rank, CHANGED.to_owned());
                        heard.liveness.abort(Cause::Aborted { rank, reason });
                    }
                    return End::Dropped;
                }
                Err(_) => return End::Dropped,
                Ok(None) if closing => return End::Closing,
                Ok(None) => return End::Broken,
            }
        }
    }

    /// Goes on with the next server, or becomes it.
    ///
    /// # Errors
    /// The rank whose turn it is, if it cannot be reached.
    fn go_on(&mut self, end: &End, silent: bool) -> Result<(), Option<usize>> {
        let outlet = &self.hearing.outlet;
        let Seat { rank, world, node } = self.successors.seat;
        let (lost, silence) = {
            let mut way = outlet.lock();
            way.stream = None;
            if *end == End::Broken && !silent {
                self.serving.into_iter().for_each(|rank| way.journal.lose(rank));
            }
            (way.journal.lost().clone(), way.journal.silence().unwrap_or(SILENCE))
        };
        let deadline = Instant::now() + silence.max(COMING_OVER);
        // Of one that has gone in order the rank may be there still, and its port tells.
        let before = self.serving.filter(|_| silent);
        let succession = Succession { rank, world, before, lost, silent };
        let ended = |rank| outlet.lock().journal.lose(rank);
        let next = self.successors.find(succession, deadline, &self.cancel, ended)?;
        let Next { rank: serving, stream, frames, seal, server } = next;
        tracing::info!(rank, serving, "the rendezvous goes on");
        if let Some(server) = server {
            *self.serves.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        }
        let prepared = stream.set_read_timeout(Some(PING_PAUSE)).and_then(|()| stream.try_clone());
        let source = prepared.map_err(|error| {
            tracing::warn!(%error, "preparing the control channel");
            Some(serving)
        })?;
        (self.source, self.frames, self.serving) = (Unshared::new(source), frames, Some(serving));
        outlet.silent.store(false, Ordering::Release);
        let resumed = outlet.resume(
            (Unshared::new(stream), seal),
            Message::Rejoin { rank, world, node },
            deadline,
        );
        if let Err(error) = resumed {
            // Should this one have ended, too, the reader sees it at once.
            tracing::debug!(%error, "the next server broke off");
            let _ = self.source.shutdown(Shutdown::Both);
        }
        Ok(())
    }

    /// Waits for more. Returns false at the end.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 64 << 10];
        let mut silent = false;
        loop {
            match self.source.read(&mut bytes) {
                Ok(0) => return false,
                Ok(len) => {
                    self.frames.extend(&bytes[..len]);
                    return true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    silent = silence::is_silent(&self.source);
                    self.hearing.outlet.send(&Message::Ping, Instant::now() + TELL_TIMEOUT);
                }
                Err(error) if is_transient(&error) => {}
                Err(error) => {
                    self.hearing.outlet.note(&error);
                    if silent {
                        // The network is back, and the server has given this machine up meanwhile:
                        // it has not died.
                        self.hearing.outlet.silent.store(true, Ordering::Release);
                    }
                    return false;
                }
            }
        }
    }
}

impl Hearing {
    fn heard(&self, message: Message) {
        match message {
            Message::Among { realm: id, said } => {
                // What is said in one that this rank has left was under way.
                if let Some(realm) = self.realms.get(id) {
                    self.heard_among(id, &realm, said);
                }
            }
            Message::Ping => {}
            other => tracing::warn!(?other, "the rendezvous sent a message out of turn"),
        }
    }

    /// The server drops this rank.
    fn refused(&self, refusal: Refusal) {
        if let Refusal::Stopped(cause) = refusal {
            return self.realms.end(Lost::Stopped(cause));
        }
        for realm in self.realms.all() {
            let reason = format!("the rendezvous dropped it: {refusal:?}");
            realm.raise(Cause::Aborted { rank: realm.rank, reason });
        }
    }

    fn heard_among(&self, id: RealmId, realm: &Heard, said: Said) {
        let Heard { mailbox, liveness, .. } = realm;
        if matches!(said, Said::Abort(_) | Said::Left { .. }) {
            self.outlet.lock().journal.heard(id, &said);
        }
        match said {
            Said::Gathered { round, pieces } => mailbox.deposit_all(round, pieces),
            Said::Asked => self.answer(id, realm),
            Said::Reported { rank, report } => liveness.reports().heard(rank, &report),
            Said::Abort(cause) => realm.raise(cause),
            Said::Left { rank, calls } => {
                liveness.record_left(rank, calls);
                mailbox.wake();
            }
            other => tracing::warn!(?other, "the rendezvous sent a message out of turn"),
        }
    }

    fn answer(&self, id: RealmId, realm: &Heard) {
        let report = realm.liveness.reports().answer();
        if let Some(report) = report.filter(|report| report.len() <= REPORT_LIMIT_BYTES) {
            self.outlet.send(&Said::Report(report).among(id), Instant::now() + TELL_TIMEOUT);
        }
    }
}

/// Has a rank hear these messages, without a server: in the world, and in a part of it.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn hear(rank: usize, world: usize, messages: impl IntoIterator<Item = Message>) {
    use crate::Nodes;
    use crate::rendezvous::message::WORLD;

    let outlet = Arc::new(Outlet::new(None, world));
    let realms = Arc::new(Realms::default());
    let ranks: Vec<usize> = (0..world).collect();
    for (realm, ranks) in [(WORLD, &ranks[..]), (1, &ranks[..1])] {
        let nodes = Nodes::blocks(ranks.len(), 2);
        realms.add(realm, Heard::new(realm, rank, ranks, &nodes, &outlet));
    }
    let hearing = Hearing { outlet, realms };
    for message in messages {
        match message {
            Message::Refused(refusal) => hearing.refused(refusal),
            message => hearing.heard(message),
        }
    }
}
