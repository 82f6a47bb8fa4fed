//! The model of small calls (`tools/gpu-model`) runs the kernels that were built: it knows all
//! their instructions, and a call's output is what it must be.
#![allow(clippy::unwrap_used)]

use oxccl_kernels::image::FATBIN;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// An LL message of each peer, reduced by all threads of a block.
const CALL: &str = "all_reduce/one_shot/ll/2/4096/1";

#[test]
fn the_model_runs_a_kernel() {
    let Some(image) = FATBIN else {
        return skip("built without nvcc, so there are no kernels to look at");
    };
    if Command::new("python3").arg("--version").output().is_err() {
        return skip("there is no python3");
    }
    let file = std::env::temp_dir().join(format!("oxccl-model-{}.fatbin", std::process::id()));
    std::fs::write(&file, image).unwrap();
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/gpu-model");
    let mut command = Command::new("python3");
    command.arg(tool).arg("--image").arg(&file);
    // Where all has been built at once, it is there, and as new as this test.
    let built = std::env::current_exe().unwrap().with_file_name("../examples/programs");
    if std::env::var_os("CI").is_some() && built.is_file() {
        command.arg("--programs").arg(built);
    }
    let output = command.args(["--threads", "512", "--call", CALL]).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    let [said, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{said}{errors}");
    assert!(said.contains("output: 1024 words, right"), "{said}");
}

/// Says that the test was skipped, past the harness, which would keep it to itself.
fn skip(why: &str) {
    // Without standard error nobody listens.
    let _ = writeln!(std::io::stderr(), "skipped: the model of GPUs: {why}");
}
