//! Compiles the CUDA kernels' own source for this processor: see emulator/block.cpp.
//!
//! Environment: `CXX`.

use std::path::Path;
use std::process::Command;

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
    let [shared, own, hot] =
        ["shared", "cuda", "hot"].map(|of| format!("../../kernels/machine/{of}"));
    let [shared, own, hot] = [&*shared, &*own, &*hot];
    let [public, example] = ["../../kernels/include", "../../examples/device"];
    println!("cargo::rustc-check-cfg=cfg(emulator)");
    println!("cargo::rerun-if-env-changed=CXX");
    for path in ["build.rs", "emulator", shared, own, hot, public, example] {
        println!("cargo::rerun-if-changed={path}");
    }
    // Threads of a block change their stacks by instructions of this one, and behind sanitizers'
    // backs.
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    if variable("CARGO_CFG_TARGET_ARCH") != "x86_64" || flags.contains("-Zsanitizer") {
        return;
    }
    let out = variable("OUT_DIR");
    let out = Path::new(&out);
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    // The header of the format is there.
    let made = variable("DEP_OXCCL_MACHINE_MADE");
    let few = few_epochs(Path::new(&made), out);
    let object = |name: &str, more: &[&str]| {
        let object = out.join(format!("{name}{}", more.len())).with_extension("o");
        let mut compile = Command::new(&compiler);
        compile.args(FLAGS);
        if more.contains(&ORDERED) {
            compile.args(["-I", &few]);
        }
        compile.args([
            "-I", &made, "-I", "emulator", "-I", shared, "-I", own, "-I", hot, "-I", public,
        ]);
        run(compile.args(more).args(["-c", &format!("emulator/{name}.cpp"), "-o"]).arg(&object));
        object
    };
    let objects = ["block", "kernels", "traced", "hot", "guests"].map(|name| object(name, &[]));
    let library = out.join("liboxccl_emulator.a");
    let _ = std::fs::remove_file(&library);
    run(Command::new("ar").arg("crs").arg(&library).args(objects));
    // What keeps account of memory order: see emulator/order.cpp.
    let instrumented = [&[ORDERED][..], &INSTRUMENTED].concat();
    let objects = [
        object("order", &[ORDERED]),
        object("accesses", &[ORDERED]),
        object("words", &[ORDERED]),
        object("block", &[ORDERED]),
        object("ordered", &instrumented),
        object("hot", &instrumented),
        object("guests", &instrumented),
    ];
    let library = out.join("liboxccl_memory_order.so");
    run(Command::new(&compiler).args(["-shared", "-Wl,-z,defs", "-o"]).arg(&library).args(objects));
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
fn few_epochs(made: &Path, out: &Path) -> String {
    const MANY: &str = "LL_EPOCHS = 1073741824;";
    let format = std::fs::read_to_string(made.join("format.h")).expect("the header of the format");
    assert!(format.contains(MANY), "the header has no {MANY}");
    let folder = out.join("few-epochs");
    std::fs::create_dir_all(&folder).expect("a folder of this build");
    let format = format.replace(MANY, "LL_EPOCHS = 32;");
    std::fs::write(folder.join("format.h"), format).expect("a file of this build");
    folder.display().to_string()
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}

fn variable(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set; this build script is cargo's"))
}
