//! The script of the bundle for GPU machines, on the stand-ins, with nothing in the environment but
//! the library path.
#![allow(clippy::unwrap_used)]

#[path = "../../../../tests/common/said.rs"]
mod said;

mod bundle;
mod programs;

use bundle::{
    PATIENT, ROOT, archive, bundle, call, executable, kept, results, run, script, status,
    summed_up, until,
};
use programs::{NCU, PROBES, SANITIZER, TESTS};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn stages_run_and_targets_are_summed_up() {
    let bundle = bundle("stages");
    let sanitizer = executable(&bundle, "sanitizer", SANITIZER);
    let ncu = executable(&bundle, "ncu", NCU);
    let tools = [("OXCCL_BUNDLE_SANITIZER", sanitizer.as_str()), ("OXCCL_BUNDLE_NCU", &ncu)];
    let settings = [&tools[..], &PATIENT].concat();
    let stages =
        ["first", "trace", "ncu", "bench", "sweep", "alone", "groups", "sanitizer", "profile"];
    let (_, ok) = run(&bundle, &stages[..4], &settings);
    assert!(ok, "{:#}", results(&bundle)["stages"]);
    let (results, ok) = run(&bundle, &stages[4..], &settings);
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
    let first: Vec<_> = rows.iter().filter(|row| row["op"] == "first").collect();
    assert!(first.len() == 4 && first.iter().all(|row| row["status"] == "ok"), "{first:?}");
    let traced: Vec<_> = rows.iter().filter(|row| row["op"] == "trace").collect();
    assert!(
        traced.len() == 2 && traced.iter().all(|row| row["steps"].as_u64() >= Some(4)),
        "{traced:?}"
    );
    for contestant in ["oxccl", "nccl"] {
        let cold = |row: &Value| row["mode"] == "cold" && row["contestant"] == contestant;
        assert!(rows.iter().any(cold), "{contestant} with cold caches");
    }
    let counted = rows.iter().find(|row| row["op"] == "counters").unwrap();
    assert_eq!(counted["counters"]["sm__cycles_elapsed.max (cycle)"][1], 1234.0, "{counted}");
    assert!(rows.iter().any(|row| row["type"] == "bfloat16" && row["contestant"] == "oxccl"));
    assert!(rows.iter().any(|row| row["ranks"] == 1 && row["host_us"].is_number()));
    for mode in ["eager", "graph"] {
        let tuned = |row: &Value| row["family"] == "tuned" && row["mode"] == mode;
        assert!(rows.iter().any(tuned), "ranks that share a launch, {mode}");
    }
    for launches in [0, 1] {
        let of = |row: &&Value| row["single_launch"] == launches && row["contestant"] == "oxccl";
        assert!(rows.iter().any(|row| of(&row)), "{launches}");
    }
    for hot in [0, 1] {
        let of = |row: &Value| row["single_launch"] == 0 && row["hot_kernels"] == hot;
        assert!(rows.iter().any(of), "kernels of one schedule: {hot}");
    }
    let one_by_one = |row: &&Value| row["op"] == "profile" && row["what"] == "one_by_one";
    let profiled = rows.iter().find(one_by_one).unwrap();
    assert_eq!(profiled["kernels_per_call"], 20.0, "{profiled}");
    for missed in targets.iter().filter(|one| one["met"] == false) {
        assert!(missed["cause"].is_string(), "{missed}");
    }
}

