//! Proxies and their wires: one suite for every fabric.
#![allow(clippy::unwrap_used)]

#[path = "common/links.rs"]
mod links;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use oxccl_transports::proxy::testing::{MemoryPorts, until};
use oxccl_transports::proxy::{
    Conditions, Emulation, Fabric, Link, Listening, ProxySetup, Wire, WireError,
};
use oxccl_transports::tcp::Tcp;
use oxccl_transports::{Bootstrap, Cause, Secret, local};

use links::{LIMIT, PORTS, SLOTS, exchange, exchange_until_broken, pair, payload};

fn sealed(sockets: usize) -> impl Fn(usize) -> Arc<dyn Fabric> {
    move |_| Arc::new(Tcp::new(sockets).with_integrity())
}

fn tcp(sockets: usize) -> impl Fn(usize) -> Arc<dyn Fabric> {
    move |_| Arc::new(Tcp::new(sockets))
}

#[test]
fn messages_and_counters_cross_over_one_socket_and_over_several() {
    for sockets in [1, 3] {
        exchange(&pair(tcp(sockets), Conditions::default()), 40);
    }
}

#[test]
fn writes_may_be_short() {
    let fabric = |_| -> Arc<dyn Fabric> { Arc::new(Tcp::new(2).with_short_writes(700)) };
    exchange(&pair(fabric, Conditions::default()), 8);
}

#[test]
fn sealed_messages_cross_whole_and_in_short_writes() {
    exchange(&pair(sealed(3), Conditions::default()), 20);
    let fabric =
        |_| -> Arc<dyn Fabric> { Arc::new(Tcp::new(2).with_integrity().with_short_writes(7)) };
    let ends = pair(fabric, Conditions::default());
    assert!(ends[0].ports.write(0, 0, &payload(0, 0, 2), LIMIT));
    ends[0].proxy.begin();
    assert!(ends[1].ports.read(0, 0, LIMIT).is_some_and(|came| came == payload(0, 0, 2)));
}

/// What a dialler says before its first frame.
const HANDSHAKE_BYTES: usize = 38 + 52;

