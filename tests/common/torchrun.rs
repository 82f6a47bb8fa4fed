//! PyTorch's launcher.

use std::path::Path;
use std::process::Command;

/// torchrun as it is installed, or of the PyTorch that `tools/setup-python` installs.
pub(crate) fn torchrun() -> Option<Command> {
    let installed = Command::new("torchrun").arg("--help").output();
    if installed.is_ok_and(|output| output.status.success()) {
        return Some(Command::new("torchrun"));
    }
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.python");
    let program = python.join("bin/torchrun");
    let mut command = Command::new(&program);
    with_torch(&mut command, &python);
    program.exists().then_some(command)
}

/// Lets a program find that PyTorch.
pub(crate) fn with_torch(command: &mut Command, python: &Path) {
    let stand_ins = python.join("stand-ins");
    command.env("PYTHONPATH", python).env("LD_LIBRARY_PATH", &stand_ins);
    command.env("LD_PRELOAD", stand_ins.join("libcuda_stand_in.so"));
}
