//! A process' connection to the rendezvous, which all of its realms share: that of the world, and
//! those of parts.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, bounded};

use crate::fork::{Origin, Unshared};
use crate::liveness::Peers;
use crate::mailbox::Mailbox;
use crate::rendezvous::joining::{Joined, Joining, is_transient};
use crate::rendezvous::message::{
    CHANGED, Frame, FrameError, FrameReader, MESSAGE_LIMIT_BYTES, Message, Piece,
    REPORT_LIMIT_BYTES, RealmId, Said, WORLD,
};
use crate::seal::Seal;
use crate::silence::{self, is_of_silence};
use crate::{Cause, Error, Liveness, Nodes, Seat, Secret};

/// How long telling the others of an abort or a goodbye may take.
pub(super) const TELL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the end waits for the server to have read everything.
const ENDING_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the server may say nothing before this side does. Longer than the server's own pause,
/// so that as a rule it need not.
pub(super) const PING_PAUSE: Duration = Duration::from_millis(500);

/// The connection. It ends with the last realm.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) secret: Secret,
    /// By which of its addresses this rank has reached the rendezvous.
    pub(super) address: IpAddr,
    /// The rank that serves the rendezvous, if one does.
    serving: Option<usize>,
    outlet: Arc<Outlet>,
    realms: Arc<Realms>,
    reader: Option<JoinHandle<()>>,
    /// Ends when the reader does.
    reading: Receiver<()>,
    pub(super) origin: Origin,
}

impl Line {
    /// Listens from here on, also to the world, in which all ranks are; the nodes of all.
    pub(super) fn start(
        joining: Joining<'_>,
        secret: &Secret,
        joined: Joined,
    ) -> Result<(Arc<Line>, Heard, Nodes), Error> {
        let Joining { stream, frames, seat: Seat { rank, world, .. }, seal, .. } = joining;
        let Joined { serving, nodes } = joined;
        let prepared = stream.set_read_timeout(Some(PING_PAUSE)).and_then(|()| stream.try_clone());
        let source = prepared.map_err(Error::io("preparing the control channel"))?;
        let address = stream.local_addr().map_err(Error::io("preparing the control channel"))?.ip();
        let source = Unshared::new(source);
        let stream = Mutex::new(Some((Unshared::new(stream), seal)));
        let (dropped, silent) = (AtomicBool::new(false), AtomicBool::new(false));
        let outlet = Arc::new(Outlet { stream, dropped, silent });
        let all: Vec<usize> = (0..world).collect();
        let heard = Heard::new(WORLD, rank, &all, &nodes, &outlet, serving);
        let realms = Arc::new(Realms::default());
        realms.add(WORLD, heard.clone());
        let hearing = Hearing { outlet: outlet.clone(), realms: realms.clone() };
        let reader = Reader { source, frames, hearing };
        let (ended, reading) = bounded(0);
        let thread = std::thread::Builder::new().name(format!("oxccl-control-{rank}"));
        let thread = thread.spawn(move || {
            reader.run();
            drop(ended);
        });
        let reader = Some(thread.map_err(Error::io("starting a thread"))?);
        let (secret, origin) = (secret.clone(), Origin::here());
        let line = Line { secret, address, serving, outlet, realms, reader, reading, origin };
        Ok((Arc::new(line), heard, nodes))
    }

    /// Opens a realm of these ranks, by their numbers in the world; this rank is the one at `rank`.
    pub(super) fn open(
        &self,
        realm: RealmId,
        rank: usize,
        ranks: &[usize],
        nodes: &Nodes,
        deadline: Instant,
    ) -> Heard {
        let heard = Heard::new(realm, rank, ranks, nodes, &self.outlet, self.serving);
        self.realms.add(realm, heard.clone());
        self.say(&Message::Open { realm, ranks: ranks.to_vec() }, deadline);
        heard
    }