/// Two ranks with somebody between them who turns a bit of this byte of what rank 0 sends.
fn pair_with_a_bit_turned(at: usize, fabric: impl Fn(usize) -> Arc<dyn Fabric>) -> [links::End; 2] {
    let between = |addresses: &mut Vec<SocketAddr>| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = std::mem::replace(&mut addresses[1], listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (dialler, _) = listener.accept().unwrap();
            let acceptor = TcpStream::connect(to).unwrap();
            let back = (acceptor.try_clone().unwrap(), dialler.try_clone().unwrap());
            std::thread::spawn(move || pass_on(back.0, back.1, usize::MAX));
            pass_on(dialler, acceptor, at);
        });
    };
    let ports = |_| MemoryPorts::new(PORTS, SLOTS, links::PAYLOAD_BYTES).unwrap();
    links::pair_after(between, fabric, ports, Conditions::default())
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, change_at: usize) {
    let (mut bytes, mut passed) = ([0; 4096], 0);
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        if (passed..passed + len).contains(&change_at) {
            bytes[change_at - passed] ^= 4;
        }
        passed += len;
        if to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn a_changed_message_is_an_error_that_names_its_sender_and_never_delivered() {
    let header = HANDSHAKE_BYTES;
    let content = header + 24 + 32;
    // The kind, port, length and number, their tag, the content, and what is behind it.
    let places = [0, 2, 5, 16, 24, 55].map(|at| header + at);
    for at in places.into_iter().chain([0, 500, 999, 1040, 5000].map(|at| content + at)) {
        let ends = pair_with_a_bit_turned(at, sealed(1));
        ends[0].proxy.begin();
        let (mut sent, mut received) = (0, 0);
        let (turn, start) = (Duration::from_millis(10), Instant::now());
        while ends[1].liveness.cause().is_none() {
            assert!(start.elapsed() < LIMIT, "nobody notices the change at {at}");
            sent += u64::from(ends[0].ports.write(0, sent, &[sent as u8; 1000], turn));
            if let Some(came) = ends[1].ports.read(0, received, turn) {
                assert!(came == [received as u8; 1000], "message {received}, a change at {at}");
                received += 1;
            }
        }
        let cause = ends[1].liveness.cause().unwrap();
        assert_eq!(cause, Cause::Corrupted { rank: 1, peer: 0 }, "a change at {at}");
        assert!(cause.to_string().contains("integrity"), "{cause}");
        assert!(until(LIMIT, || ends[0].liveness.cause() == Some(cause.clone())), "both know");
    }
}

/// What the other test shows would not be noticed otherwise.
#[test]
fn a_changed_message_is_delivered_without_integrity() {
    let ends = pair_with_a_bit_turned(HANDSHAKE_BYTES + 24 + 500, tcp(1));
    ends[0].proxy.begin();
    assert!(ends[0].ports.write(0, 0, &[7; 1000], LIMIT));
    let came = ends[1].ports.read(0, 0, LIMIT).unwrap();
    assert_eq!(came.iter().filter(|byte| **byte != 7).count(), 1);
    assert_eq!(ends[1].liveness.cause(), None);
}

#[test]
fn messages_may_overtake_each_other() {
    exchange(&pair(tcp(2), "jitter=2ms".parse().unwrap()), 40);
}

#[test]
fn a_shaped_link_is_as_slow_as_it_is_asked_to_be() {
    let ends = pair(tcp(1), "1Gbit,1ms".parse().unwrap());
    let (start, messages) = (Instant::now(), 10);
    exchange(&ends, messages);
    let bytes: usize = (0..PORTS)
        .flat_map(|port| (0..messages).map(move |message| payload(0, port, message).len()))
        .sum();
    // Both ends are of one node here, and each waits for the other's answer.
    let least = Duration::from_secs_f64(2.0 * bytes as f64 / 1.25e8)
        .max(2 * Duration::from_millis(1) * messages as u32);
    assert!(start.elapsed() >= least, "{:?} for {bytes} bytes each way", start.elapsed());
}

#[test]
fn what_was_written_last_arrives_though_its_sender_ends() {
    let [one, other] = pair(tcp(2), Conditions::default());
    let last = payload(0, 0, 3);
    assert!(one.ports.write(0, 0, &last, LIMIT));
    one.proxy.begin();
    one.proxy.end();
    assert!(until(LIMIT, || other.ports.raised_there() == 0));
    // The wire is there once something has come over it.
    assert!(other.ports.read(0, 0, LIMIT).is_some());
    for message in 1..=u64::from(SLOTS) - 1 {
        assert!(one.ports.write(0, message, &last, LIMIT));
    }
    one.liveness.close(1);
    drop(one);
    for message in 1..=u64::from(SLOTS) - 1 {
        assert_eq!(other.ports.read(0, message, LIMIT), Some(last.clone()));
    }
    // Longer than a link's end may go unexplained.
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(other.liveness.cause(), None, "it had said goodbye");
}

#[test]
fn a_link_that_breaks_is_named_on_both_sides() {
    let ends = pair(tcp(1), "cut=20".parse().unwrap());
    for cause in exchange_until_broken(&ends) {
        assert!(matches!(cause, Cause::LinkLost { rank, peer, .. } if rank + peer == 1), "{cause}");
    }
}

#[test]
fn a_peer_that_cannot_be_reached_is_named() {
    let listening = Listening::open(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
    let mut bootstraps = local(2);
    let bootstrap = bootstraps.swap_remove(0);
    // A port that nobody listens on: one that has been given back.
    let free = Listening::open(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap().address();
    let ports = MemoryPorts::new(1, SLOTS, 64).unwrap();
    let proxy = listening.start(ProxySetup {
        rank: 0,
        secret: Secret::random().unwrap(),
        fabric: Arc::new(Tcp::new(1)),
        ports: vec![None, Some(ports)],
        addresses: vec![free, free],
        timeout: LIMIT,
        liveness: bootstrap.liveness(),
        spins: false,
        rings: true,
        emulation: Emulation::default(),
    });
    proxy.as_ref().unwrap().want(1, vec![0]);
    let liveness = bootstrap.liveness();
    assert!(until(LIMIT, || liveness.cause().is_some()));
    let text = liveness.cause().unwrap().to_string();
    assert!(text.contains("rank 0 lost its link to rank 1"), "{text}");
    assert!(text.contains(&free.to_string()) && text.contains("OXCCL_INTERFACE"), "{text}");
}

#[test]
fn a_rank_without_descriptors_says_so() {
    // In a process of its own, which has none left.
    let case = ["--exact", "dials_without_descriptors", "--ignored", "--nocapture"];
    let ended = Command::new(std::env::current_exe().unwrap()).args(case).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
#[ignore = "started by the other test"]
fn dials_without_descriptors() {
    let [one, other] = [(); 2].map(|()| Listening::open(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap());
    let addresses = vec![one.address(), other.address()];
    let bootstraps = local(2);
    let liveness = bootstraps[0].liveness();
    let proxy = one.start(ProxySetup {
        rank: 0,
        secret: Secret::random().unwrap(),
        fabric: Arc::new(Tcp::new(1)),
        ports: vec![None, Some(MemoryPorts::new(1, SLOTS, 64).unwrap())],
        addresses,
        timeout: LIMIT,
        liveness: liveness.clone(),
        spins: false,
        rings: true,
        emulation: Emulation::default(),
    });
    let proxy = proxy.unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, 64).unwrap();
    let mut taken: Vec<File> = Vec::new();
    // Threads that have just started may hold some for a moment.
    for _ in 0..20 {
        taken.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
        std::thread::sleep(Duration::from_millis(20));
    }
    proxy.want(1, vec![0]);
    assert!(until(LIMIT, || liveness.cause().is_some()));
    drop(taken);
    let text = liveness.cause().unwrap().to_string();
    assert!(text.contains("ulimit -n") && !text.contains("OXCCL_INTERFACE"), "{text}");
}

/// They hold their connections before the ranks dial: some silent, some having greeted well.
#[test]
fn half_open_connections_keep_no_link_from_being_made() {
    const STRANGERS: usize = 1000;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let needed = 4 * STRANGERS as u64;
    if hard < needed {
        let name = "half_open_connections_keep_no_link_from_being_made";
        let _ = writeln!(std::io::stderr(), "skipped: {name}: {hard} open files are the limit");
        return;
    }
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(needed), hard).unwrap();
    let strangers = Mutex::new(Vec::new());
    let besiege = |addresses: &mut Vec<SocketAddr>| {
        for number in 0..STRANGERS {
            let mut stranger = TcpStream::connect(addresses[1]).unwrap();
            if number % 4 == 0 {
                stranger.write_all(&[&b"OXLK\x02\x00"[..], &[7; 32]].concat()).unwrap();
            }
            strangers.lock().unwrap().push(stranger);
        }
    };
    let ports = |_| MemoryPorts::new(PORTS, SLOTS, links::PAYLOAD_BYTES).unwrap();
    let ends = links::pair_after(besiege, tcp(2), ports, Conditions::default());
    exchange(&ends, 3);
    assert_eq!(ends[0].liveness.cause(), None);
}

/// A fabric with a fault.
struct Panics;

impl Fabric for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }

    fn sockets(&self) -> usize {
        1
    }

    fn open(&self, _: Link) -> Result<Box<dyn Wire>, WireError> {
        panic!("on purpose");
    }
}

#[test]
fn a_fabric_that_panics_is_a_lost_link() {
    for end in pair(|_| Arc::new(Panics), Conditions::default()) {
        assert!(until(LIMIT, || end.liveness.cause().is_some()));
        let text = end.liveness.cause().unwrap().to_string();
        assert!(text.contains("a fault of this program"), "{text}");
    }
}

#[test]
fn strangers_on_the_port_are_dropped_and_disturb_nobody() {
    let ends = pair(tcp(2), Conditions::default());
    let mut silent = Vec::new();
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 500], b"OXLK\x09\x00"] {
        let mut stranger = TcpStream::connect(ends[1].address).unwrap();
        stranger.write_all(bytes).unwrap();
        silent.push(stranger);
    }
    // It greets well, and cannot prove the secret.
    let mut stranger = TcpStream::connect(ends[1].address).unwrap();
    stranger.write_all(&[&b"OXLK\x02\x00"[..], &[7; 32], &[0; 52]].concat()).unwrap();
    let mut answer = Vec::new();
    stranger.set_read_timeout(Some(LIMIT)).unwrap();
    let _ = stranger.read_to_end(&mut answer);
    assert_eq!(answer.len(), 38 + 33, "a greeting and a refusal");
    assert_eq!(answer[39..], [0; 32], "nothing that follows from the secret");
    exchange(&ends, 10);
    assert_eq!(ends[0].liveness.cause(), None);
}
