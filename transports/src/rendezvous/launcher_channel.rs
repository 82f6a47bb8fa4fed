//! A launcher's side of the rendezvous.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::rendezvous::client::RETRY_PAUSES;
use crate::rendezvous::joining::{Failure, Joining, is_transient};
use crate::rendezvous::message::{
    CHANGED, Frame, FrameError, FrameReader, MESSAGE_LIMIT_BYTES, Message,
};
use crate::rendezvous::outlet::TELL_TIMEOUT;
use crate::rendezvous::reader::PING_PAUSE;
use crate::seal::Seal;
use crate::silence::{self, is_of_silence};
use crate::{Cancel, Cause, Error, Seat, UniqueId};

/// How long one attempt to reach the rendezvous may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the server's machine may be silent: the ranks, which have a say in that, notice before.
const SILENCE: Duration = Duration::from_secs(24 * 3600);

/// The connection of a launcher to the rendezvous. It holds no rank: it tells how the ranks end
/// that it has started, also before they join, and hears why ranks that others have started were
/// stopped, and how they ended.
///
/// It connects in the background and never gives up, since the server may start later. Dropping it
/// waits a moment until the server has been told everything.
pub struct LauncherChannel {
    way: Arc<Way>,
    /// Ends when the thread does.
    running: Receiver<()>,
}

impl LauncherChannel {
    /// Connects for the launcher of these ranks of a world. `hear` is called in another thread:
    /// first with the first that happened to any rank, this launcher's included, then with each
    /// [`Cause::Ended`] that other launchers tell, and with [`Cause::ServerLost`] or
    /// [`Cause::ServerCutOff`].
    ///
    /// # Errors
    /// [`Error::Io`] if no thread can be started.
    pub fn open(
        id: &UniqueId,
        ranks: Range<usize>,
        world: usize,
        hear: impl Fn(Cause) + Send + 'static,
    ) -> Result<LauncherChannel, Error> {
        let way = Arc::new(Way::default());
        let (ended, running) = channel();
        let listener = Listener { id: id.clone(), ranks, world, way: way.clone(), hear };
        let thread = std::thread::Builder::new().name("oxccl-launcher".to_owned());
        let thread = thread.spawn(move || {
            listener.run();
            drop(ended);
        });
        thread.map_err(Error::io("starting a thread"))?;
        Ok(LauncherChannel { way, running })
    }

    /// Tells that a rank has failed: its exit status, 128 + N where signal N ended it, and what to
    /// say of it behind its name.
    pub fn tell_end(&self, rank: usize, status: u8, how: &str) {
        let mut state = self.way.lock();
        state.untold.push(Message::Ended { rank, status, how: how.to_owned() });
        state.tell();
    }
}

impl Drop for LauncherChannel {
    fn drop(&mut self) {
        let mut state = self.way.lock();
        let waits = state.stream.is_some() || !state.untold.is_empty();
        state.closes = Some(Instant::now() + TELL_TIMEOUT);
        state.tell();
        drop(state);
        self.way.changed.notify_all();
        if waits {
            // The server answers the end of a connection with its own: it has read everything then.
            let _ = self.running.recv_timeout(TELL_TIMEOUT);
        }
        self.way.lock().shutdown(Shutdown::Both);
    }
}

impl fmt::Debug for LauncherChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LauncherChannel").finish_non_exhaustive()
    }
}

/// The way to the server, shared by who tells and who listens.
#[derive(Default)]
struct Way {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// With what seals all that is sent.
    stream: Option<(TcpStream, Option<Seal>)>,
    untold: Vec<Message>,
    /// The launcher is done, and wants everything told until then.
    closes: Option<Instant>,
    /// The server's machine does not answer.
    silent: bool,
}

impl Way {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pauses between attempts, unless they are of no use any more.
    fn pauses(&self, pause: Duration) -> bool {
        let state = self.lock();
        let (state, _) =
            self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner);
        match state.closes {
            Some(until) => !state.untold.is_empty() && Instant::now() < until,
            None => true,
        }
    }
}

