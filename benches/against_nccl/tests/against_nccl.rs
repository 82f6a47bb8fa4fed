//! The tool's loop, its checks, its turns and its errors, on the stand-in driver and beside the
//! stand-in of NCCL.
#![allow(clippy::unwrap_used)]

#[path = "../../../tests/common/said.rs"]
mod said;

use oxccl_cuda_stand_in::control::{image_file, library_folder};
use said::{Said, finish, plain, start};
use serde_json::Value;

/// NCCL's stand-in.
fn nccl() -> String {
    oxccl_nccl_stand_in::library().to_str().unwrap().to_owned()
}

fn compare(arguments: &[&str], settings: &[(&str, &str)]) -> Said {
    let mut command = plain(env!("CARGO_BIN_EXE_oxccl-against-nccl"));
    command.args(arguments);
    command.args(["--repeats", "2", "--repeat-ms", "1", "--json", "--timeout", "60", "--image"]);
    command.arg(image_file().unwrap()).env("LD_LIBRARY_PATH", library_folder().unwrap());
    // Copies are as large as an eighth of it.
    command.env("OXCCL_STAND_IN_MEMORY", (384 << 20).to_string());
    command.envs(settings.iter().copied());
    finish(start(&mut command))
}

fn rows(said: &Said) -> Vec<Value> {
    said.out.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn of<'a>(rows: &'a [Value], op: &str) -> Vec<&'a Value> {
    rows.iter().filter(|row| row["op"] == op).collect()
}

#[test]
fn a_rank_of_eight_takes_little_of_a_gpu() {
    let arguments = ["all_reduce", "--floor-only", "-g", "8", "-b", "8", "-e", "8"];
    let rows = rows(&compare(&arguments, &[("OXCCL_STAND_IN_MEMORY", "3221225472")]).ok());
    let bytes = of(&rows, "start")[0]["device_bytes"].as_u64().unwrap();
    // What it has at the least, and what it may have.
    assert!((32 << 20..=64 << 20).contains(&bytes), "{bytes}");
}

#[test]
fn every_size_is_compared_in_every_mode() {
    let arguments = ["all_reduce", "--nccl-lib", &nccl(), "-g", "2"];
    let sizes = ["-b", "8", "-e", "8K", "-f", "1024", "-G", "3"];
    let rows = rows(&compare(&[&arguments[..], &sizes].concat(), &[]).ok());
    let machine = of(&rows, "machine")[0];
    assert_eq!(machine["nccl"], "2.30.7");
    assert!(
        machine["copy_gbps"].as_f64() > Some(0.0) && machine["empty_node_us"].as_f64() > Some(0.0)
    );
    let started: Vec<_> = of(&rows, "start").iter().map(|row| row["contestant"].clone()).collect();
    assert_eq!(started, ["oxccl", "nccl"]);
    assert!(of(&rows, "left")[0]["time_ms"].as_f64() > Some(0.0));
    assert_eq!(of(&rows, "machine").len(), 2, "before and after");
    let measured = of(&rows, "all_reduce");
    assert!(measured.iter().all(|row| row["wrong"] == 0 && row["time_us"].as_f64() > Some(0.0)));
    for bytes in [8, 8192] {
        for mode in ["eager", "graph"] {
            let here = |row: &&&Value| row["bytes"] == bytes && row["mode"] == mode;
            let here: Vec<_> = measured.iter().filter(here).collect();
            for contestant in ["oxccl", "nccl"] {
                let best = |row: &&&&Value| row["contestant"] == contestant && row["best"] == true;
                assert_eq!(here.iter().filter(best).count(), 1, "{bytes} {mode} {contestant}");
            }
            for family in ["default", "symmetric"] {
                assert!(here.iter().any(|row| row["family"] == family), "{bytes} {mode} {family}");
            }
            let ratio = here.iter().find(|row| row["contestant"] == "oxccl" && row["best"] == true);
            assert!(ratio.unwrap()["nccl_over_this"].as_f64() > Some(0.0));
            assert!(here.iter().all(|row| row["host_us"].is_null() == (mode == "graph")));
        }
    }
}

/// A flush takes longer than a call, and is no part of its time.
#[test]
fn calls_with_cold_caches_are_timed_besides() {
    let arguments = ["all_reduce", "--nccl-lib", &nccl(), "-g", "2", "-b", "4K", "-e", "4K"];
    let rows = rows(&compare(&[&arguments[..], &["--cold=1M"]].concat(), &[]).ok());
    let measured = of(&rows, "all_reduce");
    for contestant in ["oxccl", "nccl"] {
        for mode in ["eager", "cold"] {
            let here = |row: &&&Value| row["mode"] == mode && row["contestant"] == contestant;
            let here: Vec<_> = measured.iter().filter(here).collect();
            assert_eq!(here.iter().filter(|row| row["best"] == true).count(), 1, "{measured:?}");
            let timed = here.iter().all(|row| row["time_us"].as_f64() > Some(0.0));
            assert!(timed && here.iter().all(|row| row["wrong"] == 0), "{here:?}");
            assert!(here.iter().all(|row| row["host_us"].is_null() == (mode == "cold")));
        }
    }
    assert!(of(&rows, "all_reduce").iter().all(|row| row["mode"] != "graph"));
}

