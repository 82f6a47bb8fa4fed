//! The tuner: which algorithm, encoding, channels and tile a call gets. Pure: equal questions get equal answers on every rank.

mod host;

use crate::algorithms::{self, Algorithm, Encoding, Entry};
use crate::collective::{Collective, Kind, Order};
use crate::config::Pin;
use crate::element::DataType;
use crate::error::Error;
use crate::schedule::SLOTS;
use crate::topology::Placement;
use serde::Serialize;

/// All that a choice depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// The collective.
    pub collective: Collective,
    /// Bytes of the largest buffer of the call on any rank that has both (all-gather: the output; reduce-scatter: the input).
    pub total_bytes: usize,
    /// Which ranks share a node.
    pub placement: Placement,
    /// The element type.
    pub data_type: DataType,
    /// The promised order.
    pub order: Order,
    /// Input and output are the same memory.
    pub in_place: bool,
    /// All buffers can be reached by all ranks.
    pub windows: bool,
    /// What must be chosen.
    pub pin: Pin,
    /// Payload of a slot on the slots lane.
    pub slot_bytes: usize,
    /// Payload of a slot on the LL lane.
    pub ll_slot_bytes: usize,
    /// Bytes of the last-level cache.
    pub cache_bytes: usize,
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
    /// Outputs are written around the cache.
    pub stream: bool,
    /// Why.
    pub reason: String,
}

impl Plan {
    /// The catalogue's entry.
    pub(crate) fn entry(&self, kind: Kind) -> Option<&'static Entry> {
        algorithms::find(kind, self.algorithm, self.encoding)
    }
}

/// Answers a question.
///
/// # Errors
/// [`Error::NoAlgorithm`] if nothing fits the promised order, the memory and what is pinned.
pub fn plan(question: &Question) -> Result<Plan, Error> {
    let offered: Vec<&Entry> =
        algorithms::catalogue().filter(|entry| fits(entry, question)).collect();
    let Some((entry, reason)) = host::choose(question, &offered) else {
        return Err(no_algorithm(question));
    };
    let slot =
        if entry.encoding == Encoding::Ll { question.ll_slot_bytes } else { question.slot_bytes };
    Ok(Plan {
        algorithm: entry.algorithm,
        encoding: entry.encoding,
        // Send/recv has one set of connections.
        channels: if entry.kind == Kind::SendRecv { 1 } else { question.pin.channels.unwrap_or(1) },
        tile_bytes: host::tile_bytes(question, entry).min(slot),
        stream: host::stream(question),
        reason,
    })
}

fn fits(entry: &Entry, question: &Question) -> bool {
    entry.kind == question.collective.kind
        && entry.check(question.collective.ranks, question.placement, SLOTS).is_ok()
        && entry.keeps(question.order, question.placement, question.data_type)
        && (entry.in_place || !question.in_place)
        && (entry.encoding != Encoding::Windows || question.windows)
        // A barrier has one algorithm and no data: there is nothing to pin.
        && (entry.kind == Kind::Barrier || is_pinned(entry, &question.pin))
}

fn is_pinned(entry: &Entry, pin: &Pin) -> bool {
    pin.algorithm.is_none_or(|algorithm| algorithm == entry.algorithm)
        && pin.encoding.is_none_or(|encoding| encoding == entry.encoding)
}

fn no_algorithm(question: &Question) -> Error {
    let free = Question { pin: Pin::default(), ..*question };
    let names: Vec<String> = algorithms::catalogue()
        .filter(|entry| fits(entry, &free))
        .map(|entry| format!("{}/{}", entry.algorithm, entry.encoding))
        .collect();
    // What is pinned may exist, but nothing of it for these ranks.
    let pinned = algorithms::catalogue()
        .filter(|entry| entry.kind == question.collective.kind && is_pinned(entry, &question.pin));
    let checks =
        pinned.map(|entry| entry.check(question.collective.ranks, question.placement, SLOTS));
    if let Some(Err(unavailable)) = checks.reduce(Result::or) {
        let (kind, order) = (question.collective.kind, question.order);
        let detail = format!("{unavailable}; there are {}", names.join(", "));
        return Error::NoAlgorithm { kind, order, detail };
    }
    let name = |name: Option<&'static str>| name.unwrap_or("any");
    let detail = format!(
        "algorithm {}, encoding {}; {}{} there are {}",
        name(question.pin.algorithm.map(Algorithm::name)),
        name(question.pin.encoding.map(Encoding::name)),
        if question.in_place { "in place, " } else { "" },
        if question.windows {
            "with memory that peers reach"
        } else {
            "with memory that peers do not reach"
        },
        names.join(", ")
    );
    Error::NoAlgorithm { kind: question.collective.kind, order: question.order, detail }
}
