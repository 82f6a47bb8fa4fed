//! What the command writes: whole lines, and what is wrong when its results cannot be written.

mod command_line;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;

use command_line::{Said, command, finish, start};

const BENCH: [&str; 10] =
    ["bench", "all_reduce", "--ranks", "3", "-b", "8", "-e", "1M", "-n", "100"];

fn names_what_failed(said: &Said, why: &str) {
    let told = format!("oxccl: cannot write the results to standard output: {why}");
    assert_eq!(said.err.matches(&told).count(), 1, "{}", said.err);
    assert!(said.err.contains("oxccl: rank 0 (process "), "the launcher: {}", said.err);
    let others = |line: &&str| line.starts_with("oxccl:") && !line.contains("standard output");
    assert!(said.err.lines().filter(others).all(|line| line.contains("rank 0")), "{}", said.err);
    assert_eq!(said.err.lines().filter(others).count(), 3, "{}", said.err);
    assert!(!said.err.contains("timed out"), "{}", said.err);
}

#[test]
fn results_that_cannot_be_written_are_an_error_of_the_whole_job() {
    for flags in [&[][..], &["--csv"], &["--json"]] {
        let mut bench = command(&[&BENCH[..], &["--no-probe"], flags].concat());
        bench.env("OXCCL_TIMEOUT", "1000").stdin(Stdio::null()).stderr(Stdio::piped());
        let full = File::options().write(true).open("/dev/full").expect("there is such a device");
        let child = bench.stdout(full).spawn().expect("the command starts");
        names_what_failed(&finish(child).failed(1), "No space left on device");
    }
}

#[test]
fn a_reader_that_goes_ends_the_job() {
    let mut child = start(command(&BENCH).arg("--no-probe").env("OXCCL_TIMEOUT", "1000"));
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    lines.next().expect("a line").expect("in words");
    drop(lines);
    names_what_failed(&finish(child).failed(1), "Broken pipe");
}

/// Each write to such a socket is a packet of its own.
#[test]
fn each_message_is_one_write() {
    let (theirs, ours) = UnixDatagram::pair().expect("a pair of sockets");
    ours.set_nonblocking(true).expect("a socket");
    let script = "exec \"$0\" bench all_reduce --ranks 2";
    let mut run = command(&["run", "-n", "3", "--", "sh", "-c", script]);
    run.arg(env!("CARGO_BIN_EXE_oxccl")).stdin(Stdio::null()).stdout(Stdio::null());
    let child = run.stderr(OwnedFd::from(theirs)).spawn().expect("the command starts");
    finish(child).failed(2);
    let mut bytes = [0; 1 << 16];
    let next = || ours.recv(&mut bytes).map(|len| String::from_utf8_lossy(&bytes[..len]).into());
    let packets: Vec<String> = std::iter::repeat_with(next).map_while(Result::ok).collect();
    assert!(packets.len() >= 4, "of three ranks and their launcher: {packets:?}");
    for packet in &packets {
        assert!(packet.starts_with("oxccl: ") && packet.ends_with('\n'), "{packets:?}");
    }
}
