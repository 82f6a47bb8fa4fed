//! Ranks of other processes, found under `/proc`.
//!
//! A rank keeps the descriptor of its control memory, and nobody else of its node keeps one of
//! that. Who may trace a process may open what its descriptors lead to, and so reads the memory: as
//! a rule each process of the same user, and each of root's.

use super::clock::Clock;
use super::seen::{ProcessState, Snapshot};
use crate::device::{CONTROL, CONTROLS, ControlCopy, Facts, NoCopy, sections};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What was found of ranks.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Found {
    /// The ranks, by job, communicator and rank.
    pub ranks: Vec<Snapshot>,
    /// Processes that were to be looked at, and could not be.
    pub refused: Vec<Refused>,
}

/// Why a process cannot be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// There is none of this number.
    #[error("there is no process {process}")]
    NoProcess {
        /// Its number.
        process: u32,
    },
    /// It is another user's, or has made itself unreadable.
    #[error(
        "process {process} may not be looked at: that takes its user or root, and a process that may be traced (prctl PR_SET_DUMPABLE)"
    )]
    NotAllowed {
        /// Its number.
        process: u32,
    },
    /// Another release of oxccl runs there.
    #[error("process {process} runs another release of oxccl: use the command of that release")]
    OtherRelease {
        /// Its number.
        process: u32,
    },
    /// The system refused something else.
    #[error("process {process} cannot be looked at: {source}")]
    System {
        /// Its number.
        process: u32,
        /// The system's answer.
        source: io::Error,
    },
}

/// The ranks of a process and of all that it has started, directly or not: of a rank, of a
/// launcher, or of this process.
///
/// # Errors
/// [`Refused`] about that process; what is wrong with others is among what was found.
pub fn of_process(process: u32) -> Result<Found, Refused> {
    let mut found = Found::default();
    found.look_at(process)?;
    let all: Vec<(u32, Stat)> = processes().filter_map(|one| Some((one, Stat::of(one)?))).collect();
    let mut parents = vec![process];
    while let Some(parent) = parents.pop() {
        let children = all.iter().filter(|(_, stat)| stat.parent == parent);
        for (child, _) in children {
            found.try_at(*child);
            parents.push(*child);
        }
    }
    Ok(found.sorted())
}

/// The ranks of all processes that this one may look at.
pub fn of_all() -> Found {
    let mut found = Found::default();
    processes().for_each(|process| found.try_at(process));
    // Those are strangers.
    found.refused.retain(|refused| matches!(refused, Refused::OtherRelease { .. }));
    found.sorted()
}

impl Found {
    fn look_at(&mut self, process: u32) -> Result<(), Refused> {
        let refused = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => Refused::NoProcess { process },
            io::ErrorKind::PermissionDenied => Refused::NotAllowed { process },
            _ => Refused::System { process, source },
        };
        let folder = Path::new("/proc").join(process.to_string());
        let stat = Stat::of(process).ok_or(Refused::NoProcess { process })?;
        // A process may have several descriptors of a file.
        let mut looked_at = HashSet::new();
        let names = [CONTROL, CONTROLS].map(|name| format!("/memfd:{name} (deleted)"));
        for entry in fs::read_dir(folder.join("fd")).map_err(refused)? {
            let path = entry.map_err(refused)?.path();
            // It may have been closed since.
            let Ok(link) = fs::read_link(&path) else { continue };
            let Some(kind) = names.iter().position(|name| link.as_os_str() == name.as_str()) else {
                continue;
            };
            let file = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file.map_err(refused)?,
            };
            let about = file.metadata().map_err(refused)?;
            if !looked_at.insert((about.dev(), about.ino())) {
                continue;
            }
            let starts: Vec<u64> = match kind {
                0 => vec![0],
                _ => sections(about.len()).collect(),
            };
            for start in starts {
                match ControlCopy::badged(|len| words(&file, start, len)) {
                    Ok(copy) => self.add(process, &stat, &copy),
                    Err(NoCopy::NotStarted) => {}
                    Err(NoCopy::OtherLayout) => return Err(Refused::OtherRelease { process }),
                    Err(NoCopy::Unreadable(error)) => return Err(refused(error)),
                }
            }
        }
        Ok(())
    }

    /// Adds the rank whose control memory this is, of a process.
    fn add(&mut self, process: u32, stat: &Stat, copy: &ControlCopy) {
        let badge = copy.badge();
        // A process that was forked from a rank has its descriptors, too.
        let is_its_own = |facts: &Facts| facts.process_started == stat.started;
        let Some(facts) = badge.facts().filter(is_its_own).filter(|_| !badge.has_left()) else {
            return;
        };
        let mut rank = Snapshot::new(&facts, copy, Clock::now());
        // In its own namespace it may have another number.
        (rank.seen.process, rank.seen.state) = (Some(process), Some(stat.state));
        self.ranks.push(rank);
    }

    fn try_at(&mut self, process: u32) {
        match self.look_at(process) {
            // It has ended meanwhile.
            Ok(()) | Err(Refused::NoProcess { .. }) => {}
            Err(refused) => self.refused.push(refused),
        }
    }

    fn sorted(mut self) -> Found {
        let key = |rank: &Snapshot| {
            (rank.job.clone(), rank.is_part(), rank.communicator.clone(), rank.seen.rank)
        };
        self.ranks.sort_by_key(key);
        self
    }
}