/// Results that a machine never gave: long calls that are slow though they have all blocks, short
/// ones that take three launches.
#[test]
fn the_report_says_what_was_missed_and_why() {
    let folder = bundle("missed");
    let row = |bytes: usize, mode: &str, blocks: usize, time_us: f64, floor_us: f64| {
        let busbw = bytes as f64 / time_us / 1e3;
        serde_json::json!({
            "op": "all_reduce", "type": "float", "ranks": 8, "bytes": bytes, "mode": mode, "contestant": "oxccl", "family": "windows",
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
        row(8, "cold", 8, 9.0, 2.0),
        serde_json::json!({
            "op": "trace", "ranks": 8, "bytes": "64K", "status": "ok", "steps": 40, "file": "trace/all_reduce-8-64K.json", "says": "",
        }),
        row(64 << 20, "eager", 64, 580.0, 270.0),
        row(64 << 20, "eager", 128, 570.0, 270.0),
        serde_json::json!({"op": "left", "ranks": 8, "contestant": "oxccl", "time_ms": 3.0}),
        serde_json::json!({"op": "sanitizer", "ranks": 2, "check": "racecheck", "status": 9}),
    ];
    let summary = summed_up(&folder, "bench", &rows);
    assert!(summary.contains("MISSED 8 ranks: all_reduce from 64 MiB, of its bound"), "{summary}");
    assert!(summary.contains("met    8 ranks: a rank leaves a stuck kernel"), "{summary}");
    assert!(summary.contains("; not measured: sizes 128 MiB, 256 MiB"), "{summary}");
    let other = bundle("missed-besides");
    let test = |name: &str, status: &str| serde_json::json!({"op": "test", "name": name, "status": status});
    let better = serde_json::json!({"op": "machine", "ranks": 8, "copy_gbps": 4100.0, "empty_node_us": 2.5, "empty_launch_us": 2.5});
    let tests = [better, test("one", "ok"), test("two", "ok"), test("three", "timed out")];
    summed_up(&other, "tests", &tests);
    let results = [&folder, &other].map(archive);
    let report = script("report.py", &[Path::new("--show"), &results[0], &results[1]]);
    for expected in [
        "a GPU that is not there",
        "| bench | none | ok |  |",
        "| ok | 2 |\n| timed out | 1: three |",
        "A copy moves 4,100 GB/s, read and written; an empty kernel takes 2 µs",
        "**missed**; not measured: sizes 128 MiB, 256 MiB | x floor 2.11, 118 GB/s bus, 0.92 GB/s a block of 128",
        "of its bound | 8 | 2.11 times its floor",
        "the memory, not the blocks: 1.81 GB/s a block with 64, 0.92 with 128, which is not faster",
        "mostly the launch of a block's machine and the way of its flags: over the empty kernel (2 us) 4.5 us are there at 8 B",
        "an empty kernel launched by itself takes 2.5 us, 33% of it",
        "racecheck of small calls | 2 | see the log of the stage",
        "| 8 | 8 B | 9 | two_shot/windows x1 | 8 |  |",
        "| 8 | 64K | ok | 40 | trace/all_reduce-8-64K.json |",
        "| reduce_scatter from 64 MiB, of its bound | 8 | >= 0.85 of the bound |  | not measured |",
        "| group gpt2_small.toml, over flatten | 8 |",
    ] {
        assert!(report.contains(expected), "{expected} is not in:\n{report}");
    }
}

#[test]
fn a_stage_that_fails_or_hangs_is_told_and_the_next_runs() {
    let bundle = bundle("failures");
    executable(&bundle, "bin/cuda", TESTS);
    fs::remove_file(bundle.0.join("image")).unwrap();
    let mps = executable(&bundle, "mps", "#!/bin/sh\nexit 0\n");
    let settings = [("OXCCL_BUNDLE_SECONDS", "2"), ("OXCCL_BUNDLE_MPS", mps.as_str())];
    let (results, ok) = run(&bundle, &["-t", "60", "tests", "processes"], &settings);
    assert!(!ok);
    assert_eq!(status(&results, "tests")["reason"], "status 1: 2 of 5 tests failed");
    assert_eq!(status(&results, "processes")["status"], "ok", "{:#}", results["stages"]);
    let ended: Vec<_> = results["rows"].as_array().unwrap().iter().collect();
    let ended: Vec<_> = ended.iter().map(|row| (&row["name"], &row["status"])).collect();
    let expected = [
        ("streams_keep_order", "ok"),
        ("hangs", "timed out"),
        ("is_skipped", "skipped"),
        ("passes", "ok"),
        ("fails", "failed"),
        ("calls_of_processes under MPS", "ok"),
        ("calls_of_processes", "ok"),
    ];
    assert!(
        ended.len() == expected.len()
            && ended.iter().zip(expected).all(|(is, (name, how))| *is.0 == name && *is.1 == how),
        "{ended:?}"
    );
    let log = kept(&bundle, "tests/log");
    assert!(log.contains("on the way") && log.contains("why it fails"), "{log}");
    let (results, ok) = run(&bundle, &["-t", "5", "tests", "bench", "groups"], &[]);
    assert!(!ok);
    assert_eq!(status(&results, "tests")["status"], "failed", "what an earlier call left stays");
    for stage in ["bench", "groups"] {
        assert_eq!(status(&results, stage)["reason"], "no time was left");
    }
    let (results, ok) = run(&bundle, &["bench"], &PATIENT);
    assert!(!ok);
    assert_eq!(status(&results, "bench")["status"], "failed");
    assert!(
        status(&results, "bench")["reason"].as_str().unwrap().contains("reading"),
        "{:#}",
        results["stages"]
    );
    fs::write(bundle.0.join("bundle.json"), r#"{"commit": "another"}"#).unwrap();
    let other = call(&bundle, &["bench"], &[]).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&other.stderr);
    assert!(other.status.code() == Some(2) && said.contains("is of another bundle"), "{said}");
}

/// A call that is ended while a test hangs, by a signal that its script can hear of, or by one that
/// it cannot.
#[test]
fn a_call_that_is_ended_in_the_middle_keeps_what_it_measured() {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let bundle = bundle(&format!("ended-{signal}"));
        executable(&bundle, "bin/cuda", TESTS);
        let mut child = call(&bundle, &["tests"], &[]).spawn().unwrap();
        // The archive is written while the stage runs.
        until("the archive has the first test", || {
            archive(&bundle).exists() && kept(&bundle, "tests/rows.jsonl").contains("streams_keep")
        });
        let pid = fs::read_to_string(bundle.0.join("bin/hangs.pid")).unwrap();
        let hanging: i32 = pid.trim().parse().unwrap();
        // SAFETY: a signal to a child that was not waited for.
        unsafe { libc::kill(child.id() as i32, signal) };
        assert!(!child.wait().unwrap().success());
        let left = results(&bundle);
        assert_eq!(status(&left, "tests")["status"], "ended", "{:#}", left["stages"]);
        assert_eq!(left["rows"][0]["name"], "streams_keep_order");
        if signal == libc::SIGTERM {
            // SAFETY: it asks whether the process is there.
            until("the test has ended", || unsafe { libc::kill(hanging, 0) } != 0);
        } else {
            // SAFETY: the test program that this test has started, whose script was killed.
            unsafe { libc::kill(hanging, libc::SIGKILL) };
        }
        executable(&bundle, "bin/cuda", &TESTS.replace("exec sleep 1000", "true"));
        let (all, _) = run(&bundle, &["processes"], &[]);
        assert_eq!(status(&all, "processes")["status"], "ok", "{:#}", all["stages"]);
        assert_eq!(status(&all, "tests")["status"], "ended", "it is still there");
    }
}

#[test]
fn a_probe_that_hangs_is_named_and_the_others_run() {
    let bundle = bundle("probes");
    executable(&bundle, "bin/gpu-probe", PROBES);
    let (results, ok) = run(&bundle, &["probe"], &[("OXCCL_BUNDLE_SECONDS", "2")]);
    assert!(!ok);
    let says: Vec<_> = results["rows"].as_array().unwrap().iter().map(|row| &row["says"]).collect();
    let never = "a value never comes";
    let expected = [
        "",
        "the probe hangs hangs (status 124)",
        "the probe crashes was ended (status 139)",
        never,
        never,
        never,
    ];
    assert_eq!(says, expected);
    let connections = [3, 4, 5].map(|row| results["rows"][row]["value"].as_u64().unwrap());
    assert_eq!(connections, [32, 8, 1]);
    let log = kept(&bundle, "probe/log");
    let (_, summary) = log.split_once("== hazards that are real:").unwrap();
    assert!(summary.contains(never) && summary.contains("the probe hangs hangs"), "{log}");
    let summary = script("summarize.py", &[&archive(&bundle)]);
    assert!(summary.contains("hazard: the probe crashes was ended"), "{summary}");
}

/// The probes themselves, as far as a driver without their kernels lets them.
#[test]
fn probes_end_with_what_a_driver_refuses() {
    if oxccl_kernels::image::FATBIN.is_none() {
        said::skip("probes_end_with_what_a_driver_refuses", "built without nvcc");
        return;
    }
    let bundle = bundle("real-probes");
    let program = bundle.0.join("bin/gpu-probe");
    let built = Command::new(Path::new(ROOT).join("tools/gpu-probe")).arg(&program).status();
    assert!(built.unwrap().success());
    let (results, ok) = run(&bundle, &["probe"], &[("OXCCL_BUNDLE_SECONDS", "30")]);
    assert!(!ok, "the stand-in has none of their kernels");
    let rows = results["rows"].as_array().unwrap();
    let of = |probe: &'static str| rows.iter().filter(move |row| row["probe"] == probe);
    for shared in ["descriptors", "legacy IPC"] {
        let what = format!("another process writes memory that came by {shared}");
        let row = of("descriptors").find(|row| row["what"] == what.as_str());
        assert_eq!(row.unwrap()["hazard"], false, "{shared}");
    }
    assert!(of("attributes").any(|row| row["what"] == "multiprocessors" && row["value"] == 132));
    assert!(of("host_memory").count() == 4 && of("host_memory").all(|row| row["hazard"] == false));
    let listed = Command::new(&program).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let launching = listed.lines().skip_while(|name| *name != "lines");
    assert_eq!(launching.clone().count(), 13);
    for probe in launching {
        let last = rows.iter().rfind(|row| row["probe"] == probe).unwrap();
        let says = last["says"].as_str().unwrap();
        let refused = format!("the probe {probe} gave up: the driver does not find the kernel ");
        assert!(says.starts_with(&refused) && says.ends_with("CUDA_ERROR_NOT_FOUND"), "{says}");
    }
    let unknown = Command::new(&program).arg("nothing").status().unwrap();
    assert_eq!(unknown.code(), Some(2));
}

#[test]
fn without_nccl_the_floor_is_left() {
    let bundle = bundle("no-nccl");
    let failing = [("OXCCL_NCCL_STAND_IN_FAIL", "ncclAllReduce:1")];
    let (results, ok) = run(&bundle, &["bench"], &[&failing[..], &PATIENT].concat());
    assert!(!ok);
    assert_eq!(status(&results, "bench")["status"], "failed");
    let log = kept(&bundle, "bench/log");
    let asked = |with: &str| {
        log.lines().filter(|line| line.starts_with("$") && line.contains(with)).count()
    };
    assert_eq!(
        (asked("--nccl-lib"), asked("--nccl-ways default --nccl-ctas 8"), asked("--floor-only")),
        (2, 1, 1),
        "{log}"
    );
    let rows = results["rows"].as_array().unwrap();
    let measured: Vec<_> = rows.iter().filter(|row| row["op"] == "all_reduce").collect();
    assert!(!measured.is_empty() && measured.iter().all(|row| row["contestant"] == "oxccl"));
}

/// `stages.sh` tells tests of several processes by their names.
#[test]
fn tests_of_several_processes_come_last() {
    let script = fs::read_to_string(Path::new(ROOT).join("benches/gpu/stages.sh")).unwrap();
    let several = script.lines().find_map(|line| line.strip_prefix("several='")?.strip_suffix("'"));
    let several: Vec<_> = several.unwrap().split('|').collect();
    let cases = fs::read_to_string(Path::new(ROOT).join("tests/cuda/main.rs")).unwrap();
    let cases: Vec<_> = cases
        .split(';')
        .filter_map(|case| case.split_once(", Anything, "))
        .filter_map(|(front, settings)| Some((front.rsplit_once('=')?.0, settings)))
        .collect();
    assert!(cases.len() > 30);
    for (front, settings) in cases {
        let name = front.split_whitespace().last().unwrap();
        let told = several.iter().any(|part| name.contains(part));
        assert_eq!(told, !settings.starts_with("1,"), "{name}, {settings}");
    }
}
