//! Which library programs of NCCL take: what `oxccl run --nccl` would give them, and what a process
//! has.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{Finding, State};
use crate::failure::Failure;
use crate::run;

/// What only this project's library contains.
const OWN: &[u8] = b"OXCCL_DEVICE=host: calls take host memory";

pub(super) fn findings() -> Vec<Finding> {
    let what = "libnccl.so.2";
    vec![match run::library() {
        Ok(library) => Finding::new(what, State::Ok, library.display().to_string()),
        Err(failure) => Finding::new(what, State::Missing, "not beside this command")
            .remedy(failure.to_string()),
    }]
}

/// The libraries that a process has mapped as NCCL.
pub(super) fn of_process(pid: u32) -> Result<Vec<Finding>, Failure> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))
        .map_err(Failure::system(format!("looking at process {pid}")))?;
    let paths = maps.lines().filter_map(|line| line.get(line.find('/')?..));
    let is_nccl = |path: &&str| {
        Path::new(path)
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("libnccl"))
    };
    let libraries: BTreeSet<_> = paths.filter(is_nccl).collect();
    let mut found: Vec<_> = libraries
        .iter()
        .map(|path| match fs::read(path) {
            Ok(bytes) if bytes.windows(OWN.len()).any(|some| some == OWN) => {
                Finding::new("oxccl", State::Ok, *path)
            }
            Ok(_) => Finding::new("another library", State::Note, *path),
            Err(error) => Finding::new("unreadable", State::Note, format!("{path}: {error}")),
        })
        .collect();
    let own = found.iter().any(|finding| finding.what == "oxccl");
    found.extend(match (libraries.len(), own) {
        (0, _) => Some(Finding::new("none", State::Missing, "the process has no libnccl")),
        (1, _) => None,
        (_, true) => Some(
            Finding::new("several", State::Note, "what is preloaded serves calls by name")
                .remedy("a library that is opened by its path serves those who opened it"),
        ),
        (_, false) => Some(Finding::new("several", State::Note, "none of them is oxccl's")),
    });
    Ok(found)
}
