//! C programs that were written for NCCL, linked against the library: on the host's memory, and on
//! GPUs of the stand-in driver.
#![allow(clippy::unwrap_used)]

mod built;
#[path = "../../../tests/common/said.rs"]
mod said;

use built::Built;
use nccl as _;
use oxccl_cuda_stand_in::control::{image_file, library_folder};
use said::{Said, finish, plain, start};
use std::process::Command;

const HOST: &[(&str, &str)] = &[("OXCCL_DEVICE", "host")];
const TWO: (&str, &str) = ("OXCCL_STAND_IN_DEVICES", "2");
const MEMORY: (&str, &str) = ("OXCCL_STAND_IN_MEMORY", "1073741824");
/// Kernels of ranks that share a GPU wait for each other.
const MANY: (&str, &str) = ("CUDA_DEVICE_MAX_CONNECTIONS", "32");
const GPUS: &[(&str, &str)] = &[TWO, MEMORY, MANY];

fn run(built: &Built, arguments: &[&str], settings: &[(&str, &str)]) -> Said {
    let mut command = plain(built.program.to_str().unwrap());
    let stand_in = library_folder().unwrap();
    let path = format!("{}:{}", built.folder.display(), stand_in.display());
    command.args(arguments).env("LD_LIBRARY_PATH", path);
    command.env("OXCCL_IMAGE", image_file().unwrap()).env("NCCL_SOCKET_IFNAME", "lo");
    command.env("OXCCL_TIMEOUT", "60").envs(settings.iter().copied());
    finish(start(&mut command))
}

fn done(name: &str, test: &str, arguments: &[&str], settings: &[(&str, &str)]) {
    let said = run(&Built::program(name, test), arguments, settings).ok();
    assert!(said.out.contains("done"), "{}", said.out);
}

#[test]
fn processes_on_the_host() {
    done("processes", "processes_on_the_host", &["3"], HOST);
}

#[test]
fn processes_on_gpus() {
    done("processes", "processes_on_gpus", &["2", "2"], GPUS);
}

#[test]
fn threads_on_the_host() {
    done("threads", "threads_on_the_host", &["3"], HOST);
}

#[test]
fn threads_on_gpus() {
    done("threads", "threads_on_gpus", &["2", "2"], GPUS);
}

#[test]
fn one_thread_on_the_host() {
    done("one_thread", "one_thread_on_the_host", &["4"], HOST);
}

#[test]
fn one_thread_on_gpus() {
    done("one_thread", "one_thread_on_gpus", &["2"], GPUS);
}

/// Out of a table in which an all-reduce of private memory takes 1 us for 8 bytes and 2 us for
/// 1000.
#[test]
fn a_group_is_estimated_by_the_tuning_table() {
    let test = "a_group_is_estimated";
    let built = Built::program("estimate", test);
    let table = built.folder.join("table.toml");
    std::fs::write(&table, TABLE).unwrap();
    let tuning = ("OXCCL_TUNING", table.to_str().unwrap());
    let said = run(&built, &[], &[HOST, &[tuning]].concat()).ok();
    assert!(said.out.contains("done"), "{}", said.out);
}

const TABLE: &str = r#"
machine = "a machine"
date = "2026-11-21"
ranks = 2
ranks_per_node = 2
type = "float"
op = "sum"

[links]
core_to_core_ns = 50.0
copy_gbps = 12.5

[[curve]]
kind = "all_reduce"
memory = "private"
algorithm = "one_shot"
encoding = "slots"
points = [[8, 1.0], [1000, 2.0], [2500, 4.0]]
"#;

/// A tool that counts calls: it defines the names itself, and calls their twins.
#[test]
fn a_profiler_stands_in_between() {
    done("profiler", "a_profiler_stands_in_between", &[], HOST);
}

#[test]
fn misuse_is_told_on_the_host() {
    done("misuse", "misuse_on_the_host", &[], HOST);
}

#[test]
fn misuse_is_told_on_gpus() {
    done("misuse", "misuse_on_gpus", &[], GPUS);
}

/// What is preloaded into programs is small, without line tables; code of tests is longer than that
/// of a release.
#[test]
fn the_library_is_small() {
    let folder = Built::library("the_library_is_small").folder;
    let stripped = folder.join("stripped.so");
    let mut strip = Command::new("objcopy");
    strip.arg("--strip-all").arg(folder.join("libnccl.so.2")).arg(&stripped);
    let output = strip.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bytes = std::fs::metadata(&stripped).unwrap().len();
    assert!(bytes < 11_500_000, "{bytes} bytes");
}

/// The names that NVIDIA's library has, those of its `pnccl` twins, and no other. Where the linker
/// can, the names are weak as NVIDIA's, and the twins strong.
#[test]
fn names_are_those_of_nccl() {
    let library = std::env::current_exe().unwrap().with_file_name("libnccl.so");
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let mut found: Vec<_> = said.lines().filter_map(|line| line.split(' ').next_back()).collect();
    found.sort_unstable();
    let names: Vec<_> = include_str!("../names.txt").lines().collect();
    let twins = names.iter().filter(|name| **name != "ncclResetDebugInitInternal");
    let twins: Vec<_> = twins.map(|name| format!("p{name}")).collect();
    let mut all: Vec<_> = names.iter().copied().chain(twins.iter().map(String::as_str)).collect();
    all.sort_unstable();
    assert_eq!((found.len(), &found), (193, &all));

    let mut weak: Vec<_> = said.lines().filter_map(|line| line.split(" W ").nth(1)).collect();
    weak.sort_unstable();
    let leads: Vec<_> = twins.iter().map(|twin| &twin[1..]).collect();
    let expected = if cfg!(weak_names) { leads } else { Vec::new() };
    assert_eq!(weak, expected);
}
