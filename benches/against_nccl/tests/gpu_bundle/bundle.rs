//! A bundle as `tools/gpu-bundle` makes it, calls of its script, and what they leave.

use oxccl_cuda_stand_in::control::{image_file, library_folder};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A folder outside the repository, gone at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What `tools/gpu-bundle` takes of `benches/gpu`.
pub(crate) const SCRIPTS: [&str; 10] = [
    "run.sh",
    "steps.sh",
    "stages.sh",
    "summarize.py",
    "results.py",
    "rows.py",
    "targets.py",
    "causes.py",
    "kernels.py",
    "counters.py",
];

/// What `tools/gpu-bundle` makes, but for NCCL and the sanitizer, and with what this build has.
pub(crate) fn bundle(name: &str) -> Folder {
    let folder = std::env::temp_dir().join(format!("oxccl-bundle-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    for part in ["bin", "data", "out"] {
        fs::create_dir_all(folder.join(part)).unwrap();
    }
    for script in SCRIPTS {
        fs::copy(Path::new(ROOT).join("benches/gpu").join(script), folder.join(script)).unwrap();
    }
    symlink(env!("CARGO_BIN_EXE_oxccl-in-the-bundle"), folder.join("bin/oxccl")).unwrap();
    let against_nccl = env!("CARGO_BIN_EXE_oxccl-against-nccl");
    symlink(against_nccl, folder.join("bin/oxccl-against-nccl")).unwrap();
    fs::write(folder.join("bundle.json"), r#"{"commit": "none"}"#).unwrap();
    fs::copy(image_file().unwrap(), folder.join("image")).unwrap();
    Folder(folder)
}

pub(crate) fn archive(bundle: &Folder) -> PathBuf {
    bundle.0.join("out/results.tar.gz")
}

/// A call of its script.
pub(crate) fn call(bundle: &Folder, arguments: &[&str], settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(bundle.0.join("run.sh"));
    command
        .args(["-q", "-r", "2", "-o"])
        .arg(archive(bundle))
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("LD_LIBRARY_PATH", library_folder().unwrap())
        .env("OXCCL_STAND_IN_MEMORY", (384 << 20).to_string())
        .env("OXCCL_BUNDLE_IMAGE", bundle.0.join("image"))
        .env("OXCCL_BUNDLE_NCCL", oxccl_nccl_stand_in::library())
        // The stand-in itself lists kernels.
        .env("OXCCL_BUNDLE_PROFILER", "/dev/null")
        .envs(settings.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// On a machine with other work.
pub(crate) const PATIENT: [(&str, &str); 2] =
    [("OXCCL_BUNDLE_TIMEOUT", "60"), ("OXCCL_BUNDLE_SECONDS", "60")];

/// Runs stages of it; what all calls so far have left, and whether none failed.
pub(crate) fn run(bundle: &Folder, arguments: &[&str], settings: &[(&str, &str)]) -> (Value, bool) {
    let status = call(bundle, arguments, settings).status().unwrap();
    let files: Vec<_> =
        fs::read_dir(bundle.0.join("out")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files, [archive(bundle)], "one archive is left of each call");
    (results(bundle), status.success())
}

/// What its archive has.
pub(crate) fn results(bundle: &Folder) -> Value {
    let said = script("summarize.py", &[Path::new("--json"), &archive(bundle)]);
    serde_json::from_str(&said).unwrap()
}

/// A file in it.
pub(crate) fn kept(bundle: &Folder, file: &str) -> String {
    let mut tar = Command::new("tar");
    let said = tar.arg("xzOf").arg(archive(bundle)).arg(format!("./{file}")).output().unwrap();
    assert!(said.status.success(), "{file}: {}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).unwrap()
}

pub(crate) fn status<'a>(results: &'a Value, stage: &str) -> &'a Value {
    let stages = results["stages"].as_array().unwrap();
    stages.iter().find(|one| one["stage"] == stage).unwrap_or(&Value::Null)
}

/// A python script of `benches/gpu`, with these arguments; what it prints.
pub(crate) fn script(name: &str, arguments: &[&Path]) -> String {
    let mut command = Command::new("python3");
    command.arg("-B").arg(Path::new(ROOT).join("benches/gpu").join(name)).args(arguments);
    let ended = command.output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).unwrap()
}

/// Leaves an archive with results of one stage that gave these rows; what the summary says.
pub(crate) fn summed_up(bundle: &Folder, stage: &str, rows: &[Value]) -> String {
    let folder = bundle.0.join("kept").join(stage);
    fs::create_dir_all(&folder).unwrap();
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    fs::write(folder.join("rows.jsonl"), text).unwrap();
    let stage = serde_json::json!({
        "stage": stage, "status": "ok", "begun": "2000-01-01T00:00:00Z", "quick": false,
    });
    fs::write(folder.join("stage.json"), stage.to_string()).unwrap();
    fs::copy(bundle.0.join("bundle.json"), bundle.0.join("kept/bundle.json")).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("czf").arg(archive(bundle)).arg("-C").arg(bundle.0.join("kept")).arg(".");
    assert!(tar.status().unwrap().success());
    script("summarize.py", &[&archive(bundle)])
}

/// Writes a program into the bundle.
pub(crate) fn executable(bundle: &Folder, name: &str, text: &str) -> String {
    let path = bundle.0.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Waits for something that other processes do.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
