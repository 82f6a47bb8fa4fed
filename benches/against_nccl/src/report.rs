//! What a comparison prints: a table, or one JSON object a row.

use oxccl_command::shared::{Failure, Form, Shape, result, rounded};
use oxccl_transports::cuda::Context;
use serde::Serialize;

use crate::args::Options;
use crate::contestant::{Setting, Task};
use crate::floor::{Floor, least_bytes};
use crate::group::Group;
use crate::turns::{Entrant, Mode};

/// The GPU and what it can do.
#[derive(Serialize)]
pub(crate) struct Machine {
    op: &'static str,
    oxccl: &'static str,
    gpu: String,
    compute_capability: String,
    multiprocessors: usize,
    memory_bytes: usize,
    cuda_driver: String,
    nccl: Option<String>,
    ranks: usize,
    copy_gbps: f64,
    empty_node_us: f64,
    empty_launch_us: f64,
}

/// How a contestant starts, over all ranks.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Started {
    pub(crate) op: &'static str,
    pub(crate) contestant: &'static str,
    pub(crate) ranks: usize,
    /// From the context to a communicator that is ready, of the slowest rank; of several
    /// communicators, the mean.
    pub(crate) time_ms: f64,
    /// Device memory of one rank's communicator.
    pub(crate) device_bytes: usize,
}

/// A way of a contestant that some rank could not be set up with, and so none is.
#[derive(Serialize)]
pub(crate) struct LeftOut {
    pub(crate) op: &'static str,
    pub(crate) contestant: &'static str,
    pub(crate) ranks: usize,
    pub(crate) setting: String,
    pub(crate) why: String,
}

/// How long it takes until a call that waits in a kernel has ended because another rank has left.
#[derive(Serialize)]
pub(crate) struct Left {
    pub(crate) op: &'static str,
    pub(crate) contestant: &'static str,
    pub(crate) ranks: usize,
    pub(crate) time_ms: f64,
}

/// One size of one contestant in one setting.
#[derive(Clone, Serialize)]
pub(crate) struct Row {
    op: &'static str,
    #[serde(rename = "type")]
    data_type: &'static str,
    redop: &'static str,
    ranks: usize,
    bytes: usize,
    count: usize,
    /// Of a group: how many buckets, where they come from, and how they are carried out.
    #[serde(skip_serializing_if = "Option::is_none")]
    buckets: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    form: Option<Form>,
    mode: Mode,
    /// Calls of a graph.
    graph_calls: usize,
    pub(crate) contestant: &'static str,
    family: &'static str,
    setting: String,
    pub(crate) time_us: f64,
    min_us: f64,
    host_us: Option<f64>,
    algbw_gbps: f64,
    busbw_gbps: f64,
    /// What all ranks have to read and write together.
    floor_bytes: usize,
    floor_us: f64,
    over_floor: f64,
    blocks: Option<usize>,
    busbw_per_block_gbps: Option<f64>,
    wrong: u64,
    /// The contestant's fastest setting here.
    pub(crate) best: bool,
    /// How many times as long the best setting of NCCL takes, in the row of another contestant.
    pub(crate) nccl_over_this: Option<f64>,
}

impl Machine {
    /// Asks the driver.
    pub(crate) fn of(
        context: &Context,
        nccl: Option<String>,
        ranks: usize,
        floor: &Floor,
    ) -> Result<Machine, Failure> {
        let device = context.device();
        let (major, minor) = device.capability()?;
        Ok(Machine {
            op: "machine",
            oxccl: env!("CARGO_PKG_VERSION"),
            gpu: device.name()?,
            compute_capability: format!("{major}.{minor}"),
            multiprocessors: device.multiprocessors()?,
            memory_bytes: device.memory_bytes()?,
            cuda_driver: device.driver().version().to_string(),
            nccl,
            ranks,
            copy_gbps: rounded(floor.copy_gbps),
            empty_node_us: rounded(floor.empty_node_us),
            empty_launch_us: rounded(floor.empty_launch_us),
        })
    }
}

