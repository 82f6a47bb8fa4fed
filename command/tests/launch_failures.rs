//! `oxccl run` and `bench` when ranks fail, before they join and after, on one machine and on
//! several: who is named, and who hears of it.

mod command_line;

use std::process::Child;
use std::time::{Duration, Instant};

use command_line::{command, finish, free_port, oxccl, start};

const BENCH: &str =
    "exec $OXCCL bench all_reduce -b 1K -e 1K -n 20 --no-probe --repeats 1 >/dev/null";

/// Longer than a command may take here: what ends before it has been told to.
const GRACE: [&str; 2] = ["--grace", "1000"];

/// `oxccl run` of a script in which `$OXCCL` is this command.
fn run(ranks: &str, flags: &[&str], script: &str) -> Child {
    let arguments = [&["run", "-n", ranks], flags, &["--", "sh", "-c", script]].concat();
    let mut command = command(&arguments);
    start(command.env("OXCCL", env!("CARGO_BIN_EXE_oxccl")).env("OXCCL_TIMEOUT", "1000"))
}

/// The shares of two machines in a job, each with its script.
fn on_two_machines(flags: &[&str], scripts: [&str; 2]) -> [Child; 2] {
    on_two_machines_at(free_port(), flags, scripts)
}

fn on_two_machines_at(port: u16, flags: &[&str], scripts: [&str; 2]) -> [Child; 2] {
    let meeting = format!("127.0.0.1:{port}");
    [("0", scripts[0]), ("1", scripts[1])].map(|(machine, script)| {
        let place = ["--nnodes", "2", "--node-rank", machine, "--rendezvous", &meeting];
        run("1", &[&place[..], flags].concat(), script)
    })
}

#[test]
fn who_waits_for_a_rank_that_failed_before_it_joined_hears_how_at_once() {
    let script = format!("[ $OXCCL_RANK = 1 ] && exit 7; {BENCH}");
    let said = finish(run("3", &GRACE, &script)).failed(7);
    let told = "oxccl: stopped: rank 1 (process ";
    assert_eq!(said.err.matches(told).count(), 2, "{}", said.err);
    assert!(said.err.contains("oxccl: rank 1 (process "), "{}", said.err);
    assert!(said.err.contains("failed with exit status 7"), "{}", said.err);
    assert!(!said.err.contains("timed out"), "{}", said.err);
}

#[test]
fn the_rank_that_was_killed_is_named_and_not_who_noticed() {
    // Both have ended when the launcher looks again: rank 0 stops it, rank 1 waits for that, and
    // what rank 0 leaves behind continues it.
    let script = "children=/proc/$PPID/task/$PPID/children; \
        is() { grep -q \"^State:.$1\" /proc/$2/status; }; \
        while [ $(wc -w < $children) -lt 2 ]; do sleep 0.01; done; \
        if [ $OXCCL_RANK = 1 ]; then while ! is T $PPID; do sleep 0.01; done; kill -9 $$; fi; \
        kill -STOP $PPID; \
        (for p in $(cat $children); do while ! is Z $p; do sleep 0.01; done; done; kill -CONT $PPID) & \
        exit 1";
    let said = finish(run("2", &GRACE, script)).failed(128 + 9);
    let [first, second] = [
        said.err.find("rank 1 (process ").expect("the culprit is named"),
        said.err.find("then rank 0 (process ").expect("the other one, too"),
    ];
    assert!(first < second, "{}", said.err);
    assert!(said.err.contains("was ended by signal 9 (SIGKILL)"), "{}", said.err);
}

#[test]
fn who_does_not_end_is_named() {
    let script = "[ $OXCCL_RANK = 0 ] && exit 3; sleep 1000";
    let said = finish(run("3", &["--grace", "0.2"], script)).failed(3);
    assert!(said.err.contains("ranks 1, 2 still ran after the grace period"), "{}", said.err);
}

#[test]
fn launchers_of_other_machines_hear_of_a_failure() {
    let flags = ["--grace", "0.2"];
    let machines = on_two_machines(&flags, ["exit 5", "exec sleep 1000"]);
    let [here, there] = machines.map(finish);
    assert!(here.failed(5).err.contains("oxccl: rank 0 (process "));
    let there = there.failed(5);
    assert!(there.err.contains("oxccl: rank 0 (process "), "{}", there.err);
    assert!(there.err.contains("failed with exit status 5, on another machine"), "{}", there.err);
    assert!(there.err.contains("rank 1 still ran after the grace period"), "{}", there.err);
    // The other way round: the launcher with the rendezvous hears it from the other.
    let machines = on_two_machines(&flags, ["exec sleep 1000", "kill -9 $$"]);
    let [there, here] = machines.map(finish);
    assert!(here.failed(128 + 9).err.contains("oxccl: rank 1 (process "));
    let there = there.failed(128 + 9);
    assert!(there.err.contains("signal 9 (SIGKILL), on another machine"), "{}", there.err);
}

#[test]
fn ranks_of_other_machines_hear_of_one_that_fails_before_it_joins() {
    let machines = on_two_machines(&GRACE, ["exit 5", BENCH]);
    let [_, waiting] = machines.map(|machine| finish(machine).failed(5));
    let told = "oxccl: stopped: rank 0 (process ";
    assert!(waiting.err.contains(told), "{}", waiting.err);
}

#[test]
fn a_launcher_that_is_killed_ends_the_job_everywhere() {
    let flags = ["--grace", "0.2"];
    for killed in [0, 1] {
        let port = free_port();
        let mut machines = on_two_machines_at(port, &flags, ["exec sleep 1000"; 2]);
        await_connections(port, 2);
        machines[killed].kill().expect("it runs");
        let [first, second] = machines.map(finish);
        let survivor = if killed == 0 { second } else { first }.failed(1);
        let told = ["(the launcher) ended", "rank 1 ended with its launcher"][killed];
        assert!(survivor.err.contains(told), "{}", survivor.err);
    }
}

#[test]
fn a_program_that_is_not_there_is_told_to_other_machines() {
    let meeting = format!("127.0.0.1:{}", free_port());
    let share = |machine: &str, program: &[&str]| {
        let place = ["--nnodes", "2", "--node-rank", machine, "--rendezvous", &meeting];
        let flags = ["run", "-n", "1", "--grace", "0.2"];
        start(&mut command(&[&flags[..], &place, &["--"], program].concat()))
    };
    let [there, here] = [share("0", &["sleep", "1000"]), share("1", &["/nonexistent/program"])];
    finish(here).failed(1);
    let there = finish(there).failed(1);
    let told = "rank 1 could not be started: starting /nonexistent/program";
    assert!(there.err.contains(told), "{}", there.err);
}

#[test]
fn ranks_of_programs_that_do_not_join_need_no_rendezvous() {
    let machines = on_two_machines(&GRACE, ["true", "true"]);
    machines.into_iter().for_each(|machine| drop(finish(machine).ok()));
    oxccl(&["run", "-n", "2", "--", "true"]).ok();
}

/// Waits until so many connections to a port of this machine have been there for a moment.
#[track_caller]
fn await_connections(port: u16, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let established = || {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("/proc is mounted");
        let to_it = format!(":{port:04X} 01 ");
        table.lines().filter(|line| line.contains(&to_it)).count()
    };
    while established() < count {
        assert!(Instant::now() < deadline, "there are {} connections", established());
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_secs(1));
}
