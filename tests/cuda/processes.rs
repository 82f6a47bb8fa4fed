//! Processes that run this test program again: with the stand-in in libcuda's place, or on the
//! machine's GPUs.

use oxccl::{Communicator, UniqueId};
use oxccl_cuda_stand_in::control::{Control, Live, library_folder};
use oxccl_transports::{Bootstrap, Environment, local, shm};
use std::process::{Child, Command, Stdio};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

const CASE: &str = "OXCCL_TEST_CASE";
const THREADS: &str = "OXCCL_TEST_THREADS";

/// Set to 1, the cases run on the machine's GPUs, with the kernels that were built in, instead of
/// on the stand-in.
const HARDWARE: &str = "OXCCL_TEST_HARDWARE";

/// Set to a number, processes have so many connections to a GPU, but where a case is about another
/// number.
const CONNECTIONS: [&str; 2] = ["OXCCL_TEST_CONNECTIONS", "CUDA_DEVICE_MAX_CONNECTIONS"];

/// Connections that a case needs, whose ranks are threads that launch by themselves: with fewer it
/// must end by the error that says so.
const NEEDED: &str = "OXCCL_TEST_CONNECTIONS_NEEDED";

/// So many.
pub(crate) const fn needs(connections: &'static str) -> (&'static str, &'static str) {
    (NEEDED, connections)
}

/// Where a case can run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    /// On any GPU.
    Anything,
    /// It needs failures, or GPUs that cannot do something, on demand.
    StandIn,
}

pub(crate) fn on_hardware() -> bool {
    std::env::var(HARDWARE).is_ok_and(|value| value == "1")
}

/// Ends this process without a goodbye, though with a status that its parent takes for success.
pub(crate) fn die() -> ! {
    // SAFETY: it needs nothing; handlers of the process' end, which would say goodbye, do not run.
    unsafe { libc::_exit(0) }
}

/// Asserts that nothing of the driver's is alive, where that can be asked.
pub(crate) fn nothing_is_left() {
    if !on_hardware() {
        assert_eq!(Control::attach().unwrap().live(), Live::default(), "all is given back");
    }
}

/// Only a hang reaches it.
pub(crate) fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Makes one process hold several ranks, as threads.
pub(crate) fn threads(count: &'static str) -> (&'static str, &'static str) {
    (THREADS, count)
}

/// Runs a case in so many processes, all of which must succeed. Each runs `entry`, an ignored test
/// of this program.
pub(crate) fn run(case: &str, entry: &str, on: On, processes: usize, settings: &[(&str, &str)]) {
    if on_hardware() && on == On::StandIn {
        use std::io::Write;
        let why = "hardware does not fail on demand";
        // Past the harness, which would keep it to itself.
        let _ = writeln!(std::io::stderr(), "skipped: {case}: {why}");
        return;
    }
    let (id, _server) = UniqueId::create().unwrap();
    all_succeed(case, entry, settings, processes, |rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .env("OXCCL_RANK", rank.to_string())
            .env("OXCCL_WORLD_SIZE", processes.to_string())
            .env("OXCCL_UNIQUE_ID", id.to_string());
        command
    });
}

/// Runs a case in two processes on the stand-in, one on each node of the software RoCE guest, as
/// torchrun would start them.
pub(crate) fn run_on_nodes(case: &str, entry: &str, settings: &[(&str, &str)]) {
    all_succeed(case, entry, settings, 2, |rank| {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &format!("node{rank}")])
            .arg(std::env::current_exe().unwrap())
            .envs([("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29770"), ("WORLD_SIZE", "2")])
            .envs([("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")])
            .env("RANK", rank.to_string());
        command
    });
}

