//! Whatever one rank calls otherwise than the others is an error on every rank, which names that
//! rank and what differs: for each argument, in blocking calls, on streams and in groups, among
//! threads, processes and nodes; also where nobody waits.
#![allow(clippy::unwrap_used)]

#[path = "mismatches/cell.rs"]
mod cell;

use cell::{CELLS, Cell, Outcome, Place, RANKS, WAYS, Way};
use oxccl::{Communicator, Config, UniqueId};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// By which a child process knows its rank.
const RANK: &str = "MISMATCHES_TEST_RANK";
/// What a child's lines begin with.
const RESULT: &str = "result of the cell: ";
/// So many cells of a place at once.
const AT_ONCE: usize = 4;

fn config(place: Place) -> Config {
    let nodes = (place == Place::Nodes).then_some(RANKS);
    let timeout = Duration::from_secs(60);
    Config { timeout, nodes, heap_bytes: 1 << 20, max_channels: 2, ..Config::default() }
}

/// Runs what ranks do on a thread each.
fn in_threads(ranks: Vec<Communicator>, cell: &Cell, way: Way) -> Vec<Outcome> {
    std::thread::scope(|scope| {
        let threads = ranks.into_iter().map(|comm| scope.spawn(move || cell.run(comm, way)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
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
                if !expected.fits(&outcome) {
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
    check(Place::Threads, || {
        |cell: &Cell, way| {
            in_threads(Communicator::local_with(RANKS, &config(Place::Threads)).unwrap(), cell, way)
        }
    });
}

#[test]
fn among_nodes() {
    check(Place::Nodes, || {
        |cell: &Cell, way| {
            let (id, _server) = UniqueId::create().unwrap();
            let connect =
                |rank| Communicator::connect(&id, rank, RANKS, &config(Place::Nodes)).unwrap();
            let ranks = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..RANKS).map(|rank| scope.spawn(move || connect(rank))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            in_threads(ranks, cell, way)
        }
    });
}

/// A process with one rank, which is told cell by cell where to meet.
struct Process {
    child: Child,
    results: BufReader<ChildStdout>,
}

impl Process {
    fn start(rank: usize) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "one_process", "--ignored", "--nocapture"])
            .env(RANK, rank.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let results = BufReader::new(child.stdout.take().unwrap());
        Process { child, results }
    }

    fn begin(&mut self, id: &UniqueId, cell: &Cell, way: Way) {
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
        panic!("a process ended without a result");
    }
}

impl Drop for Process {
    /// Lets it end, and waits for that.
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let ended = self.child.wait();
        assert!(std::thread::panicking() || ended.unwrap().success());
    }
}

#[test]
fn among_processes() {
    check(Place::Processes, || {
        let mut processes: Vec<Process> = (1..RANKS).map(Process::start).collect();
        move |cell: &Cell, way| {
            let (id, _server) = UniqueId::create().unwrap();
            processes.iter_mut().for_each(|process| process.begin(&id, cell, way));
            let comm = Communicator::connect(&id, 0, RANKS, &config(Place::Processes)).unwrap();
            let own = cell.run(comm, way);
            std::iter::once(own).chain(processes.iter_mut().map(Process::end)).collect()
        }
    });
}

#[test]
#[ignore = "a rank of another test"]
fn one_process() {
    let rank = std::env::var(RANK).unwrap().parse().unwrap();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let [id, name, way] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let cell = CELLS.iter().find(|cell| cell.name == name).unwrap();
        let way = WAYS.into_iter().find(|one| format!("{one:?}") == way).unwrap();
        let config = config(Place::Processes);
        let comm = Communicator::connect(&id.parse().unwrap(), rank, RANKS, &config).unwrap();
        let outcome = cell.run(comm, way).map_or_else(|text| format!("-{text}"), |()| "+".into());
        println!("\n{RESULT}{}", outcome.replace('\n', " "));
    }
}
