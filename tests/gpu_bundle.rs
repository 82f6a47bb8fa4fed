//! The script of the bundle for GPU machines, on the stand-ins, with nothing in the environment but the library path.
#![allow(clippy::unwrap_used)]

use oxccl_cuda_stand_in::control::{image, library_folder};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
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
    for script in ["run.sh", "summarize.py", "rows.py", "targets.py", "causes.py"] {
        fs::copy(Path::new(ROOT).join("benches/gpu").join(script), folder.join(script)).unwrap();
    }
    symlink(env!("CARGO_BIN_EXE_oxccl"), folder.join("bin/oxccl")).unwrap();
    fs::write(folder.join("bundle.json"), r#"{"commit": "none"}"#).unwrap();
    let text = image(&[90]);
    fs::write(folder.join("image"), &text[..text.len() - 1]).unwrap();
    Folder(folder)
}

/// Runs stages of it; what they leave, and whether none failed.
fn run(bundle: &Folder, arguments: &[&str]) -> (Value, bool) {
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
    let (results, ok) = run(&bundle, &["doctor", "bench", "group", "profile"]);
    assert!(ok, "{:#}", results["stages"]);
    for stage in ["doctor", "bench", "group"] {
        assert_eq!(status(&results, stage)["status"], "ok", "{:#}", results["stages"]);
    }
    assert!(["ok", "skipped"].contains(&status(&results, "profile")["status"].as_str().unwrap()));
    assert_eq!(results["wrong"], 0);
    let targets = results["targets"].as_array().unwrap();
    let of = |name: &str| {
        let found = targets
            .iter()
            .find(|one| one["ranks"] == 2 && one["target"].as_str().unwrap().starts_with(name));
        found.unwrap_or_else(|| panic!("no target {name}"))
    };
    for measured in ["all_reduce of 8 B to 16 KiB", "host time of a call", "abort"] {
        assert!(of(measured)["met"].is_boolean(), "{}", of(measured));
    }
    assert!(of("reduce_scatter from 64 MiB")["met"].is_null(), "no such size was measured");
    assert_eq!(results["machine"]["quick"], true);
    let rows = results["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["op"] == "group" && row["contestant"] == "nccl"));
    for op in ["all_reduce", "group"] {
        let joined = |row: &&Value| row["op"] == op && row["family"] == "joined";
        let modes: Vec<_> = rows.iter().filter(joined).map(|row| &row["mode"]).collect();
        assert!(modes.iter().all(|mode| **mode == "eager"), "{op}: {modes:?}");
    }
    assert!(rows.iter().any(|row| row["family"] == "joined"), "ranks that share a launch");
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
        serde_json::json!({"op": "abort", "ranks": 8, "contestant": "oxccl", "time_ms": 3.0}),
        serde_json::json!({"op": "sanitizer", "ranks": 2, "check": "racecheck", "status": 9}),
    ];
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    fs::write(folder.0.join("rows.jsonl"), text).unwrap();
    fs::write(folder.0.join("stages.jsonl"), "").unwrap();
    fs::write(folder.0.join("machine.json"), r#"{"date": "2000-01-01", "quick": false}"#).unwrap();
    let summary = script("summarize.py", &[&folder.0]);
    assert!(summary.contains("MISSED 8 ranks: all_reduce from 64 MiB, of its bound"), "{summary}");
    assert!(summary.contains("met    8 ranks: abort of a stuck kernel"), "{summary}");
    let report = script("report.py", &[Path::new("--show"), &folder.0.join("results.json")]);
    for expected in [
        "a GPU that is not there",
        "**missed** | x floor 2.11, 118 GB/s bus, 0.92 GB/s a block of 128",
        "of its bound, 8 ranks: 2.11 times its floor",
        "the memory, not the blocks: 1.81 GB/s a block with 64, 0.92 with 128, which is not faster",
        "mostly the launch of a block's machine and the way of its flags: over the empty kernel (2 us) 4.5 us are there at 8 B",
        "an empty kernel launched by itself takes 2.5 us, 33% of it",
        "racecheck of small calls, 2 ranks: see the log of the stage",
        "| reduce_scatter from 64 MiB, of its bound | 8 | >= 0.85 of the bound |  | not measured |",
    ] {
        assert!(report.contains(expected), "{expected} is not in:\n{report}");
    }
}

#[test]
fn a_stage_that_fails_or_hangs_is_told_and_the_next_runs() {
    let bundle = bundle("failures");
    fs::write(bundle.0.join("bin/cuda"), "#!/bin/sh\necho on the way\nsleep 1000\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(bundle.0.join("bin/cuda"), executable).unwrap();
    fs::remove_file(bundle.0.join("image")).unwrap();
    let (results, ok) = run(&bundle, &["-t", "6", "tests", "bench", "doctor"]);
    assert!(!ok);
    let tests = status(&results, "tests");
    assert_eq!(tests["status"], "timed out", "{:#}", results["stages"]);
    let log = fs::read_to_string(bundle.0.join("results/tests.log")).unwrap();
    assert!(log.contains("on the way"), "{log}");
    let others = [status(&results, "bench"), status(&results, "doctor")];
    assert!(
        others.iter().all(|one| one["reason"] == "no time was left"),
        "{:#}",
        results["stages"]
    );
    let (results, ok) = run(&bundle, &["bench", "doctor"]);
    assert!(!ok);
    assert_eq!(status(&results, "bench")["status"], "failed");
    assert!(
        status(&results, "bench")["reason"].as_str().unwrap().contains("reading"),
        "{:#}",
        results["stages"]
    );
    assert_eq!(status(&results, "doctor")["status"], "ok");
}
