//! The script of the bundle for GPU machines, on the stand-ins, with nothing in the environment but the library path.
#![allow(clippy::unwrap_used)]

use oxccl_cuda_stand_in::control::{image, library_folder};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A folder outside the repository, gone at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What `tools/gpu-bundle` makes, but for NCCL and the sanitizer, and with what this build has.
fn bundle(name: &str) -> Folder {
    let folder = std::env::temp_dir().join(format!("oxccl-bundle-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    for part in ["bin", "data"] {
        fs::create_dir_all(folder.join(part)).unwrap();
    }
    for script in ["run.sh", "summarize.py", "rows.py", "targets.py", "causes.py", "kernels.py"] {
        fs::copy(Path::new(ROOT).join("benches/gpu").join(script), folder.join(script)).unwrap();
    }
    symlink(env!("CARGO_BIN_EXE_oxccl"), folder.join("bin/oxccl")).unwrap();
    fs::write(folder.join("bundle.json"), r#"{"commit": "none"}"#).unwrap();
    let text = image(&[90]);
    fs::write(folder.join("image"), &text[..text.len() - 1]).unwrap();
    Folder(folder)
}

/// Runs stages of it; what they leave, and whether none failed.
fn run(bundle: &Folder, arguments: &[&str], settings: &[(&str, &str)]) -> (Value, bool) {
    let beside = std::env::current_exe().unwrap();
    let nccl = beside.parent().unwrap().join(oxccl_nccl_stand_in::FILE);
    let results = bundle.0.join("results");
    let status = Command::new(bundle.0.join("run.sh"))
        .args(["-q", "-r", "2", "-o"])
        .arg(&results)
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("LD_LIBRARY_PATH", library_folder().unwrap())
        .env("OXCCL_STAND_IN_MEMORY", (384 << 20).to_string())
        .env("OXCCL_BUNDLE_IMAGE", bundle.0.join("image"))
        .env("OXCCL_BUNDLE_NCCL", nccl)
        // The stand-in itself lists kernels.
        .env("OXCCL_BUNDLE_PROFILER", "/dev/null")
        .envs(settings.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    let files: Vec<_> = fs::read_dir(&results).unwrap().map(|entry| entry.unwrap()).collect();
    assert!(files.len() <= 8, "as many files come back from a machine: {files:?}");
    let text = fs::read_to_string(results.join("results.json")).unwrap();
    (serde_json::from_str(&text).unwrap(), status.success())
}

fn status<'a>(results: &'a Value, stage: &str) -> &'a Value {
    let stages = results["stages"].as_array().unwrap();
    stages.iter().find(|one| one["stage"] == stage).unwrap_or(&Value::Null)
}

#[test]
fn stages_run_and_targets_are_summed_up() {
    let bundle = bundle("stages");
    let sanitizer = executable(&bundle, "sanitizer", SANITIZER);
    let stages = ["doctor", "bench", "group", "sanitizer", "profile"];
    let (results, ok) = run(&bundle, &stages, &[("OXCCL_BUNDLE_SANITIZER", &sanitizer)]);
    assert!(!ok, "the sanitizer finds something");
    for stage in stages {
        let expected = if stage == "sanitizer" { "failed" } else { "ok" };
        assert_eq!(status(&results, stage)["status"], expected, "{:#}", results["stages"]);
    }
    assert_eq!(results["wrong"], 0);
    let targets = results["targets"].as_array().unwrap();
    let of = |name: &str| {
        let found = targets
            .iter()
            .find(|one| one["ranks"] == 2 && one["target"].as_str().unwrap().starts_with(name));
        found.unwrap_or_else(|| panic!("no target {name}"))
    };
    for measured in ["host time of a call", "a rank leaves"] {
        assert!(of(measured)["met"].is_boolean(), "{}", of(measured));
    }
    assert_eq!(of("memcheck")["met"], true);
    assert_eq!(of("racecheck")["measured"], 9.0, "the worse of two");
    let small = of("all_reduce of 8 B to 16 KiB");
    assert!(small["measured"].as_f64().is_some() && small["met"] != true, "{small}");
    assert_eq!(small["missing"].as_array().unwrap().len(), 11, "one size of twelve was measured");
    assert!(of("reduce_scatter from 64 MiB")["met"].is_null(), "no such size was measured");
    for one in ["kernels of a call in a profile", "kernels of a group of 20 in a profile"] {
        assert_eq!(of(one)["measured"], 1.0, "{}", of(one));
    }
    assert_eq!(results["machine"]["quick"], true);
    let rows = results["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["op"] == "group" && row["contestant"] == "nccl"));
    for op in ["all_reduce", "group"] {
        let joined = |row: &&Value| row["op"] == op && row["family"] == "joined";
        let modes: Vec<_> = rows.iter().filter(joined).map(|row| &row["mode"]).collect();
        assert!(modes.iter().all(|mode| **mode == "eager"), "{op}: {modes:?}");
    }
    assert!(rows.iter().any(|row| row["family"] == "joined"), "ranks that share a launch");
    let one_by_one = |row: &&Value| row["op"] == "profile" && row["what"] == "one_by_one";
    let profiled = rows.iter().find(one_by_one).unwrap();
    assert_eq!(profiled["kernels_per_call"], 20.0, "{profiled}");
    for missed in targets.iter().filter(|one| one["met"] == false) {
        assert!(missed["cause"].is_string(), "{missed}");
    }
}

/// A python script of `benches/gpu`, with these arguments; what it prints.
fn script(name: &str, arguments: &[&Path]) -> String {
    let mut command = Command::new("python3");
    command.arg("-B").arg(Path::new(ROOT).join("benches/gpu").join(name)).args(arguments);
    let ended = command.output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).unwrap()
}

/// Results that a machine never gave: long calls that are slow though they have all blocks, short ones that take three launches.
#[test]
fn the_report_says_what_was_missed_and_why() {
    let folder = bundle("missed");
    let row = |bytes: usize, mode: &str, blocks: usize, time_us: f64, floor_us: f64| {
        let busbw = bytes as f64 / time_us / 1e3;
        serde_json::json!({
            "op": "all_reduce", "ranks": 8, "bytes": bytes, "mode": mode, "contestant": "oxccl", "family": "windows",
            "setting": format!("two_shot/windows x{}", blocks / 8), "time_us": time_us, "floor_us": floor_us,
            "over_floor": time_us / floor_us, "busbw_gbps": busbw, "blocks": blocks,
            "busbw_per_block_gbps": busbw / blocks as f64, "host_us": 7.5, "wrong": 0,
        })
    };
    let machine = serde_json::json!({
        "op": "machine", "ranks": 8, "gpu": "a GPU that is not there", "cuda_driver": "13.0", "nccl": null,
        "copy_gbps": 4000.0, "empty_node_us": 2.0, "empty_launch_us": 2.5,
    });
    let rows = [
        machine,
        row(8, "graph", 8, 6.5, 2.0),
        row(16 << 10, "graph", 8, 7.0, 2.0),
        row(8, "eager", 8, 8.0, 2.0),
        row(64 << 20, "eager", 64, 580.0, 270.0),
        row(64 << 20, "eager", 128, 570.0, 270.0),
        serde_json::json!({"op": "left", "ranks": 8, "contestant": "oxccl", "time_ms": 3.0}),
        serde_json::json!({"op": "sanitizer", "ranks": 2, "check": "racecheck", "status": 9}),
    ];
    let summary = summed_up(&folder.0, "bench", &rows);
    assert!(summary.contains("MISSED 8 ranks: all_reduce from 64 MiB, of its bound"), "{summary}");
    assert!(summary.contains("met    8 ranks: a rank leaves a stuck kernel"), "{summary}");
    assert!(summary.contains("; not measured: sizes 128 MiB, 256 MiB"), "{summary}");
    let other = bundle("missed-besides");
    let test = |name: &str, status: &str| serde_json::json!({"op": "test", "name": name, "status": status});
    let better = serde_json::json!({"op": "machine", "ranks": 8, "copy_gbps": 4100.0, "empty_node_us": 2.5, "empty_launch_us": 2.5});
    let tests = [better, test("one", "ok"), test("two", "ok"), test("three", "timed out")];
    summed_up(&other.0, "tests", &tests);
    let results = [&folder, &other].map(|folder| folder.0.join("results.json"));
    let report = script("report.py", &[Path::new("--show"), &results[0], &results[1]]);
    for expected in [
        "a GPU that is not there",
        "stages: bench ok, tests ok",
        "Of the tests of the CUDA path: 2 ok; 1 timed out (three).",
        "A copy moves 4,100 GB/s, read and written; an empty kernel takes 2 µs",
        "**missed**; not measured: sizes 128 MiB, 256 MiB | x floor 2.11, 118 GB/s bus, 0.92 GB/s a block of 128",
        "of its bound, 8 ranks: 2.11 times its floor",
        "the memory, not the blocks: 1.81 GB/s a block with 64, 0.92 with 128, which is not faster",
        "mostly the launch of a block's machine and the way of its flags: over the empty kernel (2 us) 4.5 us are there at 8 B",
        "an empty kernel launched by itself takes 2.5 us, 33% of it",
        "racecheck of small calls, 2 ranks: see the log of the stage",
        "| reduce_scatter from 64 MiB, of its bound | 8 | >= 0.85 of the bound |  | not measured |",
        "| group gpt2_small.toml, over flatten | 8 |",
    ] {
        assert!(report.contains(expected), "{expected} is not in:\n{report}");
    }
}

/// Leaves results in a folder, of one stage that gave these rows; what the summary says.
fn summed_up(folder: &Path, stage: &str, rows: &[Value]) -> String {
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    fs::write(folder.join("rows.jsonl"), text).unwrap();
    let stage = format!(r#"{{"stage": "{stage}", "status": "ok"}}"#);
    fs::write(folder.join("stages.jsonl"), stage).unwrap();
    fs::write(folder.join("machine.json"), r#"{"date": "2000-01-01", "quick": false}"#).unwrap();
    script("summarize.py", &[folder])
}

/// Writes a program into the bundle.
fn executable(bundle: &Folder, name: &str, text: &str) -> String {
    let path = bundle.0.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A sanitizer that finds something in groups, of races.
const SANITIZER: &str = r#"#!/bin/sh
[ "$1" != --version ] || exit 0
test "$1 $3" = "--tool --error-exitcode" || exit 1
tool=$2 status=$4
shift 4
"$@" || exit 2
case "$tool $3" in
"racecheck group") exit "$status" ;;
esac
"#;

/// Tests as a test program lists and runs them.
const TESTS: &str = r#"#!/bin/sh
case "$*" in
*--ignored*) echo "a_process: test" ;;
*--list*) printf '%s: test\n' a_process calls_of_processes fails hangs is_skipped passes rdma_in_the_guest ;;
*fails) echo "why it fails"; exit 101 ;;
*hangs) echo "on the way"; sleep 1000 ;;
*is_skipped) echo "skipped: is_skipped: no reason" >&2 ;;
"--exact passes" | "--exact calls_of_processes") test "$OXCCL_TEST_HARDWARE$CUDA_MODULE_LOADING" = 1EAGER ;;
*) exit 1 ;;
esac
"#;

