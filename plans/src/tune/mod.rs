//! The tuner: which algorithm, encoding, channels and tile a call gets. Pure: equal questions get
//! equal answers on every rank.

mod gpu;
mod host;
mod limits;
mod links;
mod model;
mod table;
#[cfg(test)]
mod tests;
mod wish;

pub use limits::Limits;
pub use model::Prediction;
pub use table::{Curve, DeviceKind, Links, MemoryKind, Point, Table, TableError};

use crate::algorithms::{self, Algorithm, Encoding, Entry};
use crate::collective::{Collective, Kind, Order};
use crate::element::{DataType, OpKind};
use crate::topology::{Placement, Processor};
use serde::Serialize;

/// All that a choice depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// The collective.
    pub collective: Collective,
    /// Bytes of the largest buffer of the call on any rank that has both (all-gather: the output;
    /// reduce-scatter: the input).
    pub total_bytes: usize,
    /// Which ranks share a node.
    pub placement: Placement,
    /// The element type.
    pub data_type: DataType,
    /// How elements are reduced, if they are.
    pub op: OpKind,
    /// The promised order.
    pub order: Order,
    /// Input and output are the same memory.
    pub in_place: bool,
    /// All buffers can be reached by all ranks.
    pub windows: bool,
    /// No rank reaches the others' buffers, but the system reads them for it (cross-memory attach).
    pub cma: Option<SystemReads>,
    /// Nodes that the ranks are on. Between them are links, over which go messages in slots.
    pub nodes: usize,
    /// There are slots for LL128 messages, and links that carry their lines whole.
    pub ll128: bool,
    /// How many consecutive ranks a switch joins, all or those of each node: it reduces and
    /// multicasts for them, in buffers that lie at the same places of their heaps.
    pub multicast: Option<usize>,
    /// The switches between nodes reduce for the ranks. For what is only told: no executor drives
    /// them.
    pub fabric_reduces: bool,
    /// Channels and slots that there are.
    pub limits: Limits,
    /// What must be chosen.
    pub pin: Pin,
    /// Bytes of the last-level cache.
    pub cache_bytes: usize,
}

impl Question {
    /// Payload of the slots that an encoding uses.
    pub fn slot_payload(&self, encoding: Encoding) -> usize {
        if encoding.has_flags() { self.limits.ll_slot_bytes } else { self.plain_slot_bytes() }
    }

    /// Whether some ranks reach each other by links alone.
    pub fn several_nodes(&self) -> bool {
        self.nodes > 1
    }

    /// Payload of the slots lane's slots.
    pub fn plain_slot_bytes(&self) -> usize {
        self.limits.plain_slot_bytes(self.nodes, self.collective.ranks)
    }

    /// The channels that are pinned, or these. Messages from rank to rank have connections for
    /// some ([`Limits::channels_of_message`]).
    fn channels_or(&self, encoding: Encoding, channels: usize) -> usize {
        let channels = self.pin.channels.unwrap_or(channels);
        match self.collective.kind {
            Kind::SendRecv => channels.min(self.limits.channels_of_message(encoding, self.nodes)),
            _ => channels,
        }
    }
}

/// What it is worth that the system reads other ranks' private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SystemReads {
    /// From so many bytes on a message is faster than through slots; if none, never.
    pub pays_from: Option<usize>,
}

impl Default for SystemReads {
    /// Where it was not measured.
    fn default() -> SystemReads {
        SystemReads { pays_from: Some(0) }
    }
}

/// The tuner's choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The encoding.
    pub encoding: Encoding,
    /// Channels.
    pub channels: usize,
    /// Bytes a channel handles per chunk and round.
    pub tile_bytes: usize,
    /// Outputs are written with streaming stores.
    pub stream: bool,
    /// Peers' buffers are private memory, which the system reads for this rank.
    pub cma: bool,
    /// A GPU's copy engines carry it out, and no kernel.
    pub copies: bool,
    /// Why.
    pub reason: String,
    /// How long it takes by the tuning table, if there is one that tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_ns: Option<u64>,
}

