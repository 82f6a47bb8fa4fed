//! Ports for tests that have to name one before anybody listens there.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// A port that nobody listens on now, another one at each call, and not the one after it, which
/// torchrun's ranks take; below those that the system gives to connections, so that none takes it
/// meanwhile. Other test programs that run beside begin elsewhere.
pub(crate) fn free_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 900) as u16 * 10;
    let next = || first + TAKEN.fetch_add(2, Ordering::Relaxed);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(next).take(1000).find(free).expect("some port is free")
}
