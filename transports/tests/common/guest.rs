//! Runs a test program's own tests inside the software RoCE guest (`tools/software-roce/run`).
//!
//! Tests that need RDMA devices are marked `#[ignore = "runs in the software RoCE guest"]`; one
//! test on the host starts the guest and runs them there, all in one start, since it takes a
//! second.
#![allow(unreachable_pub, clippy::unwrap_used, reason = "shared by several test binaries")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs the ignored tests whose names begin with `prefix` inside the guest, one after the other,
/// and asserts that there were some and that they passed. Where there can be no guest it says
/// `skipped`, or fails if `OXCCL_REQUIRE_SOFTWARE_ROCE` is set.
pub fn run(prefix: &str, options: &[&str]) {
    let tools = tools();
    let kernel = Command::new(tools.join("kernel")).arg("--find").output().unwrap();
    if !kernel.status.success() {
        return skip(prefix, String::from_utf8_lossy(&kernel.stderr).trim());
    }
    let mut guest = Command::new(tools.join("run"));
    guest
        .args(["--timeout", LIMIT_S])
        .args(options)
        .arg("--")
        .arg(std::env::current_exe().unwrap());
    guest.args([prefix, "--ignored", "--test-threads=1", "--nocapture"]);
    let output = guest.stdin(Stdio::null()).output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let said = said.join("\n");
    let _ = std::io::stderr().write_all(said.as_bytes());
    if output.status.code() == Some(NO_GUEST) {
        return skip(prefix, "the guest did not start");
    }
    assert!(output.status.success(), "in the guest: {}", output.status);
    assert!(!said.contains("running 0 tests"), "no test begins with {prefix}");
}

/// Against hanging: all of a program's tests run one after the other, on the guest's one core.
const LIMIT_S: &str = "900";

/// The exit status of `run` when there was no guest.
const NO_GUEST: i32 = 125;

fn skip(name: &str, why: &str) {
    let strict = std::env::var_os("OXCCL_REQUIRE_SOFTWARE_ROCE").is_some();
    assert!(!strict, "{name} needs the software RoCE guest: {why}");
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}

fn tools() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package
        .ancestors()
        .map(|folder| folder.join("tools/software-roce"))
        .find(|f| f.is_dir())
        .unwrap()
}
