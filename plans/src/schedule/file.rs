//! Schedules as JSON files: what `examples/schedule.schema.json` describes, and
//! `examples/custom_schedule.json` shows.

use super::{Chunking, Instruction, Notes, SLOTS, Schedule, Slots, Tree};
use crate::collective::{Collective, Order};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;
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
    /// Its name and comments.
    pub notes: Notes,
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
    /// Where editors find the description of such files.
    #[serde(rename = "$schema")]
    _schema: Option<String>,
    name: Option<String>,
    comment: Option<String>,
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
    scratch: usize,
    #[serde(default)]
    slots: SlotFields,
    steps: Vec<Vec<Value>>,
}

/// The same but for the steps, as they are written.
#[derive(Serialize)]
struct Head<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<&'a str>,
    collective: &'static str,
    ranks: usize,
    root: usize,
    receiver: usize,
    order: &'static str,
    in_place: bool,
    input: Division,
    output: Division,
    #[serde(skip_serializing_if = "is_zero")]
    scratch: usize,
    slots: SlotFields,
}

fn any() -> String {
    Order::Any.name().to_owned()
}

#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a division is \"whole\", \"per_rank\", {\"per_rank\": COUNT} or {\"parts\": COUNT}"
)]
enum Division {
    Named(Named),
    Counted(Counted),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Named {
    Whole,
    PerRank,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Counted {
    PerRank(usize),
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

/// A step and what is said of it.
#[derive(Serialize)]
struct Commented<'a> {
    #[serde(flatten)]
    step: Step,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<&'a str>,
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

fn is_zero(value: &usize) -> bool {
    *value == 0
}

fn is_false(value: &bool) -> bool {
    !value
}

impl ScheduleFile {
    /// A schedule that promises so much, of which nothing else is said.
    pub fn new(schedule: Schedule, order: Order, in_place: bool) -> ScheduleFile {
        ScheduleFile { schedule, order, in_place, notes: Notes::default() }
    }

    /// Reads the text of a JSON file. Whether the schedule is right is for
    /// [`verify`](crate::verify::verify) to say.
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
        let mut notes = Notes { name: fields.name, comment: fields.comment, ..Notes::default() };
        let of_ranks: Vec<Vec<Vec<Value>>> = fields.steps.into_iter().map(lists_of).collect();
        let lists_per_rank = of_ranks.iter().map(Vec::len).max().unwrap_or(1).max(1);
        let mut lists = Vec::with_capacity(ranks * lists_per_rank);
        for (rank, mut of_rank) in of_ranks.into_iter().enumerate() {
            of_rank.resize_with(lists_per_rank, Vec::new);
            let mut step = 0;
            for values in of_rank {
                let mut list = Vec::with_capacity(values.len());
                for mut value in values {
                    let fault = |detail| FileFault::Step { rank, step, detail };
                    if let Some(comment) = comment(&mut value).map_err(fault)? {
                        notes.steps.insert((rank, step), comment);
                    }
                    list.push(instruction(value).map_err(fault)?);
                    step += 1;
                }
                lists.push(list);
            }
        }
        let schedule = Schedule {
            collective,
            input: fields.input.into(),
            output: fields.output.into(),
            scratch: fields.scratch,
            slots: fields.slots.into(),
            lists_per_rank,
            lists,
        };
        let order = fields.order.parse().map_err(FileFault::Json)?;
        Ok(ScheduleFile { schedule, order, in_place: fields.in_place, notes })
    }

    /// The file's text, a step a line.
    pub fn to_json(&self) -> String {
        let Schedule { collective, input, output, scratch, slots, lists_per_rank, lists } =
            &self.schedule;
        let head = Head {
            name: self.notes.name.as_deref(),
            comment: self.notes.comment.as_deref(),
            collective: collective.kind.name(),
            ranks: collective.ranks,
            root: collective.root,
            receiver: collective.receiver,
            order: self.order.name(),
            in_place: self.in_place,
            input: (*input).into(),
            output: (*output).into(),
            scratch: *scratch,
            slots: (*slots).into(),
        };
        let head = json(&head);
        let of_ranks = lists.chunks((*lists_per_rank).max(1)).enumerate().map(|(rank, lists)| {
            let mut at = 0;
            let mut list = |list: &Vec<Instruction>, indent: &str| {
                let written = list.iter().map(|one| {
                    at += 1;
                    format!("\n{indent}    {}", step(one, self.notes.step(rank, at - 1)))
                });
                format!("\n{indent}  [{}]", written.collect::<Vec<_>>().join(","))
            };
            match lists {
                [one] => list(one, ""),
                several => {
                    let lists: Vec<String> = several.iter().map(|one| list(one, "  ")).collect();
                    format!("\n  [{}]", lists.join(","))
                }
            }
        });
        let of_ranks: Vec<String> = of_ranks.collect();
        format!(
            "{},\n \"steps\": [{}]}}\n",
            head.strip_suffix('}').unwrap_or(&head),
            of_ranks.join(",")
        )
    }
}

/// A rank's lists: one, whose steps are given, or several, each given as a list.
fn lists_of(steps: Vec<Value>) -> Vec<Vec<Value>> {
    if steps.is_empty() || !steps.iter().all(Value::is_array) {
        return vec![steps];
    }
    let list = |list| if let Value::Array(steps) = list { steps } else { Vec::new() };
    steps.into_iter().map(list).collect()
}

impl From<Division> for Chunking {
    fn from(division: Division) -> Chunking {
        match division {
            Division::Named(Named::Whole) => Chunking::Whole,
            Division::Named(Named::PerRank) => Chunking::PerRank(1),
            Division::Counted(Counted::PerRank(chunks)) => Chunking::PerRank(chunks),
            Division::Counted(Counted::Parts(parts)) => Chunking::Parts(parts),
        }
    }
}

impl From<Chunking> for Division {
    fn from(chunking: Chunking) -> Division {
        match chunking {
            Chunking::Whole => Division::Named(Named::Whole),
            Chunking::PerRank(1) => Division::Named(Named::PerRank),
            Chunking::PerRank(chunks) => Division::Counted(Counted::PerRank(chunks)),
            Chunking::Parts(parts) => Division::Counted(Counted::Parts(parts)),
        }
    }
}

/// A step's comment, which is taken out of it.
fn comment(step: &mut Value) -> Result<Option<String>, String> {
    match step.as_object_mut().and_then(|fields| fields.remove("comment")) {
        None => Ok(None),
        Some(Value::String(comment)) => Ok(Some(comment)),
        Some(other) => Err(format!("its comment is {other}, which is no text")),
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

fn step(instruction: &Instruction, comment: Option<&str>) -> String {
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
    json(&Commented { step, comment })
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
                Kind::SendRecv => Collective::send_recv(8, 1, 2),
                kind => Collective::new(kind, 8),
            };
            let schedule =
                entry.schedule(collective, Placement::uniform(2), Order::Any, SLOTS).unwrap();
            let mut notes = Notes { name: Some("it".to_owned()), ..Notes::default() };
            notes.steps.insert((1, 0), "is it \"so\"?".to_owned());
            let in_place = entry.in_place;
            let file = ScheduleFile { schedule, order: Order::Any, in_place, notes };
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
        let fault = file(r#"[{"wait": "0.slots.tail", "at_least": 1, "comment": 1}]"#);
        assert_eq!(fault, "rank 1, step 0: its comment is 1, which is no text");
        let fault = file("[], []");
        assert_eq!(fault, "it is for 2 ranks, but has 3 lists of steps");
        let fault = ScheduleFile::from_json("{\n\"ranks\": 2, \"order\": 3}").unwrap_err();
        assert!(fault.to_string().contains("line 2"), "{fault}");
    }
}
