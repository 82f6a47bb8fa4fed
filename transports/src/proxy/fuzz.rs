//! What is read from a socket before it belongs to a wire, for fuzzing: see [`crate::fuzz`].

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::handshake::{self, Accepting, Claim};
use super::socket::{SWAP_LIMIT_BYTES, Socket};
use crate::Secret;

/// Against hanging: all bytes are there from the start, and then the end.
const LIMIT: Duration = Duration::from_secs(10);

/// What a stranger sends: to a rank that accepts links, to one that dials, and, as if it had proven
/// the secret, in a swap. The first byte says which, and whether a greeting in order comes before
/// the rest.
pub(crate) fn link_greetings(data: &[u8]) {
    let Some((&how, rest)) = data.split_first() else { return };
    let greeting = match handshake::greeting() {
        Ok(greeting) if how & 4 != 0 => greeting.to_vec(),
        _ => Vec::new(),
    };
    let Some((stream, _peer)) = holding(&[&greeting, rest].concat()) else { return };
    let (secret, deadline) = (Secret::from_bytes([1; 32]), Instant::now() + LIMIT);
    match how & 3 {
        0 => {
            // All that comes is there, and its end.
            let Ok(mut accepting) = Accepting::new(stream) else { return };
            let accepted = accepting.advance(&secret);
            assert!(accepted.is_err(), "nobody can prove the secret by chance");
        }
        1 => {
            let fabric = *b"tcp\0\0\0\0\0";
            let claim = Claim { dialler: 0, acceptor: 1, index: 0, count: 1, fabric };
            let dialled = handshake::dial(stream, &secret, &claim, deadline);
            assert!(dialled.is_err(), "nobody can prove the secret by chance");
        }
        2 => {
            if let Ok(theirs) = Socket::new(stream).swap(b"ours", deadline) {
                assert!(theirs.len() <= SWAP_LIMIT_BYTES);
            }
        }
        _ => {
            if let Some(bytes) = rest.first_chunk() {
                assert_eq!(Claim::decode(bytes).encode(), *bytes);
            }
        }
    }
    assert!(Instant::now() < deadline, "it waits behind the end");
}

/// A socket whose other end, which takes what is written, has sent these bytes and will send no
/// more.
fn holding(bytes: &[u8]) -> Option<(TcpStream, UnixStream)> {
    let (mut peer, own) = UnixStream::pair().ok()?;
    // More than the system's buffer holds cannot be there at once.
    peer.write_all(&bytes[..bytes.len().min(64 << 10)]).ok()?;
    peer.shutdown(Shutdown::Write).ok()?;
    Some((TcpStream::from(OwnedFd::from(own)), peer))
}
