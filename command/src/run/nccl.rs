//! `--nccl`: what a program needs so that it takes oxccl's library for NVIDIA's.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The library: beside this command, as cargo makes it or under the name that programs know, or in
/// the `lib` of its prefix.
pub(crate) fn library() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(Failure::system("finding this command"))?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    let names = ["libnccl.so.2", "libnccl.so", "../lib/libnccl.so.2"];
    let mut places = names.iter().map(|name| beside.join(name));
    let found = places.find(|place| place.is_file()).map(std::fs::canonicalize);
    found.transpose().map_err(Failure::system("finding libnccl.so.2"))?.ok_or_else(|| {
        Failure::Usage(format!(
            "there is no libnccl.so.2 in {}: build it with `cargo build --release -p oxccl-nccl`",
            beside.display()
        ))
    })
}

/// Variables of a program. The library goes in front of what is preloaded already: PyTorch finds
/// its own by a path in the program, which no search path changes; vLLM opens one by name.
pub(super) fn variables() -> Result<Vec<(&'static str, OsString)>, Failure> {
    let library = library()?.into_os_string();
    let mut preloaded = library.clone();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preloaded.push(":");
        preloaded.push(others);
    }
    Ok(vec![("LD_PRELOAD", preloaded), ("VLLM_NCCL_SO_PATH", library)])
}
