//! What programs need that were written for NCCL: `oxccl run --nccl` puts the library in front, and
//! `oxccl doctor --pid` says which one a process maps.
#![allow(clippy::unwrap_used)]

mod command_line;
#[path = "../../tests/common/torchrun.rs"]
mod torchrun;

use std::path::{Path, PathBuf};
use std::process::Command;

use command_line::{finish, oxccl, skip, start};
use nccl as _;
use torchrun::{torchrun, with_torch};

/// The command in an empty folder.
fn alone(name: &str) -> (PathBuf, PathBuf) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let own = folder.join("oxccl");
    std::fs::copy(env!("CARGO_BIN_EXE_oxccl"), &own).unwrap();
    (folder, own)
}

#[test]
fn the_nccl_library_goes_in_front() {
    let (folder, own) = alone("nccl-in-front");
    let nccl = |ranks: &[&str]| {
        let mut command = Command::new(&own);
        command.arg("run").args(ranks).args(["--nccl", "--", "sh", "-c"]);
        command.arg("echo $LD_PRELOAD $VLLM_NCCL_SO_PATH");
        finish(start(&mut command))
    };
    let said = nccl(&[]).failed(2);
    assert!(said.err.contains("cargo build --release -p oxccl-nccl"), "{}", said.err);
    let library = folder.join("libnccl.so.2");
    // Any library: the loader leaves out what is none, and says so.
    std::fs::write(&library, "").unwrap();
    let library = library.canonicalize().unwrap();
    let line = format!("{} {}\n", library.display(), library.display());
    assert_eq!(nccl(&[]).ok().out, line);
    assert_eq!(nccl(&["-n", "2"]).ok().out, line.repeat(2));
    // Without it, how many there are to be must be said.
    assert!(oxccl(&["run", "--", "true"]).failed(2).err.contains("--ranks"));
}

/// Through the launcher to its ranks.
#[test]
fn ranks_of_torchrun_call_the_library() {
    let name = "ranks_of_torchrun_call_the_library";
    let Some(launcher) = torchrun() else {
        return skip(name, "there is no torchrun");
    };
    let (folder, own) = alone(name);
    let built = std::env::current_exe().unwrap().with_file_name("libnccl.so");
    std::fs::copy(built, folder.join("libnccl.so.2")).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(own);
    command.args(["run", "--nccl", "--"]).arg(launcher.get_program());
    command.args(["--standalone", "--nproc-per-node", "2"]);
    command.arg(root.join("tests/programs/nccl_rank.py"));
    with_torch(&mut command, &root.join("../.python"));
    command.env("OXCCL_DEVICE", "host").env("NCCL_SOCKET_IFNAME", "lo");
    let said = finish(start(&mut command)).ok();
    for rank in ["rank 0 of 2: done", "rank 1 of 2: done"] {
        assert!(said.out.contains(rank), "{said:#?}");
    }
}

#[test]
fn a_process_is_asked_for_its_nccl() {
    let own = std::process::id().to_string();
    let said = oxccl(&["doctor", "--pid", &own]).ok();
    assert!(said.out.contains("the process has no libnccl"), "{}", said.out);
    let said = oxccl(&["doctor", "--pid", "4194305"]);
    assert!(!said.status.success() && said.err.contains("process 4194305"), "{}", said.err);
}
