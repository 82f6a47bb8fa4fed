//! Builds the machine twice from one source: with the host's C++ compiler, once per instruction
//! set, and with nvcc, where there is one, for every GPU target into one fat binary. Hot kernels
//! are made from schedules that it proves first.
//!
//! Environment: `CXX`; `NVCC`, `CUDA_HOME`, `CUDA_PATH` (where nvcc is); `OXCCL_REQUIRE_NVCC=1` (no
//! nvcc is an error); `OXCCL_GPU_TARGETS` (compute capabilities times ten, of those there are);
//! `OXCCL_BUILD_CACHE` (where what the compilers make is kept); `OXCCL_SANITIZE=thread|address`
//! (the host executors are instrumented).

#[path = "build/cuda.rs"]
mod cuda;
#[path = "build/host.rs"]
mod host;
#[path = "build/hot.rs"]
mod hot;
#[path = "build/jobs.rs"]
mod jobs;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={}", message.replace('\n', " | "));
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    for path in ["machine", "build", "build.rs"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let out = PathBuf::from(variable("OUT_DIR")?);
    let machine = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("machine");
    let (schedules, hot) = hot::written()?;
    let headers = [(jobs::FORMAT, oxccl_format::header()), (jobs::SCHEDULES, schedules)];
    for (name, text) in headers.into_iter().chain([("hot.rs", hot)]) {
        let path = out.join(name);
        std::fs::write(&path, text)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    // Builds of crates that compile the machine once more read it as DEP_OXCCL_MACHINE_MADE.
    println!("cargo::metadata=made={}", out.display());
    host::build(&machine, &out)?;
    cuda::build(&machine, &out)
}

/// These folders of the machine, beside `shared`, which all targets have.
fn folders(machine: &Path, folders: &[&str]) -> Vec<PathBuf> {
    ["shared"].iter().chain(folders).map(|folder| machine.join(folder)).collect()
}

/// An environment variable that cargo sets.
fn variable(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_| format!("{name} is not set; this build script is cargo's"))
}

/// An environment variable that the user may set; the build is repeated when it changes.
fn setting(name: &str) -> Option<String> {
    println!("cargo::rerun-if-env-changed={name}");
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
