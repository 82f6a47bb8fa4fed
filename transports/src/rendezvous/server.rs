//! The server: one thread that polls all connections, so that none can hold up the others.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{Backlog, listen};

use crate::door::{self, Guest};
use crate::error::lacks_descriptor;
use crate::exit::{Leave, Stage, leaves_at_exit};
use crate::fork::{Origin, Unshared};
use crate::rendezvous::auth::{random_bytes, seals_of_server};
use crate::rendezvous::connection::Connection;
use crate::rendezvous::joining::prepare;
use crate::rendezvous::message::{Frame, Message};
use crate::rendezvous::state::{Action, Conn, Rendezvous, Succession};
use crate::silence::{self, is_of_silence};
use crate::{Error, Secret, deadline_in, identity};

/// How long a refused connection may take to read why.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// How many connections are accepted before others have their turn.
const ACCEPTED_AT_ONCE: usize = 64;

/// How long to leave the listener alone when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long the pieces of an exchange wait for others, to be told together.
const GATHERING_PAUSE: Duration = Duration::from_millis(20);

/// How long ranks may take to come over from a server that has ended.
pub(super) const COMING_OVER: Duration = Duration::from_secs(5);

/// How often ranks get a ping.
const PING_PAUSE: Duration = Duration::from_millis(300);

/// Connections that may wait to be accepted: all ranks of a large world at once. The system has its
/// own limit.
pub(crate) const BACKLOG: i32 = 4096;

/// The rendezvous server of one communicator, on a thread of its own.
///
/// It passes on what ranks tell each other for as long as they run, so the process that started it
/// keeps it, and drops its own bootstrap before it. Dropping waits until all ranks have said
/// goodbye or something has stopped them, but no longer than [`set_linger`](Self::set_linger)
/// allows; ranks that still run then are told that this is no death, and from then on do not hear
/// of each other. The end of the process with status 0 is as good as dropping it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    running: Arc<Running>,
}

/// The server's thread.
#[derive(Debug)]
struct Running {
    stop: Arc<Stop>,
    thread: Mutex<Option<JoinHandle<()>>>,
    origin: Origin,
}

#[derive(Debug)]
struct Stop {
    asked: AtomicBool,
    linger_ms: AtomicU64,
    /// How many launchers there are.
    launchers: AtomicUsize,
    wake: EventFd,
}

impl Server {
    /// How long dropping waits for the goodbyes, if nothing else is set.
    pub const LINGER: Duration = Duration::from_secs(5);

    /// Listens on the address (port 0: any free one) and serves ranks that hold the secret.
    ///
    /// # Errors
    /// [`Error::PortTaken`]; [`Error::Address`] if the address cannot be listened on otherwise.
    pub fn start(address: SocketAddr, secret: Secret) -> Result<Server, Error> {
        let refused = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => Error::PortTaken { address: address.to_string() },
            _ => Error::Address { address: address.to_string(), detail: error.to_string() },
        };
        let listener = TcpListener::bind(address).map_err(refused)?;
        let backlog = Backlog::new(BACKLOG).unwrap_or(Backlog::MAXCONN);
        listen(&listener, backlog).map_err(Error::os("preparing a listener"))?;
        listener.set_nonblocking(true).map_err(Error::io("preparing a listener"))?;
        let rendezvous = Rendezvous::new(secret, identity::process());
        Server::run(Unshared::new(listener), rendezvous, None)
    }

    /// Takes the duty over from a server that has ended, with a listener that others know.
    pub(super) fn succeed(
        listener: Unshared<TcpListener>,
        secret: Secret,
        succession: Succession,
    ) -> Result<Server, Error> {
        tracing::info!(rank = succession.rank, "this rank serves the rendezvous from here on");
        let rendezvous = Rendezvous::succeeding(secret, identity::process(), succession);
        Server::run(listener, rendezvous, Some(Instant::now() + COMING_OVER))
    }

    /// Ranks may come over until then.
    fn run(
        listener: Unshared<TcpListener>,
        rendezvous: Rendezvous,
        come_until: Option<Instant>,
    ) -> Result<Server, Error> {
        let address = listener.local_addr().map_err(Error::io("preparing a listener"))?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_flags(flags).map_err(Error::os("creating an event"))?;
        let linger_ms = AtomicU64::new(Self::LINGER.as_millis() as u64);
        let (asked, launchers) = (AtomicBool::new(false), AtomicUsize::new(0));
        let stop = Arc::new(Stop { asked, linger_ms, launchers, wake });
        let service = Service {
            listener,
            stop: stop.clone(),
            rendezvous,
            come_until,
            connections: BTreeMap::new(),
            next: 0,
            places: door::places(),
            accept_from: Instant::now(),
            tell_at: None,
            ask_from: Instant::now(),
            ping_at: Instant::now() + PING_PAUSE,
        };
        let thread = std::thread::Builder::new().name("oxccl-rendezvous".to_owned());
        let thread = thread.spawn(move || service.run()).map_err(Error::io("starting a thread"))?;
        let thread = Mutex::new(Some(thread));
        let running = Arc::new(Running { stop, thread, origin: Origin::here() });
        leaves_at_exit(&running);
        Ok(Server { address, running })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets how long dropping waits for ranks that have not said goodbye.
    pub fn set_linger(&self, linger: Duration) {
        let linger_ms = u64::try_from(linger.as_millis()).unwrap_or(u64::MAX);
        self.running.stop.linger_ms.store(linger_ms, Ordering::Relaxed);
    }

    /// Says how many launchers there are. Once one of them has told that a rank failed, dropping
    /// waits until all have come and are done, so that they and their ranks hear of it; no longer
    /// than for goodbyes.
    pub fn expect_launchers(&self, launchers: usize) {
        self.running.stop.launchers.store(launchers, Ordering::Relaxed);
    }
}

