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
