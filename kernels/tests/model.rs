//! The model of small calls (`tools/gpu-model`) runs the kernels that were built: it knows all
//! their instructions, and a call's output is what it must be.
#![allow(clippy::unwrap_used)]

use oxccl_kernels::image::{FATBIN, HOT_FATBIN};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// An LL message of each peer, reduced by all threads of a block.
const CALL: &str = "all_reduce/one_shot/ll/2/4096/1";
/// LL128 messages, by more lines than a team has threads; and what is not the root's.
const CALLS: [&str; 2] = ["all_gather/direct/ll128/8/4096/1", "broadcast/direct/ll128/2/600/1@1"];
/// One whose parts are told.
const KERNEL: &str = "broadcast_direct_ll_leaf";

#[test]
fn the_model_runs_kernels() {
    let (Some(image), Some(hot)) = (FATBIN, HOT_FATBIN) else {
        return skip("built without nvcc, so there are no kernels to look at");
    };
    if Command::new("python3").arg("--version").output().is_err() {
        return skip("there is no python3");
    }
    let folder = std::env::temp_dir().join(format!("oxccl-model-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("oxccl.fatbin"), image).unwrap();
    std::fs::write(folder.join("oxccl-hot.fatbin"), hot).unwrap();
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/gpu-model");
    // Where all has been built at once, it is there, and as new as this test.
    let built = std::env::current_exe().unwrap().with_file_name("../examples/programs");
    let built = (std::env::var_os("CI").is_some() && built.is_file()).then_some(built);
    let start = |more: &[&str]| {
        let mut command = Command::new("python3");
        command.arg(&tool).arg("--images").arg(&folder);
        command.args(built.iter().flat_map(|built| ["--programs".as_ref(), built.as_os_str()]));
        command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let end = |running: Child| {
        let output = running.wait_with_output().unwrap();
        let [said, errors] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(output.status.success(), "{said}{errors}");
        said
    };
    let hot = start(&["--call", CALL]);
    let interpreted = start(&["--call", CALL, "--interpreted"]);
    let calls = start(&CALLS);
    let parts = start(&["--code", KERNEL]);
    for (running, kernel) in [(hot, "oxccl_hot_all_reduce_one_shot_ll"), (interpreted, "oxccl_f32")]
    {
        let said = end(running);
        assert!(said.starts_with(kernel), "{said}");
        assert!(said.contains("output: 1024 words, right"), "{said}");
    }
    // Wrong outputs are its errors.
    assert_eq!(end(calls).lines().count(), 1 + CALLS.len());
    let said = end(parts);
    let sizes = |part: &str| -> Vec<usize> {
        let line = said.lines().find_map(|line| line.trim().strip_prefix(part)).unwrap();
        line.split_whitespace().map(|bytes| bytes.parse().unwrap()).collect()
    };
    // What is in line runs, and nothing waits.
    let [code, run, hot, cold] = sizes("in line")[..] else { panic!("{said}") };
    assert!(0 < run && run < hot && hot < code && hot + cold == code, "{said}");
    let [code, run, ..] = sizes("await_apart")[..] else { panic!("{said}") };
    assert!(code > 0 && run == 0, "{said}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Says that the test was skipped, past the harness, which would keep it to itself.
fn skip(why: &str) {
    // Without standard error nobody listens.
    let _ = writeln!(std::io::stderr(), "skipped: the model of GPUs: {why}");
}