impl Running {
    /// Waits until it is not needed any more, as long as it may.
    fn end(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if !self.origin.is_here() {
            // The thread is the parent's.
            std::mem::forget(thread);
            return;
        }
        let Some(thread) = thread else { return };
        self.stop.asked.store(true, Ordering::Release);
        if let Err(error) = self.stop.wake.write(1) {
            tracing::warn!(%error, "cannot wake the rendezvous server");
        }
        if thread.join().is_err() {
            tracing::error!("the rendezvous server panicked");
        }
    }
}

impl Leave for Running {
    fn leave(&self, stage: Stage) {
        if stage == Stage::Serve {
            self.end();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running.end();
    }
}

/// What the server's thread owns.
struct Service {
    listener: Unshared<TcpListener>,
    stop: Arc<Stop>,
    rendezvous: Rendezvous,
    connections: BTreeMap<Conn, Connection>,
    next: Conn,
    /// How many connections may have not proven the secret.
    places: usize,
    accept_from: Instant,
    /// When pieces of exchanges are told though others are missing.
    tell_at: Option<Instant>,
    /// From when on all ranks may be asked again.
    ask_from: Instant,
    /// When idle connections get a ping.
    ping_at: Instant,
    /// Until when ranks may come over from another server.
    come_until: Option<Instant>,
}

impl Service {
    fn run(mut self) {
        let mut lingers_until = None;
        loop {
            if self.stop.asked.load(Ordering::Acquire) {
                let linger = Duration::from_millis(self.stop.linger_ms.load(Ordering::Relaxed));
                let until = *lingers_until.get_or_insert_with(|| deadline_in(linger));
                let launchers = self.stop.launchers.load(Ordering::Relaxed);
                let needed = self.rendezvous.is_needed() || self.rendezvous.awaits(launchers);
                if !needed || Instant::now() >= until {
                    break;
                }
            }
            self.turn(lingers_until);
        }
        self.rendezvous.stop();
        self.act();
        self.flush_all(Instant::now() + REFUSAL_TIMEOUT);
    }

    /// Waits for something to happen, and handles it.
    fn turn(&mut self, wake_at: Option<Instant>) {
        let now = Instant::now();
        let accepts = now >= self.accept_from;
        let wake_at = self.next_wake(wake_at, now);
        let timeout = wake_at.map_or(PollTimeout::NONE, |at| poll_timeout(at - now));
        let Some((accept, ready)) = self.wait(accepts, timeout) else { return };
        if accept {
            self.accept();
        }
        for conn in ready {
            self.serve(conn);
        }
        self.expire();
        self.act();
        self.keep_time();
        self.act();
    }

