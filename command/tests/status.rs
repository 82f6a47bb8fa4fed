//! `oxccl status` of jobs that run and hang, and `oxccl blame` of what they leave.

mod command_line;

use command_line::{Said, command, finish, oxccl, start};
use oxccl::{Collectives, Communicator, Config, ReduceOp};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// What a rank of these tests does.
const DOES: &str = "STATUS_TEST_DOES";
/// Its time-out once it has started, in seconds.
const PATIENCE: &str = "STATUS_TEST_PATIENCE";
/// Which rank does it.
const ODD: usize = 1;
/// How long something that happens soon may take on a busy machine.
const SOON: Duration = Duration::from_secs(100);

#[test]
#[ignore = "one rank of the other tests"]
fn one_rank() {
    let variable = |name| std::env::var(name).expect("it is set");
    let (does, patience) = (variable(DOES), variable(PATIENCE));
    let asked = Config::from_env().expect("the settings are right");
    let config = Config { timeout: SOON, heap_bytes: 1 << 20, max_channels: 2, ..asked };
    let mut comm = Communicator::from_env_with(&config).expect("it starts");
    let seconds = patience.parse().expect("a number");
    comm.set_timeout(Duration::from_secs(seconds)).expect("it can be changed");
    let is_odd = comm.rank() == ODD;
    let mut sum = [1.0f32; 16];
    for call in 0.. {
        match does.as_str() {
            "slow" if is_odd => std::thread::sleep(Duration::from_millis(20)),
            // SAFETY: it sends a signal to this process.
            "stop" if is_odd && call == 3 => drop(unsafe { libc::raise(libc::SIGSTOP) }),
            // SAFETY: it ends the process, past everything.
            "die" if is_odd && call == 3 => unsafe { libc::_exit(9) },
            "sleep" if is_odd && call == 3 => std::thread::sleep(SOON),
            _ => {}
        }
        let len = if does == "differ" && is_odd && call == 3 { 8 } else { 16 };
        if let Err(error) = comm.all_reduce_in_place(&mut sum[..len], ReduceOp::Max) {
            panic!("{error}");
        }
    }
}

/// A job of three ranks, of which one does this, and where it leaves files.
struct JobOf {
    launcher: Option<Child>,
    folder: PathBuf,
}

impl JobOf {
    fn start(does: &str, patience: u64, flags: &[&str]) -> JobOf {
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("status-{does}{}", flags.len()));
        let _ = fs::remove_dir_all(&folder);
        let own = std::env::current_exe().expect("this program has a path");
        let mut run = command(&[&["run", "-n", "3", "--grace", "5"], flags, &["--"]].concat());
        run.arg(own)
            .args(["one_rank", "--exact", "--ignored", "--nocapture"])
            .env(DOES, does)
            .env(PATIENCE, patience.to_string())
            .env("OXCCL_CALL_TIMES", "1")
            .env("OXCCL_FLIGHT_RECORDER", &folder);
        JobOf { launcher: Some(start(&mut run)), folder }
    }

    /// What `oxccl status` says of it, with these flags.
    fn status(&self, flags: &[&str]) -> Said {
        let launcher = self.launcher.as_ref().expect("it runs").id().to_string();
        oxccl(&[&["status", &launcher], flags].concat())
    }

    /// The ranks, once they are as they should be.
    fn until(&self, what: &str, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let begin = Instant::now();
        loop {
            let said = self.status(&["--json"]);
            let ranks: Vec<Value> = serde_json::from_str(&said.out).unwrap_or_default();
            if ranks.len() == 3 && is_so(&ranks) {
                return ranks;
            }
            assert!(begin.elapsed() < SOON, "{what} does not come: {said:#?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn end(&mut self) -> Said {
        finish(self.launcher.take().expect("it runs"))
    }

    /// The files of these ranks.
    fn files(&self, ranks: &[usize]) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).expect("ranks have left files");
        let names =
            entries.map(|entry| entry.expect("it can be read").path().display().to_string());
        let of =
            |name: &String| ranks.iter().any(|rank| name.ends_with(&format!("-rank-{rank}.json")));
        let mut files: Vec<String> = names.filter(of).collect();
        files.sort();
        assert_eq!(files.len(), ranks.len(), "{files:?}");
        files
    }

    /// What `oxccl blame` says of the files of these ranks.
    fn blame(&self, ranks: &[usize], flags: &[&str]) -> String {
        let files = self.files(ranks);
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        oxccl(&[&["blame"], flags, &files].concat()).ok().out
    }
}

impl Drop for JobOf {
    fn drop(&mut self) {
        if let Some(mut launcher) = self.launcher.take() {
            // Its ranks die with it.
            let _ = launcher.kill();
            let _ = launcher.wait();
        }
    }
}

fn of<'a>(rank: &'a Value, key: &str) -> &'a Value {
    &rank["seen"][key]
}

/// The table's lines of these ranks, by their numbers.
fn line(said: &str, rank: usize) -> &str {
    let number = rank.to_string();
    let is_it = |line: &&str| line.split_whitespace().next() == Some(&number);
    said.lines().find(is_it).unwrap_or_else(|| panic!("no line of rank {rank} in {said}"))
}

