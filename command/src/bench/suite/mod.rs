//! A suite: contestants take turns at the same calls, and what they took is written as one JSON
//! file and one page.
//!
//! In a round each contestant has one turn, one after the other, so that what slows the machine
//! down for a while slows all of them down. A contestant's ratio is the median, over the rounds, of
//! its time over the first contestant's time in the same round.

mod page;
mod protocol;
mod turn;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use super::case::Case;
use super::measure::median;
use super::report::{digits, rounded};
use crate::failure::Failure;
use crate::machine::{self, Probe};
use crate::options::Size;
use crate::{date, speak};
use protocol::{Contestant, Protocol, Run};
pub(super) use turn::Timed;

/// What the files have.
#[derive(Serialize)]
struct Report {
    suite: String,
    date: String,
    machine: Machine,
    /// Of the folder that it was run in, if that belongs to a repository.
    commit: Option<String>,
    command: String,
    rounds: usize,
    contestants: Vec<Contestant>,
    runs: Vec<Measured>,
}

#[derive(Serialize)]
struct Machine {
    processor: String,
    cores: usize,
    system: String,
    /// What its cores and its memory can do.
    probe: String,
}

/// What came of a run.
#[derive(Serialize)]
struct Measured {
    op: &'static str,
    #[serde(rename = "type")]
    data_type: &'static str,
    ranks: usize,
    flags: Vec<String>,
    rows: Vec<Row>,
    failures: Vec<Failed>,
}

/// A size.
#[derive(Serialize)]
struct Row {
    bytes: usize,
    in_place: bool,
    /// In the order of the contestants; those without a time are left out.
    results: Vec<Outcome>,
}

#[derive(Serialize)]
struct Outcome {
    contestant: String,
    /// A round each.
    times_us: Vec<f64>,
    median_us: f64,
    least_us: f64,
    busbw_gbps: f64,
    /// Of all rounds; none where no result was checked.
    wrong: Option<u64>,
    /// Its time over the first contestant's.
    ratio: Option<f64>,
}

#[derive(Serialize)]
struct Failed {
    contestant: String,
    /// From 1.
    round: usize,
    why: String,
}

/// Measures what a file says.
///
/// # Errors
/// A file that cannot be read or is wrong, results that cannot be written; turns that failed and
/// wrong elements, once all is measured and written.
pub(super) fn main(path: &Path) -> Result<(), Failure> {
    if let Some(environment) = super::environment()? {
        let text = format!("--suite starts the ranks itself: not under {}", environment.launcher);
        return Err(Failure::Usage(text));
    }
    let protocol = Protocol::read(path)?;
    let stem = PathBuf::from(path.file_stem().unwrap_or_default());
    let output = protocol.output.clone().unwrap_or(stem);
    let mut report = Report::new(&protocol);
    // What cannot be written is said before anything is measured.
    report.write(&output)?;
    for run in &protocol.runs {
        let case = run.case().map_err(Failure::Usage)?;
        let measured = measured(&protocol, run, &case)?;
        measured.print();
        report.runs.push(measured);
        report.write(&output)?;
    }
    let [json, page] = files(&output);
    speak::say!("# {} and {}", json.display(), page.display());
    report.verdict()
}

/// The two files.
fn files(output: &Path) -> [PathBuf; 2] {
    ["json", "html"].map(|extension| {
        let mut name = output.as_os_str().to_owned();
        name.push(format!(".{extension}"));
        PathBuf::from(name)
    })
}

/// All rounds of a run.
fn measured(protocol: &Protocol, run: &Run, case: &Case) -> Result<Measured, Failure> {
    let contestants = &protocol.contestants;
    let mut turns: Vec<Vec<Option<Vec<Timed>>>> = vec![Vec::new(); contestants.len()];
    let mut failures = Vec::new();
    for round in 1..=protocol.rounds {
        for (at, contestant) in contestants.iter().enumerate() {
            let name = &contestant.name;
            let (kind, ranks) = (case.kind, run.ranks);
            speak::note(format_args!(
                "round {round} of {}: {kind} over {ranks} ranks: {name}",
                protocol.rounds
            ));
            let (program, arguments) = contestant.arguments(run).map_err(Failure::Usage)?;
            let own = || std::env::current_exe().map(PathBuf::into_os_string);
            let program = program.map_or_else(own, Ok);
            let program = program.map_err(Failure::system("finding this program"))?;
            let mut command = Command::new(program);
            command.args(arguments).envs(contestant.environment());
            let turn = turn::turn(&mut command, protocol.limit());
            if let Err(why) = &turn {
                speak::complain(format_args!("{name}: {why}"));
                failures.push(Failed { contestant: name.clone(), round, why: why.clone() });
            }
            turns[at].push(turn.ok());
        }
    }
    Ok(Measured {
        op: case.kind.name(),
        data_type: case.data_type.name(),
        ranks: run.ranks,
        flags: run.flags.clone(),
        rows: rows(contestants, case, run.ranks, &turns),
        failures,
    })
}

