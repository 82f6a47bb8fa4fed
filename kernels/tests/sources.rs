//! How the machine's sources are divided: shared code names no target, and each target has what
//! shared code includes.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;

fn folder(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "machine", name].iter().collect()
}

/// Each file of a folder: its name and its text.
fn sources(name: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder(name)).unwrap().map(|entry| entry.unwrap().path());
    let sources: Vec<_> = entries
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect();
    assert!(sources.len() > 5, "{name}");
    sources
}

/// The headers that a text includes by quotes.
fn included(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'))
}

#[test]
fn shared_code_asks_for_no_target() {
    for (file, text) in sources("shared") {
        for line in text.lines().filter(|line| line.starts_with('#')) {
            let known = ["#pragma ", "#include \""].iter().any(|start| line.starts_with(start));
            assert!(known, "shared/{file} has {line:?}: make it a function of the targets");
        }
    }
    for (file, text) in sources("host") {
        assert!(!text.contains("__CUDA"), "host/{file} is not compiled for GPUs");
    }
}

#[test]
fn each_target_has_what_shared_code_includes() {
    let mut of_targets = 0;
    for (file, text) in sources("shared") {
        for header in included(&text) {
            let has = |name: &str| folder(name).join(header).exists();
            // The build writes it.
            if header == "format.h" || has("shared") {
                continue;
            }
            assert!(has("host") && has("cuda"), "shared/{file} includes {header}");
            of_targets += 1;
        }
    }
    assert!(of_targets >= 5, "{of_targets}");
}

/// Of each instruction of PTX, the qualifiers that the account of memory order takes it to have
/// (`tests/cuda_stand_in/emulator/instructions.h`, `device_instructions.h` there).
#[test]
fn instructions_have_the_order_that_the_emulator_gives_them() {
    let words = [
        ("load_acquire", "ld.acquire.sys."),
        ("store_release", "st.release.sys."),
        ("load_relaxed", "ld.relaxed.sys."),
        ("store_relaxed", "st.relaxed.sys."),
        ("load_line", "ld.volatile.global.v2."),
        ("store_line", "st.volatile.global.v2."),
    ];
    let kernels = [
        ("store_credit", "st.relaxed.sys."),
        ("load_share", "ld.volatile.global.v2."),
        ("store_share", "st.volatile.global.v2."),
        ("system_fence", "fence.acq_rel.sys;"),
        ("exchange", "atom.relaxed.gpu."),
        ("arrives_last", "atom.acq_rel.gpu."),
        ("engine_fence", "fence.proxy.async;"),
        ("stage_stores_done", "cp.async.bulk.wait_group 0;"),
    ];
    let ptx = fs::read_to_string(folder("cuda").join("ptx.h")).unwrap();
    let multimem = fs::read_to_string(folder("cuda").join("multimem.h")).unwrap();
    let device = fs::read_to_string(folder("../include/oxccl").join("device.h")).unwrap();
    for (name, wanted) in words.into_iter().chain(kernels) {
        assert!(body(&ptx, name).contains(wanted), "{name} of ptx.h");
    }
    for (name, wanted) in words {
        assert!(body(&device, name).contains(wanted), "{name} of device.h");
    }
    for text in [multimem, device] {
        assert!(body(&text, "fence_of_names").contains("fence.proxy.alias;"));
    }
}

/// The definition of a function, up to the next one.
fn body<'a>(text: &'a str, name: &str) -> &'a str {
    let defines = |line: &&str| line.starts_with("OXCCL_") && line.contains(&format!(" {name}("));
    let line = text.lines().find(defines).unwrap_or_else(|| panic!("no {name}"));
    let rest = &text[text.find(line).unwrap()..];
    let end = rest[1..].find("\nOXCCL_").map_or(rest.len(), |at| at + 1);
    &rest[..end]
}