#[test]
fn a_stopped_rank_is_explained_while_the_job_hangs_and_by_what_it_leaves() {
    let mut job = JobOf::start("stop", 12, &[]);
    let ranks = job.until("the wait for the stopped rank", |ranks| {
        let waits = |rank: &Value| of(rank, "waiting_s").as_f64() > Some(0.2);
        of(&ranks[ODD], "state") == "stopped" && waits(&ranks[0]) && waits(&ranks[2])
    });
    assert_eq!((of(&ranks[ODD], "entered"), of(&ranks[0], "entered")), (&3.into(), &4.into()));
    let said = job.status(&[]).ok().out;
    assert!(said.contains("Rank 1 is at fault: it is stopped (process "), "{said}");
    assert!(said.contains("has not called all_reduce of 16 float #4"), "{said}");
    assert!(said.contains("Ranks 0 and 2 have waited for up to "), "{said}");
    assert!(line(&said, 0).contains("waits in all_reduce of 16 float #4 at step "), "{said}");
    assert!(line(&said, 1).contains("stopped"), "{said}");
    let by_job = oxccl(&["status", ranks[0]["job"].as_str().expect("a name")]).ok().out;
    assert!(by_job.contains("Rank 1 is at fault: it is stopped"), "{by_job}");
    let metrics = job.status(&["--prometheus"]).ok().out;
    for (metric, rank, value) in
        [("oxccl_stopped", 1, "1"), ("oxccl_stopped", 0, "0"), ("oxccl_calls_total", 1, "3")]
    {
        let is_it =
            |line: &&str| line.starts_with(metric) && line.contains(&format!("rank=\"{rank}\""));
        let found = metrics.lines().find(is_it).unwrap_or_else(|| panic!("{metric} in {metrics}"));
        assert!(found.ends_with(&format!("}} {value}")), "{found}");
    }
    let ended = job.end();
    assert!(!ended.status.success(), "{ended:#?}");
    // All that were there to leave a file, and one alone.
    for files in [&[0, 2][..], &[0], &[2]] {
        let blamed = job.blame(files, &[]);
        assert!(blamed.contains("Rank 1 is at fault: it is stopped (process "), "{blamed}");
        assert!(blamed.contains("has not called all_reduce of 16 float #4"), "{blamed}");
        assert!(blamed.contains(&format!("files of {} of 3 ranks", files.len())), "{blamed}");
        let missing = if files.len() == 2 { "no file of rank 1" } else { "no file of ranks " };
        assert!(blamed.contains(missing), "{blamed}");
        assert!(line(&blamed, 1).contains(" saw it)"), "{blamed}");
    }
    let told: Value = serde_json::from_str(&job.blame(&[0, 2], &["--json"])).expect("it is JSON");
    assert_eq!((&told["culprits"], &told["missing"]), (&[1].into(), &[1].into()));
}

#[test]
fn a_rank_of_another_node_that_does_not_come_is_explained() {
    let mut job = JobOf::start("sleep", 12, &["--nodes", "3"]);
    job.until("the wait for the rank that sleeps", |ranks| {
        let waits = |rank: &Value| of(rank, "waiting_s").as_f64() > Some(0.2);
        waits(&ranks[0]) && waits(&ranks[2])
    });
    let said = job.status(&[]).ok().out;
    assert!(said.contains("Rank 1 is at fault: it lives (process "), "{said}");
    assert!(
        said.contains(
            "has not called all_reduce of 16 float #4; its last call was all_reduce of 16 float #3"
        ),
        "{said}"
    );
    assert!(!job.end().status.success());
    let blamed = job.blame(&[0, 2], &[]);
    assert!(blamed.contains("Rank 1 is at fault: it is of another node, and has not called all_reduce of 16 float #4"), "{blamed}");
}

#[test]
fn who_has_died_and_who_calls_something_else_is_blamed() {
    let mut job = JobOf::start("die", 100, &[]);
    assert!(!job.end().status.success());
    let blamed = job.blame(&[0, 2], &[]);
    assert!(blamed.contains("Rank 1 is at fault: it has ended (process "), "{blamed}");
    assert!(blamed.contains("no file of rank 1"), "{blamed}");
    let mut job = JobOf::start("differ", 100, &[]);
    assert!(!job.end().status.success());
    let blamed = job.blame(&[0, 1, 2], &[]);
    let text =
        "Call #4 differs: rank 1 has all_reduce of 8 float, 2 of 3 ranks all_reduce of 16 float.";
    assert!(blamed.contains(text), "{blamed}");
    assert!(!blamed.contains("no file"), "{blamed}");
}

#[test]
fn who_is_slow_leads_the_table_of_stragglers() {
    for flags in [&[][..], &["--nodes", "3"]] {
        let job = JobOf::start("slow", 100, flags);
        job.until("enough calls", |ranks| {
            ranks.iter().all(|rank| of(rank, "times")["calls"].as_u64() >= Some(30))
        });
        let said = job.status(&[]).ok().out;
        let (_, table) = said.split_once("stragglers of ").unwrap_or_else(|| panic!("{said}"));
        let first = table.lines().nth(2).and_then(|line| line.split_whitespace().next());
        assert_eq!(first, Some("1"), "{said}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    for (arguments, told, status) in [
        (&["status", "4294967295"][..], "there is no process 4294967295", 1),
        (&["status", "x"], "\"x\" is neither a process nor a job", 2),
        (&["status", "00c0ffee"], "no rank of oxccl runs in job 00c0ffee", 1),
        (&["status", "--json", "--prometheus"], "cannot be used with", 2),
        (&["blame"], "<FILES>", 2),
        (&["blame", "/nowhere"], "/nowhere", 2),
        (&["blame", "Cargo.toml"], "Cargo.toml is no file that a rank has left", 2),
    ] {
        let said = oxccl(arguments).failed(status);
        assert!(said.err.contains(told), "{arguments:?}: {said:#?}");
    }
    let mut other = Command::new("sleep").arg("600").spawn().expect("it starts");
    let said = oxccl(&["status", &other.id().to_string()]).failed(1);
    other.kill().expect("it runs");
    other.wait().expect("it was killed");
    assert!(said.err.contains("no rank of oxccl runs in process"), "{said:#?}");
}