/// Starts processes by `program`, which is given the arguments of this one and what tells it the
/// case.
fn all_succeed(
    case: &str,
    entry: &str,
    settings: &[(&str, &str)],
    processes: usize,
    program: impl Fn(usize) -> Command,
) {
    let setting = |name| settings.iter().find(|(its, _)| *its == name).map(|(_, value)| *value);
    let own = setting(CONNECTIONS[1]).map(str::to_owned);
    let wished = std::env::var(CONNECTIONS[0]).ok();
    // What a case says, but for those that only want enough of them.
    let connections = own.filter(|own| own != crate::MANY.1 || wished.is_none()).or(wished);
    let number = |text: &str| text.parse::<usize>().unwrap();
    let available = connections.as_deref().map_or(8, number);
    let refused = setting(NEEDED).is_some_and(|needed| available < number(needed));
    let start = |rank: usize| {
        let mut command = program(rank);
        command
            .args(["--exact", entry, "--ignored", "--nocapture", "--test-threads=1"])
            .env(CASE, case)
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if let Some(connections) = &connections {
            command.env(CONNECTIONS[1], connections);
        }
        if refused {
            command.stderr(Stdio::piped());
        }
        if !on_hardware() {
            command.env("LD_LIBRARY_PATH", library_folder().unwrap());
        }
        Ended(command.spawn().unwrap())
    };
    let mut children: Vec<_> = (0..processes).map(start).collect();
    for (rank, child) in children.iter_mut().enumerate() {
        let status = child.wait();
        let said = child.said();
        let told =
            ["TooManyStreams", "TooFewConnections", "CUDA_DEVICE_MAX_CONNECTIONS (at most 32)"];
        let as_expected = match refused {
            true => told.iter().any(|told| said.contains(told)),
            false => status.success(),
        };
        assert!(as_expected, "process {rank} of {case} with {settings:?}: {status} {said}");
    }
}

/// Killed if it is dropped while it runs.
struct Ended(Child);

impl Ended {
    /// What it has written, if that is looked at.
    fn said(&mut self) -> String {
        let errors = self.0.stderr.take();
        errors.map_or(String::new(), |errors| std::io::read_to_string(errors).unwrap())
    }

    fn wait(&mut self) -> std::process::ExitStatus {
        // Longer than what the process itself grants.
        let deadline = Instant::now() + Duration::from_secs(600);
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "a process hangs");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This process' case.
pub(crate) fn case() -> String {
    std::env::var(CASE).expect("started by another test, not by hand")
}

/// Runs a case on this process' rank, or on its ranks.
pub(crate) fn each_rank(case: fn(&mut dyn Bootstrap)) {
    let Some(threads) = thread_count() else {
        let place = Environment::from_lookup(|name| std::env::var_os(name), 0).unwrap();
        let connected = shm::connect(&place.unique_id, place.rank, place.world, deadline());
        return case(&mut connected.unwrap());
    };
    let ranks = local(threads).into_iter();
    let threads: Vec<_> =
        ranks.map(|mut rank| std::thread::spawn(move || case(&mut rank))).collect();
    let ends: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
    assert!(ends.iter().all(Result::is_ok), "a rank failed");
}

/// Runs a case on this process' communicator, or on each of its threads'.
pub(crate) fn each_communicator(case: fn(Communicator)) {
    let config = crate::calls::config();
    let Some(threads) = thread_count() else {
        return case(Communicator::from_env_with(&config).unwrap());
    };
    let ranks = Communicator::local_with(threads, &config).unwrap().into_iter();
    let threads: Vec<_> = ranks.map(|rank| std::thread::spawn(move || case(rank))).collect();
    let ends: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
    assert!(ends.iter().all(Result::is_ok), "a rank failed");
    nothing_is_left();
}

/// Whether this process has all ranks.
pub(crate) fn is_local() -> bool {
    thread_count().is_some()
}

fn thread_count() -> Option<usize> {
    std::env::var(THREADS).ok().and_then(|count| count.parse().ok())
}

/// Waits for the other ranks of this process, not by a kernel: what makes a graph ready may wait
/// for the kernels of all.
pub(crate) fn line_up() {
    static LINE: OnceLock<Barrier> = OnceLock::new();
    LINE.get_or_init(|| Barrier::new(thread_count().unwrap_or(1))).wait();
}

/// Waits for all ranks.
pub(crate) fn meet(bootstrap: &mut dyn Bootstrap) {
    bootstrap.all_gather(&[], deadline()).unwrap();
}
