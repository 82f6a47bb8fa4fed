//! Where wires come from: a listener, whose thread hears who connects, and a thread for each pair
//! of ranks while its wire is made.
//!
//! Of two ranks the smaller one dials. It does so when a program of its own needs the other, which
//! then needs it too, since what one sends the other receives. Nobody waits for a wire: messages
//! stay in the outbox until there is one.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::{Backlog, listen as listen_on};

use super::acceptor::Acceptor;
use super::bell::Wakeup;
use super::fabric::{Fabric, Link};
use super::handshake::{self, Claim, Proven};
use super::ports::Ports;
use super::socket::Socket;
use super::thread;
use super::wire::{Wire, WireError};
use super::worker::News;
use crate::error::lacks_descriptor;
use crate::rendezvous::BACKLOG;
use crate::{Error, Secret, deadline_in};

/// How long telling a dialler that it is wanted, or not, may take; it fits the system's buffers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a dialler waits until it tries again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// A wire that has been made, or not.
pub(super) struct Made {
    pub(super) peer: usize,
    pub(super) wire: Result<Box<dyn Wire>, WireError>,
}

/// What making a wire takes.
pub(super) struct Setup {
    pub(super) rank: usize,
    pub(super) secret: Secret,
    pub(super) fabric: Arc<dyn Fabric>,
    /// This rank's end of the connections to each rank; none to ranks of this node.
    pub(super) ports: Vec<Option<Arc<dyn Ports>>>,
    /// Where each rank listens.
    pub(super) addresses: Vec<SocketAddr>,
    /// How long making one may take.
    pub(super) timeout: Duration,
}

/// Makes wires until it is dropped.
pub(super) struct Connector {
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    setup: Setup,
    made: Sender<News>,
    /// The proxy's, woken for what is in `made`.
    proxy: Arc<thread::Shared>,
    /// The accepting thread's, which it is told to end by.
    ending: Wakeup,
    /// Nobody wants wires any more.
    ended: AtomicBool,
    /// Accepted sockets of wires that lack some.
    incomplete: Mutex<HashMap<u32, Vec<Option<Socket>>>>,
}

/// Opens the socket on which wires are accepted.
pub(super) fn listen(address: IpAddr) -> Result<TcpListener, Error> {
    let listener = TcpListener::bind((address, 0));
    let listener = listener.and_then(|l| l.set_nonblocking(true).map(|()| l));
    let listener = listener.map_err(Error::io("listening for links"))?;
    let backlog = Backlog::new(BACKLOG).unwrap_or(Backlog::MAXCONN);
    listen_on(&listener, backlog).map_err(Error::os("listening for links"))?;
    Ok(listener)
}

impl Connector {
    pub(super) fn start(
        listener: TcpListener,
        setup: Setup,
        made: Sender<News>,
        proxy: Arc<thread::Shared>,
    ) -> Result<Connector, Error> {
        let name = format!("oxccl-links-{}", setup.rank);
        let shared = Arc::new(Shared {
            setup,
            made,
            proxy,
            ending: Wakeup::new()?,
            ended: AtomicBool::new(false),
            incomplete: Mutex::default(),
        });
        let (acceptor, known) =
            (Acceptor::new(listener, shared.setup.secret.clone()), shared.clone());
        let thread = std::thread::Builder::new().name(name);
        let accepting = thread.spawn(move || {
            acceptor.run(&known.ending, |socket, claim| known.accepted(socket, &claim));
        });
        let accepting = Some(accepting.map_err(Error::io("starting a thread"))?);
        Ok(Connector { shared, accepting })
    }

    /// Begins to make a wire to a greater rank.
    pub(super) fn dial(&self, peer: usize) {
        let shared = self.shared.clone();
        self.shared.in_thread(format!("oxccl-dial-{peer}"), move || {
            shared.report(peer, || shared.dialled(peer));
        });
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.shared.ending.wake();
        if self.accepting.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that accepts links panicked");
        }
    }
}

impl Shared {
    /// Who is connected and does not answer, as a stopped process, holds up the call that needs it,
    /// and that call's time-out names it: until then this goes on.
    fn dialled(&self, peer: usize) -> Result<Box<dyn Wire>, WireError> {
        loop {
            match self.dialled_until(peer, deadline_in(self.setup.timeout)) {
                Err(error) if error.is_silence() && !self.ended.load(Ordering::Relaxed) => {
                    tracing::debug!(peer, %error, "a link is not answered");
                }
                made => return made,
            }
        }
    }

    fn dialled_until(&self, peer: usize, deadline: Instant) -> Result<Box<dyn Wire>, WireError> {
        let Setup { rank, fabric, .. } = &self.setup;
        let count = fabric.sockets();
        let mut sockets = Vec::with_capacity(count);
        for index in 0..count {
            let claim = Claim {
                dialler: *rank as u32,
                acceptor: peer as u32,
                index: index as u16,
                count: count as u16,
                fabric: self.fabric_name(),
            };
            sockets.push(self.dialled_once(peer, &claim, deadline)?);
        }
        self.open(peer, sockets, deadline)
    }

