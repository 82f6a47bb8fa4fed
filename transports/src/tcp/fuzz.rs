//! What is read from a wire's sockets, for fuzzing: see [`crate::fuzz`].

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::wire::TcpWire;
use crate::Secret;
use crate::proxy::testing::MemoryPorts;
use crate::proxy::{Ledger, Wire};
use crate::seal::{Seal, Seals};

const PORTS: u16 = 2;
const SLOTS: u32 = 4;
const PAYLOAD_BYTES: usize = 300;

/// What a peer that has proven the secret sends over the two sockets of a wire, and what somebody
/// on the way, who has not, makes of it where it is sealed. The first byte says which. The data
/// behind it are pieces, each behind its length and a bit that says which socket it comes by;
/// whatever is delivered is read, and its slot given back, now and then, as another bit says.
pub(crate) fn link_frames(data: &[u8]) {
    // Without memory or descriptors there is nothing to try.
    let Ok(ports) = MemoryPorts::new(PORTS, SLOTS, PAYLOAD_BYTES) else { return };
    let (Ok(first), Ok(second)) = (UnixStream::pair(), UnixStream::pair()) else { return };
    let (mut peers, streams): (Vec<UnixStream>, Vec<TcpStream>) = [first, second]
        .map(|(peer, own)| (peer, TcpStream::from(OwnedFd::from(own))))
        .into_iter()
        .unzip();
    if streams.iter().any(|stream| stream.set_nonblocking(true).is_err()) {
        return;
    }
    let mut ledger = Ledger::new(ports.clone());
    let Some((first, data)) = data.split_first() else { return };
    let seals = |stream| (stream, (first & 1 != 0).then(seals));
    let streams = streams.into_iter().map(seals).collect();
    let mut wire = TcpWire::new(streams, ports.clone(), usize::MAX);
    // Some messages of this rank are on their way, so that some credits are possible.
    for message in 0..u64::from(SLOTS) / 2 {
        ports.write(0, message, &[7; 40], Duration::ZERO);
    }
    let mut read = [0; PORTS as usize];
    let mut progress = |ledger: &mut Ledger| {
        let carried = ledger.carry(0, &mut wire).and_then(|_| wire.progress(ledger));
        carried.is_ok()
    };
    for (how, piece) in pieces(data) {
        let written = peers[usize::from(how & 1)].write_all(piece);
        if written.is_err() || !progress(&mut ledger) {
            return;
        }
        if how & 2 != 0 {
            for port in 0..PORTS {
                let next = &mut read[usize::from(port)];
                while ports.read(port, *next, Duration::ZERO).is_some() {
                    *next += 1;
                }
            }
        }
    }
    // Not only dropped: a process that is being started may hold copies for a while.
    for peer in &peers {
        peer.shutdown(Shutdown::Both).expect("both ends are open");
    }
    // The end is an error, in order or not.
    assert!((0..1000).any(|_| !progress(&mut ledger)), "it goes on behind its end");
}

fn seals() -> Seals {
    let seal = |label| Seal::new(&Secret::from_bytes([1; 32]), label, &[]);
    Seals { sending: seal("there"), receiving: seal("back") }
}

/// Each piece has a byte and its length before it; a length of 255 is 320, since frames are that
/// long.
fn pieces(data: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = data;
    std::iter::from_fn(move || {
        let (&[how, len], after) = rest.split_first_chunk()?;
        let len = if len == u8::MAX { 320 } else { usize::from(len) };
        let (piece, left) = after.split_at(after.len().min(len));
        rest = left;
        Some((how, piece))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::frame::Frame;
    use super::*;
    use crate::proxy::Counter;

    fn any_frame() -> impl Strategy<Value = Vec<u8>> {
        let part = (0u16..3, 0u64..6, 0u32..4, 1u32..80, 0u32..300).prop_map(
            |(port, message, parts, len_bytes, content_bytes)| {
                let (offset, len_bytes) = (parts * len_bytes, len_bytes.min(content_bytes.max(1)));
                let frame = Frame::Part { port, message, offset, len_bytes, content_bytes };
                [&frame.encode()[..], &vec![5; len_bytes as usize]].concat()
            },
        );
        let counter = prop_oneof![Just(Counter::Consumed), Just(Counter::Raised)];
        let told = (0u16..4, counter, 0u64..5).prop_map(|(port, counter, value)| {
            Frame::Told { port, counter, value }.encode().to_vec()
        });
        prop_oneof![part, told]
    }

    proptest! {
        /// Frames in any order over both sockets, some cut short, some with a byte changed.
        #[test]
        fn frames_out_of_turn_are_survived(
            frames in prop::collection::vec((any_frame(), 0u8..4, any::<Option<(u8, u8)>>()), 0..30),
            sealed in prop::bool::weighted(0.1),
        ) {
            let mut data = vec![u8::from(sealed)];
            for (mut frame, how, change) in frames {
                if let Some((at, byte)) = change {
                    let at = usize::from(at) % frame.len();
                    frame[at] = byte;
                }
                frame.truncate(254);
                data.extend([how, frame.len() as u8]);
                data.extend(frame);
            }
            link_frames(&data);
        }
    }
}
