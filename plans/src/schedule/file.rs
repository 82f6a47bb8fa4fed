//! Schedules as JSON files: what `examples/schedule.schema.json` describes, and
//! `examples/custom_schedule.json` shows.

use super::{Chunking, Instruction, SLOTS, Schedule, Slots, Tree};
use crate::collective::{Collective, Order};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A schedule and what it promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleFile {
    /// The schedule.
    pub schedule: Schedule,
    /// The order of reduction that it promises to keep.
    pub order: Order,
    /// Whether it promises to work with input and output in one buffer.
    pub in_place: bool,
}

/// Why a file holds no schedule.
#[derive(Debug, Error)]
#[error("{}: {fault}", .path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: FileFault,
}

/// What is wrong with a file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileFault {
    /// It cannot be read.
    #[error("{0}")]
    Read(std::io::Error),
    /// It is not JSON, or a field is missing, unknown or of another type. The text names the line.
    #[error("{0}")]
    Json(String),
    /// There must be a list for each rank.
    #[error("it is for {ranks} ranks, but has {lists} lists of steps")]
    Ranks {
        /// The number of ranks that it says.
        ranks: usize,
        /// The lists there are.
        lists: usize,
    },
    /// A step is no instruction.
    #[error("rank {rank}, step {step}: {detail}")]
    Step {
        /// The rank.
        rank: usize,
        /// The step.
        step: usize,
        /// What is wrong.
        detail: String,
    },
}

/// The file's fields. Steps are read one by one, so that an error names its rank and step.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    collective: String,
    ranks: usize,
    #[serde(default)]
    root: usize,
    #[serde(default)]
    receiver: usize,
    #[serde(default = "any")]
    order: String,
    #[serde(default)]
    in_place: bool,
    input: Division,
    output: Division,
    #[serde(default)]
    slots: SlotFields,
    steps: Vec<Vec<Value>>,
}

/// The same but for the steps, as they are written.
#[derive(Serialize)]
struct Head {
    collective: &'static str,
    ranks: usize,
    root: usize,
    receiver: usize,
    order: &'static str,
    in_place: bool,
    input: Division,
    output: Division,
    slots: SlotFields,
}

