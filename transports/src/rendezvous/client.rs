//! A rank's side of the rendezvous: the control channel.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::fork::{Origin, Unshared};
use crate::liveness::Peers;
use crate::mailbox::Mailbox;
use crate::rendezvous::joining::{Failure, Joined, Joining, is_transient};
use crate::rendezvous::message::{
    CHANGED, Frame, FrameError, FrameReader, MESSAGE_LIMIT_BYTES, Message, Piece,
    REPORT_LIMIT_BYTES,
};
use crate::rendezvous::state::WORLD_LIMIT;
use crate::seal::Seal;
use crate::silence::{self, is_of_silence};
use crate::{Cause, Error, Liveness, Nodes, Seat, Secret, UniqueId};

/// How long telling the others of an abort or a goodbye may take.
pub(super) const TELL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long dropping waits for the server to have read everything.
const ENDING_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the server may say nothing before this side does. Longer than the server's own pause,
/// so that as a rule it need not.
pub(super) const PING_PAUSE: Duration = Duration::from_millis(500);

/// The pause between attempts grows from the first to the second.
pub(super) const RETRY_PAUSES: (Duration, Duration) =
    (Duration::from_millis(5), Duration::from_millis(200));

/// How long a place may take to answer where the server may be at another: from the first to the
/// second, as attempts fail.
const ANSWERS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));

/// How long to look for the server where others have answered, and it has not.
const STRANGERS: Duration = Duration::from_secs(5);

/// A rank's connection to the rendezvous, through which it exchanges bytes with the others and
/// hears of them.
#[derive(Debug)]
pub struct ControlChannel {
    rank: usize,
    nodes: Nodes,
    round: u64,
    secret: Secret,
    address: IpAddr,
    outlet: Arc<Outlet>,
    liveness: Arc<Liveness>,
    reader: Option<JoinHandle<()>>,
    /// Ends when the reader does.
    reading: Receiver<()>,
    origin: Origin,
}