#[test]
fn a_stage_that_fails_or_hangs_is_told_and_the_next_runs() {
    let bundle = bundle("failures");
    executable(&bundle, "bin/cuda", TESTS);
    fs::remove_file(bundle.0.join("image")).unwrap();
    let seconds = [("OXCCL_BUNDLE_SECONDS", "1")];
    let (results, ok) = run(&bundle, &["-t", "60", "tests", "processes"], &seconds);
    assert!(!ok);
    assert_eq!(status(&results, "tests")["reason"], "status 1: 2 of 4 tests failed");
    assert_eq!(status(&results, "processes")["status"], "ok", "{:#}", results["stages"]);
    let ended: Vec<_> = results["rows"].as_array().unwrap().iter().collect();
    let ended: Vec<_> = ended.iter().map(|row| (&row["name"], &row["status"])).collect();
    let expected = [
        ("fails", "failed"),
        ("hangs", "timed out"),
        ("is_skipped", "skipped"),
        ("passes", "ok"),
        ("calls_of_processes", "ok"),
    ];
    assert!(
        ended.iter().zip(expected).all(|(is, (name, how))| *is.0 == name && *is.1 == how),
        "{ended:?}"
    );
    let log = fs::read_to_string(bundle.0.join("results/tests.log")).unwrap();
    assert!(log.contains("on the way") && log.contains("why it fails"), "{log}");
    let (results, ok) = run(&bundle, &["-t", "5", "tests", "bench", "doctor"], &[]);
    assert!(!ok);
    let stages = results["stages"].as_array().unwrap();
    assert!(stages.iter().all(|one| one["reason"] == "no time was left"), "{stages:#?}");
    let (results, ok) = run(&bundle, &["bench", "doctor"], &[]);
    assert!(!ok);
    assert_eq!(status(&results, "bench")["status"], "failed");
    assert!(
        status(&results, "bench")["reason"].as_str().unwrap().contains("reading"),
        "{:#}",
        results["stages"]
    );
    assert_eq!(status(&results, "doctor")["status"], "ok");
}

