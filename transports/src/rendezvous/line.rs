//! A process' connection to the rendezvous, which all of its realms share: that of the world, and
//! those of parts.

use std::io;
use std::net::{IpAddr, Shutdown};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, bounded};

use crate::fork::{Origin, Unshared};
use crate::rendezvous::heard::{Heard, Realms};
use crate::rendezvous::joining::{Joined, Joining};
use crate::rendezvous::message::{Message, RealmId, Said, WORLD};
use crate::rendezvous::outlet::{Outlet, TELL_TIMEOUT};
use crate::rendezvous::reader::{Hearing, PING_PAUSE, Reader};
use crate::rendezvous::succession::Successors;
use crate::{Cancel, Error, Nodes, Seat, Secret, Server};

/// How long the end waits for the server to have read everything.
const ENDING_TIMEOUT: Duration = Duration::from_secs(1);

/// The connection. It ends with the last realm.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) secret: Secret,
    /// By which of its addresses this rank has reached the rendezvous.
    pub(super) address: IpAddr,
    outlet: Arc<Outlet>,
    realms: Arc<Realms>,
    reader: Option<JoinHandle<()>>,
    /// Ends when the reader does.
    reading: Receiver<()>,
    /// Gives up the search for another server.
    cancel: Cancel,
    /// Where this rank has come to serve: after its own connection it ends last.
    server: Arc<Mutex<Option<Server>>>,
    pub(super) origin: Origin,
}

impl Line {
    /// Listens from here on, also to the world, in which all ranks are; the nodes of all.
    pub(super) fn start(
        joining: Joining<'_>,
        secret: &Secret,
        joined: Joined,
    ) -> Result<(Arc<Line>, Heard, Nodes), Error> {
        let Joining { stream, frames, seat, seal, listener, .. } = joining;
        let Seat { rank, world, .. } = seat;
        let Joined { serving, nodes, successors: listen } = joined;
        let prepared = stream.set_read_timeout(Some(PING_PAUSE)).and_then(|()| stream.try_clone());
        let source = prepared.map_err(Error::io("preparing the control channel"))?;
        let address = stream.local_addr().map_err(Error::io("preparing the control channel"))?.ip();
        let source = Unshared::new(source);
        let outlet = Arc::new(Outlet::new(Some((Unshared::new(stream), seal)), world));
        let all: Vec<usize> = (0..world).collect();
        let heard = Heard::new(WORLD, rank, &all, &nodes, &outlet);
        let realms = Arc::new(Realms::default());
        realms.add(WORLD, heard.clone());
        let hearing = Hearing { outlet: outlet.clone(), realms: realms.clone() };
        let (cancel, server) = (Cancel::default(), Arc::default());
        let (listener, secret) = (listener.map(Unshared::new), secret.clone());
        let successors = Successors { seat, secret: secret.clone(), address, listen, listener };
        let reader = Reader {
            source,
            frames,
            hearing,
            serving,
            successors,
            cancel: cancel.clone(),
            serves: Arc::clone(&server),
        };
        let (ended, reading) = bounded(0);
        let thread = std::thread::Builder::new().name(format!("oxccl-control-{rank}"));
        let thread = thread.spawn(move || {
            reader.run();
            drop(ended);
        });
        let reader = Some(thread.map_err(Error::io("starting a thread"))?);
        let origin = Origin::here();
        let line =
            Line { secret, address, outlet, realms, reader, reading, cancel, server, origin };
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
        let heard = Heard::new(realm, rank, ranks, nodes, &self.outlet);
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
            let shared = (self.outlet.clone(), self.realms.clone(), self.server.clone());
            std::mem::forget((self.reader.take(), shared));
            return;
        }
        // What was said while there was no server, the next one is told.
        let began = Instant::now();
        while self.outlet.moves.load(Ordering::Acquire) && began.elapsed() < ENDING_TIMEOUT {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.outlet.dropped.store(true, Ordering::Release);
        self.cancel.cancel("the connection ends");
        // The server answers the end of a connection with its own; then nothing that was said
        // before can be lost any more.
        self.outlet.shutdown(Shutdown::Write);
        let _ = self.reading.recv_timeout(ENDING_TIMEOUT);
        self.outlet.shutdown(Shutdown::Both);
        self.outlet.close();
        if self.reader.take().is_some_and(|reader| reader.join().is_err()) {
            tracing::error!("the control channel's reader panicked");
        }
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(server);
    }
}