    /// Does what is due.
    fn keep_time(&mut self) {
        let now = Instant::now();
        self.tell_at = match self.tell_at {
            _ if !self.rendezvous.has_untold_pieces() => None,
            None => Some(now + GATHERING_PAUSE),
            Some(at) if now >= at => {
                self.rendezvous.tell_pieces();
                None
            }
            waiting => waiting,
        };
        if self.rendezvous.is_asked() && now >= self.ask_from {
            self.rendezvous.ask_all();
            self.ask_from = now + ask_pause(self.rendezvous.world());
        }
        if self.come_until.is_some_and(|until| now >= until || !self.rendezvous.awaits_ranks()) {
            self.come_until = None;
            self.rendezvous.await_no_more();
        }
        if now >= self.ping_at {
            self.ping();
            self.ping_at = now + PING_PAUSE;
        }
    }

    /// Sends a ping to every rank that nothing else is being sent to.
    fn ping(&mut self) {
        let frame = Frame::new(&Message::Ping);
        for (&conn, connection) in &mut self.connections {
            if connection.unsent.is_empty() && self.rendezvous.is_member(conn) {
                connection.push(&frame);
                connection.write();
            }
        }
    }

    /// Connections that have not proven the secret, or are told why they are refused.
    fn guests(&self) -> Vec<Guest<Conn>> {
        let guests =
            self.connections.iter().filter(|&(&conn, _)| !self.rendezvous.has_proven(conn));
        let guest = |(&conn, connection): (&Conn, &Connection)| Guest {
            key: conn,
            from: connection.from,
            since: connection.since,
            has_spoken: !self.rendezvous.is_silent(conn),
        };
        guests.map(guest).collect()
    }

    fn next_wake(&self, wake_at: Option<Instant>, now: Instant) -> Option<Instant> {
        let expiring =
            self.connections.iter().filter(|&(&conn, _)| !self.rendezvous.is_member(conn));
        let expiries = expiring.map(|(_, connection)| connection.expires);
        let pause = (self.accept_from > now).then_some(self.accept_from);
        let ask = self.rendezvous.is_asked().then_some(self.ask_from);
        let ping = (self.rendezvous.world() > 0).then_some(self.ping_at);
        let due = wake_at.into_iter().chain(pause).chain(self.tell_at).chain(ask).chain(ping);
        let due = due.chain(self.come_until);
        expiries.chain(due).min().map(|at| at.max(now))
    }

    /// Polls: whether somebody connects, and which connections can be read or written.
    fn wait(&self, accepts: bool, timeout: PollTimeout) -> Option<(bool, Vec<Conn>)> {
        let listen = if accepts { PollFlags::POLLIN } else { PollFlags::empty() };
        let mut fds = vec![
            PollFd::new(self.stop.wake.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), listen),
        ];
        fds.extend(self.connections.values().map(|connection| {
            let write = !connection.unsent.is_empty();
            let flags = if write { PollFlags::POLLOUT } else { PollFlags::empty() };
            PollFd::new(connection.stream.as_fd(), PollFlags::POLLIN | flags)
        }));
        if let Err(error) = poll(&mut fds, timeout) {
            tracing::debug!(%error, "polling the rendezvous' connections");
            return None;
        }
        let happened: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        if happened[0] {
            // Only asks to look at `asked`; an error means it was read already.
            let _ = self.stop.wake.read();
        }
        let ready = self.connections.keys().zip(&happened[2..]).filter(|&(_, &ready)| ready);
        Some((happened[1], ready.map(|(&conn, _)| conn).collect()))
    }

