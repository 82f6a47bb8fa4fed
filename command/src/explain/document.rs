//! What is explained as data: an object of `--json`, and a rank's part of it as lines, too.

use oxccl::plans::algorithms::{Algorithm, Encoding};
use oxccl::plans::schedule::{Layout, Notes};
use oxccl::plans::tune::Plan;
use oxccl::{Config, DataType, Kind, Order};
use serde::Serialize;

use super::times::{Time, Times};
use super::{ExplainOptions, Lists, Pipeline, Traffic};

/// A call, what is chosen for it, and the schedule.
#[derive(Serialize)]
pub(super) struct Explained<'a> {
    op: Kind,
    ranks: usize,
    /// The larger of one rank's input and output.
    bytes: usize,
    /// Elements of one rank.
    input: usize,
    output: usize,
    #[serde(rename = "type")]
    data_type: &'static str,
    /// None where nothing is reduced.
    redop: Option<&'static str>,
    order: Option<Order>,
    root: Option<usize>,
    device: String,
    in_place: bool,
    private: bool,
    algorithm: Algorithm,
    encoding: Encoding,
    channels: usize,
    /// Whether outputs are written with streaming stores.
    streaming: bool,
    reason: String,
    #[serde(flatten)]
    pipeline: Pipeline,
    /// Not where one rank's instructions alone were made.
    proven: bool,
    times: Vec<Time>,
    /// Why there are no predictions.
    no_predictions: Option<&'a str>,
    schedule: Vec<Told<'a>>,
}

impl<'a> Explained<'a> {
    pub(super) fn new(
        options: &ExplainOptions,
        config: &Config,
        plan: &Plan,
        pipeline: Pipeline,
        times: &'a Times,
        lists: &Lists,
        schedule: Vec<Told<'a>>,
    ) -> Explained<'a> {
        let (kind, shape) = (options.kind, options.case().shape(options.ranks, options.bytes.0));
        Explained {
            op: kind,
            ranks: options.ranks,
            bytes: shape.bytes(options.data_type),
            input: shape.input,
            output: shape.output,
            data_type: options.data_type.name(),
            redop: kind.reduces().then(|| options.op.name()),
            order: kind.reduces().then_some(options.order),
            root: (kind.is_rooted() || kind == Kind::SendRecv).then_some(options.root),
            device: config.device.to_string(),
            in_place: options.in_place,
            private: options.private,
            algorithm: plan.algorithm,
            encoding: plan.encoding,
            channels: plan.channels,
            streaming: plan.stream,
            reason: plan.reason.to_string(),
            pipeline,
            proven: matches!(lists, Lists::Proven(_)),
            times: times.all(plan),
            no_predictions: times.lacking(),
            schedule,
        }
    }
}

/// One rank's part.
#[derive(Serialize)]
pub(super) struct Told<'a> {
    rank: usize,
    #[serde(flatten)]
    traffic: Traffic,
    steps: Vec<Step<'a>>,
}

#[derive(Serialize)]
struct Step<'a> {
    /// As in lines.
    instruction: String,
    /// Which of the rank's lists, if it has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    list: Option<usize>,
    note: Option<&'a str>,
}

impl<'a> Told<'a> {
    pub(super) fn of(
        lists: &Lists,
        layout: &Layout,
        rank: usize,
        data_type: DataType,
        notes: &'a Notes,
    ) -> Told<'a> {
        let traffic = Traffic::of(lists, layout, rank, data_type.len_bytes());
        let schedule = lists.schedule();
        let several = schedule.lists_per_rank > 1;
        let steps = lists.of(rank).map(|(step, instruction)| Step {
            instruction: instruction.to_string(),
            list: several.then(|| schedule.place(rank, step).0 % schedule.lists_per_rank),
            note: notes.step(rank, step),
        });
        Told { rank, traffic, steps: steps.collect() }
    }
}

impl std::fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "rank {}: {}", self.rank, self.traffic)?;
        let mut before = None;
        for (number, Step { instruction, list, note }) in self.steps.iter().enumerate() {
            if let Some(list) = list.filter(|_| before != *list) {
                writeln!(f, "  list {list}:")?;
            }
            before = *list;
            match note {
                Some(note) => writeln!(f, "  {number:>4}  {instruction}    # {note}")?,
                None => writeln!(f, "  {number:>4}  {instruction}")?,
            }
        }
        Ok(())
    }
}