impl ControlChannel {
    /// Joins the other ranks. It comes back when all of them have; ranks may start before the
    /// server does.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if no server answers until the deadline, [`Error::Timeout`] naming
    /// the ranks that have not joined until then (on every rank that has, at the first one's
    /// deadline), and why this rank may not join: [`Error::WrongSecret`], [`Error::Version`],
    /// [`Error::RankTwice`], [`Error::RankOutOfRange`], [`Error::WorldMismatch`],
    /// [`Error::WorldTooLarge`].
    pub fn connect(id: &UniqueId, seat: Seat, deadline: Instant) -> Result<ControlChannel, Error> {
        let Seat { rank, world, .. } = seat;
        if rank >= world {
            return Err(Error::RankOutOfRange { rank, world });
        }
        if world > WORLD_LIMIT {
            return Err(Error::WorldTooLarge { world, limit: WORLD_LIMIT });
        }
        let mut search = Search { places: id.places(), next: 0, answer: ANSWERS.0, stranger: None };
        let mut pause = RETRY_PAUSES.0;
        loop {
            match search.attempt(seat, deadline) {
                Ok((joining, joined)) => return Self::start(joining, id, joined),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Again(source)) if Instant::now() + pause >= deadline => {
                    let otherwise = || Error::Unreachable { address: id.address(), source };
                    return Err(search.stranger.map_or_else(otherwise, |(_, error)| error));
                }
                Err(Failure::Again(error)) => {
                    tracing::trace!(%error, "the rendezvous does not answer yet");
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(RETRY_PAUSES.1);
                }
            }
        }
    }

    fn start(joining: Joining, id: &UniqueId, joined: Joined) -> Result<Self, Error> {
        let Joining { stream, frames, seat: Seat { rank, world, .. }, seal, .. } = joining;
        let Joined { serving, nodes } = joined;
        let prepared = stream.set_read_timeout(Some(PING_PAUSE)).and_then(|()| stream.try_clone());
        let source = prepared.map_err(Error::io("preparing the control channel"))?;
        let address = stream.local_addr().map_err(Error::io("preparing the control channel"))?.ip();
        let mailbox = Arc::new(Mailbox::new(world));
        let source = Unshared::new(source);
        let stream = Mutex::new(Some((Unshared::new(stream), seal)));
        let (dropped, silent) = (AtomicBool::new(false), AtomicBool::new(false));
        let outlet = Arc::new(Outlet { stream, mailbox, dropped, silent });
        let several_nodes = nodes.count() > 1;
        let peers = Box::new(RemotePeers { outlet: outlet.clone(), several_nodes });
        let liveness = Arc::new(Liveness::new(rank, world, peers));
        let hearing = Hearing { rank, outlet: outlet.clone(), liveness: liveness.clone() };
        let reader = Reader { source, frames, serving, hearing };
        let (ended, reading) = channel();
        let thread = std::thread::Builder::new().name(format!("oxccl-control-{rank}"));
        let thread = thread.spawn(move || {
            reader.run();
            drop(ended);
        });
        let reader = Some(thread.map_err(Error::io("starting a thread"))?);
        let secret = id.secret().clone();
        Ok(ControlChannel {
            rank,
            nodes,
            round: 0,
            secret,
            address,
            outlet,
            liveness,
            reader,
            reading,
            origin: Origin::here(),
        })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.nodes.world()
    }

    /// Which ranks share a node.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// What is known of the other ranks' state.
    pub fn liveness(&self) -> Arc<Liveness> {
        self.liveness.clone()
    }

    /// See [`Bootstrap::all_gather`](crate::Bootstrap::all_gather).
    ///
    /// # Errors
    /// As there.
    pub fn all_gather(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>, Error> {
        if !self.origin.is_here() {
            return Err(Error::Forked);
        }
        self.liveness.check()?;
        let round = self.round;
        self.round += 1;
        // A send that fails has ended the channel, and the mailbox knows why.
        self.outlet.send(&Message::Gather { round, piece: Piece::new(bytes) }, deadline);
        let mailbox = &self.outlet.mailbox;
        let pieces = mailbox.collect(round, "exchanging bytes", deadline, &self.liveness)?;
        pieces.into_iter().enumerate().map(|(rank, piece)| piece.into_bytes(rank)).collect()
    }

    /// For how long this machine and the server's may be silent to each other, instead of
    /// [`SILENCE`](crate::silence::SILENCE): then this rank counts as cut off. No shorter than
    /// [`LEAST_SILENCE`](crate::silence::LEAST_SILENCE).
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses it.
    pub fn set_silence(&self, silence: Duration) -> Result<(), Error> {
        let granted = self.outlet.grant(silence);
        granted.map_err(Error::io("setting a time-out of the control channel"))?;
        let ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
        self.outlet.send(&Message::Silence { ms }, Instant::now() + TELL_TIMEOUT);
        Ok(())
    }

    /// By which of its addresses this rank has reached the rendezvous.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }
}

/// The search for the server, which may be at one of several places.
struct Search {
    places: Vec<UniqueId>,
    /// The next one to try beside the first.
    next: usize,
    /// How long each may take to answer.
    answer: Duration,
    /// Since when somebody has answered who is not the server, or not that of this job, and how.
    stranger: Option<(Instant, Error)>,
}

impl Search {
    /// Tries the first place and, by turns, one of the others: a machine may let all of them wait.
    fn attempt(&mut self, seat: Seat, deadline: Instant) -> Result<(Joining<'_>, Joined), Failure> {
        let [first, others @ ..] = &self.places[..] else { unreachable!("there is one") };
        let other = others.get(self.next % others.len().max(1));
        self.next += 1;
        let mut last = None;
        for place in std::iter::once(first).chain(other) {
            let until = match other {
                Some(_) => deadline.min(Instant::now() + self.answer),
                None => deadline,
            };
            match Joining::open(place, seat, until) {
                Ok(mut joining) => {
                    let joined = joining.join(deadline)?;
                    return Ok((joining, joined));
                }
                Err(Failure::Final(error)) if other.is_some() => {
                    self.stranger.get_or_insert((Instant::now(), error));
                }
                Err(Failure::Again(error)) => last = Some(error),
                Err(failure) => return Err(failure),
            }
        }
        self.answer = (self.answer * 2).min(ANSWERS.1);
        let stranger = self.stranger.take_if(|(since, _)| since.elapsed() >= STRANGERS);
        Err(match (stranger, last) {
            (Some((_, error)), _) => Failure::Final(error),
            (None, Some(error)) => Failure::Again(error),
            (None, None) => Failure::Again(io::Error::other("only strangers answer")),
        })
    }
}

