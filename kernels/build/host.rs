//! The host executors: every instruction set is a set of objects of its own, all in one archive.

use crate::jobs::{self, Job, Sources};
use crate::{folders, setting, variable};
use oxccl_format::DataType;
use std::path::Path;
use std::process::Command;

/// Sources that know no type.
const COMMON: [&str; 5] = ["executor.cpp", "trace.cpp", "copy.cpp", "lines.cpp", "private.cpp"];

/// Instruction sets of an architecture with the flags that select them; src/host.rs detects the
/// same.
fn instruction_sets(arch: &str) -> Option<&'static [(&'static str, &'static [&'static str])]> {
    match arch {
        "x86_64" => Some(&[
            ("x86_64", &[]),
            ("avx2", &["-mavx2", "-mf16c", "-mbmi", "-mbmi2"]),
            (
                "avx512",
                &[
                    "-mavx2",
                    "-mf16c",
                    "-mbmi",
                    "-mbmi2",
                    "-mavx512f",
                    "-mavx512bw",
                    "-mavx512dq",
                    "-mavx512vl",
                    "-mprefer-vector-width=512",
                ],
            ),
        ]),
        "aarch64" => Some(&[("aarch64", &[])]),
        _ => None,
    }
}

/// Exact arithmetic everywhere: no contraction to fused multiply-add, no reordering. The two
/// `-fno` maths flags only drop the exception flags and errno, which nobody reads.
const FLAGS: [&str; 17] = [
    "-x",
    "c++",
    "-std=c++17",
    "-O3",
    "-g1",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-trapping-math",
    "-fno-math-errno",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-strict-aliasing",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-unknown-pragmas",
    "-Wno-maybe-uninitialized", // gcc's own AVX-512 header sets it off
];

pub(crate) fn build(machine: &Path, out: &Path) -> Result<(), String> {
    let arch = variable("CARGO_CFG_TARGET_ARCH")?;
    let sets = instruction_sets(&arch).ok_or_else(|| {
        format!("there is no host executor for {arch}: build for x86_64 or aarch64")
    })?;
    let sanitizer = setting("OXCCL_SANITIZE");
    let compiler = compiler()?;
    let sources = Sources::new(folders(machine, &["host"]), out, &[jobs::FORMAT]);
    let mut compilations = Vec::new();
    let mut objects = Vec::new();
    for (isa, flags) in sets {
        let types = DataType::ALL.map(|data_type| ("type.cpp", Some(format!("{data_type:?}"))));
        for (source, data_type) in types.into_iter().chain(COMMON.map(|source| (source, None))) {
            let output = out.join(format!("{isa}_{}.o", data_type.as_deref().unwrap_or(source)));
            let mut command = Command::new(&compiler);
            command.args(FLAGS).args(*flags).arg(format!("-DOXCCL_ISA={isa}"));
            command.args(data_type.map(|name| format!("-DOXCCL_TYPE={name}")));
            command.args(sanitizer.iter().map(|kind| format!("-fsanitize={kind}")));
            command.arg("-c");
            objects.push(output.clone());
            compilations.push(Job {
                sources: &sources,
                command,
                source: machine.join("host").join(source),
                output,
            });
        }
    }
    for warning in jobs::run_all(compilations)?.iter().filter(|text| !text.trim().is_empty()) {
        println!("cargo::warning={}", warning.trim().replace('\n', " | "));
    }
    let library = out.join("liboxccl_host.a");
    let _ = std::fs::remove_file(&library);
    let mut archive = Command::new(setting("AR").unwrap_or_else(|| "ar".to_owned()));
    archive.arg("crs").arg(&library).args(&objects);
    jobs::run(archive)?;
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static=oxccl_host");
    Ok(())
}

fn compiler() -> Result<String, String> {
    let target = variable("TARGET")?;
    if let Some(compiler) = setting("CXX") {
        return Ok(compiler);
    }
    Ok(if target == variable("HOST")? {
        "c++".to_owned()
    } else {
        format!("{}-linux-gnu-g++", variable("CARGO_CFG_TARGET_ARCH")?)
    })
}
