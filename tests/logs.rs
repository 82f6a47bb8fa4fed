//! What a process logs, and to whom.
#![allow(clippy::unwrap_used)]

mod common;

use common::events::Events;
use oxccl::{Collectives, Communicator, Config, Error, ReduceOp, UniqueId};
use std::process::{Command, Stdio};
use std::time::Duration;

/// What the ranks' program does, besides its calls.
const DOES: &str = "OXCCL_TEST_DOES";

/// A rank's process id and what it has written: standard output and standard error.
struct Said {
    process: u32,
    out: String,
    err: String,
}

/// Runs the program below in two processes, on two parts of this machine that stand for nodes.
fn two_processes(does: &str, variables: &[(&str, &str)]) -> Vec<Said> {
    let (id, _server) = UniqueId::create().unwrap();
    let start = |rank: usize| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rank", "--ignored", "--nocapture"])
            .env_remove("OXCCL_LOG")
            .env(DOES, does)
            .env("OXCCL_NODES", "2")
            .env("OXCCL_FABRIC", "tcp")
            .env("OXCCL_UNIQUE_ID", id.to_string())
            .env("OXCCL_RANK", rank.to_string())
            .env("OXCCL_WORLD_SIZE", "2")
            .env("OXCCL_LOCAL_RANK", rank.to_string())
            .env("OXCCL_LOCAL_WORLD_SIZE", "2")
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let ranks: Vec<_> = (0..2).map(start).collect();
    ranks
        .into_iter()
        .map(|rank| {
            let process = rank.id();
            let output = rank.wait_with_output().unwrap();
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            let (out, err) = (text(output.stdout), text(output.stderr));
            assert!(output.status.success(), "{out}{err}");
            Said { process, out, err }
        })
        .collect()
}

#[test]
#[ignore = "a rank of the other tests"]
fn rank() {
    let does = std::env::var(DOES).unwrap();
    if does == "asks nothing" {
        let error = Communicator::local_with(1, &Config::default()).unwrap_err();
        assert!(matches!(error, Error::Config { variable: "OXCCL_LOG", .. }), "{error}");
        return;
    }
    let events = (does == "subscribes").then(Events::collect);
    // Where a program does not ask the environment, either, the variable counts.
    let asked = Config::from_env().unwrap();
    let config = Config { log: None, timeout: Duration::from_secs(60), ..asked };
    if does == "starts apart" {
        let number: usize = std::env::var("OXCCL_RANK").unwrap().parse().unwrap();
        let error = Communicator::from_env_with(&Config { max_channels: 1 + number, ..config });
        assert!(matches!(error, Err(Error::ConfigDiffers { .. })), "{error:?}");
        return;
    }
    let comm = Communicator::from_env_with(&config).unwrap();
    let mut data = vec![1.0f32; 1000];
    for _ in 0..50 {
        comm.all_reduce_in_place(&mut data, ReduceOp::Max).unwrap();
    }
    comm.group(|group| group.all_reduce_in_place(&mut data, ReduceOp::Max)).unwrap();
    if does != "differs" {
        comm.close().unwrap();
        events.iter().for_each(|events| println!("\n{}", events.lines().join("\n")));
        return;
    }
    let mut data = vec![1.0f32; 10 + comm.rank()];
    assert!(comm.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap_err().is_fatal());
}

/// The lines of the log: what follows time, process, rank and level.
fn lines<'a>(said: &'a Said, rank: usize, level: &str) -> Vec<&'a str> {
    let place = format!(" oxccl[{}] rank {rank} {level}: ", said.process);
    let line = |line: &'a str| {
        let (time, rest) = line.split_once(&place)?;
        assert!(time.len() == "2026-11-23T06:40:16.123456Z".len() && time.ends_with('Z'), "{line}");
        Some(rest)
    };
    said.err.lines().filter_map(line).collect()
}

fn only<'a>(lines: &[&'a str], start: &str) -> &'a str {
    let found: Vec<_> = lines.iter().filter(|line| line.starts_with(start)).collect();
    let [line] = found[..] else { panic!("{start:?} is there {} times: {lines:#?}", found.len()) };
    line
}

#[test]
fn info_tells_of_starts_plans_links_and_ends() {
    let variables = [("OXCCL_LOG", "info"), ("OXCCL_ORDER", "rank"), ("OXCCL_SLOT_BYTES", "1024")];
    for (rank, said) in two_processes("calls", &variables).iter().enumerate() {
        let lines = lines(said, rank, "info");
        let has = |start: &str, parts: &[&str]| {
            let line = only(&lines, start);
            let missing: Vec<_> = parts.iter().filter(|part| !line.contains(**part)).collect();
            assert!(missing.is_empty(), "{missing:?} are missing: {line}");
        };
        let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
        let node = format!("node={rank}");
        let settings = "timeout=60 order=rank nodes=2 fabric=tcp slot_bytes=1024";
        has("a communicator has started", &[&version, "world=2", "nodes=2", &node, settings]);
        has("a communicator has started", &["device=host", "fabric=\"tcp\"", "cores="]);
        has("links are accepted", &["fabric=\"tcp\"", "address="]);
        has("a link over TCP is made", &[&format!("peer={}", 1 - rank), "sockets=2", "remote="]);
        let plan = ["kind=all_reduce", "count=1000", "algorithm=", "encoding=", "channels="];
        has("planned a call", &plan);
        has("planned a call", &["tile_bytes=", "reason="]);
        has("planned a part of a group", &plan);
        has("planned a group", &["buckets=1", "parts=1"]);
        has("the communicator is closed", &["calls="]);
        // One line each, though there were 50 calls.
        assert!(lines.len() < 20, "{lines:#?}");
    }
}

#[test]
fn failures_name_who_is_at_fault() {
    for (rank, said) in two_processes("differs", &[("OXCCL_LOG", "error")]).iter().enumerate() {
        assert!(lines(said, rank, "info").is_empty(), "{}", said.err);
        let line = only(&lines(said, rank, "error"), "the communicator has ended");
        assert!(line.contains("culprits=["), "{line}");
        assert!(line.contains("count differs"), "{line}");
    }
}

#[test]
fn nothing_is_logged_unless_it_is_asked_for() {
    for said in two_processes("calls", &[]) {
        assert!(!said.err.contains("oxccl["), "{}", said.err);
    }
}

#[test]
fn a_subscriber_of_the_program_gets_the_events() {
    for said in two_processes("subscribes", &[("OXCCL_LOG", "info")]) {
        assert!(!said.err.contains("oxccl["), "{}", said.err);
        for message in ["a communicator has started", "planned a call", "a link over TCP is made"] {
            let events = said.out.lines().filter(|line| line.contains(message));
            assert_eq!(events.count(), 1, "{message}: {}", said.out);
        }
    }
}

#[test]
fn starts_that_fail_are_logged_with_who_is_at_fault() {
    let said = two_processes("starts apart", &[("OXCCL_LOG", "error")]);
    for (rank, said) in said.iter().enumerate() {
        let lines = lines(said, rank, "error");
        let line = only(&lines, "the communicator does not start");
        assert!(line.contains("max_channels") && line.contains("culprits=["), "{line}");
    }
}

#[test]
fn a_level_that_does_not_exist_is_an_error() {
    two_processes("asks nothing", &[("OXCCL_LOG", "loud")]);
    let loud = |name: &str| (name == "OXCCL_LOG").then(|| "loud".into());
    let error = Config::from_lookup(loud).unwrap_err();
    assert!(matches!(error, Error::Config { variable: "OXCCL_LOG", .. }), "{error}");
    assert!(error.to_string().contains("error, warn, info, debug or trace"), "{error}");
}
