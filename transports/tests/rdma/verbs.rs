//! The layer over libibverbs: what it moves, and how it fails.

use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::process::Command;
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use oxccl_transports::proxy::testing::until;
use oxccl_transports::rdma::{
    Class, CompletionQueue, Depth, Device, LinkKind, Local, Operation, Outcome, Patience, Port,
    QueuePair, Request, device_names, usable_ports,
};

use super::link;
use super::links::LIMIT;
use super::pair::{DEPTH, End, MEMORY_BYTES, pair, pair_in, port};

/// How often a queue pair reads behind what comes, and the mark of those requests.
const READS: u64 = 2000;
const READ: u64 = 1 << 40;

#[test]
#[ignore = "runs in the software RoCE guest"]
fn devices_are_found_by_name() {
    assert_eq!(device_names().unwrap(), ["rxe0_0", "rxe1_0"]);
    let address = port(1).address().clone();
    assert_eq!((address.kind, address.lid), (LinkKind::RoceV2, 0));
    assert_eq!(address.gid.to_string(), "10.0.0.2");
    let missing = Device::open("mlx5_7").unwrap_err().to_string();
    assert!(missing.contains("no RDMA device mlx5_7, there is rxe0_0, rxe1_0"), "{missing}");
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn ports_of_other_namespaces_are_not_used() {
    // This process is in none of the nodes.
    let none = usable_ports(None, None).unwrap_err().to_string();
    assert!(none.contains("rxe1_0") && none.contains("roce1_0"), "{none}");
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn a_node_uses_its_own_port() {
    let exe = std::env::current_exe().unwrap();
    let output = Command::new("ip")
        .args(["netns", "exec", "node1"])
        .arg(exe)
        .args(["--exact", "process::usable_ports_are_those_of_node1", "--ignored"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn the_address_at_an_index_is_taken_and_no_other() {
    let device = Device::open("rxe0_0").unwrap();
    let ports = (0..=u8::MAX).map(|index| (index, Port::new(&device, 1, Some(index))));
    let (found, missing): (Vec<_>, Vec<_>) = ports.partition(|(_, port)| port.is_ok());
    let gids: Vec<_> = found.iter().map(|(_, port)| port.as_ref().unwrap().address().gid).collect();
    assert!(gids.contains(&port(0).address().gid), "{gids:?}");
    assert!(gids.iter().any(|gid| gid.is_link_local()), "{gids:?}");
    for (index, refused) in missing {
        let expected =
            format!("port 1 of rxe0_0 has no GID for RoCE v2 or InfiniBand at index {index}");
        assert!(refused.unwrap_err().to_string().starts_with(&expected));
    }
}

/// A socket that receives what UDP packets a node receives, with their IP headers.
fn udp_packets_of(node: usize) -> std::net::UdpSocket {
    let open = move || {
        let name = std::fs::File::open(format!("/run/netns/node{node}")).unwrap();
        // SAFETY: this thread alone changes its namespace; the descriptor is a new one, owned by
        // the result.
        unsafe {
            assert_eq!(libc::setns(name.as_raw_fd(), libc::CLONE_NEWNET), 0);
            let socket = libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_UDP);
            assert!(socket >= 0, "{}", std::io::Error::last_os_error());
            std::net::UdpSocket::from_raw_fd(socket)
        }
    };
    let socket = std::thread::spawn(open).join().unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn packets_carry_their_traffic_class() {
    const ROCE_PORT: u16 = 4791;
    for traffic in [0, 104] {
        let packets = udp_packets_of(1);
        let [a, b] = pair_in(Class { traffic, service_level: 3 });
        b.pair.post_receive(7, None).unwrap();
        let write = Operation::WriteWithImmediate {
            to: b.remote().start,
            key: b.remote().key,
            immediate: 1,
        };
        a.pair
            .post(Request { id: 1, operation: write, local: Local::Nothing, signalled: true })
            .unwrap();
        assert!(matches!(a.wait().outcome, Outcome::Sent));
        let mut packet = [0; 128];
        let header = loop {
            let len = packets.recv(&mut packet).unwrap();
            let udp = usize::from(packet[0] & 15) * 4;
            if len >= udp + 4 && u16::from_be_bytes([packet[udp + 2], packet[udp + 3]]) == ROCE_PORT
            {
                break packet;
            }
        };
        assert_eq!(header[1], traffic);
    }
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn writes_arrive_and_are_told_by_immediate_data() {
    let [mut a, b] = pair();
    a.fill(|index| index as u8);
    b.pair.post_receive(7, None).unwrap();
    let write = |immediate, start, len_bytes| Request {
        id: u64::from(immediate),
        operation: Operation::WriteWithImmediate {
            to: b.remote().at(start, len_bytes).unwrap(),
            key: b.remote().key,
            immediate,
        },
        local: Local::Registered { region: &a.region, start: a.region.start() + 1, len_bytes },
        signalled: true,
    };
    a.pair.post(write(0xdead_beef, 100, 40_000)).unwrap();
    let arrived = b.wait();
    let expected = Outcome::Received { len_bytes: 40_000, immediate: Some(0xdead_beef) };
    assert_eq!((arrived.id, arrived.outcome), (7, expected));
    assert_eq!(arrived.queue_pair, b.pair.number());
    assert!((0..40_000).all(|index| b.byte(100 + index) == (index + 1) as u8));
    assert_eq!((b.byte(99), b.byte(40_100)), (0, 0));
    let sent = a.wait();
    assert_eq!((sent.id, sent.outcome), (0xdead_beef, Outcome::Sent));
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn inline_bytes_may_change_at_once() {
    let [a, b] = pair();
    for round in 0..10_u8 {
        b.pair.post_receive(round.into(), Some((&b.region, b.region.start(), 16))).unwrap();
        let mut bytes = [round; 16];
        let operation = Operation::Send { immediate: round.into() };
        let local = Local::Inline(&bytes);
        a.pair.post(Request { id: 0, operation, local, signalled: false }).unwrap();
        bytes.fill(99);
        let expected = Outcome::Received { len_bytes: 16, immediate: Some(round.into()) };
        assert_eq!(b.wait().outcome, expected);
        assert!((0..16).all(|index| b.byte(index) == round));
        std::hint::black_box(bytes);
    }
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn reads_fetch_the_peers_bytes() {
    let [a, mut b] = pair();
    b.fill(|index| (index * 7) as u8);
    let operation = Operation::Read { from: b.remote().at(5, 1).unwrap(), key: b.remote().key };
    let local = Local::Registered { region: &a.region, start: a.region.start(), len_bytes: 1 };
    a.pair.post(Request { id: 1, operation, local, signalled: true }).unwrap();
    assert_eq!(a.wait().outcome, Outcome::Sent);
    assert_eq!(a.byte(0), 35);
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn a_pair_joined_with_itself_reads_behind_what_comes() {
    let [a, b] = pair();
    let reader = QueuePair::new(&port(1), &b.domain, &b.completions, DEPTH);
    let mut reader = reader.unwrap();
    reader
        .connect(
            &reader.address(),
            "itself",
            Patience { retries: 6, ..Patience::default() },
            Class::default(),
        )
        .unwrap();
    for round in 0..READS {
        b.pair.post_receive(round, None).unwrap();
        let to = b.remote().at(64, 8).unwrap();
        let operation = Operation::WriteWithImmediate { to, key: b.remote().key, immediate: 1 };
        let local = Local::Registered { region: &a.region, start: a.region.start(), len_bytes: 8 };
        a.pair.post(Request { id: round, operation, local, signalled: true }).unwrap();
        assert!(matches!(b.wait().outcome, Outcome::Received { .. }), "{round}");
        let operation = Operation::Read { from: b.remote().start, key: b.remote().key };
        let local =
            Local::Registered { region: &b.region, start: b.region.start() + 8, len_bytes: 1 };
        reader.post(Request { id: READ + round, operation, local, signalled: true }).unwrap();
        let read = b.wait();
        assert_eq!((read.id, read.outcome), (READ + round, Outcome::Sent));
        assert_eq!(a.wait().outcome, Outcome::Sent);
    }
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn an_armed_queue_wakes_a_sleeper() {
    let [a, b] = pair();
    let readable = |timeout| {
        let mut polled = [PollFd::new(b.completions.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::try_from(timeout).unwrap()).unwrap() == 1
    };
    for round in 0..3 {
        b.pair.post_receive(round, None).unwrap();
        b.completions.arm().unwrap();
        assert!(!readable(0));
        let operation = Operation::WriteWithImmediate {
            to: b.remote().start,
            key: b.remote().key,
            immediate: 0,
        };
        a.pair.post(Request { id: 0, operation, local: Local::Nothing, signalled: false }).unwrap();
        assert!(readable(60_000));
        b.wait();
    }
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn a_wrong_key_is_refused_by_the_peer() {
    let [a, b] = pair();
    let operation = Operation::Write { to: b.remote().start, key: b.remote().key ^ 0x5500 };
    let local = Local::Registered { region: &a.region, start: a.region.start(), len_bytes: 8 };
    a.pair.post(Request { id: 0, operation, local, signalled: true }).unwrap();
    let said = a.failure("writing");
    assert!(
        said.starts_with("writing over rxe0_0 to rank 1 failed: remote access error"),
        "{said}"
    );
    assert!(said.contains("the peer has not registered that memory"), "{said}");
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn memory_that_was_given_back_is_refused() {
    let [a, b] = pair();
    let remote = b.remote();
    let End { pair: _pair, completions: _completions, region, .. } = b;
    drop(region);
    let operation = Operation::Write { to: remote.start, key: remote.key };
    let local = Local::Registered { region: &a.region, start: a.region.start(), len_bytes: 8 };
    a.pair.post(Request { id: 0, operation, local, signalled: true }).unwrap();
    let said = a.failure("writing");
    assert!(said.contains("remote access error"), "{said}");
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn a_dry_receive_queue_is_an_error_in_the_end() {
    let [a, b] = pair();
    let (to, key) = (b.remote().start, b.remote().key);
    let operation = Operation::WriteWithImmediate { to, key, immediate: 0 };
    a.pair.post(Request { id: 0, operation, local: Local::Nothing, signalled: true }).unwrap();
    let said = a.failure("writing");
    assert!(said.contains("RNR retry counter exceeded"), "{said}");
    assert!(said.contains("the peer has not made room"), "{said}");
    drop(b);
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn a_peer_that_is_gone_is_named() {
    let [a, b] = pair();
    let (to, key) = (b.remote().start, b.remote().key);
    drop(b);
    for id in 0..2 {
        let operation = Operation::Write { to, key };
        a.pair.post(Request { id, operation, local: Local::Nothing, signalled: false }).unwrap();
    }
    let said = a.failure("writing");
    assert!(said.contains("to rank 1 failed: transport retry counter exceeded"), "{said}");
    assert!(said.contains("the peer has stopped answering"), "{said}");
    // What was posted behind it is given up, and says so.
    let next = a.wait();
    assert!(next.id == 1 && next.is_flushed(), "{next:?}");
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn a_queue_pair_that_was_given_up_flushes_its_requests() {
    let [a, _b] = pair();
    a.pair.post_receive(3, None).unwrap();
    a.pair.fail().unwrap();
    let flushed = a.wait();
    assert!(flushed.id == 3 && flushed.is_flushed(), "{flushed:?}");
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn a_full_send_queue_is_an_error() {
    let [a, b] = pair();
    let request = |id| {
        let operation = Operation::Write { to: b.remote().start, key: b.remote().key };
        a.pair.post(Request { id, operation, local: Local::Nothing, signalled: false })
    };
    // Nothing is signalled, so nothing is ever freed. A provider may give more places than were
    // asked for.
    let refused = (0..1 << 16).find_map(|id| request(id).err()).unwrap().to_string();
    assert!(refused.contains("ibv_post_send failed on rxe0_0: "), "{refused}");
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn ranges_and_depths_are_checked() {
    let [a, b] = pair();
    let beyond = b.remote().at(MEMORY_BYTES - 1, 2).unwrap_err().to_string();
    assert!(beyond.contains("2 bytes at offset 65535 are outside of 65536"), "{beyond}");
    let local = Local::Registered {
        region: &a.region,
        start: a.region.start() + 1,
        len_bytes: MEMORY_BYTES,
    };
    let operation = Operation::Write { to: b.remote().start, key: b.remote().key };
    assert!(a.pair.post(Request { id: 0, operation, local, signalled: true }).is_err());
    let long = [0; DEPTH.inline_bytes as usize + 1];
    let local = Local::Inline(&long);
    assert!(a.pair.post(Request { id: 0, operation, local, signalled: true }).is_err());

    let port = port(0);
    let deep = Depth { send: 1 << 30, ..DEPTH };
    let domain = oxccl_transports::rdma::Domain::new(port.device()).unwrap();
    let completions = CompletionQueue::new(port.device(), 8).unwrap();
    let refused =
        oxccl_transports::rdma::QueuePair::new(&port, &domain, &completions, deep).unwrap_err();
    assert!(
        refused.to_string().contains("requests in a queue, 1073741824 are asked for"),
        "{refused}"
    );
    assert!(CompletionQueue::new(port.device(), 1 << 31).is_err());
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn a_range_is_registered_once() {
    let [a, _b] = pair();
    let (start, len_bytes) = (a.region.start() as *mut u8, a.region.len_bytes());
    // SAFETY: a part of memory that is registered, and outlives the registration.
    let part = unsafe { a.domain.register(start.wrapping_add(100), len_bytes - 100) }.unwrap();
    assert!(Arc::ptr_eq(&part, &a.region));
    // SAFETY: mapped by the same allocation's page, or refused.
    let more = unsafe { a.domain.register(start, len_bytes + 1) };
    assert!(more.is_ok_and(|more| !Arc::ptr_eq(&more, &a.region)));
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn ends_that_do_not_fit_are_named() {
    let [mut a, b] = [0, 1].map(|node| End::new(&port(node), DEPTH));
    let mut other = b.pair.address();
    other.port.mtu_bytes = 1024;
    let refused = a
        .pair
        .connect(&other, "rank 1", Patience::default(), Class::default())
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("rxe0_0 has an MTU of 4096 bytes, the peer's rxe1_0 one of 1024"),
        "{refused}"
    );
    other = b.pair.address();
    other.port.kind = LinkKind::InfiniBand;
    let refused = a
        .pair
        .connect(&other, "rank 1", Patience::default(), Class::default())
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("rxe0_0 is a port for RoCE v2, the peer's rxe1_0 one for InfiniBand"),
        "{refused}"
    );
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn a_port_that_is_down_is_named() {
    let device = Device::open("rxe0_0").unwrap();
    link::down(0);
    let down = Port::new(&device, 1, None).unwrap_err().to_string();
    assert!(down.contains("port 1 of rxe0_0 is down"), "{down}");
    let fatal = || device.event().is_some_and(|event| event.fatal);
    assert!(until(LIMIT, fatal), "no event says so");
    link::up(0);
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn several_queue_pairs_carry_at_the_same_time() {
    let mut pairs: Vec<_> = (0..4).map(|_| pair()).collect();
    for (index, [a, b]) in pairs.iter_mut().enumerate() {
        a.fill(|_| index as u8 + 1);
        b.pair.post_receive(0, None).unwrap();
        let (to, key) = (b.remote().start, b.remote().key);
        let operation = Operation::WriteWithImmediate { to, key, immediate: index as u32 };
        let local = Local::Registered {
            region: &a.region,
            start: a.region.start(),
            len_bytes: MEMORY_BYTES,
        };
        a.pair.post(Request { id: 0, operation, local, signalled: true }).unwrap();
    }
    for (index, [a, b]) in pairs.iter().enumerate().rev() {
        let len_bytes = MEMORY_BYTES as u32;
        let expected = Outcome::Received { len_bytes, immediate: Some(index as u32) };
        assert_eq!(b.wait().outcome, expected);
        assert!((0..MEMORY_BYTES).all(|byte| b.byte(byte) == index as u8 + 1));
        assert_eq!(a.wait().outcome, Outcome::Sent);
    }
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn too_little_locked_memory_is_named_with_its_limit() {
    let exe = std::env::current_exe().unwrap();
    // Root may lock what it likes, unless the capability for it is taken away.
    let output = Command::new("prlimit")
        .args(["--memlock=65536", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"])
        .arg(exe)
        .args(["--exact", "process::locked_memory_is_short", "--ignored"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