    /// Hears no more of a realm. To the others it is a death, unless this rank has said goodbye.
    pub(super) fn leave(&self, id: RealmId, heard: &Heard, is_last: bool) {
        // The end of the connection says it, too.
        if !is_last && heard.liveness.left(heard.rank).is_none() {
            self.say(&Said::Gone.among(id), Instant::now() + TELL_TIMEOUT);
        }
        self.realms.remove(id);
    }

    pub(super) fn say(&self, message: &Message, deadline: Instant) {
        self.outlet.send(message, deadline);
    }

    pub(super) fn set_silence(&self, silence: Duration) -> io::Result<()> {
        self.outlet.grant(silence)?;
        let ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
        self.say(&Message::Silence { ms }, Instant::now() + TELL_TIMEOUT);
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            // The threads, and what they hold, are the parent's.
            std::mem::forget((self.reader.take(), self.outlet.clone(), self.realms.clone()));
            return;
        }
        self.outlet.dropped.store(true, Ordering::Release);
        // The server answers the end of a connection with its own; then nothing that was said
        // before can be lost any more.
        self.outlet.shutdown(Shutdown::Write);
        let _ = self.reading.recv_timeout(ENDING_TIMEOUT);
        self.outlet.shutdown(Shutdown::Both);
        self.outlet.close();
        if self.reader.take().is_some_and(|reader| reader.join().is_err()) {
            tracing::error!("the control channel's reader panicked");
        }
    }
}

/// What one rank hears of a realm.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    /// Its number there.
    pub(super) rank: usize,
    pub(super) mailbox: Arc<Mailbox<Piece>>,
    pub(super) liveness: Arc<Liveness>,
    /// The rank that serves the rendezvous, if one of these does.
    serving: Option<usize>,
}

impl Heard {
    fn new(
        realm: RealmId,
        rank: usize,
        ranks: &[usize],
        nodes: &Nodes,
        outlet: &Arc<Outlet>,
        serving: Option<usize>,
    ) -> Heard {
        let mailbox = Arc::new(Mailbox::new(ranks.len()));
        let (outlet, several_nodes) = (outlet.clone(), nodes.count() > 1);
        let peers = RemotePeers { realm, outlet, mailbox: mailbox.clone(), several_nodes };
        let liveness = Arc::new(Liveness::new(rank, ranks.len(), Box::new(peers)));
        let serving = ranks.iter().position(|rank| Some(*rank) == serving);
        Heard { rank, mailbox, liveness, serving }
    }

    fn raise(&self, cause: Cause) {
        self.liveness.raise(cause);
        self.mailbox.wake();
    }
}

/// The realms that this rank is in.
#[derive(Debug, Default)]
struct Realms {
    open: Mutex<BTreeMap<RealmId, Heard>>,
}

impl Realms {
    fn add(&self, id: RealmId, heard: Heard) {
        self.lock().insert(id, heard);
    }

    fn remove(&self, id: RealmId) {
        self.lock().remove(&id);
    }

    fn get(&self, id: RealmId) -> Option<Heard> {
        self.lock().get(&id).cloned()
    }

    fn all(&self) -> Vec<Heard> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RealmId, Heard>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way out, shared by whoever has something to tell.
#[derive(Debug)]
struct Outlet {
    /// With what seals all that is sent.
    stream: Mutex<Option<(Unshared<TcpStream>, Option<Seal>)>>,
    /// This rank ends the connection; that it ends is then no news.
    dropped: AtomicBool,
    /// The server's machine does not answer any more.
    silent: AtomicBool,
}

impl Outlet {
    /// Sends, or ends the connection: a message cut short would spoil what follows.
    fn send(&self, message: &Message, deadline: Instant) {
        let frame = Frame::new(message);
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((open, seal)) = stream.as_mut() else { return };
        if let Err(error) = write_all(open, &frame.sealed(seal.as_mut()), deadline) {
            tracing::debug!(%error, "the control channel broke");
            self.note(&error);
            // The reader sees the end, and says what it means.
            let _ = open.shutdown(Shutdown::Both);
            *stream = None;
        }
    }

    /// Remembers it if the connection broke because the server's machine does not answer.
    fn note(&self, error: &io::Error) {
        if is_of_silence(error) {
            self.silent.store(true, Ordering::Release);
        }
    }