impl Row {
    /// What an entrant took.
    pub(crate) fn of(
        (task, whole, ranks): (&Task, Shape, usize),
        group: Option<&Group>,
        floor: &Floor,
        (contestant, setting): (&'static str, &Setting),
        entrant: &Entrant,
        wrong: u64,
    ) -> Row {
        let case = task.case();
        let (time_us, floor_us) = (entrant.median_us(), floor.us(&case, whole, ranks));
        let bytes = whole.bytes(case.data_type);
        let algbw_gbps = bytes as f64 / time_us / 1e3;
        let busbw_gbps = algbw_gbps * case.bus_factor(ranks);
        Row {
            op: if group.is_some() { "group" } else { case.kind.name() },
            data_type: case.data_type.name(),
            redop: case.op_name(),
            ranks,
            bytes,
            count: whole.count,
            buckets: group.map(|group| group.shapes.len()),
            source: group.and_then(|group| group.source.clone()),
            form: task.form,
            mode: entrant.mode,
            graph_calls: entrant.calls_a_launch(),
            contestant,
            family: setting.family,
            setting: setting.name.clone(),
            time_us: rounded(time_us),
            min_us: rounded(entrant.min_us()),
            host_us: entrant.host_us().map(rounded),
            algbw_gbps: rounded(algbw_gbps),
            busbw_gbps: rounded(busbw_gbps),
            floor_bytes: least_bytes(&case, whole, ranks),
            floor_us: rounded(floor_us),
            over_floor: rounded(time_us / floor_us),
            blocks: setting.blocks,
            busbw_per_block_gbps: setting.blocks.map(|blocks| rounded(busbw_gbps / blocks as f64)),
            wrong,
            best: false,
            nccl_over_this: None,
        }
    }
}

/// Marks each contestant's best row of these, which are one size's in one mode, and compares with
/// NCCL's.
pub(crate) fn rank_rows(rows: &mut [Row]) {
    let mut contestants: Vec<&'static str> = rows.iter().map(|row| row.contestant).collect();
    contestants.dedup();
    for contestant in contestants {
        let of = rows.iter_mut().filter(|row| row.contestant == contestant);
        if let Some(best) = of.min_by(|a, b| a.time_us.total_cmp(&b.time_us)) {
            best.best = true;
        }
    }
    let nccl = rows.iter().find(|row| row.contestant == "nccl" && row.best);
    if let Some(time_us) = nccl.map(|row| row.time_us) {
        for row in rows.iter_mut().filter(|row| row.contestant != "nccl") {
            row.nccl_over_this = Some(rounded(time_us / row.time_us));
        }
    }
}

/// Where rows go: rank 0's to standard output.
pub(crate) struct Printer {
    speaks: bool,
    json: bool,
}

impl Printer {
    /// That of a rank.
    pub(crate) fn of(options: &Options, rank: usize) -> Printer {
        Printer { speaks: rank == 0, json: options.sweep.json }
    }

    /// A row that is no measurement of a size.
    pub(crate) fn fact(&self, fact: &impl Serialize) {
        if let Ok(text) = serde_json::to_string(fact) {
            self.line(if self.json { text } else { format!("# {text}") });
        }
    }

    /// The columns' names.
    pub(crate) fn heading(&self) {
        if !self.json {
            self.line(format!(
                "#{:>11} {:>6} {:>7} {:>40} {:>10} {:>10} {:>8} {:>9} {:>8} {:>7} {:>9} {:>7} {:>7}",
                "size", "mode", "who", "setting", "time (us)", "min (us)", "busbw", "floor (us)",
                "x floor", "blocks", "host (us)", "#wrong", "x nccl"
            ));
        }
    }

    /// One size's rows of one mode; a table has the best only.
    pub(crate) fn rows(&self, rows: &[Row]) {
        for row in rows.iter().filter(|row| self.json || row.best) {
            if let (true, Ok(text)) = (self.json, serde_json::to_string(row)) {
                self.line(text);
            } else {
                self.line(line(row));
            }
        }
    }

    fn line(&self, text: String) {
        if self.speaks {
            result(text);
        }
    }
}

fn line(row: &Row) -> String {
    let maybe = |value: Option<f64>| value.map_or("N/A".to_owned(), |value| format!("{value:.2}"));
    format!(
        "{:>12} {:>6} {:>7} {:>32} {:>10.3} {:>10.3} {:>8.2} {:>10.3} {:>8.2} {:>7} {:>9} {:>7} {:>7}",
        row.bytes,
        match row.mode {
            Mode::Eager => "eager",
            Mode::Graph => "graph",
            Mode::Cold => "cold",
        },
        row.contestant,
        match row.form {
            Some(form) => format!("{} {}", form.name(), row.setting),
            None => row.setting.clone(),
        },
        row.time_us,
        row.min_us,
        row.busbw_gbps,
        row.floor_us,
        row.over_floor,
        row.blocks.map_or("N/A".to_owned(), |blocks| blocks.to_string()),
        maybe(row.host_us),
        row.wrong,
        maybe(row.nccl_over_this),
    )
}
