//! What a suite measures: a file of TOML.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oxccl::{DataType, Kind};
use serde::{Deserialize, Serialize};

use super::super::case::Case;
use crate::failure::Failure;
use crate::names;
use crate::options::{self, Size};

/// Who is measured, of what, and how often.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Protocol {
    /// What it is called.
    pub(super) name: String,
    /// How often contestants take turns.
    #[serde(default = "three")]
    pub(super) rounds: usize,
    /// How long one turn may take.
    #[serde(default = "ten_minutes")]
    limit_s: u64,
    /// Where results are written: with .json and with .html behind it.
    pub(super) output: Option<PathBuf>,
    pub(super) contestants: Vec<Contestant>,
    pub(super) runs: Vec<Run>,
}

/// Who is measured: this command with flags and variables, or another one.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Contestant {
    pub(super) name: String,
    /// A program and its arguments, with the run's values in braces. It prints nccl-tests' table,
    /// or an object of `oxccl bench --json` a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Vec<String>>,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
}

/// What is measured: a collective over sizes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Run {
    op: String,
    #[serde(default = "two")]
    pub(super) ranks: usize,
    #[serde(default = "float", rename = "type")]
    data_type: String,
    #[serde(default = "eight")]
    minbytes: String,
    #[serde(default = "large")]
    maxbytes: String,
    #[serde(default = "two")]
    factor: usize,
    /// For contestants that are this command.
    #[serde(default)]
    pub(super) flags: Vec<String>,
}

fn two() -> usize {
    2
}

fn three() -> usize {
    3
}

fn ten_minutes() -> u64 {
    600
}

fn float() -> String {
    "float".to_owned()
}

fn eight() -> String {
    "8".to_owned()
}

fn large() -> String {
    "64M".to_owned()
}

impl Protocol {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it, with the key.
    pub(super) fn read(path: &Path) -> Result<Protocol, Failure> {
        let wrong = |detail: String| Failure::Usage(format!("{}: {detail}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        Protocol::parse(&text).map_err(wrong)
    }

    fn parse(text: &str) -> Result<Protocol, String> {
        let protocol: Protocol =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        if protocol.rounds == 0 || protocol.limit_s == 0 {
            return Err("rounds and limit_s are at least 1".to_owned());
        }
        if protocol.contestants.is_empty() || protocol.runs.is_empty() {
            return Err("contestants and runs have at least one entry each".to_owned());
        }
        for (at, run) in protocol.runs.iter().enumerate() {
            run.case().map_err(|error| format!("runs[{at}].{error}"))?;
        }
        for (at, contestant) in protocol.contestants.iter().enumerate() {
            let wrong = |error: &str| format!("contestants[{at}].{error}");
            if protocol.contestants[..at].iter().any(|other| other.name == contestant.name) {
                return Err(wrong(&format!("name: {:?} is there twice", contestant.name)));
            }
            match &contestant.command {
                Some(command) if command.is_empty() => {
                    return Err(wrong("command: there is no program"));
                }
                Some(_) if !contestant.flags.is_empty() => {
                    return Err(wrong("flags: they are for this command; put them into command"));
                }
                _ => {}
            }
            for run in &protocol.runs {
                contestant.arguments(run).map_err(|error| wrong(&error))?;
            }
        }
        Ok(protocol)
    }

    /// How long one turn may take.
    pub(super) fn limit(&self) -> Duration {
        Duration::from_secs(self.limit_s)
    }
}

impl Contestant {
    /// The program for a run, and its arguments; none for this command.
    ///
    /// # Errors
    /// A name in braces that a run does not have.
    pub(super) fn arguments(&self, run: &Run) -> Result<(Option<OsString>, Vec<OsString>), String> {
        let Some(command) = &self.command else {
            let own = run.arguments().into_iter().chain(self.flags.iter().cloned());
            return Ok((None, own.map(OsString::from).collect()));
        };
        let filled: Result<Vec<String>, String> =
            command.iter().map(|word| run.fill(word)).collect();
        let mut filled = filled?.into_iter().map(OsString::from);
        Ok((filled.next(), filled.collect()))
    }

    pub(super) fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }
}

impl Run {
    /// What it measures.
    pub(super) fn case(&self) -> Result<Case, String> {
        let kind: Kind = names::kind(&self.op).map_err(|error| format!("op: {error}"))?;
        let data_type: DataType =
            options::data_type(&self.data_type).map_err(|error| format!("type: {error}"))?;
        for (key, text) in [("minbytes", &self.minbytes), ("maxbytes", &self.maxbytes)] {
            text.parse::<Size>().map_err(|error| format!("{key}: {error}"))?;
        }
        if self.ranks == 0 || self.factor < 2 {
            return Err("ranks is at least 1, and factor at least 2".to_owned());
        }
        Ok(Case { kind, data_type, op: oxccl::OpKind::Sum, root: 0 })
    }

