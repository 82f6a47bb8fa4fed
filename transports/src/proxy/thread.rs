//! The proxy as its owner sees it: start, tell it what is needed and when calls run, end.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::bell::{Bell, Wakeup};
use super::connector::{self, Connector};
use super::ledger::Ledger;
use super::ports::PortNumber;
use super::worker::{self, News, Peer, Worker};
use super::{Emulation, Fabric, Ports};
use crate::{Adapter, Error, Liveness, Secret};

/// A place where other ranks will find this one's proxy, before it runs: its address has to be told
/// to them first.
#[derive(Debug)]
pub struct Listening {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// What the proxy's thread shares with others.
#[derive(Debug)]
pub(super) struct Shared {
    wakeup: Wakeup,
    bell: Bell,
    in_flight: AtomicBool,
}

/// What a proxy is for.
pub struct ProxySetup {
    /// This rank.
    pub rank: usize,
    /// The job's secret.
    pub secret: Secret,
    /// What makes wires.
    pub fabric: Arc<dyn Fabric>,
    /// This rank's end of the connections to each rank, by rank; none to those of this node.
    pub ports: Vec<Option<Arc<dyn Ports>>>,
    /// Where each rank's proxy listens, by rank.
    pub addresses: Vec<SocketAddr>,
    /// How long making a wire may take.
    pub timeout: Duration,
    /// What is told of broken links, and knows who left.
    pub liveness: Arc<Liveness>,
    /// Whether there is a core for this thread while calls are in flight.
    pub spins: bool,
    /// Whether executors ring the [`Bell`] when they have written. Kernels of a GPU do not: then
    /// naps are short while a call is in flight.
    pub rings: bool,
    /// How links are to behave.
    pub emulation: Emulation,
}

/// A thread that carries this rank's messages to other nodes and takes in theirs. It ends when this
/// is dropped, after what the last calls have written has left.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    news: Sender<News>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Listening {
    /// Listens at an address of this machine.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn open(address: IpAddr) -> Result<Listening, Error> {
        let listener = connector::listen(address)?;
        let address = listener.local_addr().map_err(Error::io("listening for links"))?;
        let wakeup = Wakeup::new()?;
        let bell = Bell::new(&wakeup);
        let shared = Arc::new(Shared { wakeup, bell, in_flight: AtomicBool::new(false) });
        Ok(Listening { listener, address, shared })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What executors ring. It stays there until the proxy is dropped.
    pub fn bell(&self) -> *const Bell {
        &raw const self.shared.bell
    }

    /// Starts the proxy.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no threads or descriptors left.
    pub fn start(self, setup: ProxySetup) -> Result<Proxy, Error> {
        let (news, told) = channel();
        let adapter = setup.fabric.adapter().or_else(|| Adapter::of_address(self.address.ip()));
        let peer = |(rank, ports): (usize, &Option<Arc<dyn Ports>>)| {
            ports.clone().map(|ports| Peer::new(rank, Ledger::new(ports)))
        };
        let peers = setup.ports.iter().enumerate().filter_map(peer).collect();
        let connector = connector::Setup {
            rank: setup.rank,
            secret: setup.secret,
            fabric: setup.fabric,
            ports: setup.ports,
            addresses: setup.addresses,
            timeout: setup.timeout,
        };
        let connector =
            Connector::start(self.listener, connector, news.clone(), self.shared.clone())?;
        let worker = Worker {
            rank: setup.rank,
            peers,
            news: told,
            shared: self.shared.clone(),
            liveness: setup.liveness,
            spins: setup.spins,
            timeout: setup.timeout,
            nap: if setup.rings { worker::NAP } else { worker::NAP_UNRUNG },
            emulation: setup.emulation,
            connector,
        };
        let thread = std::thread::Builder::new().name(format!("oxccl-proxy-{}", setup.rank));
        let thread = thread.spawn(move || {
            if let Some(adapter) = adapter {
                adapter.settle_near();
            }
            worker.run();
        });
        let thread = Mutex::new(Some(thread.map_err(Error::io("starting a thread"))?));
        Ok(Proxy { shared: self.shared, news, thread })
    }
}

impl Proxy {
    /// Says that this rank's programs use these ports to a peer. Its wire is made, unless there is
    /// one; nobody waits for it.
    pub fn want(&self, peer: usize, ports: Vec<PortNumber>) {
        self.tell(News::Wanted { peer, ports });
    }

    /// A call that uses other nodes begins: what executors write is carried at once.
    #[inline]
    pub fn begin(&self) {
        // Ordered before the look at the bell, as the worker's announcement is before its look at
        // this.
        self.shared.in_flight.swap(true, Ordering::SeqCst);
        if self.shared.bell.is_sleeping() {
            self.shared.wakeup.wake();
        }
    }

    /// The call has ended. What it has written and is not carried yet will be.
    #[inline]
    pub fn end(&self) {
        self.shared.in_flight.store(false, Ordering::Release);
    }

    /// Ends it, after what the last calls have written has left.
    pub fn finish(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        self.tell(News::End);
        if thread.join().is_err() {
            tracing::error!("the proxy's thread panicked");
        }
    }

    fn tell(&self, news: News) {
        // The thread ends only when it is told so, or by a panic, which the join reports.
        let _ = self.news.send(news);
        self.shared.wakeup.wake();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Shared {
    pub(super) fn wakeup(&self) -> &Wakeup {
        &self.wakeup
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst)
    }
}
