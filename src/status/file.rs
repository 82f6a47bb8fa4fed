//! The flight recorder: what a rank leaves in a file when its communicator fails, and how that is
//! read.

use super::clock::Clock;
use super::seen::{CALLS_OF_OTHERS, Ended, ProcessState, RankSeen, Snapshot};
use crate::device::Control;
use crate::error::Error;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the process of a rank that has died may still be there: its connections close before.
const GONE_WITHIN: Duration = Duration::from_millis(100);

/// Where a rank leaves its files.
#[derive(Debug)]
pub(crate) struct FlightRecorder {
    folder: PathBuf,
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system does not give it.
    #[error("{}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It is not what a rank has left.
    #[error("{} is no file that a rank has left: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// Reads a file that a rank has left.
///
/// # Errors
/// [`FileError`]
pub fn read(path: &Path) -> Result<Snapshot, FileError> {
    let of = |source| FileError::System { path: path.to_owned(), source };
    let text = fs::read_to_string(path).map_err(of)?;
    serde_json::from_str(&text)
        .map_err(|source| FileError::Format { path: path.to_owned(), source })
}

impl FlightRecorder {
    /// One that leaves files in this folder, which is made if it is not there.
    pub(crate) fn new(folder: &Path) -> Result<FlightRecorder, Error> {
        let doing = "making the folder of the flight recorder";
        fs::create_dir_all(folder).map_err(|source| Error::System { doing, source })?;
        Ok(FlightRecorder { folder: folder.to_owned() })
    }

    /// What a rank is doing, and what it sees of the others; the reason, if it has failed.
    pub(crate) fn look(control: &Control, error: Option<&Error>) -> Option<Snapshot> {
        let (own, clock) = (control.rank(), Clock::now());
        let copy = control.copy(own);
        let facts = copy.badge().facts()?;
        let died = match error {
            Some(Error::Died { rank, .. }) => Some(*rank),
            _ => None,
        };
        let deadline = Instant::now() + GONE_WITHIN;
        let seen = |rank| loop {
            let seen = RankSeen::new(rank, &control.copy(rank), clock, CALLS_OF_OTHERS);
            let lives =
                seen.state == Some(ProcessState::Alive) && seen.process != Some(std::process::id());
            if died != Some(rank) || !lives || Instant::now() >= deadline {
                break seen;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let others = (0..control.ranks()).filter(|rank| *rank != own).map(seen).collect();
        let ended = error.map(Ended::of);
        Some(Snapshot { ended, others, ..Snapshot::new(&facts, &copy, clock) })
    }

    /// Leaves it, in place of what the rank has left before.
    pub(crate) fn leave(&self, snapshot: &Snapshot) {
        let Snapshot { job, communicator, seen, .. } = snapshot;
        let name = format!("oxccl-{job}-{communicator}-rank-{}.json", seen.rank);
        let path = self.folder.join(&name);
        // Nobody sees half of it.
        let part = self.folder.join(format!(".{name}.{}", std::process::id()));
        let write = || {
            let text = serde_json::to_string_pretty(snapshot)? + "\n";
            // What another user has put there is not followed, and none but this one reads it.
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&part, &path)
        };
        match write() {
            Ok(()) => tracing::info!(rank = seen.rank, path = %path.display(), "recorded"),
            Err(error) => {
                eprintln!("oxccl: rank {}: cannot write {}: {error}", seen.rank, path.display());
                let _ = fs::remove_file(&part);
            }
        }
    }
}
