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
    for script in ["run.sh", "summarize.py"] {
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