/// NCCL's streams may share a connection with ours, unless ours are made first and together.
#[test]
fn all_streams_of_ours_are_made_before_those_of_nccl() {
    let list = std::env::temp_dir().join(format!("oxccl-streams-{}", std::process::id()));
    let _ = std::fs::remove_file(&list);
    let arguments = ["all_reduce", "--nccl-lib", &nccl(), "-g", "2", "-b", "8", "-e", "8"];
    let arguments = [&arguments[..], &["-G", "2", "--cold=4K", "--nccl-ctas", "2"]].concat();
    let settings = [("OXCCL_STAND_IN_STREAMS", list.to_str().unwrap())];
    compare(&arguments, &settings).ok();
    let text = std::fs::read_to_string(&list).unwrap();
    std::fs::remove_file(&list).unwrap();
    let made: Vec<&str> = text.lines().collect();
    let first = made.iter().position(|line| *line == "nccl").unwrap();
    // Of each rank: a communicator that is started for its time; then the stream of all calls and
    // one of the communicator.
    assert_eq!(&made[..first], ["stream"; 6]);
    let communicators = made.iter().filter(|line| **line == "nccl").count();
    assert_eq!(communicators, 4, "two ways of two ranks");
    let behind = made[first..].iter().filter(|line| **line == "stream").count();
    assert_eq!(behind, 2 * communicators, "none but NCCL's");
}

#[test]
fn all_collectives_that_both_know() {
    let library = nccl();
    let arguments = ["all", "--nccl-lib", &library, "-g", "3"];
    let sizes = ["-b", "1200", "-e", "1200", "--nccl-ctas", "4"];
    let rows = rows(&compare(&[&arguments[..], &sizes].concat(), &[]).ok());
    for op in [
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "all_to_all",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
    ] {
        let measured = of(&rows, op);
        for contestant in ["oxccl", "nccl"] {
            assert!(
                measured.iter().any(|row| row["contestant"] == contestant),
                "{contestant} {op}"
            );
        }
        assert!(measured.iter().all(|row| row["wrong"] == 0), "{measured:?}");
    }
}

#[test]
fn groups_are_compared_in_every_form() {
    let library = nccl();
    let arguments = ["group", "--nccl-lib", &library, "-G", "2"];
    let buckets = ["--buckets", "3", "--bucket-size", "1K", "--nccl-ctas", "4"];
    let rows = rows(&compare(&[&arguments[..], &buckets].concat(), &[]).ok());
    let measured = of(&rows, "group");
    assert!(measured.iter().all(|row| row["wrong"] == 0 && row["buckets"] == 3), "{measured:?}");
    assert!(measured.iter().all(|row| row["bytes"] == 3072 && row["source"].is_null()));
    let forms = |contestant: &str, mode: &str| {
        let best = |row: &&&Value| {
            row["contestant"] == contestant && row["mode"] == mode && row["best"] == true
        };
        let names = measured.iter().filter(best).map(|row| row["form"].as_str().unwrap());
        names.collect::<Vec<_>>()
    };
    for mode in ["eager", "graph"] {
        assert_eq!(forms("nccl", mode), ["fused", "one_by_one", "flatten", "ideal"]);
        assert_eq!(forms("oxccl", mode), ["fused", "one_by_one", "flatten", "ideal"]);
    }
}

#[test]
fn the_floor_needs_no_other_library() {
    let said = compare(&["all_reduce", "--floor-only", "-b", "4K", "-e", "4K"], &[]).ok();
    let rows = rows(&said);
    assert!(of(&rows, "machine")[0]["nccl"].is_null());
    let measured = of(&rows, "all_reduce");
    assert!(!measured.is_empty());
    for row in measured {
        assert!(row["contestant"] == "oxccl" && row["nccl_over_this"].is_null());
        let floor = row["floor_us"].as_f64().unwrap();
        let over = row["time_us"].as_f64().unwrap() / floor;
        assert!((row["over_floor"].as_f64().unwrap() / over - 1.0).abs() < 0.01, "{row}");
    }
}

