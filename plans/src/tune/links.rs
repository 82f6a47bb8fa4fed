//! Choices for ranks on several nodes without a tuning table.
//!
//! What crosses between nodes costs most: hierarchical algorithms send each byte across as seldom
//! as can be, and for short messages one message of a node's ranks instead of many. Where nodes
//! have one rank that is used, or sizes that differ, ranks are treated alike.

use super::Question;
use super::wish::{self, Wish};
use crate::algorithms::{Algorithm, Encoding, Inner, Outer};
use crate::collective::Kind;

/// Up to so many bytes an all-reduce between nodes sends whole buffers, in as few steps as can be.
const DOUBLING_MAX_BYTES: usize = 32 << 10;
/// The same of nodes that have different numbers of ranks.
const UNEVEN_DOUBLING_BYTES: usize = 256 << 10;
/// As many channels as long messages have.
const CHANNELS: usize = 2;
/// From so many nodes on, long messages go around the ring of nodes instead of to all others at
/// once.
const RING_MIN_NODES: usize = 8;
/// Up to so many bytes for each rank, an all-to-all gathers what a node's ranks send.
const GATHERED_MAX_BYTES: usize = 16 << 10;

/// How many channels share the work, unless that is pinned: what one waits for crosses while
/// another computes.
pub(super) fn channels(question: &Question) -> usize {
    let chunk = question.total_bytes / question.collective.ranks;
    let slots = chunk / question.plain_slot_bytes().max(1);
    if slots < CHANNELS { 1 } else { CHANNELS.min(question.limits.max_channels) }
}

/// What would be best, in order of preference.
pub(super) fn wishes(question: &Question) -> Vec<Wish> {
    let (kind, bytes, ranks) =
        (question.collective.kind, question.total_bytes, question.collective.ranks);
    let nodes = question.placement.count(ranks);
    if kind == Kind::AllReduce && !question.placement.are_alike() {
        return wish::of_uneven_nodes(bytes <= UNEVEN_DOUBLING_BYTES, nodes);
    }
    let mut wishes = wishes_of(kind, bytes, ranks, nodes);
    if nodes == ranks {
        wishes.retain(|(algorithm, ..)| !matches!(algorithm, Algorithm::Hierarchical(..)));
    }
    wishes
}

/// As if each node had several ranks.
fn wishes_of(kind: Kind, bytes: usize, ranks: usize, nodes: usize) -> Vec<Wish> {
    let outer = if nodes < RING_MIN_NODES { Outer::Direct } else { Outer::Ring };
    let between =
        |outer, reason| (Algorithm::Hierarchical(Inner::Direct, outer), Encoding::Slots, reason);
    let in_place = |outer| {
        let reason = "nodes: what crosses between them crosses once, the rest is done in place";
        (Algorithm::Hierarchical(Inner::Direct, outer), Encoding::Windows, reason)
    };
    let flat = |algorithm, reason| (algorithm, Encoding::Slots, reason);
    let once = "nodes: what crosses between them crosses once";
    match kind {
        Kind::AllReduce if bytes <= DOUBLING_MAX_BYTES => vec![
            between(Outer::Doubling, "nodes, short: few steps between them"),
            flat(Algorithm::RecursiveDoubling, "one rank a node, short: few steps"),
            flat(Algorithm::OneShot, "one rank a node, short: one step"),
        ],
        Kind::AllReduce => vec![
            in_place(outer),
            between(outer, once),
            flat(Algorithm::Ring, "one rank a node: every byte crosses as seldom as can be"),
            flat(Algorithm::TwoShot, "one rank a node: each reduces its part"),
        ],
        Kind::ReduceScatter | Kind::AllGather => {
            vec![
                in_place(outer),
                between(outer, once),
                between(Outer::Direct, once),
                flat(Algorithm::Direct, "one rank a node: one step"),
            ]
        }
        Kind::AllToAll if bytes / ranks <= GATHERED_MAX_BYTES => vec![
            between(Outer::Direct, "nodes, short: a node's ranks share messages"),
            flat(Algorithm::Direct, "one rank a node: one step"),
        ],
        Kind::AllToAll => vec![flat(Algorithm::Direct, "long: every block crosses once anyway")],
        Kind::Broadcast | Kind::Reduce => {
            vec![flat(Algorithm::Binomial, "nodes: few steps between them")]
        }
        Kind::Barrier => vec![flat(Algorithm::Dissemination, "few steps")],
        // Gathers and scatters too: what crosses fills the one adapter of the root's node.
        _ => vec![flat(Algorithm::Direct, "one step")],
    }
}
