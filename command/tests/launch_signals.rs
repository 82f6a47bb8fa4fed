//! The signals of ranks that `oxccl run` starts, and what becomes of them when the launcher is
//! asked to stop.

mod command_line;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use command_line::{command, finish, oxccl, skip, start};

/// Longer than a command may take here: what ends before it did so of the signal.
const GRACE: [&str; 2] = ["--grace", "1000"];

/// A program that writes a file when it is asked to stop, but not at once.
const CHECKPOINT: &str = "
import os, signal, sys, time
def save(number, frame):
    time.sleep(0.7)
    name = os.environ['FOLDER'] + '/saved-' + os.environ['OXCCL_RANK']
    open(name, 'w').write(signal.Signals(number).name)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
open(os.environ['FOLDER'] + '/ready-' + os.environ['OXCCL_RANK'], 'w')
while True:
    time.sleep(1000)
";

/// One that takes no notice.
const STUBBORN: &str = "
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
open(os.environ['FOLDER'] + '/ready-' + os.environ['OXCCL_RANK'], 'w')
time.sleep(1000)
";

/// Two ranks of a program in Python, once they are ready, in a process group of their launcher's.
fn two_ranks(test: &str, program: &str) -> Option<(Child, PathBuf)> {
    let python = Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|said| said.status.success()) {
        skip(test, "there is no python3");
        return None;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let arguments = [&["run", "-n", "2"][..], &GRACE, &["--", "python3", "-c", program]].concat();
    let child = start(command(&arguments).env("FOLDER", &folder).process_group(0));
    for rank in 0..2 {
        let ready = folder.join(format!("ready-{rank}"));
        await_that("a rank is ready", || ready.exists());
    }
    Some((child, folder))
}

#[test]
fn ranks_have_the_signals_of_a_fresh_process() {
    let said = oxccl(&["run", "-n", "2", "--", "cat", "/proc/self/status"]).ok();
    let masks = |name: &str| -> Vec<u64> {
        let texts = said.out.lines().filter_map(|line| line.strip_prefix(name));
        texts.map(|text| u64::from_str_radix(text, 16).expect("a mask")).collect()
    };
    assert_eq!(masks("SigBlk:\t"), [0, 0]);
    // SIGHUP stays ignored under nohup, and the C library keeps signals from 32 on for itself.
    let ignored: Vec<_> = masks("SigIgn:\t").iter().map(|mask| mask & 0x7fff_fffe).collect();
    assert_eq!(ignored, [0, 0]);
}

#[test]
fn a_request_to_stop_ends_ranks_that_do_not_handle_it() {
    for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        if name == "HUP" && ignores_hangups() {
            return skip("SIGHUP ends ranks", "the tests run under nohup");
        }
        let arguments = [&["run", "-n", "2"][..], &GRACE, &["--", "sleep", "819.25"]].concat();
        let child = start(&mut command(&arguments));
        await_that("both sleep", || sleepers("819.25") == 2);
        signal(name, &child.id().to_string());
        let said = finish(child).failed(128 + number);
        assert!(said.err.contains(&format!("stopped by signal {number} (SIG{name})")), "{said:#?}");
        assert_eq!(sleepers("819.25"), 0);
    }
}

#[test]
fn a_request_to_stop_ends_a_bench() {
    let bench = ["bench", "all_reduce", "-b", "1M", "-e", "1M", "-n", "100000000", "--no-probe"];
    let child = start(&mut command(&bench));
    let mine = format!("/proc/{0}/task/{0}/children", child.id());
    let ranks = || std::fs::read_to_string(&mine).unwrap_or_default().split_whitespace().count();
    await_that("both ranks run", || ranks() == 2);
    signal("INT", &child.id().to_string());
    finish(child).failed(128 + 2);
}

#[test]
fn a_rank_that_handles_the_request_has_time_to() {
    let test = "a_rank_that_handles_the_request_has_time_to";
    for (name, number) in [("INT", 2), ("TERM", 15)] {
        let Some((child, folder)) = two_ranks(test, CHECKPOINT) else { return };
        // As a terminal does it: to the whole group.
        signal(name, &format!("-{}", child.id()));
        finish(child).failed(128 + number);
        for rank in 0..2 {
            let saved = std::fs::read_to_string(folder.join(format!("saved-{rank}")));
            assert_eq!(saved.expect("it was written"), format!("SIG{name}"));
        }
    }
}

#[test]
fn a_second_request_ends_ranks_at_once() {
    let Some((child, _)) = two_ranks("a_second_request_ends_ranks_at_once", STUBBORN) else {
        return;
    };
    signal("INT", &child.id().to_string());
    std::thread::sleep(Duration::from_secs(1));
    signal("INT", &child.id().to_string());
    finish(child).failed(128 + 2);
}

#[test]
fn a_request_that_comes_twice_at_once_is_one() {
    let test = "a_request_that_comes_twice_at_once_is_one";
    let Some((child, folder)) = two_ranks(test, CHECKPOINT) else { return };
    let launcher = child.id().to_string();
    let twice = "kill -s INT $0; kill -s INT $0; kill -s INT $0";
    let sent = Command::new("sh").args(["-c", twice, &launcher]).status();
    assert!(sent.expect("sh is there").success());
    finish(child).failed(128 + 2);
    assert!(folder.join("saved-0").exists() && folder.join("saved-1").exists());
}

#[test]
fn a_launcher_under_nohup_goes_on() {
    let mut nohup = Command::new("nohup");
    nohup.arg(env!("CARGO_BIN_EXE_oxccl"));
    nohup.args(["run", "-n", "1", "--", "sh", "-c", "kill -HUP $PPID; sleep 0.5; echo done"]);
    assert_eq!(finish(start(&mut nohup)).ok().out, "done\n");
}

fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t"));
    ignored.is_some_and(|mask| u64::from_str_radix(mask, 16).is_ok_and(|mask| mask & 1 != 0))
}

/// Sends a signal to a process, or to a group behind `-`.
fn signal(name: &str, to: &str) {
    let sent = Command::new("kill").args(["-s", name, "--", to]).status();
    assert!(sent.expect("kill is there").success());
}

#[track_caller]
fn await_that(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Processes whose program is sleep with this argument.
fn sleepers(seconds: &str) -> usize {
    let wanted = format!("sleep\0{seconds}\0");
    let processes = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    processes
        .filter(|process| {
            let arguments = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            arguments == wanted.as_bytes()
        })
        .count()
}