#[test]
fn wrong_results_of_either_are_found() {
    let library = nccl();
    let arguments = ["all_reduce", "--nccl-lib", &library, "-b", "64", "-e", "64"];
    let said = compare(&arguments, &[("OXCCL_NCCL_STAND_IN_WRONG", "1")]).failed(1);
    assert!(said.err.contains("elements are wrong"), "{}", said.err);
    let of_nccl = |row: &&Value| row["contestant"] == "nccl";
    let rows = rows(&said);
    let (nccl, own): (Vec<_>, Vec<_>) = of(&rows, "all_reduce").into_iter().partition(of_nccl);
    assert!(nccl.iter().all(|row| row["wrong"].as_u64() > Some(0)));
    assert!(own.iter().all(|row| row["wrong"] == 0));
}

#[test]
fn ways_that_nccl_has_not_are_left_out() {
    let library = nccl();
    let arguments = ["all_reduce", "--nccl-lib", &library, "--nccl-ctas", "4"];
    let size = ["-b", "64", "-e", "64"];
    let families = |said: &Said| {
        let rows = rows(said);
        let left_out: Vec<Value> = of(&rows, "left_out").into_iter().cloned().collect();
        let measured =
            of(&rows, "all_reduce").into_iter().filter(|row| row["contestant"] == "nccl");
        let families: Vec<_> =
            measured.map(|row| row["family"].as_str().unwrap().to_owned()).collect();
        (families, left_out)
    };
    let without = [("OXCCL_NCCL_STAND_IN_NO_WINDOWS", "1")];
    let said = compare(&[&arguments[..], &size].concat(), &without).ok();
    assert!(
        said.err.contains("NCCL (symmetric, 4 ctas): ncclCommWindowRegister has made no window")
    );
    let (measured, left_out) = families(&said);
    assert_eq!(measured, ["default"]);
    assert_eq!(left_out.len(), 1);
    assert_eq!(left_out[0]["setting"], "symmetric, 4 ctas");
    let wished = ["--nccl-ways", "symmetric"];
    let said = compare(&[&arguments[..], &size, &wished].concat(), &[]).ok();
    assert_eq!(families(&said).0, ["symmetric"]);
    let none = compare(&[&arguments[..], &size, &wished].concat(), &without).failed(1);
    assert!(none.err.contains("NCCL cannot be set up in any way"), "{}", none.err);
}

#[test]
fn long_calls_are_checked_before_and_the_fastest_once_more() {
    let arguments = ["broadcast", "--floor-only", "-b", "17M", "-e", "17M", "--channels", "1"];
    let rows = rows(&compare(&arguments, &[]).ok());
    let measured = of(&rows, "broadcast");
    assert!(!measured.is_empty() && measured.iter().all(|row| row["wrong"] == 0), "{measured:?}");
    assert!(measured.iter().all(|row| row["host_us"].as_f64() > Some(0.0)), "{measured:?}");
}

#[test]
fn what_cannot_be_compared_with_says_why() {
    let library = nccl();
    let with = |path: &str, settings: &[(&str, &str)], status: i32| {
        let arguments = ["all_reduce", "--nccl-lib", path, "-b", "8", "-e", "8"];
        compare(&arguments, settings).failed(status).err
    };
    let missing = with("no-such-library.so", &[], 1);
    assert!(missing.contains("no-such-library.so cannot be loaded"), "{missing}");
    let other = with("libc.so.6", &[], 1);
    assert!(other.contains("no ncclGetVersion"), "{other}");
    let old = with(&library, &[("OXCCL_NCCL_STAND_IN_VERSION", "22907")], 1);
    assert!(old.contains("NCCL is 2.29.7, 2.30.0 or newer"), "{old}");
    let single = with(&library, &[("NCCL_MULTI_RANK_GPU_ENABLE", "0")], 1);
    assert!(single.contains("invalid usage (5): Duplicate GPU"), "{single}");
    for function in ["ncclMemAlloc", "ncclCommWindowRegister", "ncclAllReduce"] {
        let failed = with(&library, &[("OXCCL_NCCL_STAND_IN_FAIL", &format!("{function}:2"))], 1);
        let told = format!("{function} answered internal error (3): it failed on demand");
        assert!(failed.contains(&told), "{failed}");
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let refused = compare(&["barrier", "--floor-only"], &[]).failed(2);
    assert!(refused.err.contains("barrier is not compared"), "{}", refused.err);
    let many = ["all_reduce", "--floor-only", "--channels", "64", "-g", "4", "-e", "8"];
    let refused = compare(&many, &[]).failed(1);
    assert!(refused.err.contains("64"), "{}", refused.err);
    let none = compare(&["all_reduce", "--floor-only", "--gpu", "7"], &[]).failed(1);
    assert!(none.err.contains("no GPU 7"), "{}", none.err);
}
