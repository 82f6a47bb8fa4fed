//! What is seen of ranks: from outside while they run, in the files that they leave, and by how
//! long their calls take.
#![allow(clippy::unwrap_used)]

use oxccl::status::{self, Found, ProcessState, RankSeen, Snapshot, WaitFor};
use oxccl::{Collectives, Communicator, Config, Error, ReduceOp, UniqueId};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Threads, processes, and processes of two nodes.
const PLACES: [usize; 3] = [0, 1, 2];
/// How long something that happens soon may take on a busy machine.
const SOON: Duration = Duration::from_secs(60);

fn config() -> Config {
    Config { timeout: SOON, heap_bytes: 1 << 20, max_channels: 2, ..Config::default() }
}

/// Runs ranks as threads, or as processes meet, on so many nodes.
fn run<T: Send>(
    nodes: usize,
    (n, config): (usize, &Config),
    rank: impl Fn(Communicator) -> T + Sync,
) -> Vec<T> {
    let rank = &rank;
    std::thread::scope(|scope| {
        let threads: Vec<_> = if nodes == 0 {
            let ranks = Communicator::local_with(n, config).unwrap();
            ranks.into_iter().map(|comm| scope.spawn(move || rank(comm))).collect()
        } else {
            let config = Config { nodes: (nodes > 1).then_some(nodes), ..config.clone() };
            let (id, server) = UniqueId::create().unwrap();
            let (id, server) = (Arc::new(id), Arc::new(server));
            let connect = |number| {
                let (id, server, config) = (id.clone(), server.clone(), config.clone());
                move || {
                    let ended = rank(Communicator::connect(&id, number, n, &config).unwrap());
                    drop(server);
                    ended
                }
            };
            (0..n).map(|number| scope.spawn(connect(number))).collect()
        };
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The ranks of this process' communicators of so many ranks: tests run beside each other.
fn here(world: usize) -> Vec<Snapshot> {
    let found = status::of_process(std::process::id()).unwrap();
    assert!(found.refused.is_empty(), "{:?}", found.refused);
    found.ranks.into_iter().filter(|one| one.world == world).collect()
}

/// Where ranks of a test meet beside their communicator. Who waits for one that has panicked does
/// so in the end.
struct Met {
    ranks: usize,
    came: AtomicUsize,
}

impl Met {
    fn of(ranks: usize) -> Met {
        Met { ranks, came: AtomicUsize::new(0) }
    }

    fn wait(&self) {
        let before = self.came.fetch_add(1, Ordering::AcqRel);
        let all = (before / self.ranks + 1) * self.ranks;
        until("another rank", || (self.came.load(Ordering::Acquire) >= all).then_some(()));
    }
}

/// Looks until it is as it should be.
fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < SOON, "{what} does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_rank_that_others_wait_for_is_seen_from_outside() {
    // No other test has as many ranks.
    for (nodes, n) in PLACES.into_iter().zip([5, 6, 7]) {
        let met = Met::of(n);
        run(nodes, (n, &config()), |comm| {
            let mut sum = vec![1.0f32; 300];
            comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
            met.wait();
            if comm.rank() == 2 {
                let all = until("the wait of all others", || {
                    let all = here(n);
                    let waits = |one: &&Snapshot| one.seen.waiting_s.is_some();
                    (all.iter().filter(waits).count() == n - 1).then_some(all)
                });
                let ranks: Vec<usize> = all.iter().map(|one| one.seen.rank).collect();
                assert_eq!(ranks, (0..n).collect::<Vec<_>>());
                for one in &all {
                    assert_eq!((&one.job, one.is_part()), (&all[0].job, false), "{one:#?}");
                    assert_eq!(one.seen.process, Some(std::process::id()));
                    assert_eq!(one.seen.state, Some(ProcessState::Alive));
                    let last = one.seen.last().unwrap();
                    assert_eq!(last.kind.as_deref(), Some("all_reduce"));
                    let is_late = one.seen.rank == 2;
                    assert_eq!(one.seen.is_inside, !is_late);
                    assert_eq!(
                        (last.collective, last.count),
                        if is_late { (1, Some(300)) } else { (2, Some(400)) }
                    );
                }
                let awaits = |one: &Snapshot| {
                    one.seen.waits.iter().any(|wait| wait.wait_for == WaitFor::Data { peer: 2 })
                };
                assert!(all.iter().any(awaits), "{all:#?}");
            }
            let mut more = vec![1.0f32; 400];
            comm.all_reduce_in_place(&mut more, ReduceOp::Sum).unwrap();
            // What was waited for is no longer.
            met.wait();
            if comm.rank() == 0 {
                let all = here(n);
                assert!(all.iter().all(|one| !one.seen.is_inside && one.seen.waiting_s.is_none()));
                assert!(all.iter().all(|one| one.seen.waits.is_empty()), "{all:#?}");
            }
            met.wait();
            comm.close().unwrap();
        });
        assert!(here(n).is_empty(), "nothing is left of what has ended");
    }
}

#[test]
fn parts_have_names_of_their_own() {
    let n = 8;
    let (met, job) = (Met::of(n), OnceLock::new());
    run(1, (n, &config()), |comm| {
        let of_job = |ranks: usize| {
            let job = job.get_or_init(|| here(n)[0].job.clone());
            here(ranks).into_iter().filter(|one| one.job == *job).collect::<Vec<_>>()
        };
        let part = comm.split(Some(comm.rank() as u32 % 2), 0).unwrap().unwrap();
        part.barrier().unwrap();
        met.wait();
        if comm.rank() == 0 {
            let (whole, parts) = (of_job(n), of_job(4));
            assert_eq!(parts.len(), n, "{parts:#?}");
            let mut names: Vec<_> = parts.iter().map(|one| one.communicator.clone()).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), 2, "{names:?}");
            assert!(parts.iter().all(Snapshot::is_part) && !names.contains(&whole[0].job));
        }
        met.wait();
        comm.close().unwrap();
        met.wait();
        // The whole's files are still there, for the parts.
        if part.rank() == 0 {
            assert_eq!((of_job(n).len(), of_job(4).len()), (0, n));
        }
        met.wait();
    });
}

