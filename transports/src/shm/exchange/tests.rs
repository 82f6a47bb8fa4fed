use std::fs::File;
use std::io::Read;
use std::thread;

use nix::unistd::pipe;

use super::*;
use crate::{Bootstrap, Cause, local};

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(200)
}

fn by_rank(names: &[Name]) -> BTreeMap<usize, Name> {
    names.iter().copied().enumerate().collect()
}

/// Sends a packet as rank `from` of these, with a descriptor, under the secret.
fn pose(from: usize, to: usize, names: &[Name], secret: &Secret, file: &OwnedFd) {
    let files = vec![file.as_fd()];
    let exchange = Exchange::new(from, by_rank(names), secret, files, new_socket().unwrap());
    assert!(exchange.send(to).unwrap());
}

fn send(bytes: &[u8], to: &Name) -> Result<usize, Errno> {
    let (socket, to) = (new_socket().unwrap(), address(to).unwrap());
    nix::sys::socket::sendto(socket.as_raw_fd(), bytes, &to, MsgFlags::empty())
}

/// The writing end of a pipe in one rank becomes one in another.
#[test]
fn strangers_are_dropped_and_ranks_get_through() {
    let secret = Secret::from_bytes([1; 32]);
    let ((first, name0), (second, name1)) = (open().unwrap(), open().unwrap());
    let names = vec![name0, name1];
    let (_, strange) = pipe().unwrap();

    for garbage in [&[][..], &[7; 3], &[0; PACKET_BYTES], &[255; PACKET_BYTES], &[1; 4096]] {
        send(garbage, &name0).unwrap();
    }
    pose(1, 0, &names, &Secret::from_bytes([2; 32]), &strange);
    // To rank 0 itself, from itself.
    pose(0, 0, &names, &secret, &strange);
    // Of another exchange.
    pose(1, 0, &[name0, [9; 16]], &secret, &strange);

    let (mut reader, writer) = pipe().map(|(r, w)| (File::from(r), w)).unwrap();
    let theirs = secret.clone();
    let their_names = names.clone();
    let other = thread::spawn(move || {
        let exchange =
            Exchange::new(1, by_rank(&their_names), &theirs, vec![writer.as_fd()], second);
        exchange.run(deadline(), &local(1)[0].liveness()).unwrap()
    });
    let exchange = Exchange::new(0, by_rank(&names), &secret, Vec::new(), first);
    let got = exchange.run(deadline(), &local(1)[0].liveness()).unwrap();
    assert_eq!(got.values().map(Vec::len).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(other.join().unwrap().values().map(Vec::len).sum::<usize>(), 0);

    nix::unistd::write(&got[&1][0], b"hello").unwrap();
    drop(got);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello", "it was the rank's own, and no copy of it is left open");
}

/// Ranks send again where a socket has had no room, and none gets through that has not proved it.
#[test]
fn a_socket_that_is_full_is_waited_for() {
    let secret = Secret::from_bytes([1; 32]);
    let ((first, name0), (second, name1)) = (open().unwrap(), open().unwrap());
    let mut garbage = 0;
    while send(&[7; PACKET_BYTES], &name0).is_ok() {
        garbage += 1;
        assert!(garbage < 100_000, "the system has no limit");
    }
    let names = by_rank(&[name0, name1]);
    let (theirs, their_names) = (secret.clone(), names.clone());
    let other = thread::spawn(move || {
        let exchange = Exchange::new(1, their_names, &theirs, Vec::new(), second);
        exchange.run(deadline(), &local(1)[0].liveness()).unwrap()
    });
    // It has nobody to send to yet.
    thread::sleep(Duration::from_millis(50));
    let exchange = Exchange::new(0, names, &secret, Vec::new(), first);
    let got = exchange.run(deadline(), &local(1)[0].liveness()).unwrap();
    assert_eq!(got.len(), 2);
    assert_eq!(other.join().unwrap().len(), 2);
}

/// It has sent its own, and reads nothing.
#[test]
fn a_rank_that_takes_nothing_is_named() {
    let secret = Secret::from_bytes([1; 32]);
    let ((first, name0), (_second, name1)) = (open().unwrap(), open().unwrap());
    while send(&[7; PACKET_BYTES], &name1).is_ok() {}
    let (_, file) = pipe().unwrap();
    pose(1, 0, &[name0, name1], &secret, &file);
    let exchange = Exchange::new(0, by_rank(&[name0, name1]), &secret, Vec::new(), first);
    match exchange.run(soon(), &local(1)[0].liveness()) {
        Err(Error::Timeout { missing, .. }) => assert_eq!(missing, [1]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let secret = Secret::from_bytes([1; 32]);
    let (socket, name) = open().unwrap();
    let names = vec![[8; 16], name, [9; 16]];
    let exchange = Exchange::new(1, by_rank(&names), &secret, Vec::new(), socket);
    match exchange.run(soon(), &local(1)[0].liveness()) {
        Err(Error::Timeout { missing, .. }) => assert_eq!(missing, [0, 2]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_abort_ends_the_waiting() {
    let secret = Secret::from_bytes([1; 32]);
    let (socket, name) = open().unwrap();
    let bootstrap = local(1).remove(0);
    let liveness = bootstrap.liveness();
    let cause = Cause::Aborted { rank: 0, reason: "test".to_owned() };
    let raised = cause.clone();
    let other = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        bootstrap.liveness().abort(raised);
    });
    let exchange = Exchange::new(0, by_rank(&[name, [9; 16]]), &secret, Vec::new(), socket);
    match exchange.run(deadline(), &liveness) {
        Err(Error::Stopped(told)) => assert_eq!(told, cause),
        other => panic!("{other:?}"),
    }
    other.join().unwrap();
}
