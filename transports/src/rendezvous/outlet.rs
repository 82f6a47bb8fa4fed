//! The way from a rank to the server, which may change.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::fork::Unshared;
use crate::rendezvous::joining::is_transient;
use crate::rendezvous::journal::Journal;
use crate::rendezvous::message::{Frame, Message};
use crate::seal::Seal;
use crate::silence::{self, is_of_silence};

/// How long telling the others of an abort or a goodbye may take.
pub(super) const TELL_TIMEOUT: Duration = Duration::from_secs(2);

/// The way out, shared by whoever has something to tell.
#[derive(Debug)]
pub(super) struct Outlet {
    way: Mutex<Way>,
    /// This rank ends the connection; that it ends is then no news.
    pub(super) dropped: AtomicBool,
    /// The server's machine does not answer any more.
    pub(super) silent: AtomicBool,
    /// The server takes nothing any more, though its machine answers.
    pub(super) stuck: AtomicBool,
    /// There is no server, and another one is being looked for.
    pub(super) moves: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Way {
    /// With what seals all that is sent.
    pub(super) stream: Option<Sealed>,
    pub(super) journal: Journal,
}

pub(super) type Sealed = (Unshared<TcpStream>, Option<Seal>);

impl Outlet {
    pub(super) fn new(stream: Option<Sealed>, world: usize) -> Outlet {
        Outlet {
            way: Mutex::new(Way { stream, journal: Journal::new(world) }),
            dropped: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            moves: AtomicBool::new(false),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on over another connection, and tells there what it takes to go on.
    pub(super) fn resume(
        &self,
        stream: Sealed,
        rejoin: Message,
        deadline: Instant,
    ) -> io::Result<()> {
        let mut way = self.lock();
        let (mut stream, mut seal) = stream;
        let messages = std::iter::once(rejoin).chain(way.journal.replay());
        let bytes: Vec<u8> =
            messages.flat_map(|message| Frame::new(&message).sealed(seal.as_mut())).collect();
        let granted = way.journal.silence().map_or(Ok(()), |of| silence::grant(&stream, of));
        granted.and_then(|()| write_all(&mut stream, &bytes, deadline))?;
        way.stream = Some((stream, seal));
        Ok(())
    }

    /// Sends, or ends the connection: a message cut short would spoil what follows.
    pub(super) fn send(&self, message: &Message, deadline: Instant) {
        let frame = Frame::new(message);
        let mut way = self.lock();
        way.journal.said(message);
        let Some((open, seal)) = way.stream.as_mut() else { return };
        if let Err(error) = write_all(open, &frame.sealed(seal.as_mut()), deadline) {
            tracing::debug!(%error, "the control channel broke");
            self.note(&error);
            // The reader sees the end, and says what it means.
            let _ = open.shutdown(Shutdown::Both);
            way.stream = None;
        }
    }

    /// Remembers it if the connection broke because the server's machine does not answer.
    pub(super) fn note(&self, error: &io::Error) {
        if is_of_silence(error) {
            self.silent.store(true, Ordering::Release);
        } else if is_transient(error) {
            self.stuck.store(true, Ordering::Release);
        }
    }

    pub(super) fn grant(&self, silence: Duration) -> io::Result<()> {
        self.lock().stream.as_ref().map_or(Ok(()), |(stream, _)| silence::grant(stream, silence))
    }

    pub(super) fn shutdown(&self, how: Shutdown) {
        if let Some((stream, _)) = self.lock().stream.as_ref() {
            // It may have ended by itself.
            let _ = stream.shutdown(how);
        }
    }

    pub(super) fn close(&self) {
        self.lock().stream = None;
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