    /// Takes those that wait to be accepted, and hears what they have said. Where there are too
    /// many, each takes another's place.
    fn accept(&mut self) {
        for _ in 0..ACCEPTED_AT_ONCE {
            let (guests, now) = (self.guests(), Instant::now());
            let leaves = door::makes_room(&guests, now);
            let full = guests.len() >= self.places;
            if full && leaves.is_none() {
                self.accept_from = door::room_from(&guests).unwrap_or(now);
                return;
            }
            match self.listener.accept() {
                Ok((stream, from)) => {
                    if let Some(conn) = leaves.filter(|_| full) {
                        self.drop_connection(conn, false);
                    }
                    self.welcome(stream, from);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if lacks_descriptor(&error) && leaves.is_some() => {
                    leaves.into_iter().for_each(|conn| self.drop_connection(conn, false));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the rendezvous");
                    self.accept_from = Instant::now() + ACCEPT_PAUSE;
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, stream: TcpStream, from: SocketAddr) {
        let prepared = prepare(&stream).and_then(|()| stream.set_nonblocking(true));
        let (Ok(()), Ok(nonce)) = (prepared, random_bytes()) else { return };
        let conn = self.next;
        self.next += 1;
        self.rendezvous.opened(conn, nonce);
        self.connections.insert(conn, Connection::new(stream, from.ip().to_canonical()));
        tracing::debug!(conn, %from, "a connection to the rendezvous");
        // Ranks speak at once, and are then not taken for one that never will.
        self.serve(conn);
    }

    /// Reads and writes one connection as far as it goes without waiting.
    fn serve(&mut self, conn: Conn) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let alive = connection.read();
        while self.hear(conn) {}
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        connection.write();
        if let Err(error) = alive {
            let silent = connection.silent || is_of_silence(&error);
            self.drop_connection(conn, silent);
        }
    }

    /// Takes one message of a connection. Returns whether there may be another.
    fn hear(&mut self, conn: Conn) -> bool {
        let limit_bytes = self.rendezvous.limit_bytes(conn);
        let open = self.connections.get_mut(&conn).filter(|connection| !connection.closing);
        let Some(connection) = open else { return false };
        match connection.frames.next(limit_bytes) {
            Ok(Some(message)) => self.rendezvous.received(conn, message),
            Ok(None) => return false,
            Err(error) => self.rendezvous.broken(conn, &error),
        }
        // How the next one is read may follow from this.
        self.act();
        true
    }

    fn drop_connection(&mut self, conn: Conn, silent: bool) {
        self.connections.remove(&conn);
        self.rendezvous.closed(conn, silent);
    }

    /// Drops connections that took too long to join, or to leave.
    fn expire(&mut self) {
        let now = Instant::now();
        let late = self.connections.iter().filter(|&(&conn, connection)| {
            now >= connection.expires && !self.rendezvous.is_member(conn)
        });
        for conn in late.map(|(&conn, _)| conn).collect::<Vec<_>>() {
            self.drop_connection(conn, false);
        }
    }

    /// Does what the rendezvous wants done.
    fn act(&mut self) {
        for action in self.rendezvous.take_actions() {
            match action {
                Action::Send(to, message) => {
                    let frame = Frame::new(&message);
                    to.into_iter().for_each(|conn| self.send(conn, &frame));
                }
                Action::Seal(conn, nonces) => {
                    let seals = seals_of_server(self.rendezvous.secret(), &nonces);
                    if let Some(connection) = self.connections.get_mut(&conn) {
                        connection.seal(seals);
                    }
                }
                Action::Grant(to, silence) => {
                    for connection in to.iter().filter_map(|conn| self.connections.get(conn)) {
                        // One that has ended is found to have.
                        let _ = silence::grant(&connection.stream, silence);
                    }
                }
                Action::Close(conn) => {
                    let Some(connection) = self.connections.get_mut(&conn) else { continue };
                    connection.closing = true;
                    connection.expires = Instant::now() + REFUSAL_TIMEOUT;
                    connection.write();
                }
            }
        }
    }

    fn send(&mut self, conn: Conn, frame: &Frame) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        connection.push(frame);
        connection.write();
    }

    /// Sends what is unsent, at the end.
    fn flush_all(&mut self, deadline: Instant) {
        self.connections.retain(|_, connection| !connection.unsent.is_empty());
        while !self.connections.is_empty() && Instant::now() < deadline {
            let connections = self.connections.values();
            let mut fds: Vec<_> =
                connections.map(|c| PollFd::new(c.stream.as_fd(), PollFlags::POLLOUT)).collect();
            let timeout = poll_timeout(deadline.saturating_duration_since(Instant::now()));
            if poll(&mut fds, timeout).is_err() {
                return;
            }
            self.connections.retain(|_, connection| {
                connection.write();
                !connection.unsent.is_empty()
            });
        }
    }
}

/// How long after ranks were asked they are not asked again. Each answer goes to as many as have
/// asked, so it grows with the square of their number: 20 ms for a few, a tenth of a second for 90,
/// ten seconds for a thousand.
fn ask_pause(world: usize) -> Duration {
    let growing = (world as u64).saturating_pow(2).saturating_mul(10);
    Duration::from_millis(20) + Duration::from_micros(growing)
}

/// Rounds up, so that what is waited for has come when poll returns.
fn poll_timeout(wait: Duration) -> PollTimeout {
    PollTimeout::try_from(wait + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
}
