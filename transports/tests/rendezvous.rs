//! Joining and leaving when things go wrong: strangers, wrong secrets, ranks that come twice, late
//! or never, and processes that are killed.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use hmac::{Hmac, Mac};
use sha2::Sha256;

use common::{
    Rank, assigned, connect_as, deadline, held, in_shm_threads, server, wait_for_cause, wait_until,
};
use oxccl_transports::rendezvous::{MESSAGE_LIMIT_BYTES, PROTOCOL_VERSION};
use oxccl_transports::{Bootstrap, Cause, Error, Liveness, Secret, ShmBootstrap, UniqueId, shm};

type Joined = thread::JoinHandle<Result<ShmBootstrap, Error>>;

fn join(id: &UniqueId, rank: usize, world: usize) -> Joined {
    join_until(id, rank, world, deadline())
}

fn join_until(id: &UniqueId, rank: usize, world: usize, deadline: Instant) -> Joined {
    let id = id.clone();
    thread::spawn(move || shm::connect(&id, rank, world, deadline))
}

/// An id that nobody serves yet, outside the range from which the system gives ports to others.
fn unserved() -> UniqueId {
    let secret = Secret::random().unwrap();
    let seed = secret.as_bytes();
    let port = 20_000 + u16::from_le_bytes([seed[0], seed[1]]) % 10_000;
    UniqueId::new("127.0.0.1", port, secret)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(500)
}

/// Joins all ranks of a world, lets them exchange something, and closes them in order.
fn works(id: &UniqueId, world: usize) {
    let joined: Vec<_> = (0..world).map(|rank| join(id, rank, world)).collect();
    let finish = |joined: Joined| {
        let mut bootstrap = joined.join().unwrap().unwrap();
        thread::spawn(move || {
            let all = bootstrap.all_gather(&[bootstrap.rank() as u8], deadline()).unwrap();
            assert_eq!(all, (0..world).map(|rank| vec![rank as u8]).collect::<Vec<_>>());
            bootstrap.liveness().close(1);
        })
    };
    let done: Vec<_> = joined.into_iter().map(finish).collect();
    done.into_iter().for_each(|done| done.join().unwrap());
}

fn error(joined: Joined) -> Error {
    joined.join().unwrap().map(drop).unwrap_err()
}

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

