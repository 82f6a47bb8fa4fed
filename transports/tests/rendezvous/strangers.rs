//! Strangers, wrong secrets, and messages that are none of the protocol's.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use hmac::{Hmac, Mac};
use oxccl_transports::rendezvous::{MESSAGE_LIMIT_BYTES, PROTOCOL_VERSION};
use oxccl_transports::{Bootstrap, Cause, Error, Secret, UniqueId};
use sha2::Sha256;

use crate::common::{server, wait_for_cause};
use crate::many::{allow_descriptors, skip};
use crate::{Joined, error, join, join_until, works};

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
    let mut challenge = [0; 8 + 1 + 32];
    stranger.read_exact(&mut challenge).unwrap();
    stranger.write_all(&frame(&[&[2][..], &[1; 32]].concat())).unwrap();
    let mut answer = Vec::new();
    stranger.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, frame(&[6, 0]), "refused: wrong secret");
    works(&id, 2);
}

/// All that a server says before its client has proven itself is a random number: nothing to try
/// guesses of the secret by.
#[test]
fn a_stranger_gets_nothing_that_follows_from_the_secret() {
    let (id, _server) = server();
    let mut answers = Vec::new();
    for _ in 0..2 {
        let mut stranger = TcpStream::connect(id.address()).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stranger.write_all(&frame(&[&[0][..], &[1; 32]].concat())).unwrap();
        let mut answer = Vec::new();
        // It is dropped after a while.
        stranger.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.len(), 8 + 1 + 32, "a nonce and nothing else");
        let mac = mac(&id, "server", &[&[1; 32], &answer[9..41]]);
        assert!(!answer.windows(32).any(|window| window == mac), "no proof");
        answers.push(answer);
    }
    assert_ne!(answers[0], answers[1], "never the same");
}

/// They hold their connections, some silent, some having said hello; ranks come all the same.
#[test]
fn thousands_of_half_open_connections_keep_nobody_out() {
    const STRANGERS: usize = 6000;
    if let Err(why) = allow_descriptors(STRANGERS as u64 + 4000) {
        return skip("thousands_of_half_open_connections_keep_nobody_out", &why);
    }
    let (id, _server) = server();
    let hello = frame(&[&[0][..], &[1; 32]].concat());
    let stranger = |number: usize| {
        let mut stranger = TcpStream::connect(id.address()).unwrap();
        if number.is_multiple_of(4) {
            stranger.write_all(&hello).unwrap();
        }
        stranger
    };
    let strangers: Vec<TcpStream> = (0..STRANGERS).map(stranger).collect();
    let soon = || Instant::now() + Duration::from_secs(25);
    let ranks: Vec<_> = (0..4).map(|rank| join_until(&id, rank, 4, soon())).collect();
    for rank in ranks {
        rank.join().unwrap().unwrap().liveness().close(0);
    }
    drop(strangers);
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
        assert_eq!(answer[8..10], [6, 2], "refused: too long");
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

/// As somebody on the way could: a rank's message with a bit changed, left out, or sent twice.
#[test]
fn a_rank_whose_messages_are_changed_on_the_way_is_dropped_and_named() {
    let message = |calls: u8| frame(&[8, 0, 7, calls]);
    let ways: [fn(&mut Client, Vec<u8>); 3] = [
        |client, mut message| {
            let tag = client.tag(&message);
            message[11] ^= 1;
            client.stream.write_all(&[&message[..], &tag].concat()).unwrap();
        },
        |client, message| {
            client.tag(&message);
            client.send(&message);
        },
        |client, message| {
            let ping = frame(&[11]);
            let tag = client.tag(&ping);
            let twice = [&ping[..], &tag, &ping, &tag].concat();
            client.stream.write_all(&twice).unwrap();
            drop(message);
        },
    ];
    for change in ways {
        let (id, _server) = server();
        let waiting = join(&id, 0, 2);
        let mut changed = proven_and_joined(&id, 1, 2);
        let bootstrap = waiting.join().unwrap().unwrap();
        change(&mut changed, message(7));
        match wait_for_cause(&bootstrap) {
            Cause::Aborted { rank: 1, reason } => {
                assert!(reason.contains("integrity"), "{reason}");
            }
            other => panic!("{other}"),
        }
        assert_eq!(bootstrap.liveness().left(1), None, "its goodbye was not taken");
    }
}

#[test]
fn a_rank_that_breaks_the_protocol_is_dropped_and_named() {
    let mut long = frame(&[]);
    long[4..8].copy_from_slice(&(MESSAGE_LIMIT_BYTES as u32 + 1).to_le_bytes());
    let challenge_of_a_server = frame(&[&[1][..], &[0; 32]].concat());
    for (message, says) in [(long, "MessageTooLong"), (challenge_of_a_server, "out of turn")] {
        let (id, _server) = server();
        let waiting = join(&id, 0, 2);
        let mut guilty = proven_and_joined(&id, 1, 2);
        let bootstrap = waiting.join().unwrap().unwrap();
        guilty.send(&message);
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

fn proven_and_joined(id: &UniqueId, rank: u8, world: u8) -> Client {
    let mut client = proven(id);
    // It will serve nobody.
    client.send(&frame(&[&[4, rank, world][..], &[0; 32], &[0]].concat()));
    client
}

/// One whose messages are sealed.
struct Client {
    stream: TcpStream,
    key: [u8; 32],
    sent: u64,
}

impl Client {
    fn send(&mut self, frame: &[u8]) {
        let tag = self.tag(frame);
        self.stream.write_all(&[frame, &tag].concat()).unwrap();
    }

    fn tag(&mut self, frame: &[u8]) -> [u8; 32] {
        let mut tag = blake3::Hasher::new_keyed(&self.key);
        tag.update(&self.sent.to_le_bytes()).update(blake3::hash(frame).as_bytes());
        self.sent += 1;
        tag.finalize().into()
    }
}

fn mac(id: &UniqueId, label: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(id.secret().as_bytes()).unwrap();
    for part in [label.as_bytes()].iter().chain(parts) {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// A client that says what the test wants, having proven the secret.
fn proven(id: &UniqueId) -> Client {
    let mut stream = TcpStream::connect(id.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let client = [1; 32];
    stream.write_all(&frame(&[&[0][..], &client].concat())).unwrap();
    let mut challenge = [0; 8 + 1 + 32];
    stream.read_exact(&mut challenge).unwrap();
    let nonces = [&client[..], &challenge[9..]];
    stream.write_all(&frame(&[&[2][..], &mac(id, "client", &nonces)].concat())).unwrap();
    let mut proven = [0; 8 + 1 + 32];
    stream.read_exact(&mut proven).unwrap();
    assert_eq!(proven[8], 3);
    assert_eq!(proven[9..], mac(id, "server", &nonces));
    let key = mac(id, "to server", &nonces);
    Client { stream, key, sent: 0 }
}

/// A message of the protocol's version around this payload.
fn frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = b"OX".to_vec();
    frame.extend(PROTOCOL_VERSION.to_le_bytes());
    frame.extend((payload.len() as u32).to_le_bytes());
    frame.extend(payload);
    frame
}
