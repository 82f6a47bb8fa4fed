//! The GPU kernels: one fat binary for all targets, one of hot kernels, and one of traced kernels.

use crate::jobs::{self, Job, Sources};
use crate::{folders, setting, variable};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compute capabilities with machine code in the fat binary, where `OXCCL_GPU_TARGETS` names no
/// others.
const TARGETS: [u32; 4] = [80, 90, 100, 120];
/// Those of them that traced kernels have machine code for: newer GPUs compile the PTX when a trace
/// is asked for.
const TRACED_TARGETS: [u32; 2] = [80, 90];
/// The capability whose PTX is added. A GPU that no target covers is newer than 9.0, and 9.0 is the
/// first with the 8-bit float conversions in PTX, so this serves all of them.
const PTX: u32 = 90;

/// What this nvcc can do besides.
struct Abilities {
    /// Compresses images so that they are as small as they can be, which the driver unpacks once:
    /// from 12.8 on.
    compresses: bool,
    /// Optimises functions side by side.
    splits: bool,
}

impl Abilities {
    fn of(nvcc: &Path) -> Abilities {
        let help = Command::new(nvcc).arg("--help").output();
        let help = help.map(|help| String::from_utf8_lossy(&help.stdout).into_owned());
        let has = |option: &str| help.as_ref().is_ok_and(|help| help.contains(option));
        Abilities { compresses: has("--compress-mode"), splits: has("--split-compile") }
    }
}

pub(crate) fn build(machine: &Path, out: &Path) -> Result<(), String> {
    println!("cargo::rustc-check-cfg=cfg(oxccl_nvcc)");
    let targets = targets()?;
    let is_traced = |target: &u32| TRACED_TARGETS.contains(target);
    let traced_targets: Vec<u32> = targets.iter().copied().filter(is_traced).collect();
    for (name, targets) in [("targets.rs", &targets), ("traced_targets.rs", &traced_targets)] {
        let list = out.join(name);
        std::fs::write(&list, format!("{targets:?}"))
            .map_err(|error| format!("cannot write {}: {error}", list.display()))?;
    }
    let Some(nvcc) = find()? else {
        if setting("OXCCL_REQUIRE_NVCC").is_some_and(|value| value == "1") {
            return Err("OXCCL_REQUIRE_NVCC=1, but there is no nvcc: set NVCC or CUDA_HOME".into());
        }
        println!(
            "cargo::warning=no nvcc found: building without GPU kernels (set NVCC or CUDA_HOME)"
        );
        return Ok(());
    };
    let own = Sources::new(folders(machine, &["cuda"]), out, &[jobs::FORMAT]);
    let made = [jobs::FORMAT, jobs::SCHEDULES];
    let with_schedules = Sources::new(folders(machine, &["cuda", "hot"]), out, &made);
    let abilities = Abilities::of(&nvcc);
    let job = |sources, targets: &[u32], source: &str, output: &str| Job {
        sources,
        command: command(&nvcc, targets, &abilities),
        source: machine.join(source),
        output: out.join(output),
    };
    let untraced = job(&own, &targets, "cuda/executor.cu", "oxccl.fatbin");
    let traced = job(&own, &traced_targets, "cuda/trace.cu", "oxccl-traced.fatbin");
    let hot = job(&with_schedules, &targets, "hot/hot.cu", "oxccl-hot.fatbin");
    let reports = jobs::run_all(vec![untraced, traced, hot])?;
    let report = out.join("resources.txt");
    std::fs::write(&report, reports.concat())
        .map_err(|error| format!("cannot write {}: {error}", report.display()))?;
    println!("cargo::rustc-env=OXCCL_NVCC={}", nvcc.display());
    println!("cargo::rustc-cfg=oxccl_nvcc");
    Ok(())
}

/// Those that `OXCCL_GPU_TARGETS` names, in order, or all.
fn targets() -> Result<Vec<u32>, String> {
    let Some(named) = setting("OXCCL_GPU_TARGETS") else { return Ok(TARGETS.to_vec()) };
    let mut targets = Vec::new();
    for name in named.split([',', ' ']).filter(|name| !name.is_empty()) {
        let target = name.parse().ok().filter(|target| TARGETS.contains(target));
        targets.push(target.ok_or_else(|| {
            format!(
                "OXCCL_GPU_TARGETS={named}: {name} is none of the targets, which are {TARGETS:?}"
            )
        })?);
    }
    targets.sort_unstable();
    targets.dedup();
    if targets.is_empty() {
        Err(format!("OXCCL_GPU_TARGETS={named} names no target"))
    } else {
        Ok(targets)
    }
}

fn command(nvcc: &Path, targets: &[u32], abilities: &Abilities) -> Command {
    let mut command = Command::new(nvcc);
    command.env_remove("NVCC_APPEND_FLAGS").env_remove("NVCC_PREPEND_FLAGS");
    command.args(["-fatbin", "-std=c++17", "-O3", "--fmad=false", "-Xptxas", "-v"]);
    command.args(["-Xfatbin", "-compress-all", "--threads", "0"]);
    if abilities.compresses {
        command.arg("--compress-mode=size");
    }
    if abilities.splits {
        command.arg("--split-compile=0");
    }
    // Two passes of the front end: what is newer than 9.0 shares the PTX of 9.0.
    let (old, new): (Vec<u32>, Vec<u32>) = targets.iter().partition(|&&target| target < PTX);
    for target in old {
        command.arg(format!("-gencode=arch=compute_{target},code=sm_{target}"));
    }
    let codes: String = new.iter().map(|target| format!(",sm_{target}")).collect();
    command.arg(format!("-gencode=arch=compute_{PTX},code=[compute_{PTX}{codes}]"));
    command
}

/// `NVCC` (`none`: none is wanted), else the first of `CUDA_HOME`, `CUDA_PATH`, `PATH`,
/// /usr/local/cuda and a `.cuda` folder beside the workspace or above it that has one.
fn find() -> Result<Option<PathBuf>, String> {
    if let Some(nvcc) = setting("NVCC") {
        if nvcc == "none" {
            return Ok(None);
        }
        let path = PathBuf::from(&nvcc);
        return path
            .canonicalize()
            .map(Some)
            .map_err(|error| format!("NVCC={nvcc} cannot be used ({error}): unset or correct it"));
    }
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(setting).map(PathBuf::from);
    let mut candidates: Vec<PathBuf> = homes.map(|home| home.join("bin/nvcc")).collect();
    let path = setting("PATH").unwrap_or_default();
    candidates.extend(std::env::split_paths(&path).map(|folder| folder.join("nvcc")));
    candidates.push(PathBuf::from("/usr/local/cuda/bin/nvcc"));
    let crate_folder = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let local = |folder: &Path| folder.join(".cuda/nvidia/cu13/bin/nvcc");
    candidates.extend(crate_folder.ancestors().map(local));
    // A symbolic link would hide the profile that lies beside the program.
    Ok(candidates.iter().filter(|path| path.is_file()).find_map(|path| path.canonicalize().ok()))
}