fn proven_and_joined(id: &UniqueId, rank: u8, world: u8) -> TcpStream {
    let mut stream = proven(id);
    stream.write_all(&frame(&[&[3, rank, world][..], &[0; 32]].concat())).unwrap();
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

#[test]
fn a_rank_cannot_join_twice() {
    let (id, _server) = server();
    let first = join(&id, 0, 2);
    let twin = join(&id, 0, 2);
    wait_until("one of them is refused", || first.is_finished() || twin.is_finished());
    let (refused, waiting) = if first.is_finished() { (first, twin) } else { (twin, first) };
    assert!(matches!(error(refused), Error::RankTwice { rank: 0 }));
    let second = join(&id, 1, 2).join().unwrap().unwrap();
    let waiting = waiting.join().unwrap().unwrap();
    assert!(matches!(error(join(&id, 1, 2)), Error::RankTwice { rank: 1 }), "also later");
    assert_eq!(second.liveness().cause(), None);
    second.liveness().close(0);
    waiting.liveness().close(0);
}

#[test]
fn worlds_of_two_sizes_fail_everywhere() {
    let (id, _server) = server();
    let [a, b] = [join(&id, 0, 3), join(&id, 1, 4)].map(error);
    for error in [a, b] {
        let sizes = match error {
            Error::WorldMismatch { rank: 1, theirs, ours } => (theirs, ours),
            Error::WorldMismatch { rank: 0, theirs, ours } => (ours, theirs),
            other => panic!("{other}"),
        };
        assert_eq!(sizes, (4, 3));
    }
    let late = error(join(&id, 2, 3));
    assert!(matches!(late, Error::WorldMismatch { .. }), "who comes later hears of it: {late}");
}

#[test]
fn a_rank_is_smaller_than_its_world() {
    let (id, _server) = server();
    for (rank, world) in [(2, 2), (0, 0), (usize::MAX, 1)] {
        let refused = error(join(&id, rank, world));
        assert!(matches!(refused, Error::RankOutOfRange { .. }), "{refused}");
    }
}

#[test]
fn a_rank_that_never_comes_is_named_everywhere() {
    let (id, _server) = server();
    // Only rank 0 is impatient; the others hear from it.
    let patient = [1, 4].map(|rank| join(&id, rank, 5));
    let impatient = error(join_until(&id, 0, 5, Instant::now() + Duration::from_secs(2)));
    for error in patient.map(error).into_iter().chain([impatient]) {
        match error {
            Error::Timeout { missing, .. } => assert_eq!(missing, [2, 3]),
            other => panic!("{other}"),
        }
    }
    match error(join(&id, 2, 5)) {
        Error::Timeout { missing, .. } => assert_eq!(missing, [2, 3], "too late"),
        other => panic!("{other}"),
    }
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

#[test]
fn ranks_may_start_before_the_server() {
    let id = unserved();
    let early = join(&id, 1, 2);
    thread::sleep(Duration::from_millis(200));
    let _server = id.serve().unwrap();
    let late = join(&id, 0, 2);
    for joined in [early, late] {
        joined.join().unwrap().unwrap().liveness().close(0);
    }
}

#[test]
fn no_server_is_an_error_that_says_so() {
    let id = unserved();
    let refused = error(join_until(&id, 0, 1, soon()));
    assert!(matches!(&refused, Error::Unreachable { address, .. } if *address == id.address()));
}

/// A second communicator at the same place, while the first one is not over for all.
#[test]
fn a_rank_that_has_left_waits_for_the_next_server() {
    let id = unserved();
    let server = id.serve().unwrap();
    let [first, second] = [0, 1].map(|rank| join(&id, rank, 2)).map(|j| j.join().unwrap().unwrap());
    second.liveness().close(1);
    drop(second);
    wait_until("the goodbye", || first.liveness().left(1).is_some());
    let again = join(&id, 1, 2);
    thread::sleep(Duration::from_millis(200));
    assert!(!again.is_finished(), "neither refused nor in the old world");
    first.liveness().close(1);
    drop(first);
    drop(server);
    let _server = id.serve().unwrap();
    let first = join(&id, 0, 2).join().unwrap().unwrap();
    first.liveness().close(0);
    again.join().unwrap().unwrap().liveness().close(0);
}

#[test]
fn a_server_that_stops_early_tells_who_waits() {
    let (id, server) = server();
    let waiting = join_until(&id, 1, 2, Instant::now() + Duration::from_secs(3));
    thread::sleep(Duration::from_millis(300));
    drop(server);
    let told = error(waiting);
    // If the rank had not got through by then, nobody was there to tell it.
    assert!(matches!(told, Error::ServerClosed | Error::Unreachable { .. }), "{told}");
}

#[test]
fn a_server_that_leaves_after_its_linger_is_no_death() {
    let (id, server) = server();
    let mut bootstrap = join(&id, 0, 1).join().unwrap().unwrap();
    server.set_linger(Duration::from_millis(10));
    drop(server);
    let ended = |bootstrap: &mut ShmBootstrap| bootstrap.all_gather(&[], deadline());
    assert!(matches!(ended(&mut bootstrap), Err(Error::ServerClosed)));
    assert_eq!(bootstrap.liveness().cause(), None);
}

#[test]
fn a_server_waits_for_goodbyes() {
    let (id, server) = server();
    let [first, second] = [0, 1].map(|rank| join(&id, rank, 2)).map(|j| j.join().unwrap().unwrap());
    server.set_linger(Duration::from_secs(60));
    first.liveness().close(0);
    drop(first);
    let stopped = thread::spawn(move || drop(server));
    thread::sleep(Duration::from_millis(100));
    assert!(!stopped.is_finished(), "rank 1 still runs");
    second.liveness().close(0);
    drop(second);
    stopped.join().unwrap();
}

#[test]
fn a_long_reason_is_cut_and_still_told() {
    let (id, _server) = server();
    let [first, second] = [0, 1].map(|rank| join(&id, rank, 2)).map(|j| j.join().unwrap().unwrap());
    let reason = "é".repeat(2 << 20);
    first.liveness().abort(Cause::Aborted { rank: 0, reason: reason.clone() });
    match wait_for_cause(&second) {
        Cause::Aborted { rank: 0, reason: told } => {
            assert_eq!(told.len(), Cause::TEXT_LIMIT_BYTES);
            assert!(reason.starts_with(&told));
        }
        other => panic!("{other}"),
    }
}

// What follows needs processes.

#[test]
#[ignore = "one rank, started by the other tests"]
fn rank_process() {
    let (case, place) = assigned();
    match case.as_str() {
        "names_the_dead" => names_the_dead(&mut connect_as(&place)),
        "serves" => {
            let _server = place.unique_id.serve().unwrap();
            names_the_dead(&mut connect_as(&place));
        }
        "only_serves" => {
            let _server = place.unique_id.serve().unwrap();
            thread::sleep(Duration::from_secs(300));
        }
        "holds_nothing" => holds_nothing(),
        other => panic!("no case {other}"),
    }
}

/// Waits until it hears of a death, which must be the one that the tests bring about.
fn names_the_dead(bootstrap: &mut ShmBootstrap) {
    let told = wait_for_cause(bootstrap);
    let expected = match bootstrap.world() {
        3 => Cause::Died { rank: 0 },
        _ => Cause::Died { rank: 2 },
    };
    assert_eq!(told, expected);
    match bootstrap.share(&[], deadline()) {
        Err(Error::Stopped(cause)) => assert_eq!(cause, expected),
        other => panic!("{other:?}"),
    }
}

fn start(id: &UniqueId, world: usize, cases: &[(usize, &str)]) -> Vec<Rank> {
    cases.iter().map(|&(rank, case)| Rank::start(id, rank, world, case)).collect()
}

fn succeed(ranks: Vec<Rank>) {
    ranks.into_iter().for_each(|rank| assert!(rank.wait().success()));
}

#[test]
fn a_killed_process_is_named_by_all_survivors() {
    let (id, _server) = server();
    let survivors = start(&id, 4, &[(0, "names_the_dead"), (3, "names_the_dead")]);
    let mut victim = Rank::start(&id, 2, 4, "names_the_dead");
    let mine = join(&id, 1, 4).join().unwrap().unwrap();
    victim.kill();
    assert_eq!(wait_for_cause(&mine), Cause::Died { rank: 2 });
    succeed(survivors);
    assert!(!victim.wait().success());
}

#[test]
fn the_serving_rank_is_named_when_it_is_killed() {
    let id = unserved();
    let mut serving = Rank::start(&id, 0, 3, "serves");
    let survivor = start(&id, 3, &[(1, "names_the_dead")]);
    let mine = join(&id, 2, 3).join().unwrap().unwrap();
    serving.kill();
    assert_eq!(wait_for_cause(&mine), Cause::Died { rank: 0 });
    succeed(survivor);
    assert!(!serving.wait().success());
}

#[test]
fn a_serving_process_without_a_rank_is_the_launcher() {
    let id = unserved();
    let mut launcher = Rank::start(&id, 0, 2, "only_serves");
    let ranks = [0, 1].map(|rank| join(&id, rank, 2)).map(|j| j.join().unwrap().unwrap());
    launcher.kill();
    ranks.iter().for_each(|rank| assert_eq!(wait_for_cause(rank), Cause::ServerLost));
    assert!(!launcher.wait().success());
}

#[test]
fn nothing_is_held_after_the_end() {
    let (id, _server) = server();
    succeed(start(&id, 1, &[(0, "holds_nothing")]));
}

/// In a process of its own, where nobody else opens files: what was open before is open after.
fn holds_nothing() {
    let case = |bootstrap: &mut dyn Bootstrap| {
        let region = std::sync::Arc::new(oxccl_transports::Region::create("test", 4096).unwrap());
        let open = held().0;
        let all = bootstrap.share(&[region], deadline()).unwrap();
        bootstrap.all_gather(&[], deadline()).unwrap();
        assert!(open > 0 && all.iter().flatten().count() == 3);
        bootstrap.liveness().close(0);
    };
    // The first time, the system may open what it keeps.
    in_shm_threads(3, case);
    let before = held();
    in_shm_threads(3, case);
    common::in_local_threads(3, case);
    let (id, server) = server();
    let wrong = UniqueId::new(id.host(), id.port(), Secret::from_bytes([9; 32]));
    assert!(shm::connect(&wrong, 0, 1, deadline()).is_err());
    assert!(shm::connect(&id, 0, 2, soon()).is_err());
    drop(server);
    wait_until("all threads and files to be given back", || held() == before);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("memfd:test"), "no region stays mapped");
}

/// A connection a rank, however many there are, and a message to each for an exchange.
#[test]
fn a_thousand_ranks_meet() {
    const RANKS: usize = 1024;
    // Both ends of each connection are here, and a rank has its own twice.
    if let Err(why) = allow_descriptors(3 * RANKS as u64 + 200) {
        return skip("a_thousand_ranks_meet", &why);
    }
    let (id, _server) = server();
    let (id, start) = (&id, Instant::now());
    let rank = move |rank: usize| {
        let mut bootstrap = shm::connect(id, rank, RANKS, deadline()).unwrap();
        let joined = start.elapsed();
        let all = bootstrap.all_gather(&(rank as u32).to_le_bytes(), deadline()).unwrap();
        let numbers = all.iter().map(|piece| u32::from_le_bytes(piece[..].try_into().unwrap()));
        assert!(numbers.eq(0..RANKS as u32));
        let gathered = start.elapsed();
        let held = if rank == 0 { held().0 } else { 0 };
        bootstrap.all_gather(&[], deadline()).unwrap();
        bootstrap.liveness().close(0);
        (joined, gathered, held)
    };
    let ends: Vec<_> = thread::scope(|scope| {
        let small = || thread::Builder::new().stack_size(256 << 10);
        let spawn = |number| small().spawn_scoped(scope, move || rank(number)).unwrap();
        let ranks: Vec<_> = (0..RANKS).map(spawn).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let (joined, gathered) = (ends.iter().map(|e| e.0).max(), ends.iter().map(|e| e.1).max());
    println!("joined after {joined:?}, gathered after {gathered:?}, {} files", ends[0].2);
    assert!(ends[0].2 < 3 * RANKS + 200, "{} files for {RANKS} ranks", ends[0].2);
}

/// Lets this process open so many files.
fn allow_descriptors(needed: u64) -> Result<(), String> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|error| error.to_string())?;
    if hard < needed {
        return Err(format!("needs {needed} open files, the limit is {hard}"));
    }
    let raised = setrlimit(Resource::RLIMIT_NOFILE, soft.max(needed), hard);
    raised.map_err(|error| error.to_string())
}

/// Past the harness, which keeps what tests print.
fn skip(name: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}

/// `Liveness` can be kept longer than what feeds it.
#[test]
fn liveness_outlives_its_bootstrap() {
    let (id, _server) = server();
    let bootstrap = join(&id, 0, 1).join().unwrap().unwrap();
    let liveness: std::sync::Arc<Liveness> = bootstrap.liveness();
    drop(bootstrap);
    assert_eq!(liveness.cause(), None, "its own end is no news");
    liveness.abort(Cause::Aborted { rank: 0, reason: "late".to_owned() });
    assert!(liveness.cause().is_some());
}
