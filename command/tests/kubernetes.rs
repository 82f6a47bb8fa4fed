//! The pods of `examples/kubernetes/`, played on this machine: each container's command, with the
//! environment that Kubernetes gives it. Names of pods are this machine, which has fewer ranks.

mod command_line;

use std::fs;
use std::path::{Path, PathBuf};

use command_line::{Said, finish, free_port, plain, skip, start};
use yaml_serde::Value;

#[test]
fn pods_with_oxccl_run_make_one_world() {
    let name = "oxccl-run.yaml";
    let port = free_port().to_string();
    check(play(&jobset(name), &[("20000", &port), ("--ranks 8", "--ranks 2")], &[]));
}

#[test]
fn pods_with_torchrun_make_one_world() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.python");
    if !python.join("bin/torchrun").exists() {
        return skip("pods_with_torchrun_make_one_world", "there is no torchrun");
    }
    let port = free_port().to_string();
    let less = [("29500", &port[..]), ("--nproc-per-node 8", "--nproc-per-node 2")];
    // What lets this PyTorch start is not for its ranks.
    let own = ("--no-python oxccl", "--no-python env -u LD_PRELOAD -u LD_LIBRARY_PATH oxccl");
    let stand_ins = python.join("stand-ins");
    let variables = [
        ("PYTHONPATH", python.clone()),
        ("LD_LIBRARY_PATH", stand_ins.clone()),
        ("LD_PRELOAD", stand_ins.join("libcuda_stand_in.so")),
    ];
    check(play(&jobset("torchrun.yaml"), &[less[0], less[1], own], &variables));
}

/// Rank 0 prints a table; the other pods nothing.
fn check(pods: Vec<Said>) {
    let tables = pods.iter().filter(|said| said.out.contains("# 4 ranks as processes"));
    assert_eq!((pods.len(), tables.count()), (2, 1), "{pods:#?}");
}

fn jobset(name: &str) -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/kubernetes").join(name);
    let jobset: Value =
        yaml_serde::from_str(&fs::read_to_string(file).expect("it is there")).expect("it is YAML");
    assert_eq!(text(&jobset["apiVersion"]), "jobset.x-k8s.io/v1alpha2");
    assert_eq!(jobset["spec"]["network"]["enableDNSHostnames"].as_bool(), Some(true));
    jobset
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value:?} is no text"))
}

/// Runs all pods of the only job, with this in their commands and environments replaced, until they
/// end.
fn play(jobset: &Value, replaced: &[(&str, &str)], variables: &[(&str, PathBuf)]) -> Vec<Said> {
    let jobs = jobset["spec"]["replicatedJobs"].as_sequence().expect("there are jobs");
    let [job] = &jobs[..] else { panic!("one job") };
    let spec = &job["template"]["spec"];
    assert_eq!(text(&spec["completionMode"]), "Indexed", "pods have names and numbers");
    let name = text(&jobset["metadata"]["name"]);
    let first = format!("{name}-{}-0-0.{name}", text(&job["name"]));
    let here = |text: &str| {
        let known = text.replace(&first, "127.0.0.1");
        replaced.iter().fold(known, |text, (from, to)| text.replace(from, to))
    };
    let containers = spec["template"]["spec"]["containers"].as_sequence();
    let [container] = &containers.expect("there are containers")[..] else { panic!("one") };
    let words = ["command", "args"]
        .into_iter()
        .flat_map(|part| container[part].as_sequence().into_iter().flatten())
        .map(|word| here(text(word)));
    let words: Vec<String> = words.collect();
    assert!(words.iter().any(|word| word.contains("127.0.0.1") || word.contains("$MASTER_ADDR")));
    let pod = |index: u64| {
        let mut command = plain(&words[0]);
        command.args(&words[1..]).env("JOB_COMPLETION_INDEX", index.to_string());
        for variable in container["env"].as_sequence().into_iter().flatten() {
            let value = match variable["value"].as_str() {
                Some(value) => here(value),
                None => {
                    text(&variable["valueFrom"]["secretKeyRef"]["key"]);
                    "of this test".into()
                }
            };
            command.env(text(&variable["name"]), value);
        }
        let program = Path::new(env!("CARGO_BIN_EXE_oxccl")).parent().expect("it has a folder");
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.python/bin");
        let path = std::env::var("PATH").expect("there is a PATH");
        command.env("PATH", format!("{}:{}:{path}", program.display(), python.display()));
        start(command.envs(variables.iter().map(|(name, value)| (name, value))))
    };
    let completions = spec["completions"].as_u64().expect("a number of pods");
    let pods: Vec<_> = (0..completions).map(pod).collect();
    pods.into_iter().map(|pod| finish(pod).ok()).collect()
}