impl Plan {
    /// The catalogue's entry.
    pub fn entry(&self, kind: Kind) -> Option<&'static Entry> {
        algorithms::find(kind, self.algorithm, self.encoding)
    }
}

/// A choice that the tuner must make; `None` leaves it free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pin {
    /// The algorithm.
    pub algorithm: Option<Algorithm>,
    /// The encoding.
    pub encoding: Option<Encoding>,
    /// The number of channels.
    pub channels: Option<usize>,
}

/// No algorithm does what was asked with what was pinned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no algorithm for {kind} (order {order}) fits what is pinned: {detail}")]
pub struct NoAlgorithm {
    /// The call.
    pub kind: Kind,
    /// The promised order.
    pub order: Order,
    /// What was asked for, and what there is.
    pub detail: String,
}

/// The entries that fit a question, in the catalogue's order.
type Offered = [&'static Entry];

/// Answers a question by thresholds, without a tuning table.
///
/// # Errors
/// [`NoAlgorithm`] if nothing fits the promised order, the memory and what is pinned.
pub fn plan(question: &Question) -> Result<Plan, NoAlgorithm> {
    plan_by(None, question)
}

/// Answers a question by a tuning table; where it cannot tell, or there is none, by thresholds.
///
/// # Errors
/// As [`plan`].
pub fn plan_by(table: Option<&Table>, question: &Question) -> Result<Plan, NoAlgorithm> {
    let offered = offered(question);
    let by_thresholds = || host::choose(question, &offered);
    let Some(choice) = choose(table, question, &offered, by_thresholds) else {
        return Err(no_algorithm(question));
    };
    Ok(planned(question, Processor::Cpu, choice))
}

/// How a call is carried out by an entry, whether or not the tuner would choose it.
pub fn plan_of(question: &Question, entry: &'static Entry, processor: Processor) -> Plan {
    let reason = "the one that is asked for".to_owned();
    planned(question, processor, Choice { entry, reason, predicted_ns: None })
}

/// The entry, out of those that fit, why, and how long it takes where that is known.
struct Choice {
    entry: &'static Entry,
    reason: String,
    predicted_ns: Option<u64>,
}

/// The plan of a choice.
fn planned(question: &Question, processor: Processor, choice: Choice) -> Plan {
    let Choice { entry, reason, predicted_ns } = choice;
    Plan {
        algorithm: entry.algorithm,
        encoding: entry.encoding,
        channels: channels(question, entry.encoding, processor),
        tile_bytes: question.slot_payload(entry.encoding),
        // A GPU's kernels write past no cache.
        stream: processor == Processor::Cpu && host::stream(question),
        cma: entry.encoding == Encoding::Windows && !question.windows,
        copies: false,
        reason,
        predicted_ns,
    }
}

/// How many channels share the work of a schedule in this encoding, the catalogue's or a custom
/// one, unless that is pinned.
pub fn channels(question: &Question, encoding: Encoding, processor: Processor) -> usize {
    question.channels_or(
        encoding,
        match processor {
            // A barrier has nothing to share.
            _ if question.collective.kind == Kind::Barrier => 1,
            Processor::Gpu => gpu::channels(question, encoding),
            Processor::Cpu if question.several_nodes() => links::channels(question),
            Processor::Cpu => 1,
        },
    )
}

/// Answers a question for ranks on GPUs by a tuning table of GPUs; where it cannot tell, or there
/// is none, by thresholds, which say how many channels in either case.
///
/// # Errors
/// As [`plan`].
pub fn plan_on_gpu(table: Option<&Table>, question: &Question) -> Result<Plan, NoAlgorithm> {
    let offered = offered(question);
    let by_thresholds = || gpu::choose(question, &offered);
    let Some(choice) = choose(table, question, &offered, by_thresholds) else {
        return Err(no_algorithm(question));
    };
    Ok(planned(question, Processor::Gpu, choice))
}

/// The entries that fit a question, in the catalogue's order.
pub fn offered(question: &Question) -> Vec<&'static Entry> {
    algorithms::catalogue().filter(|entry| fits(entry, question)).collect()
}

