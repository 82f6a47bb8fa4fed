//! Runs compilers side by side, and none whose output is at hand from another build.
//!
//! Cargo repeats a build script for every profile and for every change of features or environment.
//! The compilers' outputs do not depend on these, so they are kept under a hash of what they do
//! depend on: all sources, the command line and the compiler. They are in the target folder, or in
//! the one that `OXCCL_BUILD_CACHE` names, for builds of several clones.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Headers that the build writes: the format, and the schedules of the hot kernels.
pub(crate) const FORMAT: &str = "format.h";
pub(crate) const SCHEDULES: &str = "schedules.h";

/// The sources of a compilation: folders, and what a build has written.
pub(crate) struct Sources {
    made_in: PathBuf,
    made: Vec<&'static str>,
    folders: Vec<PathBuf>,
}

impl Sources {
    /// These folders, and behind them headers that have been written to `made_in`.
    pub(crate) fn new(folders: Vec<PathBuf>, made_in: &Path, made: &[&'static str]) -> Sources {
        Sources { made_in: made_in.to_owned(), made: made.to_vec(), folders }
    }

    fn include_folders(&self) -> impl Iterator<Item = &Path> {
        self.folders.iter().chain([&self.made_in]).map(PathBuf::as_path)
    }

    /// What every output depends on.
    fn hash(&self) -> Result<u64, String> {
        let mut hasher = DefaultHasher::new();
        let in_folders = self.folders.iter().map(|folder| files(folder));
        let made = self.made.iter().map(|name| self.made_in.join(name)).collect();
        for path in in_folders.chain([Ok(made)]).collect::<Result<Vec<_>, _>>()?.concat() {
            path.file_name().hash(&mut hasher);
            let text = std::fs::read(&path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            text.hash(&mut hasher);
        }
        Ok(hasher.finish())
    }
}

/// One compilation: `command`, the include folders, `source`, `-o output`.
pub(crate) struct Job<'a> {
    pub(crate) sources: &'a Sources,
    pub(crate) command: Command,
    pub(crate) source: PathBuf,
    pub(crate) output: PathBuf,
}

/// Runs all jobs, as many at a time as cargo allows, and gives what each wrote to standard error.
/// The first failure is returned with its command line and output.
pub(crate) fn run_all(jobs: Vec<Job<'_>>) -> Result<Vec<String>, String> {
    let workers = std::env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    let results: Mutex<Vec<_>> = Mutex::new((0..jobs.len()).map(|_| Ok(String::new())).collect());
    let queue = Mutex::new(jobs.into_iter().enumerate());
    std::thread::scope(|scope| {
        for _ in 0..std::cmp::max(1, workers) {
            scope.spawn(|| {
                while let Some((index, job)) = take(&queue) {
                    let result = compile(job);
                    if let Ok(mut results) = results.lock() {
                        results[index] = result;
                    }
                }
            });
        }
    });
    let results = results.into_inner().map_err(|_| "a build thread panicked".to_owned())?;
    results.into_iter().collect()
}

/// Runs a command to its end and gives its standard error.
pub(crate) fn run(mut command: Command) -> Result<String, String> {
    let output = command.output().map_err(|error| {
        let program = command.get_program();
        format!(
            "cannot run {program:?} ({error}): install a C++17 compiler (Debian: g++), or name one by CXX"
        )
    })?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    // Compilers repeat themselves for every instantiation; the beginning says what is wrong.
    let beginning: String = text.chars().take(4000).collect();
    Err(format!("{command:?} failed:\n{beginning}"))
}

fn take<'a>(
    queue: &Mutex<std::iter::Enumerate<std::vec::IntoIter<Job<'a>>>>,
) -> Option<(usize, Job<'a>)> {
    queue.lock().ok()?.next()
}

fn compile(mut job: Job<'_>) -> Result<String, String> {
    let mut hasher = DefaultHasher::new();
    job.sources.hash()?.hash(&mut hasher);
    job.source.file_name().hash(&mut hasher);
    version(job.command.get_program()).hash(&mut hasher);
    job.command.get_args().for_each(|argument| argument.hash(&mut hasher));
    let kept = cache(&job.sources.made_in).join(format!("{:016x}", hasher.finish()));
    let kept_text = kept.with_extension("txt");
    if let Ok(text) = std::fs::read_to_string(&kept_text)
        && std::fs::copy(&kept, &job.output).is_ok()
    {
        return Ok(text);
    }
    job.sources.include_folders().for_each(|folder| {
        job.command.arg("-I").arg(folder);
    });
    job.command.arg(&job.source).arg("-o").arg(&job.output);
    let text = run(job.command)?;
    // A cache that cannot be written is only slower. The text goes last, and vouches for the rest.
    let folder = cache(&job.sources.made_in);
    let _ = std::fs::create_dir_all(&folder)
        .and_then(|()| place(&folder, &kept, &std::fs::read(&job.output)?))
        .and_then(|()| place(&folder, &kept_text, text.as_bytes()));
    Ok(text)
}

/// Writes a file whole or not at all.
fn place(folder: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let unfinished =
        folder.join(format!("unfinished-{}-{:?}", std::process::id(), std::thread::current().id()));
    std::fs::write(&unfinished, bytes)?;
    std::fs::rename(&unfinished, path)
}

/// What a compiler says that it is, the same wherever it lies; of one that says nothing, its name.
fn version(compiler: &OsStr) -> Vec<u8> {
    static ASKED: Mutex<BTreeMap<OsString, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    let ask = || {
        let said = Command::new(compiler).arg("--version").output();
        let said = said.ok().map(|said| said.stdout).filter(|said| !said.is_empty());
        said.unwrap_or_else(|| compiler.as_encoded_bytes().to_vec())
    };
    asked.entry(compiler.to_owned()).or_insert_with(ask).clone()
}

/// Where it is said, or in the target folder: `<target>/<profile>/build/<package>/out` is where
/// this runs. A target folder that lies in another one, as of the model checks, shares what that
/// one has.
fn cache(out: &Path) -> PathBuf {
    if let Some(said) = std::env::var_os("OXCCL_BUILD_CACHE").filter(|said| !said.is_empty()) {
        return PathBuf::from(said);
    }
    let caches =
        || out.ancestors().skip(4).take(3).map(|folder| folder.join("oxccl-machine-cache"));
    let kept = caches().find(|folder| folder.is_dir()).or_else(|| caches().next());
    kept.unwrap_or_else(|| out.join("oxccl-machine-cache"))
}

/// The files of a folder and of those in it, in an order that is always the same.
fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
        .map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    paths.sort();
    let all =
        paths.into_iter().map(|path| if path.is_dir() { files(&path) } else { Ok(vec![path]) });
    Ok(all.collect::<Result<Vec<_>, _>>()?.concat())
}