impl Drop for ControlChannel {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            // The threads, and what they hold, are the parent's.
            std::mem::forget((self.reader.take(), self.outlet.clone()));
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

/// The way out, shared by whoever has something to tell.
#[derive(Debug)]
struct Outlet {
    /// With what seals all that is sent.
    stream: Mutex<Option<(Unshared<TcpStream>, Option<Seal>)>>,
    mailbox: Arc<Mailbox<Piece>>,
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

/// The other ranks, through the server.
struct RemotePeers {
    outlet: Arc<Outlet>,
    several_nodes: bool,
}

impl Peers for RemotePeers {
    fn tell_abort(&self, cause: &Cause) {
        self.outlet.mailbox.wake();
        self.outlet.send(&Message::Abort(cause.clone()), Instant::now() + TELL_TIMEOUT);
    }

    fn ask(&self) {
        if self.several_nodes {
            self.outlet.send(&Message::Ask, Instant::now() + TELL_TIMEOUT);
        }
    }

    fn tell_goodbye(&self, calls: u64) {
        self.outlet.send(&Message::Goodbye { calls }, Instant::now() + TELL_TIMEOUT);
    }
}

/// What the thread that listens to the server owns.
struct Reader {
    source: Unshared<TcpStream>,
    frames: FrameReader,
    serving: Option<usize>,
    hearing: Hearing,
}

/// What a rank does with what the server says.
struct Hearing {
    rank: usize,
    outlet: Arc<Outlet>,
    liveness: Arc<Liveness>,
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
                    let (rank, reason) = (self.hearing.rank, CHANGED.to_owned());
                    self.hearing.liveness.abort(Cause::Aborted { rank, reason });
                    break;
                }
                _ => break,
            }
        }
        let Hearing { rank, outlet, liveness } = &self.hearing;
        let expected = server_closed
            || outlet.dropped.load(Ordering::Acquire)
            || liveness.left(*rank).is_some();
        if !expected {
            let silent = outlet.silent.load(Ordering::Acquire);
            liveness.raise(match self.serving {
                None if silent => Cause::ServerCutOff,
                None => Cause::ServerLost,
                Some(rank) if silent => Cause::CutOff { rank },
                Some(rank) => Cause::Died { rank },
            });
        }
        outlet.mailbox.end(|| Error::ServerClosed);
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
        let mailbox = &self.outlet.mailbox;
        match message {
            Message::Gathered { round, pieces } => mailbox.deposit_all(round, pieces),
            Message::Asked => self.answer(),
            Message::Reported { rank, report } => self.liveness.reports().heard(rank, &report),
            Message::Ping => {}
            Message::Abort(cause) => {
                self.liveness.raise(cause);
                mailbox.wake();
            }
            Message::Left { rank, calls } => {
                self.liveness.record_left(rank, calls);
                mailbox.wake();
            }
            Message::Refused(refusal) => {
                let reason = format!("the rendezvous dropped it: {refusal:?}");
                self.liveness.raise(Cause::Aborted { rank: self.rank, reason });
                mailbox.wake();
            }
            other => tracing::warn!(?other, "the rendezvous sent a message out of turn"),
        }
    }

    fn answer(&self) {
        let report = self.liveness.reports().answer();
        if let Some(report) = report.filter(|report| report.len() <= REPORT_LIMIT_BYTES) {
            self.outlet.send(&Message::Report(report), Instant::now() + TELL_TIMEOUT);
        }
    }
}

/// Has a rank hear these messages, without a server.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn hear(rank: usize, world: usize, messages: impl IntoIterator<Item = Message>) {
    let outlet = Arc::new(Outlet {
        stream: Mutex::new(None),
        mailbox: Arc::new(Mailbox::new(world)),
        dropped: AtomicBool::new(false),
        silent: AtomicBool::new(false),
    });
    let peers = Box::new(RemotePeers { outlet: outlet.clone(), several_nodes: true });
    let liveness = Arc::new(Liveness::new(rank, world, peers));
    let hearing = Hearing { rank, outlet, liveness };
    messages.into_iter().for_each(|message| hearing.heard(message));
}
