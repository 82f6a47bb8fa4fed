//! Whatever one rank calls otherwise than the others is an error on every rank, which names that
//! rank and what differs: for each argument, in blocking calls, on streams and in groups, among
//! threads, processes and nodes; also where nobody waits. So it is where the rank dies, is stopped
//! or is cut off. Then the others go on without it, and no process holds more than it did before.
#![allow(clippy::unwrap_used)]

#[path = "mismatches/cell.rs"]
mod cell;
#[path = "common/held.rs"]
mod held;

use cell::{CELLS, Cell, LONG, ODD, Outcome, Place, RANKS, WAYS, Way};
use oxccl::{Communicator, Config, UniqueId};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// By which a child process knows its rank.
const RANK: &str = "MISMATCHES_TEST_RANK";
/// And where the ranks are.
const PLACE: &str = "MISMATCHES_TEST_PLACE";
/// What a child's lines begin with.
const RESULT: &str = "result of the cell: ";
/// What is told of a process that holds more than before begins with.
const LEFT: &str = "left behind: ";
/// So many cells of a place at once.
const AT_ONCE: usize = 4;

fn config(place: Place) -> Config {
    let nodes = (place == Place::Nodes).then_some(RANKS);
    Config { timeout: LONG, nodes, heap_bytes: 1 << 20, max_channels: 2, ..Config::default() }
}

/// Runs the cells of a place, several at once since most of their time is waiting, and says which
/// did not end as they must. Each thread runs its cells by what `worker` makes.
fn check<Run: FnMut(&Cell, Way) -> Vec<Outcome>>(place: Place, worker: impl Fn() -> Run + Sync) {
    let cells: Vec<_> = CELLS.iter().flat_map(|cell| WAYS.map(|way| (cell, way))).collect();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        let mut run = worker();
        while let Some((cell, way)) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some(expected) = cell.expected(*way, place) else { continue };
            for (rank, outcome) in run(cell, *way).into_iter().enumerate() {
                let left = outcome.as_ref().is_err_and(|text| text.starts_with(LEFT));
                let may = rank == ODD && cell.fails() && outcome.is_err() && !left;
                if !may && !expected.fits(&outcome) {
                    let name = cell.name;
                    let text =
                        format!("{name}, {way:?}, rank {rank}: {outcome:?}, not {expected:?}");
                    wrong.lock().unwrap().push(text);
                }
            }
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let wrong = wrong.into_inner().unwrap();
    assert!(
        wrong.is_empty(),
        "{place:?}: {} outcomes are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn among_threads() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "all_threads", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}

#[test]
#[ignore = "the process of another test, which counts what it holds"]
fn all_threads() {
    let before = held::shared();
    check(Place::Threads, || {
        |cell: &Cell, way| {
            let ranks = Communicator::local_with(RANKS, &config(Place::Threads)).unwrap();
            std::thread::scope(|scope| {
                let run = |comm| scope.spawn(move || cell.run(comm, way, Place::Threads));
                let threads: Vec<_> = ranks.into_iter().map(run).collect();
                let ended = threads.into_iter().map(|thread| thread.join());
                ended.map(|ended| ended.unwrap_or(Err("it panicked".into()))).collect()
            })
        }
    });
    nothing_is_left(before).unwrap();
}

/// Fails if this process goes on holding more than it did before a cell.
fn nothing_is_left(before: [usize; 3]) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let now = held::shared();
        if now.iter().zip(before).all(|(now, before)| *now <= before) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{LEFT}{before:?} descriptors, threads, mappings became {now:?}"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A process with one rank, which is told cell by cell where to meet.
struct Process {
    rank: usize,
    place: Place,
    child: Child,
    results: BufReader<ChildStdout>,
}

impl Process {
    fn start(rank: usize, place: Place) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "one_process", "--ignored", "--nocapture"])
            .env(RANK, rank.to_string())
            .env(PLACE, format!("{place:?}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let results = BufReader::new(child.stdout.take().unwrap());
        Process { rank, place, child, results }
    }

    /// In a new process, where the last one has died.
    fn begin(&mut self, id: &UniqueId, cell: &Cell, way: Way) {
        if self.child.try_wait().unwrap().is_some() {
            *self = Process::start(self.rank, self.place);
        }
        writeln!(self.child.stdin.as_mut().unwrap(), "{id} {} {way:?}", cell.name).unwrap();
    }

    fn end(&mut self) -> Outcome {
        let mut line = String::new();
        while self.results.read_line(&mut line).unwrap() > 0 {
            if let Some(result) = line.strip_prefix(RESULT) {
                let (kind, text) = result.trim_end().split_at(1);
                return if kind == "+" { Ok(()) } else { Err(text.into()) };
            }
            line.clear();
        }
        let ended = self.child.wait().unwrap();
        Err(format!("its process ended: {ended}"))
    }

    fn wake(&self) {
        // SAFETY: it sends a signal to a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, libc::SIGCONT) }, 0);
    }
}

impl Drop for Process {
    /// Lets it end, and waits for that.
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let ended = self.child.wait().unwrap();
        // Or it died in its last cell.
        assert!(std::thread::panicking() || ended.success() || ended.code() == Some(9));
    }
}

fn check_processes(place: Place) {
    check(place, || {
        let mut ranks: Vec<_> = (0..RANKS).map(|rank| Process::start(rank, place)).collect();
        move |cell: &Cell, way| {
            let (id, _server) = UniqueId::create().unwrap();
            ranks.iter_mut().for_each(|process| process.begin(&id, cell, way));
            let end = |process: &mut Process| {
                if process.rank == ODD && cell.stops() {
                    process.wake();
                }
                process.end()
            };
            ranks.iter_mut().map(end).collect()
        }
    });
}

#[test]
fn among_processes() {
    check_processes(Place::Processes);
}

#[test]
fn among_nodes() {
    check_processes(Place::Nodes);
}

#[test]
#[ignore = "a rank of another test"]
fn one_process() {
    let variable = |name| std::env::var(name).unwrap();
    let rank = variable(RANK).parse().unwrap();
    let places = [Place::Processes, Place::Nodes];
    let place = places.into_iter().find(|one| format!("{one:?}") == variable(PLACE)).unwrap();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let [id, name, way] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let cell = CELLS.iter().find(|cell| cell.name == name).unwrap();
        let way = WAYS.into_iter().find(|one| format!("{one:?}") == way).unwrap();
        let id = id.parse().unwrap();
        let before = held::shared();
        let comm = Communicator::connect(&id, rank, RANKS, &config(place)).unwrap();
        let outcome = cell.run(comm, way, place);
        // What is left is told instead of what came of the cell, which may be as it must.
        let outcome = nothing_is_left(before).and(outcome);
        let outcome = outcome.map_or_else(|text| format!("-{text}"), |()| "+".into());
        println!("\n{RESULT}{}", outcome.replace('\n', " "));
    }
}