/// What contestants took, by sizes; `turns` are each contestant's, a round each.
fn rows(
    contestants: &[Contestant],
    case: &Case,
    ranks: usize,
    turns: &[Vec<Option<Vec<Timed>>>],
) -> Vec<Row> {
    let all = turns.iter().flatten().flatten().flatten();
    let mut calls: Vec<(bool, usize)> = all.map(|row| (row.in_place, row.bytes)).collect();
    calls.sort_unstable();
    calls.dedup();
    let row = |(in_place, bytes): (bool, usize)| {
        let of_call = |turn: &Option<Vec<Timed>>| {
            let rows = turn.as_ref()?;
            rows.iter().find(|row| (row.in_place, row.bytes) == (in_place, bytes)).cloned()
        };
        let timed: Vec<Vec<Option<Timed>>> =
            turns.iter().map(|turns| turns.iter().map(of_call).collect()).collect();
        let outcome = |at: usize| {
            let rows: Vec<&Timed> = timed[at].iter().flatten().collect();
            let times_us: Vec<f64> = rows.iter().map(|row| row.time_us).collect();
            let least_us = times_us.iter().copied().min_by(f64::total_cmp)?;
            let median_us = middle(times_us.clone());
            let both = timed[at].iter().zip(&timed[0]);
            let ratios = both
                .filter_map(|(own, first)| Some(own.as_ref()?.time_us / first.as_ref()?.time_us));
            let ratios: Vec<f64> = ratios.collect();
            let ratio = (!ratios.is_empty()).then(|| rounded(middle(ratios)));
            let busbw = bytes as f64 / median_us / 1e3 * case.bus_factor(ranks);
            let wrong = rows.iter().filter_map(|row| row.wrong).reduce(|a, b| a + b);
            Some(Outcome {
                contestant: contestants[at].name.clone(),
                times_us,
                median_us: rounded(median_us),
                least_us,
                busbw_gbps: rounded(busbw),
                wrong,
                ratio,
            })
        };
        Row { bytes, in_place, results: (0..contestants.len()).filter_map(outcome).collect() }
    };
    calls.into_iter().map(row).collect()
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    median(&values)
}

impl Measured {
    fn title(&self) -> String {
        let flags = if self.flags.is_empty() {
            String::new()
        } else {
            format!(", {}", self.flags.join(" "))
        };
        format!("{} of {} over {} ranks{flags}", self.op, self.data_type, self.ranks)
    }

    fn print(&self) {
        speak::say!("# {}", self.title());
        for row in &self.rows {
            let place = if row.in_place { "in place" } else { "" };
            let results = row.results.iter().map(|result| {
                let ratio = result.ratio.map_or("N/A".to_owned(), |ratio| digits(ratio, 6));
                let time = digits(result.median_us, 8);
                format!("  {} {time:>8} us {ratio:>6}", result.contestant)
            });
            let results: String = results.collect();
            speak::say!("{:>12} {place:<8}{results}", Size(row.bytes).to_string());
        }
    }
}

impl Report {
    /// Without runs.
    fn new(protocol: &Protocol) -> Report {
        let system = nix::sys::utsname::uname();
        let system = system.map_or_else(
            |_| std::env::consts::OS.to_owned(),
            |name| format!("{} {}", name.sysname().display(), name.release().display()),
        );
        Report {
            suite: protocol.name.clone(),
            date: date::today(),
            machine: Machine {
                processor: machine::cpu_model(),
                cores: machine::usable_cores().len(),
                system,
                probe: Probe::measure().to_string(),
            },
            commit: commit(),
            command: std::env::args().collect::<Vec<_>>().join(" "),
            rounds: protocol.rounds,
            contestants: protocol.contestants.clone(),
            runs: Vec::new(),
        }
    }

    fn write(&self, output: &Path) -> Result<(), Failure> {
        let [json, page] = files(output);
        for (path, text) in [(json, speak::json(self) + "\n"), (page, page::page(self))] {
            std::fs::write(&path, text)
                .map_err(Failure::system(format!("writing {}", path.display())))?;
        }
        Ok(())
    }

    /// Fails where a turn has failed, or an element was wrong.
    fn verdict(&self) -> Result<(), Failure> {
        let failed: usize = self.runs.iter().map(|run| run.failures.len()).sum();
        if failed > 0 {
            let turns = self.runs.len() * self.contestants.len() * self.rounds;
            return Err(Failure::Turns { failed, turns });
        }
        let results = self.runs.iter().flat_map(|run| &run.rows).flat_map(|row| &row.results);
        match results.filter_map(|result| result.wrong).sum() {
            0 => Ok(()),
            count => Err(Failure::Wrong { count }),
        }
    }
}

/// The commit of this folder, and whether something is changed.
fn commit() -> Option<String> {
    let said =
        Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output();
    let said = said.ok().filter(|said| said.status.success())?;
    Some(String::from_utf8_lossy(&said.stdout).trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(bytes: usize, time_us: f64, wrong: Option<u64>) -> Option<Vec<Timed>> {
        Some(vec![Timed { bytes, in_place: false, time_us, wrong }])
    }

    #[test]
    fn ratios_are_those_of_the_same_round() {
        let text = "name = \"x\"\n[[contestants]]\nname = \"a\"\n[[contestants]]\nname = \"b\"\n\
                    [[runs]]\nop = \"all_gather\"\n";
        let protocol: Protocol = toml::from_str(text).unwrap();
        let case = protocol.runs[0].case().unwrap();
        // The machine is slower in the second round; b fails in the fourth.
        let first = [1.0, 10.0, 2.0, 1.0].map(|time| timed(1000, time, Some(0)));
        let second =
            [timed(1000, 2.0, Some(1)), timed(1000, 20.0, Some(2)), timed(1000, 5.0, None)];
        let turns = [first.to_vec(), second.into_iter().chain([None]).collect()];
        let rows = rows(&protocol.contestants, &case, 2, &turns);
        let [row] = &rows[..] else { panic!("{} rows", rows.len()) };
        let [a, b] = &row.results[..] else { panic!("{} results", row.results.len()) };
        assert_eq!((a.ratio, a.median_us, a.least_us, a.wrong), (Some(1.0), 1.5, 1.0, Some(0)));
        assert_eq!((b.ratio, b.median_us, b.least_us, b.wrong), (Some(2.0), 5.0, 2.0, Some(3)));
        assert_eq!(b.busbw_gbps, 0.1);
    }
}