    fn grant(&self, silence: Duration) -> io::Result<()> {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        stream.as_ref().map_or(Ok(()), |(stream, _)| silence::grant(stream, silence))
    }

    fn shutdown(&self, how: Shutdown) {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((stream, _)) = stream.as_ref() {
            // It may have ended by itself.
            let _ = stream.shutdown(how);
        }
    }

    fn close(&self) {
        *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn write_all(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        stream.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if is_transient(&error) && !left.is_zero() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The other ranks of a realm, through the server.
struct RemotePeers {
    realm: RealmId,
    outlet: Arc<Outlet>,
    mailbox: Arc<Mailbox<Piece>>,
    several_nodes: bool,
}

impl RemotePeers {
    fn say(&self, said: Said) {
        self.outlet.send(&said.among(self.realm), Instant::now() + TELL_TIMEOUT);
    }
}

impl Peers for RemotePeers {
    fn tell_abort(&self, cause: &Cause) {
        self.mailbox.wake();
        self.say(Said::Abort(cause.clone()));
    }

    fn ask(&self) {
        if self.several_nodes {
            self.say(Said::Ask);
        }
    }

    fn tell_goodbye(&self, calls: u64) {
        self.say(Said::Goodbye { calls });
    }
}

/// What the thread that listens to the server owns.
struct Reader {
    source: Unshared<TcpStream>,
    frames: FrameReader,
    hearing: Hearing,
}

/// What a rank does with what the server says.
struct Hearing {
    outlet: Arc<Outlet>,
    realms: Arc<Realms>,
}

impl Reader {
    fn run(mut self) {
        let mut server_closed = false;
        loop {
            match self.frames.next(MESSAGE_LIMIT_BYTES) {
                Ok(Some(Message::Closing)) => server_closed = true,
                Ok(Some(message)) => self.hearing.heard(message),
                Ok(None) if self.read() => {}
                Err(FrameError::Changed) => {
                    for heard in self.hearing.realms.all() {
                        let (rank, reason) = (heard.rank, CHANGED.to_owned());
                        heard.liveness.abort(Cause::Aborted { rank, reason });
                    }
                    break;
                }
                _ => break,
            }
        }
        let Hearing { outlet, realms } = &self.hearing;
        let silent = outlet.silent.load(Ordering::Acquire);
        let expected = server_closed || outlet.dropped.load(Ordering::Acquire);
        for Heard { rank, mailbox, liveness, serving } in realms.all() {
            if !expected && liveness.left(rank).is_none() {
                liveness.raise(match serving {
                    None if silent => Cause::ServerCutOff,
                    None => Cause::ServerLost,
                    Some(rank) if silent => Cause::CutOff { rank },
                    Some(rank) => Cause::Died { rank },
                });
            }
            mailbox.end(|| Error::ServerClosed);
        }
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
            Message::Refused(refusal) => {
                for realm in self.realms.all() {
                    let reason = format!("the rendezvous dropped it: {refusal:?}");
                    realm.raise(Cause::Aborted { rank: realm.rank, reason });
                }
            }
            other => tracing::warn!(?other, "the rendezvous sent a message out of turn"),
        }
    }

    fn heard_among(&self, id: RealmId, realm: &Heard, said: Said) {
        let Heard { mailbox, liveness, .. } = realm;
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
    let (dropped, silent) = (AtomicBool::new(false), AtomicBool::new(false));
    let outlet = Arc::new(Outlet { stream: Mutex::new(None), dropped, silent });
    let realms = Arc::new(Realms::default());
    let ranks: Vec<usize> = (0..world).collect();
    for (realm, ranks) in [(WORLD, &ranks[..]), (1, &ranks[..1])] {
        let nodes = Nodes::blocks(ranks.len(), 2);
        realms.add(realm, Heard::new(realm, rank, ranks, &nodes, &outlet, None));
    }
    let hearing = Hearing { outlet, realms };
    messages.into_iter().for_each(|message| hearing.heard(message));
}
