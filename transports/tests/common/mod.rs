//! Ranks for the tests: threads of this process, or processes that run this test binary again.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test binary uses its part"
)]

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use oxccl_transports::rendezvous::Server;
use oxccl_transports::{
    Bootstrap, Cause, Environment, LocalBootstrap, Nodes, Seat, ShmBootstrap, Side, UniqueId,
    local_on, shm,
};

/// Long enough for a loaded machine; only a hang reaches it.
pub fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Waits until it holds, and fails if that takes too long.
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = deadline();
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

pub fn wait_for_cause(bootstrap: &dyn Bootstrap) -> Cause {
    let liveness = bootstrap.liveness();
    let word = liveness.abort_word();
    wait_until("a cause", || word.load(std::sync::atomic::Ordering::Acquire) != 0);
    liveness.cause().expect("the word comes with a cause")
}

/// A case: what every rank does. It ends by closing or by what it tests.
pub type Case = fn(&mut dyn Bootstrap);

pub fn in_threads<B: Bootstrap + 'static>(
    ranks: Vec<impl FnOnce() -> B + Send + 'static>,
    case: Case,
) {
    let start = |rank: (usize, _)| {
        let (number, connect): (usize, Box<dyn FnOnce() -> B + Send>) = rank;
        let name = format!("rank {number}");
        let run = move || case(&mut connect());
        thread::Builder::new().name(name).spawn(run).unwrap()
    };
    let ranks = ranks.into_iter().map(|r| Box::new(r) as Box<dyn FnOnce() -> B + Send>);
    let threads: Vec<_> = ranks.enumerate().map(start).collect();
    let ends: Vec<_> = threads.into_iter().map(thread::JoinHandle::join).collect();
    assert!(ends.iter().all(Result::is_ok), "a rank failed");
}

pub fn in_local_threads(world: usize, case: Case) {
    in_local_threads_on(world, 1, case);
}

/// On so many nodes, or on fewer if there are not as many ranks.
pub fn in_local_threads_on(world: usize, nodes: usize, case: Case) {
    let connect = |bootstrap: LocalBootstrap| move || bootstrap;
    let nodes = Nodes::blocks(world, nodes);
    in_threads(local_on(&nodes).into_iter().map(connect).collect(), case);
}

pub fn in_shm_threads(world: usize, case: Case) {
    in_shm_threads_on(world, 1, case);
}

/// On so many nodes, or on fewer if there are not as many ranks.
pub fn in_shm_threads_on(world: usize, nodes: usize, case: Case) {
    raise_descriptors();
    let (id, _server) = UniqueId::create().unwrap();
    let id = Arc::new(id);
    let connect = |rank: usize| {
        let id = id.clone();
        let seat = Seat::on_part(rank, world, nodes);
        move || {
            let bootstrap = shm::connect_as(&id, seat, deadline()).unwrap();
            assert_eq!(bootstrap.nodes(), &Nodes::blocks(world, nodes));
            bootstrap
        }
    };
    in_threads((0..world).map(connect).collect(), case);
}

/// In two parts of twice as many ranks, each of so many, and one rank that is in none, when the
/// world has been left.
pub fn in_local_parts(world: usize, case: Case) {
    let nodes = Nodes::blocks(2 * world + 1, 2);
    let connect = |bootstrap: LocalBootstrap| move || part_of(bootstrap);
    in_parts(local_on(&nodes).into_iter().map(connect).collect(), case);
}

/// The same with processes' transport.
pub fn in_shm_parts(world: usize, case: Case) {
    raise_descriptors();
    let (id, _server) = UniqueId::create().unwrap();
    let (id, all) = (Arc::new(id), 2 * world + 1);
    let connect = |rank: usize| {
        let id = id.clone();
        let seat = Seat::on_part(rank, all, 2);
        move || part_of(shm::connect_as(&id, seat, deadline()).unwrap())
    };
    in_parts((0..all).map(connect).collect(), case);
}

fn part_of(mut whole: impl Bootstrap) -> Option<Box<dyn Bootstrap>> {
    let rank = whole.rank();
    let color = (rank + 1 < whole.world()).then_some(rank as u32 % 2);
    let side = Side { color, key: rank as i64 / 2 };
    let part = whole.split(side, &[rank as u8], deadline()).unwrap();
    whole.liveness().close(0);
    let part = part?;
    assert_eq!(part.ranks[part.bootstrap.rank()], rank);
    let told: Vec<_> = part.ranks.iter().map(|&rank| [rank as u8]).collect();
    assert_eq!(part.told, told);
    Some(part.bootstrap)
}

/// Among those who survive a rank's death.
pub fn in_local_survivors(world: usize, case: Case) {
    let connect = |bootstrap: LocalBootstrap| move || survivor(bootstrap);
    in_parts(local_on(&Nodes::blocks(world + 1, 2)).into_iter().map(connect).collect(), case);
}