/// How a process is, if it is that which was started then; `None` where that cannot be told.
pub(super) fn state_of(process: u32, started: u64) -> Option<ProcessState> {
    if started == 0 {
        return None;
    }
    let stat = Stat::of(process).filter(|stat| stat.started == started);
    Some(stat.map_or(ProcessState::Ended, |stat| stat.state))
}

/// When this process was started, in the system's ticks; 0 where that cannot be told.
pub(crate) fn own_start() -> u64 {
    // By the process: one that was forked has another.
    static PROCESS: AtomicU32 = AtomicU32::new(0);
    static STARTED: AtomicU64 = AtomicU64::new(0);
    let own = std::process::id();
    if PROCESS.load(Ordering::Acquire) == own {
        return STARTED.load(Ordering::Relaxed);
    }
    let started = Stat::of(own).map_or(0, |stat| stat.started);
    STARTED.store(started, Ordering::Relaxed);
    PROCESS.store(own, Ordering::Release);
    started
}

/// What the system says of a process.
#[derive(Clone, Copy, Debug)]
struct Stat {
    state: ProcessState,
    parent: u32,
    started: u64,
}

impl Stat {
    fn of(process: u32) -> Option<Stat> {
        Stat::parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    /// The program's name, in brackets, may hold anything.
    fn parse(text: &str) -> Option<Stat> {
        let (_, fields) = text.rsplit_once(')')?;
        let mut fields = fields.split_whitespace();
        let state = match fields.next()? {
            "T" | "t" => ProcessState::Stopped,
            "Z" | "X" | "x" => ProcessState::Ended,
            _ => ProcessState::Alive,
        };
        let parent = fields.next()?.parse().ok()?;
        // The 22nd field, from 1.
        let started = fields.nth(17)?.parse().ok()?;
        Some(Stat { state, parent, started })
    }
}

/// The numbers of all processes.
fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The first words of a file from a place on.
fn words(file: &File, start: u64, len: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; len * size_of::<u64>()];
    file.read_exact_at(&mut bytes, start)?;
    Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_read() {
        let text = "71 (a (b) c) T 7 71 71 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 2 3";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.parent, stat.started), (7, 987_654));
        assert_eq!(stat.state, ProcessState::Stopped);
        for bad in ["", "71 (a", "71 (a) R", "71 (a) R x"] {
            assert!(Stat::parse(bad).is_none(), "{bad:?}");
        }
        let own = std::process::id();
        assert!(own_start() > 0);
        assert_eq!(state_of(own, own_start()), Some(ProcessState::Alive));
        assert_eq!(state_of(own, own_start() + 1), Some(ProcessState::Ended));
        assert_eq!(state_of(own, 0), None);
        assert!(processes().any(|process| process == own));
    }
}