#[test]
fn what_cannot_be_looked_at_is_an_error() {
    let error = status::of_process(u32::MAX).unwrap_err();
    assert!(error.to_string().contains("there is no process 4294967295"), "{error}");
    // A process without ranks has none.
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let Found { ranks, refused, .. } = status::of_process(child.id()).unwrap();
    assert!(ranks.is_empty() && refused.is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(status::read(Path::new("/nowhere")).unwrap_err().to_string().contains("/nowhere"));
    let error = status::read(Path::new("/proc/self/stat")).unwrap_err();
    assert!(error.to_string().contains("is no file that a rank has left"), "{error}");
}

/// An empty folder.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("seen-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// What ranks have left, by rank.
fn left_in(folder: &Path) -> Vec<Snapshot> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files =
        files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|e| e == "json"));
    let mut all: Vec<_> = files.map(|path| status::read(&path).unwrap()).collect();
    all.sort_by_key(|one| one.seen.rank);
    all
}

#[test]
fn ranks_that_fail_leave_files() {
    for nodes in PLACES {
        let folder = folder(&format!("failed-{nodes}"));
        let config = Config { flight_recorder: Some(folder.clone()), ..config() };
        let met = Met::of(3);
        run(nodes, (3, &config), |mut comm| {
            comm.barrier().unwrap();
            comm.set_timeout(Duration::from_secs(1)).unwrap();
            met.wait();
            if comm.rank() != 1 {
                let end = comm.all_reduce_in_place(&mut [1.0f32; 9], ReduceOp::Sum);
                // On a busy machine another one may be late, too.
                assert!(end.unwrap_err().ranks().contains(&1));
            }
            met.wait();
        });
        let left = left_in(&folder);
        let ranks: Vec<usize> = left.iter().map(|one| one.seen.rank).collect();
        assert_eq!(ranks, [0, 2], "who has noticed nothing leaves nothing");
        for one in &left {
            let ended = one.ended.as_ref().unwrap();
            assert!(ended.ranks.contains(&1), "{nodes}: {ended:?}");
            assert_eq!(one.seen.last().unwrap().text, "all_reduce of 9 float");
            // One that was told of it may just have come.
            let waits = one.seen.waiting_s.is_some() && !one.seen.waits.is_empty();
            assert!(one.seen.is_inside && (waits || ended.told_by.is_some()), "{one:#?}");
            let late = one.others.iter().find(|other| other.rank == 1).unwrap();
            assert_eq!((late.collective(), late.is_inside), (1, false), "{nodes}: {late:#?}");
        }
        let noticed = left.iter().filter(|one| one.ended.as_ref().unwrap().told_by.is_none());
        assert!(noticed.clone().count() > 0, "{left:#?}");
        for one in noticed {
            let error = &one.ended.as_ref().unwrap().error;
            assert!(error.contains("timed out"), "{error}");
        }
        // What it has left can be written as it was read.
        let text = serde_json::to_string(&left).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Snapshot>>(&text).unwrap(), left);
    }
}