/// The same with processes' transport.
pub fn in_shm_survivors(world: usize, case: Case) {
    raise_descriptors();
    let (id, _server) = UniqueId::create().unwrap();
    let id = Arc::new(id);
    let connect = |rank: usize| {
        let id = id.clone();
        let seat = Seat::on_part(rank, world + 1, 2);
        move || survivor(shm::connect_as(&id, seat, deadline()).unwrap())
    };
    in_parts((0..=world).map(connect).collect(), case);
}

/// The rank in the middle dies, while others wait.
fn survivor(mut whole: impl Bootstrap) -> Option<Box<dyn Bootstrap>> {
    let (rank, dead) = (whole.rank(), whole.world() / 2);
    if rank == dead {
        return None;
    }
    whole.all_gather(&[], deadline()).unwrap_err();
    assert!(matches!(wait_for_cause(&whole), Cause::Died { rank } if rank == dead));
    let others: Vec<usize> = (0..whole.world()).filter(|other| *other != dead).collect();
    let part = whole.shrink(&others, &[rank as u8], deadline()).unwrap();
    let told: Vec<_> = others.iter().map(|&rank| vec![rank as u8]).collect();
    assert_eq!((part.ranks, part.told), (others, told));
    Some(part.bootstrap)
}

fn in_parts(ranks: Vec<impl FnOnce() -> Option<Box<dyn Bootstrap>> + Send + 'static>, case: Case) {
    let start = |connect| {
        let connect: Box<dyn FnOnce() -> Option<Box<dyn Bootstrap>> + Send> = connect;
        thread::spawn(move || {
            if let Some(mut part) = connect() {
                case(&mut *part);
            }
        })
    };
    let threads: Vec<_> = ranks.into_iter().map(|rank| start(Box::new(rank))).collect();
    let ends: Vec<_> = threads.into_iter().map(thread::JoinHandle::join).collect();
    assert!(ends.iter().all(Result::is_ok), "a rank failed");
}

/// Threads' descriptors are one process's, and processes' on their way one user's: more than users
/// have by default, fewer than they may ask for.
fn raise_descriptors() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
}

/// Runs a case in processes, which must succeed.
pub fn in_processes(world: usize, case: &str) {
    raise_descriptors();
    let (id, _server) = UniqueId::create().unwrap();
    let children: Vec<_> = (0..world).map(|rank| Rank::start(&id, rank, world, case)).collect();
    for (rank, child) in children.into_iter().enumerate() {
        let status = child.wait();
        assert!(status.success(), "rank {rank} of {world} in {case}: {status}");
    }
}

/// Runs a case in processes that take the stand-in for libcuda, with these settings of it.
pub fn in_cuda_processes(world: usize, case: &str, settings: &[(&str, &str)]) {
    let (id, _server) = UniqueId::create().unwrap();
    let folder = oxccl_cuda_stand_in::control::library_folder().unwrap();
    let mut variables = vec![("LD_LIBRARY_PATH", folder.to_str().unwrap())];
    variables.extend_from_slice(settings);
    let start = |rank| Rank::start_with(&id, rank, world, case, &variables);
    let children: Vec<_> = (0..world).map(start).collect();
    for (rank, child) in children.into_iter().enumerate() {
        let status = child.wait();
        assert!(status.success(), "rank {rank} of {world} in {case} with {settings:?}: {status}");
    }
}

const CASE: &str = "OXCCL_TEST_CASE";

/// A process that runs one rank; killed if it is dropped while it runs.
pub struct Rank(Option<Child>);

impl Rank {
    pub fn start(id: &UniqueId, rank: usize, world: usize, case: &str) -> Rank {
        Rank::start_with(id, rank, world, case, &[])
    }

    /// With these variables besides.
    pub fn start_with(
        id: &UniqueId,
        rank: usize,
        world: usize,
        case: &str,
        variables: &[(&str, &str)],
    ) -> Rank {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "rank_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(CASE, case)
            .env("OXCCL_RANK", rank.to_string())
            .env("OXCCL_WORLD_SIZE", world.to_string())
            .env("OXCCL_UNIQUE_ID", id.to_string())
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Rank(Some(command.spawn().unwrap()))
    }

    pub fn kill(&mut self) {
        self.0.as_mut().unwrap().kill().unwrap();
    }

    pub fn wait(mut self) -> ExitStatus {
        let mut child = self.0.take().unwrap();
        let deadline = deadline();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > deadline {
                self.0 = Some(child);
                panic!("a rank's process hangs");
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The name of this process' case, and its place.
pub fn assigned() -> (String, Environment) {
    let case = std::env::var(CASE).expect("started by another test, not by hand");
    let place = Environment::from_lookup(|name| std::env::var_os(name), 0).unwrap();
    (case, place)
}

pub fn connect_as(place: &Environment) -> ShmBootstrap {
    shm::connect(&place.unique_id, place.rank, place.world, deadline()).unwrap()
}

/// Descriptors and threads of this process.
pub fn held() -> (usize, usize) {
    let count = |folder| std::fs::read_dir(folder).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

pub fn server() -> (UniqueId, Server) {
    UniqueId::create().unwrap()
}
