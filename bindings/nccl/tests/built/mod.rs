//! The library under the name that programs ask for, and programs that are linked against it.
#![allow(dead_code, clippy::unwrap_used, reason = "each test program uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with the library under the name that programs ask for, and a program.
pub(crate) struct Built {
    pub(crate) folder: PathBuf,
    pub(crate) program: PathBuf,
}

impl Built {
    /// The library alone.
    pub(crate) fn library(test: &str) -> Built {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let library = std::env::current_exe().unwrap().with_file_name("libnccl.so");
        assert!(library.is_file(), "{} was not built", library.display());
        for name in ["libnccl.so", "libnccl.so.2"] {
            std::os::unix::fs::symlink(&library, folder.join(name)).unwrap();
        }
        Built { folder, program: PathBuf::new() }
    }

    /// One of `programs/*.c`.
    pub(crate) fn program(name: &str, test: &str) -> Built {
        let Built { folder, .. } = Built::library(test);
        let program = folder.join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-g", "-Wall", "-Wno-unused-function", "-o"]).arg(&program).arg(source);
        cc.arg("-L").arg(&folder).args(["-lnccl", "-ldl", "-lpthread"]);
        let output = cc.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Built { folder, program }
    }
}
