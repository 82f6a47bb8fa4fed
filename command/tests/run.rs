//! `oxccl run`: ranks start with their place, failures come through, and nobody stays behind.

mod command_line;
#[path = "../../tests/common/torchrun.rs"]
mod torchrun;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use command_line::{command, finish, free_port, oxccl, skip, start};
use torchrun::torchrun;

fn run(ranks: &str, flags: &[&str], script: &str) -> command_line::Said {
    let arguments = [&["run", "-n", ranks], flags, &["--", "sh", "-c", script]].concat();
    oxccl(&arguments)
}

#[test]
fn every_rank_is_told_its_place() {
    let script = "echo $OXCCL_RANK/$OXCCL_WORLD_SIZE $OXCCL_LOCAL_RANK/$OXCCL_LOCAL_WORLD_SIZE; \
                  echo $OXCCL_UNIQUE_ID >&2";
    let said = run("3", &[], script).ok();
    let mut lines: Vec<_> = said.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0/3 0/3", "1/3 1/3", "2/3 2/3"]);
    let ids: Vec<_> = said.err.lines().collect();
    assert!(ids.len() == 3 && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert!(ids[0].starts_with("oxccl1:127.0.0.1:"));
}

#[test]
fn arguments_reach_the_program_as_they_are() {
    let said = oxccl(&["run", "-n", "1", "--", "printf", "[%s]", "-n", "--bind", "a b"]).ok();
    assert_eq!(said.out, "[-n][--bind][a b]");
}

#[test]
fn a_bound_rank_has_one_core() {
    let script = "grep Cpus_allowed_list /proc/self/status";
    let said = run("2", &["--bind"], script).ok();
    for line in said.out.lines() {
        let cores = line.split_whitespace().last().expect("a list");
        assert!(cores.parse::<usize>().is_ok(), "{line}");
    }
}

#[test]
fn the_first_failure_is_named_and_its_status_handed_on() {
    let start = Instant::now();
    let said = run("3", &["--grace", "0.2"], "[ $OXCCL_RANK = 1 ] && exit 7; sleep 1000").failed(7);
    assert!(said.err.contains("rank 1 (process "), "{}", said.err);
    assert!(said.err.contains("failed with exit status 7"), "{}", said.err);
    assert!(start.elapsed() < Duration::from_secs(100), "the others are ended");
}

#[test]
fn a_killed_rank_gives_the_shells_status() {
    let said = run("2", &["--grace", "0.2"], "[ $OXCCL_RANK = 0 ] && kill -9 $$; sleep 1000");
    let said = said.failed(128 + 9);
    assert!(said.err.contains("rank 0") && said.err.contains("signal 9 (SIGKILL)"), "{}", said.err);
}

#[test]
fn a_rank_that_will_not_end_is_made_to() {
    let script = "[ $OXCCL_RANK = 0 ] && exit 3; trap '' TERM; while :; do sleep 0.1; done";
    run("2", &["--grace", "0.2"], script).failed(3);
}

#[test]
fn others_may_end_by_themselves() {
    let script = "[ $OXCCL_RANK = 0 ] && exit 3; sleep 0.3; echo noticed";
    let said = run("2", &["--grace", "60"], script).failed(3);
    assert_eq!(said.out, "noticed\n");
}

#[test]
fn a_program_that_is_not_there_is_an_error() {
    let said = oxccl(&["run", "-n", "2", "--", "/nonexistent/program"]).failed(1);
    assert!(said.err.contains("starting /nonexistent/program as rank 0"), "{}", said.err);
}

#[test]
fn a_signal_is_passed_on() {
    let mark = "817.25";
    let arguments = ["run", "-n", "2", "--grace", "0.2", "--", "sh", "-c", "sleep 817.25; true"];
    let child = start(&mut command(&arguments));
    await_count(mark, |count| count >= 2);
    signal(child.id(), "TERM");
    finish(child).failed(128 + 15);
    await_count(mark, |count| count == 0);
}

#[test]
fn ranks_die_with_their_starter() {
    let mark = "818.25";
    let child = start(&mut command(&["run", "-n", "2", "--", "sleep", mark]));
    await_count(mark, |count| count == 2);
    signal(child.id(), "KILL");
    finish(child);
    await_count(mark, |count| count == 0);
}

#[test]
fn ranks_of_torchrun_find_each_other() {
    let Some(mut torchrun) = torchrun() else {
        return skip("ranks_of_torchrun_find_each_other", "there is no torchrun");
    };
    let bench = ["bench", "all_reduce", "-b", "1K", "-e", "1K", "-n", "2", "--no-probe", "--json"];
    // What lets torchrun start is not for its ranks.
    torchrun.args(["--standalone", "--nproc-per-node", "3", "--no-python", "env"]);
    torchrun.args(["-u", "LD_PRELOAD", "-u", "LD_LIBRARY_PATH", env!("CARGO_BIN_EXE_oxccl")]);
    let said = finish(start(torchrun.args(bench))).ok();
    assert_eq!(said.out.lines().count(), 2, "rank 0 alone prints, a row a place: {said:#?}");
    assert!(said.out.lines().all(|row| row.contains("\"ranks\":3")), "{said:#?}");
}

const BENCH: [&str; 9] = ["bench", "all_reduce", "-b", "1K", "-e", "1K", "-n", "2", "--no-probe"];

#[test]
fn several_starters_make_one_world() {
    let meeting = format!("127.0.0.1:{}", free_port());
    let shares = ["0", "1"].map(|machine| {
        let place = ["--nnodes", "2", "--node-rank", machine, "--rendezvous", &meeting];
        let program = ["--", env!("CARGO_BIN_EXE_oxccl")];
        let run = [&["run", "-n", "2"][..], &place, &program, &BENCH, &["--json"]].concat();
        start(command(&run).env("OXCCL_SECRET", "of this test"))
    });
    let [first, second] = shares.map(|share| finish(share).ok());
    assert!(first.out.lines().all(|row| row.contains("\"ranks\":4")), "{first:#?}");
    assert_eq!((first.out.lines().count(), second.out.as_str()), (2, ""), "rank 0 alone prints");
}

#[test]
fn starters_of_several_machines_need_a_secret() {
    let told = |meeting: &str, secret: &[u8]| {
        let place = ["--nnodes", "2", "--node-rank", "1", "--rendezvous", meeting];
        let mut run = command(&[&["run", "-n", "1"][..], &place, &["--", "true"]].concat());
        finish(start(run.env("OXCCL_SECRET", OsStr::from_bytes(secret))))
    };
    let said = told("192.0.2.7:20000", b"").failed(2);
    let (_, line) = said.err.split_once("export OXCCL_SECRET=").expect("a line that helps");
    let secret = line.trim();
    assert!(secret.len() == 64 && secret.chars().all(|c| c.is_ascii_hexdigit()), "{}", said.err);
    assert!(said.err.contains("192.0.2.7:20000 could take a rank"), "{}", said.err);
    let again = told("192.0.2.7:20000", b"").failed(2);
    assert!(!again.err.contains(secret), "another one each time");
    told("192.0.2.7:20000", b"of this test").ok();
    told("192.0.2.7:20000", b"\xff\xfe\x80").ok();
    told("127.0.0.1:9", b"").ok();
}

#[test]
fn secrets_of_any_bytes_join_and_differ() {
    let meeting = format!("127.0.0.1:{}", free_port());
    let share = |machine: &str, secret: &[u8], meeting: &str| {
        let place = ["--nnodes", "2", "--node-rank", machine, "--rendezvous", meeting];
        let program = ["--", env!("CARGO_BIN_EXE_oxccl")];
        let run = [&["run", "-n", "1"][..], &place, &program, &BENCH, &["--json"]].concat();
        start(command(&run).env("OXCCL_SECRET", OsStr::from_bytes(secret)))
    };
    let same = ["0", "1"].map(|machine| share(machine, b"\xff\x80", &meeting));
    same.into_iter().for_each(|share| drop(finish(share).ok()));
    let meeting = format!("127.0.0.1:{}", free_port());
    let first = share("0", b"\xff\x80", &meeting);
    let said = finish(share("1", b"\xff\x81", &meeting)).failed(1);
    assert!(said.err.contains("holds another secret"), "{}", said.err);
    signal(first.id(), "TERM");
    finish(first);
}

#[test]
fn starters_that_do_not_fit_are_told() {
    let told = |place: &[&str]| oxccl(&[&["run", "-n", "1"], place, &["--", "true"]].concat());
    let meeting = ["--nnodes", "2", "--rendezvous", "127.0.0.1:9"];
    let said = told(&[&meeting[..], &["--node-rank", "2"]].concat()).failed(2);
    assert!(said.err.contains("--node-rank 2 is not below --nnodes 2"), "{}", said.err);
    let said = told(&meeting).failed(2);
    assert!(said.err.contains("--node-rank"), "{}", said.err);
    let said = told(&["--nodes", "2"]).failed(2);
    assert!(said.err.contains("more than the 1 ranks"), "{}", said.err);
}

#[test]
fn agents_of_torchrun_make_one_world() {
    if torchrun().is_none() {
        return skip("agents_of_torchrun_make_one_world", "there is no torchrun");
    }
    let port = free_port().to_string();
    let agents = ["0", "1"].map(|node| {
        let mut torchrun = torchrun().expect("it was there");
        torchrun.args(["--nnodes", "2", "--node-rank", node, "--nproc-per-node", "1"]);
        torchrun.args(["--master-addr", "127.0.0.1", "--master-port", &port, "--no-python"]);
        torchrun.args(["env", "-u", "LD_PRELOAD", "-u", "LD_LIBRARY_PATH"]);
        torchrun.arg(env!("CARGO_BIN_EXE_oxccl")).args(BENCH).arg("--json");
        start(&mut torchrun)
    });
    let [first, second] = agents.map(|agent| finish(agent).ok());
    let (first, second) = (first.out, second.out);
    assert_eq!(first.lines().chain(second.lines()).count(), 2, "{first} {second}");
    assert!(first.contains("\"ranks\":2") || second.contains("\"ranks\":2"));
}

/// Two daemons of mpirun on this machine, the second started as over ssh.
#[test]
fn daemons_of_mpirun_make_one_world() {
    let name = "daemons_of_mpirun_make_one_world";
    let version = Command::new("mpirun").arg("--version").output();
    let version = version.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
    if !version.is_ok_and(|text| text.contains("Open MPI")) {
        return skip(name, "there is no mpirun of Open MPI");
    }
    let agent = Path::new(env!("CARGO_TARGET_TMPDIR")).join("agent-of-mpirun");
    // Instead of ssh: forgets options and the host, and does the rest here.
    std::fs::write(
        &agent,
        "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done; shift\nexec sh -c \"$*\"\n",
    )
    .expect("the folder can be written");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&agent, executable).expect("it is ours");
    let mut mpirun = Command::new("mpirun");
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "-H", "localhost:1,127.0.0.2:1"]);
    mpirun.args(["-n", "2", "--map-by", "node", "--mca", "plm_rsh_agent"]).arg(&agent);
    mpirun.args(["-x", &format!("OXCCL_ADDR=127.0.0.1:{}", free_port())]);
    mpirun.arg(env!("CARGO_BIN_EXE_oxccl")).args(BENCH).arg("--json");
    let said = finish(start(&mut mpirun)).ok();
    assert_eq!(said.out.lines().count(), 2, "{said:#?}");
    assert!(said.out.lines().all(|row| row.contains("\"ranks\":2")), "{said:#?}");
}

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &pid.to_string()]).status();
    assert!(sent.expect("kill is there").success());
}

/// Waits until the number of processes that sleep for so long is as wanted.
#[track_caller]
fn await_count(seconds: &str, wanted: impl Fn(usize) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let count = sleepers(seconds);
        if wanted(count) {
            return;
        }
        assert!(Instant::now() < deadline, "{count} processes sleep {seconds}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Processes whose program is sleep with this argument; those that have ended show no arguments.
fn sleepers(seconds: &str) -> usize {
    let processes = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let wanted = format!("sleep\0{seconds}\0");
    processes
        .filter(|process| {
            let arguments = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            arguments == wanted.as_bytes()
        })
        .count()
}

#[test]
fn ranks_find_what_torchrun_sets() {
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT";
    let said = run("2", &[], script).ok();
    let mut lines: Vec<_> = said.out.lines().collect();
    lines.sort_unstable();
    let [first, second] = lines[..] else { panic!("{said:?}") };
    let store = first.strip_prefix("0/2 0/2 127.0.0.1:").expect(first);
    assert!(store.parse::<u16>().is_ok_and(|port| port > 0), "{first}");
    assert_eq!(second, format!("1/2 1/2 127.0.0.1:{store}"));
}
