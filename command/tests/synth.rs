//! `oxccl synth`: what it finds is proven, predicted as it says, and right when it runs; equal
//! seeds find the same; what is not searched for is refused.
#![allow(clippy::unwrap_used)]

mod command_line;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use command_line::{command, finish, oxccl, start};
use serde_json::Value;

const NDV2: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/ndv2.toml");

fn file(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_file(&path);
    path
}

/// Searches, with a budget in candidates; what is printed as JSON.
fn synth(arguments: &[&str], output: &Path) -> Value {
    let budget = ["--candidates", "60", "--json", "-o", output.to_str().unwrap()];
    let said = oxccl(&[&["synth"], arguments, &budget].concat()).ok();
    serde_json::from_str(&said.out).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn what_is_found_is_proven_predicted_and_right() {
    for op in ["all_gather", "reduce_scatter", "all_reduce"] {
        let path = file(&format!("found_{op}.json"));
        let found = synth(&[op, "-t", NDV2, "-g", "8", "-b", "64M"], &path);
        let ratio = found["ratio"].as_f64().unwrap();
        assert!(ratio < 0.98 && found["faster"] == true, "{found}");
        assert_eq!((&found["candidates"], &found["refused"]), (&60.into(), &0.into()));

        let said = oxccl(&["verify", text(&path)]).ok();
        assert!(said.out.contains(&format!("{op} over 8 ranks")), "{}", said.out);
        let sim = ["sim", text(&path), "-t", NDV2, "--sizes", "64M", "--all", "--json"];
        let rows: Vec<Value> =
            oxccl(&sim).ok().out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let time = |row: &Value| row["time_us"].as_f64().unwrap();
        let (own, others): (Vec<&Value>, Vec<&Value>) =
            rows.iter().partition(|row| row["algorithm"] == "custom");
        assert_eq!(time(own[0]), time(&found["found"]), "{}", own[0]);
        let best = others.into_iter().map(time).fold(f64::INFINITY, f64::min);
        assert_eq!(best, time(&found["catalogue"]));
        assert!(oxccl(&["explain", text(&path), "-b", "64M", "--rank", "0"]).ok().out.len() > 100);

        let bench = ["bench", text(&path), "--threads", "-b", "1K", "-e", "1M", "-f", "32"];
        let said = oxccl(&[&bench[..], &["-n", "2", "--no-probe", "--json"]].concat()).ok();
        assert_eq!(said.out.matches("\"algorithm\":\"custom\"").count(), 6, "{}", said.out);
        assert_eq!(said.out.matches("\"wrong\":0").count(), 6, "{}", said.out);
    }
}

/// Ranks of two nodes, which reach each other by messages alone.
#[test]
fn what_is_found_for_two_nodes_runs_on_two() {
    let path = file("found_on_two_nodes.json");
    let found =
        synth(&["all_gather", "-t", "dgx-h100", "-g", "8", "--per-node", "4", "-b", "64M"], &path);
    assert_eq!((&found["nodes"], &found["faster"]), (&2.into(), &true.into()), "{found}");
    let bench = ["bench", text(&path), "-b", "4K", "-e", "4K", "-n", "2", "--no-probe", "--json"];
    let built = env!("CARGO_BIN_EXE_oxccl");
    let said = oxccl(&[&["run", "--ranks", "8", "--nodes", "2", "--", built], &bench[..]].concat());
    let said = said.ok();
    assert_eq!(said.out.matches("\"wrong\":0").count(), 2, "{}", said.out);
}

#[test]
fn equal_seeds_find_the_same() {
    let call = ["all_reduce", "-t", NDV2, "-g", "8", "-b", "64M", "--seed"];
    let [one, same, other] = ["7", "7", "8"].map(|seed| {
        let path = file(&format!("seed_{seed}.json"));
        let mut found = synth(&[&call[..], &[seed]].concat(), &path);
        found["seconds"] = 0.into();
        (found, fs::read_to_string(path).unwrap())
    });
    assert_eq!(one, same);
    assert_eq!((&one.0["seed"], &other.0["seed"]), (&7.into(), &8.into()));
}

#[test]
fn nothing_faster_is_said_and_writes_nothing() {
    let path = file("nothing.json");
    let call = ["synth", "all_gather", "-t", "dgx-h100", "-g", "4", "-b", "1G"];
    let budget = ["--candidates", "8", "-o", text(&path)];
    let said = oxccl(&[&call[..], &budget].concat()).failed(1);
    assert!(said.out.contains("# predicted: nothing faster"), "{}", said.out);
    assert!(said.out.contains("PREDICTED times of all_gather, nothing was run"), "{}", said.out);
    assert!(said.err.contains("nothing was found that is predicted to be faster"), "{}", said.err);
    assert!(!path.exists());
}

#[test]
fn the_time_ends_a_search_and_so_does_ctrl_c() {
    let path = file("in_time.json");
    let call = ["synth", "all_gather", "-t", NDV2, "-g", "8", "-b", "64M", "-o", text(&path)];
    let said = oxccl(&[&call[..], &["--seconds", "2", "--json"]].concat()).ok();
    let found: Value = serde_json::from_str(&said.out).unwrap();
    assert!(found["seconds"].as_f64().unwrap() < 60.0, "{found}");

    let path = file("interrupted.json");
    let call = ["synth", "all_gather", "-t", NDV2, "-g", "8", "-b", "64M", "-o", text(&path)];
    let search = start(command(&call).args(["--seconds", "600"]));
    std::thread::sleep(std::time::Duration::from_secs(5));
    let kill = Command::new("kill").args(["-INT", &search.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let said = finish(search).ok();
    assert!(said.out.contains("# written to"), "{}", said.out);
    assert!(oxccl(&["verify", text(&path)]).ok().out.contains("proven"));
}

#[test]
fn what_is_not_searched_for_is_refused() {
    let refused = |arguments: &[&str], why: &str| {
        let said = oxccl(&[&["synth"], arguments].concat()).failed(2);
        assert!(said.err.contains(why), "{why:?} is not in {}", said.err);
    };
    let there_are = "there are all_gather, reduce_scatter, all_reduce";
    for op in ["broadcast", "all_to_all", "barrier", "send_recv"] {
        refused(&[op, "-t", "dgx-h100"], there_are);
    }
    refused(&["all_reduce", "-g", "1"], "one rank has nothing to send");
    refused(&["all_reduce", "-g", "136"], "a schedule is searched for 128 at most");
    refused(&["all_gather", "-g", "8", "-b", "4"], "name a larger size");
    refused(&["all_gather", "-t", "dgx-h101"], "Did you mean dgx-h100?");
    refused(&["all_gather", "-t", "dgx-h100", "--per-node", "9"], "--per-node is 9");
    refused(&["all_gathr"], "Did you mean all_gather?");
    refused(&["all_gather", "--candidates", "0"], "is no number above 0");
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let call = ["synth", "all_gather", "-t", NDV2, "-g", "8", "--candidates", "20"];
    let said = oxccl(&[&call[..], &["-o", "/dev/null/found.json"]].concat()).failed(1);
    assert!(said.err.contains("writing the schedule /dev/null/found.json"), "{}", said.err);
}