const RANK: &str = "SEEN_TEST_RANK";
const ID: &str = "SEEN_TEST_ID";
const FOLDER: &str = "SEEN_TEST_FOLDER";

#[test]
#[ignore = "a rank of the next test"]
fn one_that_is_asked() {
    let variable = |name| std::env::var(name).unwrap();
    let (rank, id): (usize, UniqueId) =
        (variable(RANK).parse().unwrap(), variable(ID).parse().unwrap());
    let config =
        Config { flight_recorder: Some(variable(FOLDER).into()), flight_signal: true, ..config() };
    let comm = Communicator::connect(&id, rank, 2, &config).unwrap();
    comm.barrier().unwrap();
    if rank == 1 {
        // Until the test has seen what it wants.
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
    }
    comm.barrier().unwrap();
    comm.close().unwrap();
}

#[test]
fn a_signal_has_files_left_and_calls_go_on() {
    let folder = folder("signal");
    let (id, _server) = UniqueId::create().unwrap();
    let start = |rank: usize| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "one_that_is_asked", "--ignored"])
            .env(RANK, rank.to_string())
            .env(ID, id.to_string())
            .env(FOLDER, &folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut ranks = [start(0), start(1)];
    let seen = |rank: usize| {
        let found = status::of_process(ranks[rank].id()).ok()?;
        found.ranks.into_iter().next().map(|one| one.seen)
    };
    until("the wait of rank 0", || {
        seen(0).filter(|seen| seen.entered == 2 && seen.waiting_s > Some(0.0))
    });
    for rank in &ranks {
        let sent = Command::new("kill").args(["-s", "USR1", &rank.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }
    let left = until("a file of each", || Some(left_in(&folder)).filter(|left| left.len() == 2));
    assert!(left.iter().all(|one| one.ended.is_none()), "{left:#?}");
    let doing = |seen: &RankSeen| (seen.entered, seen.is_inside);
    assert_eq!((doing(&left[0].seen), doing(&left[1].seen)), ((2, true), (1, false)));
    assert_eq!(doing(&left[1].others[0]), (2, true), "what one sees of the other");
    drop(ranks[1].stdin.take());
    for rank in &mut ranks {
        assert!(rank.wait().unwrap().success());
    }
}

#[test]
fn a_signal_needs_a_folder_and_a_program_that_does_not_take_it() {
    let without = Config { flight_signal: true, ..config() };
    let error = Communicator::local_with(1, &without).unwrap_err().to_string();
    assert!(error.contains("flight_signal: needs a folder"), "{error}");
    // SAFETY: to ignore it calls no code. No other test of this process has it handled.
    unsafe { libc::signal(libc::SIGUSR1, libc::SIG_IGN) };
    let config = Config { flight_recorder: Some(folder("taken")), ..without };
    let error = Communicator::local_with(1, &config).unwrap_err().to_string();
    assert!(error.contains("flight_signal: this process handles SIGUSR1 itself"), "{error}");
    let blocked = Config { flight_recorder: Some("/proc/nowhere".into()), ..self::config() };
    let error = Communicator::local_with(1, &blocked).unwrap_err();
    assert!(matches!(error, Error::System { .. }), "{error}");
}

#[test]
fn who_is_slow_leads_the_stragglers() {
    let config = Config { call_times: true, ..config() };
    for nodes in PLACES {
        let all = run(nodes, (4, &config), |comm| {
            let mut sum = [1.0f32; 8];
            for _ in 0..20 {
                if comm.rank() == 2 {
                    std::thread::sleep(Duration::from_millis(20));
                }
                comm.all_reduce_in_place(&mut sum, ReduceOp::Max).unwrap();
                // Who has the root need not wait: this does not count.
                comm.broadcast_in_place(&mut sum, 0).unwrap();
            }
            let times = comm.call_times().unwrap();
            comm.close().unwrap();
            times
        });
        for times in &all {
            assert_eq!(times, &all[0], "all are told the same");
            assert!(times.iter().all(|one| one.calls == 20), "{times:?}");
            let late = status::lateness_s(times);
            let last = (0..4).max_by(|one, other| late[*one].total_cmp(&late[*other])).unwrap();
            assert_eq!(last, 2, "{nodes}: {late:?}");
        }
    }
    let refused = run(0, (2, &self::config()), |comm| {
        let error = comm.call_times().unwrap_err();
        // Nothing was called.
        comm.barrier().unwrap();
        error
    });
    for error in refused {
        assert!(error.is_misuse() && error.to_string().contains("OXCCL_CALL_TIMES"), "{error}");
    }
}
