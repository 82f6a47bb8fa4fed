//! Runs the `oxccl` command and takes what it says.

// Each test program uses a part of it.
#![allow(dead_code, unused_imports)]

#[path = "../../../tests/common/port.rs"]
mod port;
#[path = "../../../tests/common/said.rs"]
mod said;

pub(crate) use port::free_port;
pub(crate) use said::{Said, finish, plain, skip, start};
use std::process::Command;

/// The command, without what the environment of the tests says to it.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = plain(env!("CARGO_BIN_EXE_oxccl"));
    command.args(arguments);
    command
}

/// Runs the command to its end.
pub(crate) fn oxccl(arguments: &[&str]) -> Said {
    finish(start(&mut command(arguments)))
}