#[test]
fn without_nccl_the_floor_is_left() {
    let bundle = bundle("no-nccl");
    let failing = [("OXCCL_NCCL_STAND_IN_FAIL", "ncclAllReduce:1")];
    let (results, ok) = run(&bundle, &["bench"], &failing);
    assert!(!ok);
    assert_eq!(status(&results, "bench")["status"], "failed");
    let log = fs::read_to_string(bundle.0.join("results/bench.log")).unwrap();
    let asked = |with: &str| {
        log.lines().filter(|line| line.starts_with("$") && line.contains(with)).count()
    };
    assert_eq!(
        (
            asked("--compare nccl"),
            asked("--nccl-ways default --nccl-ctas 8"),
            asked("--compare floor")
        ),
        (2, 1, 1),
        "{log}"
    );
    let rows = results["rows"].as_array().unwrap();
    let measured: Vec<_> = rows.iter().filter(|row| row["op"] == "all_reduce").collect();
    assert!(!measured.is_empty() && measured.iter().all(|row| row["contestant"] == "oxccl"));
}

/// `run.sh` tells tests of several processes by their names.
#[test]
fn tests_of_several_processes_come_last() {
    let script = fs::read_to_string(Path::new(ROOT).join("benches/gpu/run.sh")).unwrap();
    let several = script.lines().find_map(|line| line.strip_prefix("several='")?.strip_suffix("'"));
    let several: Vec<_> = several.unwrap().split('|').collect();
    let cases = fs::read_to_string(Path::new(ROOT).join("tests/cuda/main.rs")).unwrap();
    let cases: Vec<_> =
        cases.split(';').filter_map(|case| case.split_once(", Anything, ")).collect();
    assert!(cases.len() > 30);
    for (front, settings) in cases {
        let name = front.rsplit_once('=').unwrap().0.split_whitespace().last().unwrap();
        let told = several.iter().any(|part| name.contains(part));
        assert_eq!(told, !settings.starts_with("1,"), "{name}, {settings}");
    }
}