    /// This command's arguments.
    fn arguments(&self) -> Vec<String> {
        let Run { op, ranks, data_type, minbytes, maxbytes, factor, flags } = self;
        let (ranks, factor) = (&ranks.to_string(), &factor.to_string());
        let own = [
            "bench",
            op,
            "-g",
            ranks,
            "-d",
            data_type,
            "-b",
            minbytes,
            "-e",
            maxbytes,
            "-f",
            factor,
            "--json",
            "--no-probe",
        ];
        own.into_iter().map(str::to_owned).chain(flags.iter().cloned()).collect()
    }

    /// A word with the run's values for names in braces.
    fn fill(&self, word: &str) -> Result<String, String> {
        let mut filled = String::new();
        let mut rest = word;
        while let Some((before, behind)) = rest.split_once('{') {
            let (name, behind) = behind
                .split_once('}')
                .ok_or_else(|| format!("command: {word:?} has a brace that does not close"))?;
            filled += before;
            filled += &match name {
                "op" => self.op.clone(),
                "program" => match &*self.op {
                    "all_to_all" => "alltoall_perf".to_owned(),
                    "send_recv" => "sendrecv_perf".to_owned(),
                    op => format!("{op}_perf"),
                },
                "ranks" => self.ranks.to_string(),
                "type" => self.data_type.clone(),
                "minbytes" => self.minbytes.clone(),
                "maxbytes" => self.maxbytes.clone(),
                "factor" => self.factor.to_string(),
                _ => {
                    return Err(format!(
                        "command: {{{name}}} is none of op, program, ranks, type, minbytes, maxbytes, factor"
                    ));
                }
            };
            rest = behind;
        }
        Ok(filled + rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = \"x\"\n[[contestants]]\nname = \"oxccl\"\nflags = [\"--private\"]\n\
                        [[contestants]]\nname = \"NCCL\"\n\
                        command = [\"mpirun\", \"-np\", \"{ranks}\", \"./{program}\", \"-b{minbytes}\"]\n\
                        [[runs]]\nop = \"all_to_all\"\nranks = 4\nmaxbytes = \"1M\"\nflags = [\"-n\", \"5\"]\n";

    #[test]
    fn contestants_get_the_runs_values() {
        let protocol = Protocol::parse(TEXT).unwrap();
        assert_eq!((protocol.rounds, protocol.limit()), (3, Duration::from_secs(600)));
        let run = &protocol.runs[0];
        let words = |at: usize| {
            let (program, arguments) = protocol.contestants[at].arguments(run).unwrap();
            let all = program.into_iter().chain(arguments);
            all.map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            words(0),
            "bench all_to_all -g 4 -d float -b 8 -e 1M -f 2 --json --no-probe -n 5 --private"
        );
        assert_eq!(words(1), "mpirun -np 4 ./alltoall_perf -b8");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, why) in [
            ("name = \"x\"", "nam = \"x\"", "nam"),
            ("all_to_all", "all_to_al", "runs[0].op: "),
            ("\"1M\"", "\"1Q\"", "runs[0].maxbytes: "),
            ("ranks = 4", "ranks = 0", "ranks is at least 1"),
            ("\"NCCL\"", "\"oxccl\"", "contestants[1].name: \"oxccl\" is there twice"),
            ("{ranks}", "{rank}", "contestants[1].command: {rank} is none of op"),
            ("{ranks}", "{ranks", "has a brace that does not close"),
            ("name = \"x\"", "name = \"x\"\nrounds = 0", "rounds and limit_s are at least 1"),
        ] {
            let error = Protocol::parse(&TEXT.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