/// The entries that fit a question, but for those that are another name of one before them: with
/// few ranks algorithms come to do the same. To measure one program twice would be to choose by
/// noise.
pub fn distinct(question: &Question) -> Vec<&'static Entry> {
    let mut distinct: Vec<&'static Entry> = Vec::new();
    for entry in offered(question) {
        if !distinct.iter().any(|before| is_another_name(entry, before, question)) {
            distinct.push(entry);
        }
    }
    distinct
}

/// Whether the one before can take the entry's place: it works wherever the entry does, by the same
/// instructions.
fn is_another_name(entry: &Entry, before: &Entry, question: &Question) -> bool {
    let Question { collective, placement, data_type, limits, .. } = *question;
    let schedule =
        |of: &Entry, order| of.schedule(collective, placement, order, limits.pipeline()).ok();
    let mut kept = [Order::Any, Order::Rank, Order::Tree]
        .into_iter()
        .filter(|order| entry.keeps(*order, placement, data_type));
    entry.encoding == before.encoding
        && (before.in_place || !entry.in_place)
        && kept.all(|order| {
            before.keeps(order, placement, data_type)
                && schedule(entry, order) == schedule(before, order)
        })
}

/// What a tuning table predicts for each entry that fits, the fastest first.
///
/// # Errors
/// Says why the table cannot tell.
pub fn predictions(table: &Table, question: &Question) -> Result<Vec<Prediction>, String> {
    model::predict(table, question, &offered(question))
}