    /// Makes a socket. Where strangers are many, a rank has to make room for others before it has
    /// proven itself, and tries again.
    fn dialled_once(
        &self,
        peer: usize,
        claim: &Claim,
        deadline: Instant,
    ) -> Result<Socket, WireError> {
        let Setup { secret, addresses, .. } = &self.setup;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = left.max(Duration::from_millis(1));
            let stream = TcpStream::connect_timeout(&addresses[peer], left);
            let stream = stream.map_err(|source| self.unreachable(peer, source))?;
            match handshake::dial(stream, secret, claim, deadline) {
                Err(error) if error.is_end() && Instant::now() + RETRY_PAUSE < deadline => {
                    std::thread::sleep(RETRY_PAUSE);
                }
                dialled => return dialled,
            }
        }
    }

    fn unreachable(&self, peer: usize, source: io::Error) -> WireError {
        let address = self.setup.addresses[peer];
        if lacks_descriptor(&source) {
            return WireError::Unfit(format!(
                "connecting to it at {address} failed: no file descriptor is left ({source}); a rank needs several for each rank \
                 of another node: raise the limit of open files (ulimit -n), or start fewer ranks"
            ));
        }
        WireError::Unfit(format!(
            "connecting to it at {address} failed ({source}): if that is not its address on the network that joins the \
             nodes, name the right one with OXCCL_INTERFACE"
        ))
    }

    /// A dialler has proven the secret: if it is wanted, its socket is kept.
    fn accepted(self: &Arc<Shared>, socket: Proven, claim: &Claim) {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        match socket.answer(&self.setup.secret, self.wants(claim), deadline) {
            Ok(Some(socket)) => self.collect(socket, claim),
            Ok(None) => tracing::debug!(?claim, "a dialler wants what this rank has not"),
            Err(error) => tracing::debug!(?claim, %error, "a dialler has gone"),
        }
    }

    /// Whether this rank has what a dialler, which has proven the secret, wants.
    fn wants(&self, claim: &Claim) -> bool {
        let ports = self.setup.ports.get(claim.dialler as usize);
        claim.acceptor as usize == self.setup.rank
            && (claim.dialler as usize) < self.setup.rank
            && ports.is_some_and(Option::is_some)
            && claim.fabric == self.fabric_name()
            && usize::from(claim.count) == self.setup.fabric.sockets()
            && claim.index < claim.count
    }

    /// Keeps a socket, and begins to make the wire once all are there.
    fn collect(self: &Arc<Shared>, socket: Socket, claim: &Claim) {
        let sockets = {
            let mut incomplete = self.incomplete.lock().unwrap_or_else(PoisonError::into_inner);
            let sockets = incomplete
                .entry(claim.dialler)
                .or_insert_with(|| (0..claim.count).map(|_| None).collect());
            sockets[usize::from(claim.index)] = Some(socket);
            if sockets.iter().any(Option::is_none) {
                return;
            }
            incomplete.remove(&claim.dialler)
        };
        let peer = claim.dialler as usize;
        let sockets = sockets.into_iter().flatten().flatten().collect();
        let shared = self.clone();
        self.in_thread(format!("oxccl-accept-{peer}"), move || {
            let deadline = deadline_in(shared.setup.timeout);
            shared.report(peer, || shared.open(peer, sockets, deadline));
        });
    }

    fn open(
        &self,
        peer: usize,
        sockets: Vec<Socket>,
        deadline: Instant,
    ) -> Result<Box<dyn Wire>, WireError> {
        let Some(ports) = self.setup.ports[peer].clone() else {
            return Err(WireError::Unfit("it is on this node".into()));
        };
        ports.open()?;
        self.setup.fabric.open(Link { rank: self.setup.rank, peer, sockets, ports, deadline })
    }

    /// Makes a wire and hands it to the proxy, or says why there is none: the fabric's panic
    /// included, since the proxy waits for one or the other.
    fn report(&self, peer: usize, make: impl FnOnce() -> Result<Box<dyn Wire>, WireError>) {
        let wire = catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|_| {
            Err(WireError::Unfit("making the link panicked: a fault of this program".into()))
        });
        // Nobody wants it any more when the proxy has ended.
        let _ = self.made.send(News::Made(Made { peer, wire }));
        self.proxy.wakeup().wake();
    }

    fn fabric_name(&self) -> [u8; 8] {
        let mut name = [0; 8];
        for (to, from) in name.iter_mut().zip(self.setup.fabric.name().bytes()) {
            *to = from;
        }
        name
    }

    /// Runs something in a thread of its own, which ends at its deadlines.
    fn in_thread(&self, name: String, work: impl FnOnce() + Send + 'static) {
        let spawned = std::thread::Builder::new().name(name).spawn(work);
        if let Err(error) = spawned {
            tracing::error!(%error, "a link cannot be made for want of a thread");
        }
    }
}
