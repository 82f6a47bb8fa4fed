//! Strangers, wrong secrets, and messages that are none of the protocol's.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use hmac::{Hmac, Mac};
use oxccl_transports::rendezvous::{MESSAGE_LIMIT_BYTES, PROTOCOL_VERSION};
use oxccl_transports::{Bootstrap, Cause, Error, Secret, UniqueId};
use sha2::Sha256;

use crate::common::{server, wait_for_cause};
use crate::{Joined, error, join, works};

#[test]
fn a_wrong_secret_is_refused_and_disturbs_nobody() {
    let (id, _server) = server();
    let wrong = UniqueId::new(id.host(), id.port(), Secret::from_bytes([9; 32]));
    let first = join(&id, 0, 2);
    let refused = error(join(&wrong, 1, 2));
    assert!(matches!(&refused, Error::WrongSecret { address } if *address == id.address()));
    let second = join(&id, 1, 2);
    for joined in [first, second] {
        joined.join().unwrap().unwrap().liveness().close(0);
    }
}

/// A client that lies about the secret (it skips checking the server's proof) is told.
#[test]
fn a_false_proof_is_refused() {
    let (id, _server) = server();
    let mut stranger = TcpStream::connect(id.address()).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stranger.write_all(&frame(&[&[0][..], &[1; 32]].concat())).unwrap();
    let mut challenge = [0; 8 + 1 + 64];
    stranger.read_exact(&mut challenge).unwrap();
    stranger.write_all(&frame(&[&[2][..], &[1; 32]].concat())).unwrap();
    let mut answer = Vec::new();
    stranger.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, frame(&[5, 0]), "refused: wrong secret");
    works(&id, 2);
}

#[test]
fn strangers_disturb_nobody() {
    let (id, _server) = server();
    let connect = || TcpStream::connect(id.address()).unwrap();
    // Half-open: it never says anything, or only half a frame.
    let _silent = connect();
    let mut slow = connect();
    slow.write_all(b"OX").unwrap();
    // A port scanner that asks for a web page; it is dropped.
    let mut scanner = connect();
    scanner.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    scanner.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    scanner.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"OX"), "it is told, in the protocol's words");
    // One that goes away in the middle.
    drop(connect());
    works(&id, 3);
}

#[test]
fn a_length_over_the_limit_is_refused_before_it_is_read() {
    let (id, _server) = server();
    for len in [257, u32::MAX] {
        let mut stranger = TcpStream::connect(id.address()).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut header = frame(&[]);
        header[4..8].copy_from_slice(&len.to_le_bytes());
        stranger.write_all(&header).unwrap();
        let mut answer = Vec::new();
        stranger.read_to_end(&mut answer).unwrap();
        assert_eq!(answer[8..10], [5, 2], "refused: too long");
    }
    works(&id, 2);
}

#[test]
fn another_version_is_refused_on_both_sides() {
    let (id, _server) = server();
    let mut newer = TcpStream::connect(id.address()).unwrap();
    newer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut hello = frame(&[&[0][..], &[1; 32]].concat());
    hello[2..4].copy_from_slice(&(PROTOCOL_VERSION + 1).to_le_bytes());
    newer.write_all(&hello).unwrap();
    let mut answer = Vec::new();
    newer.read_to_end(&mut answer).unwrap();
    assert_eq!(answer[2..4], PROTOCOL_VERSION.to_le_bytes(), "it learns the server's version");
    works(&id, 2);

    let refused = error(answered_by(hello));
    assert!(
        matches!(refused, Error::Version { theirs, ours }
            if theirs == PROTOCOL_VERSION + 1 && ours == PROTOCOL_VERSION),
        "{refused}"
    );
}

#[test]
fn another_service_on_the_port_is_told_apart() {
    let refused = error(answered_by(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()));
    assert!(matches!(refused, Error::Protocol { .. }), "{refused}");
}

#[test]
fn a_rank_that_dies_while_others_join_is_named() {
    let (id, _server) = server();
    let waiting = join(&id, 0, 3);
    drop(proven_and_joined(&id, 1, 3));
    for joined in [waiting, join(&id, 2, 3)] {
        let told = error(joined);
        assert!(matches!(told, Error::Stopped(Cause::Died { rank: 1 })), "{told}");
    }
}

#[test]
fn a_rank_that_breaks_the_protocol_is_dropped_and_named() {
    let mut long = frame(&[]);
    long[4..8].copy_from_slice(&(MESSAGE_LIMIT_BYTES as u32 + 1).to_le_bytes());
    let challenge_of_a_server = frame(&[&[1][..], &[0; 64]].concat());
    for (message, says) in [(long, "MessageTooLong"), (challenge_of_a_server, "out of turn")] {
        let (id, _server) = server();
        let waiting = join(&id, 0, 2);
        let mut guilty = proven_and_joined(&id, 1, 2);
        let bootstrap = waiting.join().unwrap().unwrap();
        guilty.write_all(&message).unwrap();
        match wait_for_cause(&bootstrap) {
            Cause::Aborted { rank: 1, reason } => assert!(reason.contains(says), "{reason}"),
            other => panic!("{other}"),
        }
    }
}

/// Rank 0 of a rendezvous whose server gives this answer.
fn answered_by(answer: Vec<u8>) -> Joined {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let joined = join(&UniqueId::new("127.0.0.1", port, Secret::from_bytes([1; 32])), 0, 1);
    let mut client = listener.accept().unwrap().0;
    client.write_all(&answer).unwrap();
    thread::spawn(move || {
        let mut rest = Vec::new();
        let _ = client.read_to_end(&mut rest);
    });
    joined
}

fn proven_and_joined(id: &UniqueId, rank: u8, world: u8) -> TcpStream {
    let mut stream = proven(id);
    stream.write_all(&frame(&[&[3, rank, world][..], &[0; 32]].concat())).unwrap();
    stream
}

/// A client that says what the test wants, having proven the secret.
fn proven(id: &UniqueId) -> TcpStream {
    let mut stream = TcpStream::connect(id.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let client = [1; 32];
    stream.write_all(&frame(&[&[0][..], &client].concat())).unwrap();
    let mut challenge = [0; 8 + 1 + 64];
    stream.read_exact(&mut challenge).unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(id.secret().as_bytes()).unwrap();
    for part in [b"client", &client[..], &challenge[9..41]] {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    stream.write_all(&frame(&[&[2][..], &mac.finalize().into_bytes()].concat())).unwrap();
    stream
}

/// A message of the protocol's version around this payload.
fn frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = b"OX".to_vec();
    frame.extend(PROTOCOL_VERSION.to_le_bytes());
    frame.extend((payload.len() as u32).to_le_bytes());
    frame.extend(payload);
    frame
}
