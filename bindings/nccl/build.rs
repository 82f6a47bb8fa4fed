//! Names the library as programs that were linked against NVIDIA's ask for it, and makes its names
//! weak where the linker can.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library with a symbol that rustc does not export by itself.
const PROBE: &str = "
#[unsafe(no_mangle)]
pub extern \"C\" fn twin() {}
core::arch::global_asm!(\".weak name\", \"name:\", \".byte 0\");
";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=names.txt");
    println!("cargo:rerun-if-env-changed=RUSTFLAGS");
    println!("cargo:rustc-check-cfg=cfg(weak_names)");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // What is preloaded into programs is small: without it, 50 MB of line tables.
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-s");
    }

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    if takes_a_second_list(&out) {
        let names = include_str!("names.txt").lines();
        let list: String = names.map(|name| format!("{name};\n")).collect();
        let script = out.join("names.map");
        write(&script, &format!("{{ global:\n{list}}};\n"));
        println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
        println!("cargo:rustc-cfg=weak_names");
    }
}

/// Whether the linker takes a list of exported symbols besides rustc's. lld does, GNU ld does not.
fn takes_a_second_list(out: &Path) -> bool {
    let (source, script) = (out.join("probe.rs"), out.join("probe.map"));
    write(&source, PROBE);
    write(&script, "{ global: name; };\n");
    let mut rustc = Command::new(env::var_os("RUSTC").expect("cargo sets it"));
    rustc.args(["--edition", "2024", "--crate-type", "cdylib", "--cap-lints", "allow", "--target"]);
    rustc.arg(env::var_os("TARGET").expect("cargo sets it"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", Path::new(&linker).display()));
    }
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()));
    rustc.arg("-C").arg(format!("link-arg=-Wl,--version-script={}", script.display()));
    rustc.arg("-o").arg(out.join("probe.so")).arg(&source);
    rustc.output().is_ok_and(|done| done.status.success())
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