fn any() -> String {
    Order::Any.name().to_owned()
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Division {
    Whole,
    PerRank,
    Parts(usize),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SlotFields {
    ll: u32,
    #[serde(default = "ll128_slots")]
    ll128: u32,
    slots: u32,
}

fn ll128_slots() -> u32 {
    SLOTS.ll128
}

impl Default for SlotFields {
    fn default() -> SlotFields {
        SLOTS.into()
    }
}

impl From<Slots> for SlotFields {
    fn from(Slots { ll, ll128, slots }: Slots) -> SlotFields {
        SlotFields { ll, ll128, slots }
    }
}

impl From<SlotFields> for Slots {
    fn from(SlotFields { ll, ll128, slots }: SlotFields) -> Slots {
        Slots { ll, ll128, slots }
    }
}

/// A step.
#[derive(Serialize)]
#[serde(untagged)]
enum Step {
    Wait(Wait),
    Signal(Signal),
    ReduceCopy(ReduceCopy),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    wait: String,
    at_least: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signal {
    signal: String,
    value: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReduceCopy {
    reduce_copy: Vec<String>,
    to: Vec<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    aligned: bool,
    #[serde(default, rename = "final", skip_serializing_if = "is_false")]
    finish: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl ScheduleFile {
    /// Reads a file. Whether the schedule is right is for [`verify`](crate::verify::verify) to say.
    ///
    /// # Errors
    /// [`FileError`] names the file and, where it is one's fault, the rank and the step.
    pub fn read(path: &Path) -> Result<ScheduleFile, FileError> {
        let error = |fault| FileError { path: path.to_owned(), fault };
        let text = std::fs::read_to_string(path).map_err(|fault| error(FileFault::Read(fault)))?;
        ScheduleFile::from_json(&text).map_err(error)
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// [`FileFault`]
    pub fn from_json(text: &str) -> Result<ScheduleFile, FileFault> {
        let fields: Fields =
            serde_json::from_str(text).map_err(|error| FileFault::Json(error.to_string()))?;
        let collective = Collective {
            kind: fields.collective.parse().map_err(FileFault::Json)?,
            ranks: fields.ranks,
            root: fields.root,
            receiver: fields.receiver,
        };
        let (ranks, lists) = (fields.ranks, fields.steps.len());
        if ranks != lists {
            return Err(FileFault::Ranks { ranks, lists });
        }
        let list = |(rank, steps): (usize, Vec<Value>)| {
            let step = |(step, value): (usize, Value)| {
                instruction(value).map_err(|detail| FileFault::Step { rank, step, detail })
            };
            steps.into_iter().enumerate().map(step).collect::<Result<Vec<_>, _>>()
        };
        let schedule = Schedule {
            collective,
            input: fields.input.into(),
            output: fields.output.into(),
            slots: fields.slots.into(),
            ranks: fields.steps.into_iter().enumerate().map(list).collect::<Result<_, _>>()?,
        };
        let order = fields.order.parse().map_err(FileFault::Json)?;
        Ok(ScheduleFile { schedule, order, in_place: fields.in_place })
    }

    /// The file's text, a step a line.
    pub fn to_json(&self) -> String {
        let Schedule { collective, input, output, slots, ranks } = &self.schedule;
        let head = Head {
            collective: collective.kind.name(),
            ranks: collective.ranks,
            root: collective.root,
            receiver: collective.receiver,
            order: self.order.name(),
            in_place: self.in_place,
            input: (*input).into(),
            output: (*output).into(),
            slots: (*slots).into(),
        };
        let head = json(&head);
        let lists = ranks.iter().map(|list| {
            let steps: Vec<String> =
                list.iter().map(|one| format!("\n    {}", step(one))).collect();
            format!("\n  [{}]", steps.join(","))
        });
        let lists: Vec<String> = lists.collect();
        format!(
            "{},\n \"steps\": [{}]}}\n",
            head.strip_suffix('}').unwrap_or(&head),
            lists.join(",")
        )
    }
}

impl From<Division> for Chunking {
    fn from(division: Division) -> Chunking {
        match division {
            Division::Whole => Chunking::Whole,
            Division::PerRank => Chunking::PerRank,
            Division::Parts(parts) => Chunking::Parts(parts),
        }
    }
}

impl From<Chunking> for Division {
    fn from(chunking: Chunking) -> Division {
        match chunking {
            Chunking::Whole => Division::Whole,
            Chunking::PerRank => Division::PerRank,
            Chunking::Parts(parts) => Division::Parts(parts),
        }
    }
}

fn instruction(value: Value) -> Result<Instruction, String> {
    // Which of the three it is decides what an error says.
    let text = |error: serde_json::Error| error.to_string();
    if value.get("wait").is_some() {
        let Wait { wait, at_least } = serde_json::from_value(value).map_err(text)?;
        Ok(Instruction::Wait { flag: wait.parse()?, value: at_least })
    } else if value.get("signal").is_some() {
        let Signal { signal, value } = serde_json::from_value(value).map_err(text)?;
        Ok(Instruction::Signal { flag: signal.parse()?, value })
    } else if value.get("reduce_copy").is_some() {
        let step: ReduceCopy = serde_json::from_value(value).map_err(text)?;
        let sources = step.reduce_copy.iter().map(|text| text.parse());
        let destinations = step.to.iter().map(|text| text.parse());
        Ok(Instruction::ReduceCopy {
            sources: sources.collect::<Result<_, _>>()?,
            destinations: destinations.collect::<Result<_, _>>()?,
            tree: if step.aligned { Tree::Aligned } else { Tree::Left },
            finish: step.finish,
        })
    } else {
        Err(format!("{value} is no step: it has neither wait, signal nor reduce_copy"))
    }
}

fn step(instruction: &Instruction) -> String {
    let step = match instruction {
        Instruction::Wait { flag, value } => {
            Step::Wait(Wait { wait: flag.to_string(), at_least: *value })
        }
        Instruction::Signal { flag, value } => {
            Step::Signal(Signal { signal: flag.to_string(), value: *value })
        }
        Instruction::ReduceCopy { sources, destinations, tree, finish } => {
            Step::ReduceCopy(ReduceCopy {
                reduce_copy: sources.iter().map(ToString::to_string).collect(),
                to: destinations.iter().map(ToString::to_string).collect(),
                aligned: *tree == Tree::Aligned,
                finish: *finish,
            })
        }
    };
    json(&step)
}

/// On one line. Strings, numbers and lists of them: there is nothing that JSON cannot hold.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::catalogue;
    use crate::collective::Kind;
    use crate::topology::Placement;

    #[test]
    fn every_schedule_of_the_catalogue_is_read_back() {
        for entry in catalogue() {
            let collective = match entry.kind {
                Kind::SendRecv => Collective::send_recv(4, 1, 2),
                kind => Collective::new(kind, 4),
            };
            let schedule =
                entry.schedule(collective, Placement::uniform(2), Order::Any, SLOTS).unwrap();
            let file = ScheduleFile { schedule, order: Order::Any, in_place: entry.in_place };
            assert_eq!(ScheduleFile::from_json(&file.to_json()).unwrap(), file);
        }
    }

    #[test]
    fn a_fault_is_named_with_its_place() {
        let file = |steps: &str| {
            let text = format!(
                r#"{{"collective": "broadcast", "ranks": 2, "input": "whole", "output": "whole", "steps": [[], {steps}]}}"#
            );
            ScheduleFile::from_json(&text).unwrap_err().to_string()
        };
        let fault = file(r#"[{"wait": "0.slots.tail", "at_least": 1}, {"wait": "0.slots"}]"#);
        assert!(fault.starts_with("rank 1, step 1: missing field `at_least`"), "{fault}");
        let fault = file(r#"[{"reduce_copy": ["from 0.slots#0"], "to": ["put[0]"]}]"#);
        assert!(fault.starts_with("rank 1, step 0: \"put[0]\" is no operand"), "{fault}");
        let fault = file(r#"[{"jump": 1}]"#);
        assert!(fault.starts_with("rank 1, step 0: {\"jump\":1} is no step"), "{fault}");
        let fault = file("[], []");
        assert_eq!(fault, "it is for 2 ranks, but has 3 lists of steps");
        let fault = ScheduleFile::from_json("{\n\"ranks\": 2, \"order\": 3}").unwrap_err();
        assert!(fault.to_string().contains("line 2"), "{fault}");
    }
}
