//! Proxies and their wires: one suite for every fabric.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oxccl_transports::proxy::testing::{MemoryPorts, until};
use oxccl_transports::proxy::{
    Conditions, Egress, Fabric, Listening, PortNumber, Ports, Proxy, ProxySetup,
};
use oxccl_transports::tcp::Tcp;
use oxccl_transports::{Bootstrap, Cause, Liveness, LocalBootstrap, Region, Secret, local};

/// Against hanging.
const LIMIT: Duration = Duration::from_secs(60);
const PORTS: PortNumber = 3;
const SLOTS: u32 = 4;
const PAYLOAD_BYTES: usize = 200 << 10;

/// One rank of two.
struct End {
    ports: Arc<MemoryPorts>,
    proxy: Proxy,
    liveness: Arc<Liveness>,
    address: SocketAddr,
    _bootstrap: LocalBootstrap,
}

fn pair(fabric: impl Fn() -> Arc<dyn Fabric>, conditions: Conditions) -> [End; 2] {
    let listening: Vec<_> =
        (0..2).map(|_| Listening::open(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap()).collect();
    let addresses: Vec<_> = listening.iter().map(Listening::address).collect();
    let secret = Secret::random().unwrap();
    let egress = Egress::new(Arc::new(Region::create("test", 4096).unwrap()), 0);
    let ends = local(2).into_iter().zip(listening).enumerate().map(|(rank, (bootstrap, place))| {
        let ports = MemoryPorts::new(PORTS, SLOTS, PAYLOAD_BYTES).unwrap();
        let mut by_rank: Vec<Option<Arc<dyn Ports>>> = vec![None, None];
        by_rank[1 - rank] = Some(ports.clone());
        let liveness = bootstrap.liveness();
        let proxy = place.start(ProxySetup {
            rank,
            secret: secret.clone(),
            fabric: fabric(),
            ports: by_rank,
            addresses: addresses.clone(),
            timeout: Duration::from_secs(10),
            liveness: liveness.clone(),
            spins: false,
            conditions,
            egress: Some(egress.clone()),
        });
        let proxy = proxy.unwrap();
        proxy.want(1 - rank, (0..=PORTS).collect());
        End { ports, proxy, liveness, address: addresses[rank], _bootstrap: bootstrap }
    });
    let ends: Vec<End> = ends.collect();
    ends.try_into().unwrap_or_else(|_| unreachable!())
}

fn payload(from: usize, port: PortNumber, message: u64) -> Vec<u8> {
    let len = match message % 5 {
        0 => 0,
        1 => 8,
        2 => 1000 + port as usize,
        3 => PAYLOAD_BYTES,
        _ => 70_000,
    };
    let first = from as u64 * 31 + u64::from(port) * 7 + message;
    (0..len as u64).map(|at| (at.wrapping_mul(first | 1) >> 3) as u8).collect()
}

/// Each end sends so many messages on all ports and receives as many; every few messages they meet at the counter.
fn exchange(ends: &[End; 2], messages: u64) {
    std::thread::scope(|scope| {
        for (me, end) in ends.iter().enumerate() {
            scope.spawn(move || {
                let limit = Duration::from_secs(20);
                for message in 0..messages {
                    end.proxy.begin();
                    for port in 0..PORTS {
                        let sent = payload(me, port, message);
                        assert!(
                            end.ports.write(port, message, &sent, limit),
                            "{}",
                            end.liveness_text()
                        );
                    }
                    for port in 0..PORTS {
                        let came = end.ports.read(port, message, limit);
                        let came = came.unwrap_or_else(|| panic!("{}", end.liveness_text()));
                        assert!(came == payload(1 - me, port, message), "{me} {port} {message}");
                    }
                    end.ports.raise_here(message + 1);
                    assert!(until(limit, || end.ports.raised_there() > message));
                    end.proxy.end();
                }
            });
        }
    });
}

impl End {
    fn liveness_text(&self) -> String {
        format!("nothing moves; {:?}", self.liveness)
    }
}

fn tcp(sockets: usize) -> impl Fn() -> Arc<dyn Fabric> {
    move || Arc::new(Tcp::new(sockets))
}

#[test]
fn messages_and_counters_cross_over_one_socket_and_over_several() {
    for sockets in [1, 3] {
        exchange(&pair(tcp(sockets), Conditions::default()), 40);
    }
}

#[test]
fn writes_may_be_short() {
    let fabric = || -> Arc<dyn Fabric> { Arc::new(Tcp::new(2).with_short_writes(700)) };
    exchange(&pair(fabric, Conditions::default()), 8);
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
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(other.liveness.cause(), None, "it had said goodbye");
}

#[test]
fn a_link_that_breaks_is_named_on_both_sides() {
    let ends = pair(tcp(1), "cut=20".parse().unwrap());
    std::thread::scope(|scope| {
        for end in &ends {
            scope.spawn(move || {
                let mut message = 0;
                while end.ports.write(0, message, &[1; 100], Duration::from_millis(300)) {
                    end.proxy.begin();
                    message += 1;
                    end.ports.read(0, message - 1, Duration::from_millis(300));
                }
                assert!(until(LIMIT, || end.liveness.cause().is_some()));
            });
        }
    });
    for end in &ends {
        let cause = end.liveness.cause().unwrap();
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
        timeout: Duration::from_secs(10),
        liveness: bootstrap.liveness(),
        spins: false,
        conditions: Conditions::default(),
        egress: None,
    });
    proxy.as_ref().unwrap().want(1, vec![0]);
    let liveness = bootstrap.liveness();
    assert!(until(LIMIT, || liveness.cause().is_some()));
    let text = liveness.cause().unwrap().to_string();
    assert!(text.contains("rank 0 lost its link to rank 1"), "{text}");
    assert!(text.contains(&free.to_string()) && text.contains("OXCCL_INTERFACE"), "{text}");
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
    stranger.write_all(&[&b"OXLK\x01\x00"[..], &[7; 32], &[0; 52]].concat()).unwrap();
    let mut answer = Vec::new();
    stranger.set_read_timeout(Some(LIMIT)).unwrap();
    let _ = stranger.read_to_end(&mut answer);
    assert_eq!(answer.len(), 38 + 32, "a greeting and a proof, and nothing more");
    exchange(&ends, 10);
    assert_eq!(ends[0].liveness.cause(), None);
}
