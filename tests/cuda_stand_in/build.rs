//! Compiles the CUDA kernels' own source for this processor: see emulator/block.cpp.
//!
//! Environment: `CXX`.

#[path = "../../kernels/build/jobs.rs"]
mod jobs;

use jobs::{Job, Sources};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the sources are, of this package and of kernels, and of which folders they include.
const FOLDERS: [&str; 6] = [
    "emulator",
    "../../kernels/machine/shared",
    "../../kernels/machine/cuda",
    "../../kernels/machine/hot",
    "../../kernels/include",
    "../../examples/device",
];

const FLAGS: [&str; 14] = [
    "-x",
    "c++",
    "-std=c++17",
    "-O1",
    "-g1",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-unknown-pragmas",
];

const ORDERED: &str = "-DOXCCL_MEMORY_ORDER";

/// A function is called in front of each plain access, and with full debug information the place of
/// one is found.
const INSTRUMENTED: [&str; 6] = [
    "-g",
    "-fsanitize=thread",
    "--param",
    "tsan-instrument-func-entry-exit=0",
    "--param",
    "tsan-distinguish-volatile=1",
];

fn main() {
    println!("cargo::rustc-check-cfg=cfg(emulator)");
    println!("cargo::rerun-if-env-changed=CXX");
    for path in FOLDERS.iter().chain(&["build.rs", "../../kernels/build/jobs.rs"]) {
        println!("cargo::rerun-if-changed={path}");
    }
    // Threads of a block change their stacks by instructions of this one, and behind sanitizers'
    // backs.
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    if variable("CARGO_CFG_TARGET_ARCH") != "x86_64" || flags.contains("-Zsanitizer") {
        return;
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    // The headers that the build of kernels has written are there.
    let made_in = PathBuf::from(variable("DEP_OXCCL_MACHINE_MADE"));
    let made = [jobs::FORMAT, jobs::SCHEDULES];
    let folders = FOLDERS.map(PathBuf::from);
    let plain = Sources::new(folders.to_vec(), &made_in, &made);
    let few = few_epochs(&made_in, &out);
    let ordered = Sources::new([few].into_iter().chain(folders).collect(), &made_in, &made);
    let instrumented = [&[ORDERED][..], &INSTRUMENTED].concat();
    let of_emulator = ["block", "kernels", "traced", "hot", "guests"];
    let of_emulator = of_emulator.map(|name| (name, &plain, &[][..]));
    // What keeps account of memory order: see emulator/order.cpp.
    let of_order = [
        ("order", &ordered, &[ORDERED][..]),
        ("accesses", &ordered, &[ORDERED]),
        ("words", &ordered, &[ORDERED]),
        ("block", &ordered, &[ORDERED]),
        ("ordered", &ordered, &instrumented),
        ("hot", &ordered, &instrumented),
        ("guests", &ordered, &instrumented),
    ];
    let job = |&(name, sources, more): &(&str, _, &[&str])| {
        let mut command = Command::new(&compiler);
        command.args(FLAGS).args(more).arg("-c");
        let source = Path::new("emulator").join(name).with_extension("cpp");
        Job { sources, command, source, output: out.join(format!("{name}{}.o", more.len())) }
    };
    let jobs: Vec<Job<'_>> = of_emulator.iter().chain(&of_order).map(job).collect();
    let objects: Vec<PathBuf> = jobs.iter().map(|job| job.output.clone()).collect();
    let (of_emulator, of_order) = objects.split_at(of_emulator.len());
    let warnings = jobs::run_all(jobs).unwrap_or_else(|error| panic!("{error}"));
    for warning in warnings.iter().filter(|text| !text.trim().is_empty()) {
        println!("cargo::warning={}", warning.trim().replace('\n', " | "));
    }
    let library = out.join("liboxccl_emulator.a");
    let _ = std::fs::remove_file(&library);
    run(Command::new("ar").arg("crs").arg(&library).args(of_emulator));
    let library = out.join("liboxccl_memory_order.so");
    let mut link = Command::new(&compiler);
    link.args(["-shared", "-Wl,-z,defs", "-o"]).arg(&library).args(of_order);
    run(&mut link);
    println!("cargo::rustc-env=OXCCL_ORDERED_LIBRARY={}", library.display());
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static=oxccl_emulator");
    // Tests that run on a GPU's machine have the stand-in in them, and may find no C++ library
    // there.
    let find = Command::new(&compiler).arg("-print-file-name=libstdc++.a").output();
    let found = find.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let library = found.unwrap_or_else(|error| panic!("cannot run {compiler}: {error}"));
    let folder = Path::new(&library).parent().expect("a path of a file");
    println!("cargo::rustc-link-search=native={}", folder.display());
    println!("cargo::rustc-link-lib=static:-bundle=stdc++");
    println!("cargo::rustc-cfg=emulator");
}

/// A folder with the header of a format whose slots are cleared after so few messages that it
/// happens in tests: for the account of memory order.
fn few_epochs(made: &Path, out: &Path) -> PathBuf {
    const MANY: &str = "LL_EPOCHS = 1073741824;";
    let format = std::fs::read_to_string(made.join("format.h")).expect("the header of the format");
    assert!(format.contains(MANY), "the header has no {MANY}");
    let folder = out.join("few-epochs");
    std::fs::create_dir_all(&folder).expect("a folder of this build");
    let format = format.replace(MANY, "LL_EPOCHS = 32;");
    std::fs::write(folder.join("format.h"), format).expect("a file of this build");
    folder
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}

fn variable(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set; this build script is cargo's"))
}
