//! PyTorch's wheel, unmodified, whose backends "nccl" and "nccl-legacy" take the library for
//! NVIDIA's: on the stand-in driver, with a stand-in of the CUDA runtime.
#![allow(clippy::unwrap_used)]

mod built;
#[path = "../../../tests/common/left.rs"]
mod left;
#[path = "../../../tests/common/said.rs"]
mod said;

use built::Built;
use nccl as _;
use oxccl_cuda_stand_in::control::{image_file, library_folder};
use said::{Said, finish, plain, skip, start};
use std::path::Path;
use std::process::Command;

const RANKS: usize = 2;

/// Runs these parts by all ranks; nothing where PyTorch or CUDA's headers are missing.
fn run(test: &str, arguments: &[&str]) -> Option<Vec<Said>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let (python, headers) = (root.join(".python"), root.join(".cuda/nvidia/cu13/include"));
    if !python.join("torch").exists() || !headers.exists() {
        skip(test, "there is no PyTorch (tools/setup-python), or no CUDA headers (tools/setup)");
        return None;
    }
    let built = Built::library(test);
    let runtime = built.folder.join("libcudart_stand_in.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]).arg(&runtime);
    cc.arg("-I").arg(headers).arg(root.join("tests/cuda_runtime_stand_in/cudart.c"));
    let output = cc.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Of CUDA's other libraries PyTorch's are satisfied with names alone.
    let stand_ins = python.join("stand-ins");
    let driver = library_folder().unwrap();
    let preloaded = [
        built.folder.join("libnccl.so.2"),
        runtime,
        driver.join("libcuda.so.1"),
        stand_ins.join("libcuda_stand_in.so"),
    ];
    let preloaded = preloaded.map(|path| path.to_str().unwrap().to_owned()).join(":");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rank = |rank: usize| {
        let mut command = plain("python3");
        command.arg(root.join("bindings/python/tests/gpu_rank.py")).args(arguments);
        command.env("LD_PRELOAD", &preloaded).env("PYTHONPATH", &python);
        command.env("LD_LIBRARY_PATH", format!("{}:{}", driver.display(), stand_ins.display()));
        command.env("OXCCL_IMAGE", image_file().unwrap()).env("NCCL_SOCKET_IFNAME", "lo");
        command.env("OXCCL_STAND_IN_DEVICES", "2").env("OXCCL_STAND_IN_MEMORY", "1073741824");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string());
        start(&mut command)
    };
    let ranks: Vec<_> = (0..RANKS).map(rank).collect();
    Some(ranks.into_iter().map(finish).collect())
}

fn done(test: &str, arguments: &[&str]) {
    for said in run(test, arguments).into_iter().flatten() {
        assert!(said.ok().out.ends_with("done\n"));
    }
}

#[test]
fn pytorch_runs_over_the_library() {
    done("pytorch_runs_over_the_library", &["nccl", "collectives,works,groups,graphs"]);
}

#[test]
fn pytorch_names_a_dead_rank() {
    let Some(said) = run("pytorch_names_a_dead_rank", &["nccl", "death"]) else { return };
    let [survivor, dead] = &said[..] else { panic!("{said:?}") };
    assert_eq!(dead.status.code(), Some(7));
    assert!(survivor.status.success() && survivor.out.contains("rank 1 died"), "{survivor:?}");
}

#[test]
fn pytorchs_older_backend_runs_over_the_library() {
    if left::to_test_all("PyTorch's backend nccl-legacy") {
        return;
    }
    let parts = "collectives,works,groups,graphs";
    done("pytorchs_older_backend", &["nccl-legacy", parts, "device_id"]);
}
