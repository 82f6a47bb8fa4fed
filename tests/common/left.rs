//! What `make test` leaves to `make test-all`.
#![allow(unreachable_pub, reason = "shared by several test binaries")]

use std::io::Write;

/// Whether this part of a test is left out, which is then told, past the harness, and counted by
/// `tools/test`. With `OXCCL_TEST_ALL` set, as `make test-all` does, nothing is.
pub fn to_test_all(part: &str) -> bool {
    let left = std::env::var_os("OXCCL_TEST_ALL").is_none();
    if left {
        // Without standard error nobody listens.
        let _ = writeln!(std::io::stderr(), "left to make test-all: {part}");
    }
    left
}
