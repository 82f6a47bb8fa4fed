//! What goes wrong in networks, done to this process on purpose: connections that break, strangers
//! that connect. With the feature `emulation`.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, Shutdown, SockaddrLike, SockaddrStorage, getpeername, shutdown,
};

/// How long from one round of strangers to the next.
const PAUSE: Duration = Duration::from_millis(20);
/// So many say nothing, and stay.
const SILENT: usize = 4;
/// The most bytes that one sends.
const MOST_BYTES: u64 = 4096;
/// The state of a socket that listens, in /proc/net/tcp.
const LISTENS: &str = "0A";

/// Breaks all of this process' connections over TCP: both ends read an end, and writes fail.
pub fn cut_connections() {
    for socket in descriptors() {
        let peer = getpeername::<SockaddrStorage>(socket).ok().and_then(|peer| peer.family());
        if matches!(peer, Some(AddressFamily::Inet | AddressFamily::Inet6)) {
            // It may have been closed meanwhile.
            let _ = shutdown(socket, Shutdown::Both);
        }
    }
}

/// A thread that plays strangers, who connect to this process' ports. Some send random bytes,
/// others nothing.
#[derive(Debug)]
pub struct Strangers {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Strangers {
    /// Begins, with bytes from this source of random numbers.
    pub fn begin(mut random: impl FnMut() -> u64 + Send + 'static) -> Strangers {
        let over = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let over = over.clone();
            move || {
                let (mut connected, mut silent) = (0, Vec::new());
                while !over.load(Ordering::Relaxed) {
                    std::thread::sleep(PAUSE);
                    for port in ports() {
                        connected += u64::from(visit(port, &mut random, &mut silent).is_ok());
                    }
                }
                connected
            }
        });
        Strangers { over, thread: Some(thread) }
    }

    /// Ends it, and tells how many have connected.
    pub fn end(mut self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or(0)
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// One of them.
fn visit(
    port: SocketAddr,
    random: &mut impl FnMut() -> u64,
    silent: &mut Vec<TcpStream>,
) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&port, PAUSE)?;
    if random().is_multiple_of(4) {
        silent.truncate(SILENT - 1);
        silent.insert(0, stream);
        return Ok(());
    }
    // As often a few bytes as many.
    let len = (random() % MOST_BYTES) >> (random() % 13);
    let bytes: Vec<u8> = (0..len).map(|_| random() as u8).collect();
    stream.set_write_timeout(Some(PAUSE))?;
    // Whoever listens may have hung up.
    let _ = stream.write_all(&bytes);
    Ok(())
}

fn descriptors() -> Vec<RawFd> {
    let files = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    files.filter_map(|file| file.file_name().to_str()?.parse().ok()).collect()
}

/// Where this process listens.
fn ports() -> Vec<SocketAddr> {
    let inode = |descriptor: RawFd| {
        let target = fs::read_link(format!("/proc/self/fd/{descriptor}")).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        Some(inode.to_owned())
    };
    let own: HashSet<String> = descriptors().into_iter().filter_map(inode).collect();
    let sockets = fs::read_to_string("/proc/self/net/tcp").unwrap_or_default();
    sockets.lines().skip(1).filter_map(|line| listener(line, &own)).collect()
}

/// The address of a line of /proc/net/tcp, if it is of one of these sockets, and listens.
fn listener(line: &str, own: &HashSet<String>) -> Option<SocketAddr> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let ([_, local, _, state, ..], inode) = (&fields[..], fields.get(9)?) else { return None };
    if *state != LISTENS || !own.contains(*inode) {
        return None;
    }
    let (address, port) = local.split_once(':')?;
    // In the order of this machine's bytes.
    let address = Ipv4Addr::from(u32::from_str_radix(address, 16).ok()?.to_ne_bytes());
    let port = u16::from_str_radix(port, 16).ok()?;
    let address = if address.is_unspecified() { Ipv4Addr::LOCALHOST } else { address };
    Some(SocketAddr::V4(SocketAddrV4::new(address, port)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    #[test]
    fn strangers_come_to_ports_of_this_process() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut number = 0_u64;
        let strangers = Strangers::begin(move || {
            number += 1;
            number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
        });
        let mut bytes = Vec::new();
        while bytes.len() < 1000 {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            // Those that say nothing stay.
            let _ = (&stream).read_to_end(&mut bytes);
        }
        assert!(strangers.end() > 0);
    }
}
