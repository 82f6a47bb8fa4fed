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
fn pose(socket: &OwnedFd, from: usize, to: usize, names: &[Name], secret: &Secret, file: &OwnedFd) {
    let (unused, _) = listen().unwrap();
    let files = vec![file.as_fd()];
    let exchange = Exchange::new(from, by_rank(names), secret, files, unused);
    exchange.send(socket, to).unwrap();
}

fn call(name: &Name) -> OwnedFd {
    let socket = new_socket().unwrap();
    connect(socket.as_raw_fd(), &address(name).unwrap()).unwrap();
    socket
}

/// The writing end of a pipe in one rank becomes one in another.
#[test]
fn strangers_are_dropped_and_ranks_get_through() {
    let secret = Secret::from_bytes([1; 32]);
    let ((first, name0), (second, name1)) = (listen().unwrap(), listen().unwrap());
    let names = vec![name0, name1];
    let (_, strange) = pipe().unwrap();

    let _silent = call(&name0);
    drop(call(&name0));
    let garbage = call(&name0);
    nix::sys::socket::send(garbage.as_raw_fd(), &[7; 3], MsgFlags::empty()).unwrap();
    let wrong = call(&name0);
    pose(&wrong, 1, 0, &names, &Secret::from_bytes([2; 32]), &strange);
    let misdirected = call(&name0);
    pose(&misdirected, 0, 1, &names, &secret, &strange);
    let replayed = call(&name0);
    pose(&replayed, 1, 0, &[name0, [9; 16]], &secret, &strange);

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

#[test]
fn a_rank_that_does_not_come_is_named() {
    let secret = Secret::from_bytes([1; 32]);
    let (listener, name) = listen().unwrap();
    let names = vec![[8; 16], name, [9; 16]];
    let exchange = Exchange::new(1, by_rank(&names), &secret, Vec::new(), listener);
    match exchange.run(soon(), &local(1)[0].liveness()) {
        Err(Error::Timeout { missing, .. }) => assert_eq!(missing, [0, 2]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_abort_ends_the_waiting() {
    let secret = Secret::from_bytes([1; 32]);
    let (listener, name) = listen().unwrap();
    let bootstrap = local(1).remove(0);
    let liveness = bootstrap.liveness();
    let cause = Cause::Aborted { rank: 0, reason: "test".to_owned() };
    let raised = cause.clone();
    let other = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        bootstrap.liveness().abort(raised);
    });
    let exchange = Exchange::new(0, by_rank(&[name, [9; 16]]), &secret, Vec::new(), listener);
    match exchange.run(deadline(), &liveness) {
        Err(Error::Stopped(told)) => assert_eq!(told, cause),
        other => panic!("{other:?}"),
    }
    other.join().unwrap();
}
