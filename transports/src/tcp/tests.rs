//! What a peer may send that it never should.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use proptest::prelude::*;

use super::frame::Frame;
use super::wire::TcpWire;
use crate::proxy::testing::{MemoryPorts, until};
use crate::proxy::{Counter, Ledger, Wire, WireError};

/// What comes of a stream of these bytes: the error, if there is one before their end.
fn receive(bytes: &[u8]) -> Result<(), WireError> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (receiver, _) = listener.accept().unwrap();
    receiver.set_nonblocking(true).unwrap();
    sender.write_all(bytes).unwrap();
    drop(sender);
    let ports = MemoryPorts::new(2, 4, 1000).unwrap();
    let mut ledger = Ledger::new(ports.clone());
    let mut wire = TcpWire::new(vec![(receiver, None)], ports, usize::MAX);
    let mut result = Ok(());
    let ended = until(Duration::from_secs(20), || {
        wire.progress(&mut ledger).map_or_else(
            |error| {
                result = Err(error);
                true
            },
            |_| false,
        )
    });
    assert!(ended);
    match result {
        Err(WireError::Closed) => Ok(()),
        other => other,
    }
}

fn part(port: u16, message: u64, content_bytes: u32) -> Vec<u8> {
    let len_bytes = content_bytes;
    let frame = Frame::Part { port, message, offset: 0, len_bytes, content_bytes };
    [&frame.encode()[..], &vec![1; len_bytes as usize]].concat()
}

#[test]
fn only_what_the_ledger_expects_is_taken() {
    assert!(receive(&part(0, 0, 100)).is_ok());
    assert!(receive(&[part(0, 1, 100), part(0, 0, 8)].concat()).is_ok(), "any order");
    let consumed = Frame::Told { port: 0, counter: Counter::Consumed, value: 1 };
    let raised = Frame::Told { port: 0, counter: Counter::Raised, value: 1 };
    let bad = [
        part(0, 4, 100),
        part(2, 0, 100),
        part(3, 0, 100),
        part(0, 0, 1100),
        [part(0, 0, 100), part(0, 0, 100)].concat(),
        consumed.encode().to_vec(),
        raised.encode().to_vec(),
    ];
    for bytes in bad {
        let error = receive(&bytes).unwrap_err();
        assert!(matches!(error, WireError::Protocol(_)), "{error}");
    }
    let cut = &part(0, 0, 100)[..60];
    assert!(matches!(receive(cut), Err(WireError::Io { .. })), "an end within a message");
}

#[test]
fn parts_that_overlap_are_refused() {
    let of =
        |len_bytes| Frame::Part { port: 0, message: 0, offset: 0, len_bytes, content_bytes: 100 };
    let bytes = [&of(60).encode()[..], &[0; 60], &of(60).encode(), &[0; 60]].concat();
    assert!(matches!(receive(&bytes), Err(WireError::Protocol(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn changed_bytes_are_errors_or_messages(
        changes in prop::collection::vec((0usize..400, any::<u8>()), 0..6),
        length in 0usize..400,
    ) {
        let raised = Frame::Told { port: 2, counter: Counter::Raised, value: 1 }.encode();
        let mut bytes = [&part(0, 0, 100)[..], &raised, &part(1, 0, 9), &part(0, 1, 120)].concat();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(length);
        // Neither a panic nor a hang.
        let _ = receive(&bytes);
    }
}