impl State {
    /// Sends what is untold, if there is a connection, and ends it in order if the launcher is
    /// done.
    fn tell(&mut self) {
        let Some((stream, seal)) = &mut self.stream else { return };
        let done = self.closes.map(|_| Message::Done);
        let mut send = |m| stream.write_all(&Frame::new(&m).sealed(seal.as_mut()));
        let told = self.untold.drain(..).chain(done).try_for_each(&mut send);
        let ended = told.and_then(|()| match self.closes {
            Some(_) => stream.shutdown(Shutdown::Write),
            None => Ok(()),
        });
        if let Err(error) = ended {
            self.silent |= is_of_silence(&error);
            self.shutdown(Shutdown::Both);
        }
    }

    fn shutdown(&self, how: Shutdown) {
        if let Some((stream, _)) = &self.stream {
            // It may have ended by itself.
            let _ = stream.shutdown(how);
        }
    }
}

/// What the thread owns.
struct Listener<F> {
    id: UniqueId,
    ranks: Range<usize>,
    world: usize,
    way: Arc<Way>,
    hear: F,
}

impl<F: Fn(Cause)> Listener<F> {
    fn run(self) {
        let Some((mut stream, mut frames)) = self.connect() else { return };
        let mut server_closed = false;
        loop {
            match frames.next(MESSAGE_LIMIT_BYTES) {
                Ok(Some(Message::Failed(cause))) => (self.hear)(cause),
                Ok(Some(Message::Closing | Message::Refused(_))) => server_closed = true,
                Ok(Some(_)) => {}
                Ok(None) if self.read(&mut stream, &mut frames) => {}
                Err(FrameError::Changed) => {
                    let (rank, reason) = (self.ranks.start, CHANGED.to_owned());
                    (self.hear)(Cause::Aborted { rank, reason });
                    server_closed = true;
                    break;
                }
                _ => break,
            }
        }
        let state = self.way.lock();
        let expected = server_closed || state.closes.is_some();
        let silent = state.silent;
        drop(state);
        if !expected {
            (self.hear)(if silent { Cause::ServerCutOff } else { Cause::ServerLost });
        }
    }

    /// Tries until there is a connection. What was told before goes through it first.
    fn connect(&self) -> Option<(TcpStream, FrameReader)> {
        let mut pause = RETRY_PAUSES.0;
        loop {
            match self.attempt() {
                Ok(connected) => return Some(connected),
                Err(Failure::Final(error)) => {
                    // The ranks find the same, and say so.
                    tracing::debug!(%error, "the rendezvous refuses the launcher");
                    return None;
                }
                Err(Failure::Again(error)) => {
                    tracing::trace!(%error, "the rendezvous does not answer yet");
                    if !self.way.pauses(pause) {
                        return None;
                    }
                    pause = (pause * 2).min(RETRY_PAUSES.1);
                }
            }
        }
    }

    fn attempt(&self) -> Result<(TcpStream, FrameReader), Failure> {
        let seat = Seat::here(self.ranks.start, self.world);
        let mut joining =
            Joining::open(&self.id, seat, Instant::now() + ATTEMPT_TIMEOUT, &Cancel::default())?;
        silence::grant(&joining.stream, SILENCE)?;
        joining.send(&Message::Watch { ranks: self.ranks.clone() })?;
        let Joining { stream, frames, seal, .. } = joining;
        stream.set_read_timeout(Some(PING_PAUSE))?;
        stream.set_write_timeout(Some(TELL_TIMEOUT))?;
        let mut state = self.way.lock();
        state.stream = Some((stream.try_clone()?, seal));
        state.tell();
        Ok((stream, frames))
    }

    /// Waits for more. Returns false at the end.
    fn read(&self, stream: &mut TcpStream, frames: &mut FrameReader) -> bool {
        let mut bytes = [0; 16 << 10];
        loop {
            match stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(len) => {
                    frames.extend(&bytes[..len]);
                    return true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.ping(),
                Err(error) if is_transient(&error) => {}
                Err(error) => {
                    self.way.lock().silent |= is_of_silence(&error);
                    return false;
                }
            }
        }
    }

    /// The server has said nothing for a while: whether its machine is there shows by what it
    /// acknowledges.
    fn ping(&self) {
        let mut state = self.way.lock();
        if state.closes.is_none() {
            state.untold.push(Message::Ping);
            state.tell();
        }
    }
}
