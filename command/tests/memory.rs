//! Memory that is not to be had: errors that say what to do, and never a kill.
#![allow(clippy::unwrap_used)]

use oxccl::{Communicator, Config, Error};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};

const OXCCL: &str = env!("CARGO_BIN_EXE_oxccl");

/// Runs a shell's line.
fn shell(line: &str) -> (Output, String) {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

#[test]
fn a_heap_that_cannot_be_names_its_variable() {
    for heap_bytes in [0, usize::MAX, isize::MAX as usize + 1] {
        let config = Config { heap_bytes, ..Config::default() };
        let error = Communicator::local_with(2, &config).unwrap_err();
        assert!(matches!(error, Error::Config { variable: "heap_bytes", .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("OXCCL_HEAP_BYTES") && text.contains("64 GiB"), "{text}");
    }
    let config = Config { heap_bytes: 1 << 50, ..Config::default() };
    let error = Communicator::local_with(2, &config).unwrap_err().to_string();
    assert!(error.contains("set OXCCL_HEAP_BYTES to less"), "{error}");
}

#[test]
fn a_limit_of_addresses_names_the_heap() {
    let bench = format!("{OXCCL} bench barrier --threads --no-probe");
    let (output, said) = shell(&format!("ulimit -v 8000000; exec {bench}"));
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("set OXCCL_HEAP_BYTES to less"), "{said}");
    let (output, said) =
        shell(&format!("ulimit -v 8000000; OXCCL_HEAP_BYTES=1048576 exec {bench}"));
    assert!(output.status.success(), "{said}");
}

/// Sizes that no buffer has are said to be none, where they are read.
#[test]
fn sizes_that_no_memory_has_are_refused() {
    let most = "18446744073709551615";
    for size in [most, "9223372036854775808", "18446744073709551616", "8589934592G"] {
        let (output, said) = shell(&format!("{OXCCL} bench all_to_all -b {size} -e {size}"));
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("the most that a buffer can have"), "{said}");
    }
    let size = "9223372036854775807";
    for kind in ["all_to_all", "all_reduce", "all_gather"] {
        let (output, said) =
            shell(&format!("{OXCCL} bench {kind} --threads --no-probe -b {size} -e {size}"));
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("OXCCL_HEAP_BYTES") || said.contains("come to more than"), "{said}");
    }
}

/// A control group of this test's own with a limit, removed on drop.
struct Group(PathBuf);

impl Group {
    fn new(limit_bytes: u64) -> Option<Group> {
        let name = format!("oxccl-test-{}", std::process::id());
        let trees =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        trees.into_iter().find_map(|(tree, limit)| {
            let group = Group(PathBuf::from(tree).join(&name));
            fs::create_dir(&group.0).ok()?;
            fs::write(group.0.join(limit), limit_bytes.to_string()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Each of two ranks finds room for its buffers while the other takes its own: both together have
/// none.
#[test]
fn ranks_that_allocate_at_once_get_an_error() {
    let Some(group) = Group::new(400 << 20) else {
        let name = "ranks_that_allocate_at_once_get_an_error";
        let _ = writeln!(std::io::stderr(), "skipped: {name}: no control group can be made");
        return;
    };
    let procs = group.0.join("cgroup.procs").display().to_string();
    let bench = format!(
        "{OXCCL} bench broadcast --no-probe --no-bind -b 110M -e 110M -n 1 -w 0 --repeats 1"
    );
    let joined = format!("echo $$ >{procs} && exec {bench}");
    let run = || shell(&format!("exec {OXCCL} run -n 2 -- sh -c '{joined}'"));
    for _ in 0..3 {
        let (output, said) = run();
        assert!(said.contains("bytes of memory are not to be had"), "{said}");
        assert_eq!(output.status.code(), Some(1), "{said}");
    }
    // Half of it fits, however it comes.
    let half = joined.replace("110M", "60M");
    let (output, said) = shell(&format!("exec {OXCCL} run -n 2 -- sh -c '{half}'"));
    assert!(output.status.success(), "{said}");
}
