//! What a process that a rank has forked can do to it: nothing, neither while the rank lives nor
//! when it dies.
#![allow(clippy::unwrap_used)]

use oxccl::{
    Collectives, Communicator, Config, Error, HostBuffer, ReduceOp, Stream, UniqueId, Work,
};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const COUNT: usize = 1 << 16;

fn config(nodes: usize) -> Config {
    let timeout = Duration::from_secs(120);
    Config { timeout, nodes: Some(nodes), heap_bytes: 64 << 20, ..Config::default() }
}

/// What the child has of its parent's.
struct Copies<S> {
    comm: Communicator,
    stream: Stream,
    sum: HostBuffer<f32>,
    work: Work,
    server: S,
}

/// What the child does: it uses everything, and drops it. Whether it was refused as it should be.
fn is_refused<S>(copies: Copies<S>) -> bool {
    fn is_forked<T>(result: Result<T, Error>) -> bool {
        matches!(result, Err(error @ Error::Forked) if error.to_string().contains("forked"))
    }
    let Copies { mut comm, stream, sum, work, server } = copies;
    let mut data = [1.0f32; 8];
    let refused = [
        is_forked(comm.barrier()),
        is_forked(comm.all_reduce_in_place(&mut data, ReduceOp::Sum)),
        is_forked(comm.alloc_host::<f32>(8)),
        is_forked(comm.set_timeout(Duration::from_secs(1))),
        is_forked(
            comm.group(|group| group.all_reduce_in_place(&mut data, ReduceOp::Sum).map(drop)),
        ),
        is_forked(comm.on(&stream).barrier()),
        is_forked(work.wait()),
    ];
    let seen = (comm.rank(), comm.world_size(), comm.nodes()) == (0, 2, 1);
    drop((sum, stream, comm, server));
    // It can be a rank of its own.
    let own = Communicator::local_with(1, &config(1)).unwrap().pop().unwrap();
    let mut value = own.alloc_host::<f32>(1).unwrap();
    value.fill(2.0);
    own.all_reduce_in_place(&mut value, ReduceOp::Sum).unwrap();
    seen && value[0] == 2.0 && refused == [true; 7]
}

#[test]
fn a_forked_child_neither_uses_nor_closes_its_parents_communicator() {
    let (id, server) = UniqueId::create().unwrap();
    let met = Barrier::new(2);
    let start = |rank| {
        let comm = Communicator::connect(&id, rank, 2, &config(1)).unwrap();
        let mut sum = comm.alloc_host::<f32>(COUNT).unwrap();
        sum.fill(1.0);
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
        (comm, sum)
    };
    let end = |comm: &Communicator, sum: &mut HostBuffer<f32>| {
        comm.all_reduce_in_place(sum, ReduceOp::Sum).unwrap();
        assert!(sum.iter().all(|value| *value == 4.0));
        comm.barrier().unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (comm, mut sum) = start(1);
            met.wait();
            comm.barrier().unwrap();
            end(&comm, &mut sum);
        });
        scope.spawn(|| {
            let (comm, mut sum) = start(0);
            let stream = Stream::new().unwrap();
            // It waits for the other rank while the process forks.
            let work = comm.on(&stream).barrier().unwrap();
            // SAFETY: the child has this thread alone. What it calls refuses it before it waits for
            // another; then it ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let copies = Copies { comm, stream, sum, work, server };
                let right = catch_unwind(AssertUnwindSafe(|| is_refused(copies))).unwrap_or(false);
                // SAFETY: ends the child, without what its parent does at its end.
                unsafe { libc::_exit(if right { 0 } else { 1 }) }
            }
            let mut status = -1;
            // SAFETY: waits for the child, and writes its status.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0, "the child was not refused");
            met.wait();
            work.wait().unwrap();
            end(&comm, &mut sum);
            drop((comm, server));
        });
    });
}

/// Under which names rank 1, this program once more, is told where to meet, on how many nodes, and
/// how it forks.
const MEETING: &str = "FORKED_TEST_UNIQUE_ID";
const NODES: &str = "FORKED_TEST_NODES";
const BY: &str = "FORKED_TEST_BY";

#[test]
#[ignore = "rank 1 of the other tests"]
fn rank_1() {
    let told = |name| std::env::var(name).unwrap();
    let (id, nodes) = (told(MEETING).parse().unwrap(), told(NODES).parse().unwrap());
    let comm = Communicator::connect(&id, 1, 2, &config(nodes)).unwrap();
    comm.barrier().unwrap();
    // SAFETY: the child has this thread alone, and does nothing with it.
    let child = unsafe {
        match &*told(BY) {
            "fork" => i64::from(libc::fork()),
            // Past the C library, which would tell.
            _ => {
                let (flags, none) = (libc::c_long::from(libc::SIGCHLD), 0 as libc::c_long);
                libc::syscall(libc::SYS_clone, flags, none, none, none, none)
            }
        }
    };
    if child == 0 {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    assert!(child > 0);
    while comm.barrier().is_ok() {}
}

/// Rank 1 forks a process that lives on with all of its sockets, and is killed.
fn killed(nodes: usize, by: &str) {
    let (id, _server) = UniqueId::create().unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "rank_1", "--ignored"])
        .envs([(MEETING, id.to_string()), (NODES, nodes.to_string()), (BY, by.to_owned())])
        .process_group(0)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let comm = Communicator::connect(&id, 0, 2, &config(nodes)).unwrap();
    (0..3).for_each(|_| comm.barrier().unwrap());
    other.kill().unwrap();
    let killed = Instant::now();
    let error = std::iter::repeat_with(|| comm.barrier()).find_map(Result::err).unwrap();
    let noticed = killed.elapsed();
    println!("{nodes} nodes, {by}: after {noticed:?}: {error}");
    // SAFETY: ends what rank 1 has forked: its process group is its own.
    unsafe { libc::kill(-(other.id() as i32), libc::SIGKILL) };
    other.wait().unwrap();
    assert!(matches!(error, Error::Died { rank: 1, .. }), "{error}");
    // Two seconds, and what a busy machine adds: far from the time-out.
    assert!(noticed < Duration::from_secs(60), "{noticed:?}");
}

#[test]
fn a_rank_that_forked_and_died_is_named() {
    killed(1, "fork");
}

#[test]
fn a_rank_of_another_node_that_forked_and_died_is_named() {
    killed(2, "fork");
}

/// Its child keeps the sockets, but its process has ended.
#[test]
fn a_rank_that_made_a_child_by_itself_and_died_is_named() {
    killed(1, "clone");
}
