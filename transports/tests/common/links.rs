//! Two ranks with proxies in one process, and the traffic between them: for every fabric.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test binary uses its part"
)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oxccl_transports::proxy::testing::{MemoryPorts, until};
use oxccl_transports::proxy::{
    Conditions, Egress, Emulation, Fabric, Listening, PortNumber, Ports, Proxy, ProxySetup,
};
use oxccl_transports::{Bootstrap, Cause, Liveness, LocalBootstrap, Region, Secret, local};

/// Against hanging.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Ports with slots.
pub const PORTS: PortNumber = 3;
/// Slots of each.
pub const SLOTS: u32 = 4;
/// The longest payload.
pub const PAYLOAD_BYTES: usize = 200 << 10;

/// One rank of two.
pub struct End {
    pub ports: Arc<MemoryPorts>,
    pub proxy: Proxy,
    pub liveness: Arc<Liveness>,
    pub address: SocketAddr,
    _bootstrap: LocalBootstrap,
}

/// Two ranks, joined by what makes each one's wires.
pub fn pair(fabric: impl Fn(usize) -> Arc<dyn Fabric>, conditions: Conditions) -> [End; 2] {
    let ports = |_| MemoryPorts::new(PORTS, SLOTS, PAYLOAD_BYTES).unwrap();
    pair_with(fabric, ports, conditions)
}

/// The same with other ports, of [`PORTS`], [`SLOTS`] and [`PAYLOAD_BYTES`].
pub fn pair_with(
    fabric: impl Fn(usize) -> Arc<dyn Fabric>,
    ports: impl Fn(usize) -> Arc<MemoryPorts>,
    conditions: Conditions,
) -> [End; 2] {
    pair_after(|_| {}, fabric, ports, conditions)
}

/// The same with something to be done first, where the ranks will be found; others may be found in
/// their place.
pub fn pair_after(
    first: impl FnOnce(&mut Vec<SocketAddr>),
    fabric: impl Fn(usize) -> Arc<dyn Fabric>,
    ports: impl Fn(usize) -> Arc<MemoryPorts>,
    conditions: Conditions,
) -> [End; 2] {
    let listening: Vec<_> =
        (0..2).map(|_| Listening::open(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap()).collect();
    let mut addresses: Vec<_> = listening.iter().map(Listening::address).collect();
    first(&mut addresses);
    let secret = Secret::random().unwrap();
    let egress = Egress::new(Arc::new(Region::create("test", 4096).unwrap()), 0);
    let ends = local(2).into_iter().zip(listening).enumerate().map(|(rank, (bootstrap, place))| {
        let ports = ports(rank);
        let mut by_rank: Vec<Option<Arc<dyn Ports>>> = vec![None, None];
        by_rank[1 - rank] = Some(ports.clone());
        let liveness = bootstrap.liveness();
        let proxy = place.start(ProxySetup {
            rank,
            secret: secret.clone(),
            fabric: fabric(rank),
            ports: by_rank,
            addresses: addresses.clone(),
            timeout: LIMIT,
            liveness: liveness.clone(),
            spins: false,
            rings: true,
            emulation: Emulation { conditions, egress: Some(egress.clone()) },
        });
        let proxy = proxy.unwrap();
        proxy.want(1 - rank, (0..=PORTS).collect());
        End { ports, proxy, liveness, address: addresses[rank], _bootstrap: bootstrap }
    });
    let ends: Vec<End> = ends.collect();
    ends.try_into().unwrap_or_else(|_| unreachable!())
}

/// What a message holds: of many lengths, and different for each.
pub fn payload(from: usize, port: PortNumber, message: u64) -> Vec<u8> {
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

/// Each end sends so many messages on all ports and receives as many; every few messages they meet
/// at the counter.
pub fn exchange(ends: &[End; 2], messages: u64) {
    std::thread::scope(|scope| {
        for (me, end) in ends.iter().enumerate() {
            scope.spawn(move || {
                for message in 0..messages {
                    end.proxy.begin();
                    for port in 0..PORTS {
                        let sent = payload(me, port, message);
                        assert!(
                            end.ports.write(port, message, &sent, LIMIT),
                            "{}",
                            end.liveness_text()
                        );
                    }
                    for port in 0..PORTS {
                        let came = end.ports.read(port, message, LIMIT);
                        let came = came.unwrap_or_else(|| panic!("{}", end.liveness_text()));
                        assert!(came == payload(1 - me, port, message), "{me} {port} {message}");
                    }
                    end.ports.raise_here(message + 1);
                    assert!(until(LIMIT, || end.ports.raised_there() > message));
                    end.proxy.end();
                }
            });
        }
    });
}

/// One end sends messages and ends; the other receives them all.
pub fn end_behind_messages([one, other]: [End; 2]) {
    for message in 0..u64::from(SLOTS) {
        assert!(one.ports.write(0, message, &payload(0, 0, message), LIMIT));
    }
    one.proxy.begin();
    // The wire is there once something has come over it.
    assert!(other.ports.read(0, 0, LIMIT).is_some());
    one.liveness.close(1);
    drop(one);
    for message in 1..u64::from(SLOTS) {
        let came = other.ports.read(0, message, LIMIT);
        assert!(came.is_some_and(|came| came == payload(0, 0, message)), "message {message}");
    }
}

impl End {
    pub fn liveness_text(&self) -> String {
        format!("nothing moves; {:?}", self.liveness)
    }
}

/// Each end sends and receives on the first port until its link has broken; then why it has.
pub fn exchange_until_broken(ends: &[End; 2]) -> [Cause; 2] {
    std::thread::scope(|scope| {
        for end in ends {
            scope.spawn(move || {
                let (mut sent, mut received) = (0, 0);
                let (turn, start) = (Duration::from_millis(10), Instant::now());
                while end.liveness.cause().is_none() {
                    assert!(start.elapsed() < LIMIT, "the link does not break");
                    end.proxy.begin();
                    sent += u64::from(end.ports.write(0, sent, &[1; 100], turn));
                    received += u64::from(end.ports.read(0, received, turn).is_some());
                }
            });
        }
    });
    ends.each_ref().map(|end| end.liveness.cause().unwrap())
}