/// The choice out of what fits.
fn choose(
    table: Option<&Table>,
    question: &Question,
    offered: &Offered,
    by_thresholds: impl Fn() -> Option<(&'static Entry, String)>,
) -> Option<Choice> {
    let unmeasured = |entry, reason| Choice { entry, reason, predicted_ns: None };
    let Some(table) = table else {
        return by_thresholds().map(|(entry, reason)| unmeasured(entry, reason));
    };
    match model::predict(table, question, offered) {
        Ok(predictions) => {
            let fastest = predictions.first()?;
            let entry = offered.iter().find(|entry| {
                (entry.algorithm, entry.encoding) == (fastest.algorithm, fastest.encoding)
            })?;
            let predicted_ns = Some((fastest.time_us * 1e3).round() as u64);
            Some(Choice { entry, reason: measured(table, &predictions), predicted_ns })
        }
        Err(lacking) => {
            by_thresholds().map(|(entry, why)| unmeasured(entry, format!("{lacking}; {why}")))
        }
    }
}

fn measured(table: &Table, predictions: &[Prediction]) -> String {
    let mut text = format!("measured on {}", table.date);
    for (place, prediction) in predictions.iter().take(2).enumerate() {
        let Prediction { algorithm, encoding, time_us } = prediction;
        text += &match place {
            0 => format!(": {time_us:.3} us predicted"),
            _ => format!(", next is {algorithm}/{encoding} {time_us:.3}"),
        };
    }
    text
}

fn fits(entry: &Entry, question: &Question) -> bool {
    entry.kind == question.collective.kind
        && entry.check(question.collective.ranks, question.placement, question.limits.slots).is_ok()
        && entry.keeps(question.order, question.placement, question.data_type)
        && (entry.in_place || !question.in_place)
        && (entry.encoding != Encoding::Windows
            || question.windows
            || (question.cma.is_some() && !entry.writes_peers()))
        && (entry.encoding != Encoding::Ll128 || question.ll128)
        && is_switched(entry, question)
        && (question.fabric_reduces || !entry.is_in_fabric())
        && entry.reduces(question.data_type, question.op)
        && (entry.crosses_nodes() || !question.several_nodes())
        // A barrier has one algorithm and no data: there is nothing to pin.
        && (entry.kind == Kind::Barrier || is_pinned(entry, &question.pin))
}

/// Whether there is the switch that it needs.
fn is_switched(entry: &Entry, question: &Question) -> bool {
    let joined = entry.algorithm.switched(question.collective.ranks, question.placement);
    joined.is_none_or(|joined| question.multicast == Some(joined))
}

fn is_pinned(entry: &Entry, pin: &Pin) -> bool {
    pin.algorithm.is_none_or(|algorithm| algorithm == entry.algorithm)
        && pin.encoding.is_none_or(|encoding| encoding == entry.encoding)
}

/// Where there is no LL128.
const NO_LINES: &str = ", without ll128, which needs ranks of one machine, of which those on several GPUs are joined by NVLink and \
                        see each other's GPU, and a call that is in no group;";
/// Where no switch reduces.
const NO_SWITCH: &str = ", without an NVSwitch that reduces, which needs a GPU of its own, from compute capability 9.0 on, for each of the \
                         ranks of a node, which the switch joins, and a call that is in no group;";
/// Where the fabric's switches would have to reduce.
const NO_FABRIC: &str = ", without switches between nodes that reduce, which no executor drives: that is for proofs, predictions and \
                         explanations;";
/// What a switch does not reduce.
const NOT_BY_SWITCH: &str = ", of which a switch knows sums of integers and floats from 32 bits on and of float16 and bfloat16, and all but \
                             products of integers from 32 bits on, without a factor or a mean;";

fn switch_reduces(question: &Question) -> bool {
    let mut switched = algorithms::catalogue().filter(|entry| entry.is_in_network());
    switched.any(|entry| entry.reduces(question.data_type, question.op))
}

fn no_algorithm(question: &Question) -> NoAlgorithm {
    let free = Question { pin: Pin::default(), ..*question };
    let names: Vec<String> = algorithms::catalogue()
        .filter(|entry| fits(entry, &free))
        .map(|entry| format!("{}/{}", entry.algorithm, entry.encoding))
        .collect();
    // What is pinned may exist, but nothing of it for these ranks.
    let pinned = algorithms::catalogue()
        .filter(|entry| entry.kind == question.collective.kind && is_pinned(entry, &question.pin));
    let (ranks, slots) = (question.collective.ranks, question.limits.slots);
    let checks = pinned.map(|entry| entry.check(ranks, question.placement, slots));
    if let Some(Err(unavailable)) = checks.reduce(Result::or) {
        let (kind, order) = (question.collective.kind, question.order);
        let detail = format!("{unavailable}; there are {}", names.join(", "));
        return NoAlgorithm { kind, order, detail };
    }
    let name = |name: Option<&'static str>| name.unwrap_or("any");
    let no_lines = question.pin.encoding == Some(Encoding::Ll128) && !question.ll128;
    let has_switch = |pinned: Algorithm| {
        let joined = pinned.switched(question.collective.ranks, question.placement);
        question.multicast == joined
    };
    let lacking = match question.pin.algorithm {
        _ if no_lines => NO_LINES,
        Some(pinned) if pinned.is_in_fabric() && !question.fabric_reduces => NO_FABRIC,
        Some(pinned) if pinned.is_in_network() && !has_switch(pinned) => NO_SWITCH,
        Some(pinned) if pinned.is_in_network() && !switch_reduces(question) => NOT_BY_SWITCH,
        _ => "",
    };
    let detail = format!(
        "algorithm {}, encoding {}; {}{}{} there are {}",
        name(question.pin.algorithm.map(Algorithm::name)),
        name(question.pin.encoding.map(Encoding::name)),
        if question.in_place { "in place, " } else { "" },
        if question.windows {
            "with memory that peers reach"
        } else {
            "with memory that peers do not reach"
        },
        lacking,
        names.join(", ")
    );
    NoAlgorithm { kind: question.collective.kind, order: question.order, detail }
}
