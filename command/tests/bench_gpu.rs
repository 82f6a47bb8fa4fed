//! `oxccl bench --device cuda`, on the stand-in driver.
#![allow(clippy::unwrap_used)]

mod command_line;

use command_line::{command, finish, start};
use oxccl_cuda_stand_in::control::{image_file, library_folder};
use serde_json::Value;
use std::process::Command;

fn bench(arguments: &[&str]) -> Vec<Value> {
    let said = finish(start(&mut gpu_bench(arguments))).ok();
    said.out.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn gpu_bench(arguments: &[&str]) -> Command {
    let mut command = command(&["bench"]);
    command.args(arguments).args(["--device", "cuda", "--threads", "--no-probe"]);
    command.args(["--repeats", "2", "--repeat-ms", "1", "--json", "--timeout", "60", "--image"]);
    command.arg(image_file().unwrap()).env("LD_LIBRARY_PATH", library_folder().unwrap());
    command.env("OXCCL_STAND_IN_MEMORY", (384 << 20).to_string());
    command.env("CUDA_DEVICE_MAX_CONNECTIONS", "32");
    command
}

#[test]
fn communicators_on_a_gpu_are_swept() {
    let arguments = ["all", "-g", "2"];
    let sizes = ["-b", "8", "-e", "32K", "-f", "4096"];
    let rows = bench(&[&arguments[..], &sizes].concat());
    assert!(rows.iter().filter(|row| row["wrong"] == 0).count() >= 20, "{rows:?}");
    assert!(rows.iter().all(|row| row["wrong"].as_u64().is_none_or(|wrong| wrong == 0)));
}

/// With `OXCCL_TRACE_STEPS` of 8 not all steps have room.
#[test]
fn a_trace_has_every_rank_and_says_what_it_lacks() {
    for (steps, lacks) in [("8192", false), ("8", true)] {
        let path = std::env::temp_dir().join(format!("oxccl-{}-{steps}.json", std::process::id()));
        let file = path.to_str().unwrap();
        let mut command = gpu_bench(&["all_reduce", "-g", "2", "-b", "64K", "-e", "64K"]);
        command.args(["--algorithm", "ring", "--encoding", "slots", "--trace", file]);
        let said = finish(start(command.env("OXCCL_TRACE_STEPS", steps))).ok();
        let trace: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        for rank in 0..2 {
            let of_rank = |event: &&Value| event["ph"] == "X" && event["pid"] == rank;
            assert!(events.iter().filter(of_rank).count() >= 6, "{trace}");
        }
        assert_eq!(trace["otherData"]["lost"].as_u64().unwrap() > 0, lacks, "{trace}");
        assert_eq!(said.err.contains("set OXCCL_TRACE_STEPS higher"), lacks, "{}", said.err);
    }
    let mut refused = gpu_bench(&["all_reduce", "-g", "2", "-b", "8", "-e", "8", "-d", "int32"]);
    let said = finish(start(refused.args(["--trace", "/dev/null"]))).failed(1);
    assert!(said.err.contains("no traced kernel computes the sum of int32"), "{}", said.err);
}

/// A rank a GPU; of the topology that is named, ranks are on the devices in order.
#[test]
fn what_passes_between_gpus_is_measured_beside_what_a_topology_says() {
    let measure = |topology: &str, settings: &[(&str, &str)]| {
        let mut command = command(&["topo", topology, "--measure", "--device", "cuda", "--json"]);
        command.arg("--image").arg(image_file().unwrap());
        command.env("LD_LIBRARY_PATH", library_folder().unwrap()).envs(settings.iter().copied());
        command.env("OXCCL_STAND_IN_MEMORY", (384 << 20).to_string());
        command.env("CUDA_DEVICE_MAX_CONNECTIONS", "32");
        finish(start(&mut command))
    };
    let said = measure("dgx-h100", &[("OXCCL_STAND_IN_DEVICES", "2")]).ok();
    let found: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(found["ranks"], 2);
    assert!(found["devices"][1].as_str().unwrap().starts_with("GPU "), "{found}");
    for what in ["alone", "at_once", "theory"] {
        for of in ["latency_ns", "gbps"] {
            let rows = &found[what][of];
            assert!(rows[0][0].is_null() && rows[1][1].is_null(), "{found}");
            assert!([&rows[0][1], &rows[1][0]].iter().all(|cell| cell.as_f64().unwrap() > 0.0));
        }
    }
    assert_eq!(found["theory"]["gbps"][0][1], 360.0, "{found}");
    let said = measure("this", &[("OXCCL_STAND_IN_DEVICES", "2")]).ok();
    let found: Value = serde_json::from_str(&said.out).unwrap();
    assert!(found["theory"].is_null(), "{found}");
    assert!(found["no_theory"].as_str().unwrap().starts_with("it has no GPU"), "{found}");
    let said = measure("this", &[("OXCCL_STAND_IN_DEVICES", "1")]).failed(2);
    assert!(said.err.contains("at least 2 ranks, this is 1"), "{}", said.err);
}

/// Each rank is a process, and each algorithm gets a time.
#[test]
fn algorithms_on_a_gpu_are_measured_and_explained() {
    let arguments = ["explain", "all_reduce", "--ranks", "2", "--bytes", "4K", "--rank", "0"];
    let mut command = command(&arguments);
    command.args(["--device", "cuda", "--measure", "--image"]).arg(image_file().unwrap());
    command.env("LD_LIBRARY_PATH", library_folder().unwrap());
    command.env("OXCCL_STAND_IN_MEMORY", (384 << 20).to_string());
    let said = finish(start(&mut command)).ok();
    let table = said.out.lines().skip_while(|line| !line.ends_with("measured us")).skip(1);
    let measured: Vec<&str> = table.take_while(|line| line.contains(" / ")).collect();
    assert!(measured.len() > 5, "{}", said.out);
    for line in &measured {
        let times = line.trim_end_matches("  <- choice").split_whitespace();
        assert!(times.last().unwrap().parse::<f64>().unwrap() > 0.0, "{line}");
    }
    assert_eq!(measured.iter().filter(|line| line.ends_with("<- choice")).count(), 1);
}

#[test]
fn groups_on_a_gpu_are_measured_in_every_mode() {
    for op in ["all_reduce", "all_to_all"] {
        let arguments = ["group", "-g", "2"];
        let buckets = ["--buckets", "3", "--bucket-size", "2K", "--bucket-op", op];
        let rows = bench(&[&arguments[..], &buckets].concat());
        let measured: Vec<&Value> = rows.iter().filter(|row| row["op"] == op).collect();
        let modes: Vec<_> = measured.iter().map(|row| row["mode"].as_str().unwrap()).collect();
        assert_eq!(modes, ["fused", "one_by_one", "flatten", "ideal"]);
        assert!(measured.iter().all(|row| row["wrong"] == 0), "{measured:?}");
        let launches: Vec<_> = measured.iter().map(|row| row["launches"].as_u64()).collect();
        assert_eq!(launches, [1, 3, 1, 1].map(Some));
    }
}

#[test]
fn ranks_share_a_launch() {
    let arguments = ["all_reduce", "--single-launch", "-g", "3"];
    let sizes = ["-b", "8", "-e", "8K", "-f", "1024"];
    let rows = bench(&[&arguments[..], &sizes].concat());
    assert!(rows.iter().filter(|row| row["wrong"] == 0).count() >= 4, "{rows:?}");
    let host = ["bench", "all_reduce", "--threads", "--single-launch"];
    let said = finish(start(&mut command(&host))).failed(2);
    assert!(said.err.contains("single_launch: is for ranks on a GPU"), "{}", said.err);
}
