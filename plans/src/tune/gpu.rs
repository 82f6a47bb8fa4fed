//! Choices for GPUs, by thresholds.
//!
//! Small messages are LL: data and flags travel together, and nobody waits twice. From where
//! bandwidth begins to count they are LL128, if links allow it: as fast, and nearly all of it data.
//! What costs most up to about a megabyte is the number of instructions that a thread block takes
//! one after the other. Short messages to everybody are one of them, as their copies are made side
//! by side. Larger messages use peers' buffers in place, which moves the least. What peers cannot
//! reach goes through slots. Channels are thread blocks: few for what is over in a few
//! microseconds, all of them for what memory's bandwidth limits.
//!
//! Not measured on hardware: the thresholds are the simulator's, on H100s (`docs/simulator.md`).
//! The test `plans/tests/agreement.rs` compares them over sizes and worlds.

use super::wish::{self, Wish};
use super::{Offered, Question};
use crate::algorithms::{Algorithm, Encoding, Entry, Inner, Outer};
use crate::collective::Kind;
use std::ops::RangeInclusive;

/// Up to so many bytes to each, LL128 is better than windows; LL, which is half flags, up to half
/// as many.
const FLAGS_MAX_BYTES: usize = 128 << 10;
/// From so many bytes LL128 is better than LL.
const LL128_MIN_BYTES: usize = 16 << 10;
/// From so many ranks on a switch that reduces is faster than windows, at all sizes that are for
/// these.
const SWITCH_MIN_RANKS: usize = 4;
/// From so many bytes an all-reduce had better send parts than all.
const PARTS_MIN_BYTES: usize = 96 << 10;
/// From so many bytes, and so many ranks, what a root sends had better pass from rank to rank.
const CHAIN_MIN_BYTES: usize = 8 << 20;
const CHAIN_MIN_RANKS: usize = 4;
/// From so many bytes what a root sends to other nodes, or gets from them, had better cross over
/// all of their adapters.
const RAILS_MIN_BYTES: usize = 1 << 20;
/// The same of a broadcast's from so many nodes on.
const RAILS_OF_MANY_MIN_BYTES: usize = 128 << 10;
const RAILS_MANY_NODES: usize = 8;
/// From so many bytes for each node on a broadcast passes from node to node, rather than from few
/// nodes to twice as many.
const LONG_BROADCAST_BYTES_PER_NODE: usize = 12 << 20;
/// Up to so long parts of a gather or scatter had better pass several nodes, in few messages.
const PASSED_ON_MAX_BYTES: usize = 64 << 10;
/// The same where each node has one rank; and from so many nodes on.
const PASSED_ON_ALONE_MAX_BYTES: usize = 32 << 10;
const PASSED_ON_ALONE_MIN_NODES: usize = 8;
/// Up to so long parts of a scatter had better come to the root's neighbours by a message of many
/// than be fetched by them.
const SCATTER_BY_MESSAGE_MAX_BYTES: usize = 2 << 10;
/// Up to so long blocks of an all-to-all between nodes had better be sent in few messages, of
/// several blocks each.
const BRUCK_MAX_BYTES: usize = 64 << 10;
/// From so many nodes on such blocks had better cross together with those of the whole node; or
/// where those to a rank of each node have so many bytes.
const TOGETHER_MIN_NODES: usize = 16;
const TOGETHER_MIN_BYTES: usize = 512 << 10;
/// Blocks of an all-to-all between nodes that had better go to one rank after the other.
const PAIRWISE_BYTES: RangeInclusive<usize> = 256 << 10..=16 << 20;
/// Up to so many bytes for each node, and so many in all, an all-reduce between nodes sends whole
/// buffers, in as few steps as can be.
const DOUBLING_BYTES_PER_NODE: usize = 64 << 10;
const DOUBLING_MAX_BYTES: usize = 512 << 10;
/// From so many nodes on a ring of them, or a message to each, costs more than what few steps send
/// in excess, up to so many bytes for each.
const MANY_NODES: usize = 12;
const OUTER_DOUBLING_BYTES_PER_NODE: usize = 256 << 10;
/// Where ranks of a node use each other's buffers in place, few steps between nodes are the fastest
/// up to so many bytes.
const IN_PLACE_DOUBLING_BYTES: usize = 4 << 20;
/// Up to so many bytes nodes of different numbers of ranks do so, too.
const UNEVEN_DOUBLING_BYTES: usize = 8 << 20;
/// From so many bytes for each node on, but so many in all of few nodes and of many, groups of
/// nodes send less; up to so many for each node.
const GRID_MIN_BYTES_PER_NODE: usize = 256 << 10;
const GRID_MIN_BYTES: [usize; 2] = [2 << 20, 4 << 20];
const GRID_MAX_BYTES_PER_NODE: usize = 4 << 20;
/// From so many nodes on an all-gather goes along rows and columns of them, up to so many bytes for
/// each node, and so many in all.
const GRID_GATHER_MIN_NODES: usize = 8;
const GRID_GATHER_BYTES_PER_NODE: usize = 1 << 20;
const GRID_GATHER_MAX_BYTES: usize = 32 << 20;
/// The same of two nodes, whose ring is one step as well.
const DOUBLING_OF_TWO_MAX_BYTES: usize = 16 << 10;
/// Up to so many bytes each node sends to all others at once: of an all-gather, whose parts are
/// handed on as they come, and of a reduce-scatter.
const AT_ONCE_MAX_BYTES: [usize; 2] = [4 << 20, 32 << 20];
/// From so many bytes a reduce-scatter's do so again: each message is long by itself.
const LONG_MIN_BYTES: usize = 64 << 20;
/// From so many an all-reduce's do, of fewer nodes than so many: those of more go around a ring.
const LONG_ALL_REDUCE_MIN_BYTES: usize = 8 << 20;
const LONG_ALL_REDUCE_NODES: usize = 8;
/// Up to so many bytes, and so many of all ranks, a root between nodes takes everybody's input at
/// once.
const ROOT_MAX_BYTES: usize = 32 << 10;
const ROOT_MAX_INPUTS_BYTES: usize = 768 << 10;
/// Up to so many bytes a message from rank to rank is sent with flags, by one channel.
const MESSAGE_FLAGS_MAX_BYTES: usize = 8 << 10;
/// What keeps a thread block busy for long enough.
const BYTES_PER_CHANNEL: usize = 64 << 10;
/// The same of a message from rank to rank.
const MESSAGE_BYTES_PER_CHANNEL: usize = 16 << 10;
/// The same in LL and LL128.
const LL_BYTES_PER_CHANNEL: usize = 4 << 10;

/// The entry, out of those that fit, and why.
pub(super) fn choose(question: &Question, offered: &Offered) -> Option<(&'static Entry, String)> {
    let wishes = if question.several_nodes() { between_nodes(question) } else { inside(question) };
    wish::first(wishes, offered)
}

/// On one node.
fn inside(question: &Question) -> Vec<Wish> {
    let (kind, bytes, ranks) =
        (question.collective.kind, question.total_bytes, question.collective.ranks);
    let [small, middle, in_place] = wish::of_one_node(kind);
    let mut wishes = Vec::new();
    let is_message = kind == Kind::SendRecv;
    let reason = match is_message {
        true => "reachable by both: buffers are used in place",
        false => "reachable by all: buffers are used in place, in one step",
    };
    let windows = (in_place, Encoding::Windows, reason);
    // What is sent to each rank of many is a part.
    let parts = match kind {
        Kind::Gather => ranks,
        Kind::AllToAll if ranks > 2 => ranks,
        Kind::ReduceScatter | Kind::AllGather | Kind::AllToAll | Kind::Scatter => {
            (ranks / 2).max(1)
        }
        _ => 1,
    };
    let with_flags = |algorithm| {
        let ll128 = (algorithm, Encoding::Ll128, "middle: lines of 120 bytes and a flag");
        let ll = (algorithm, Encoding::Ll, "small: data and flags in one message");
        (bytes >= LL128_MIN_BYTES).then_some(ll128).into_iter().chain([ll])
    };
    let flags_max = match question.ll128 {
        _ if is_message => MESSAGE_FLAGS_MAX_BYTES,
        true => FLAGS_MAX_BYTES,
        false => FLAGS_MAX_BYTES / 2,
    };
    let in_parts = PARTS_MIN_BYTES..=(flags_max / 2) << ranks.saturating_sub(2).min(2);
    if kind == Kind::AllReduce && in_parts.contains(&bytes) {
        wishes.extend(with_flags(Algorithm::TwoShot));
    }
    if bytes / parts <= flags_max {
        wishes.extend(with_flags(small));
    }
    if kind == Kind::Broadcast && (bytes < CHAIN_MIN_BYTES || ranks < CHAIN_MIN_RANKS) {
        let reason = "reachable by all: everybody reads the root's buffer";
        wishes.push((Algorithm::DirectPull, Encoding::Windows, reason));
    }
    if kind == Kind::Broadcast && ranks > 2 {
        let reason = "long: the root's links carry it once, from rank to rank";
        wishes.push((Algorithm::Chain, Encoding::Slots, reason));
    }
    if ranks >= SWITCH_MIN_RANKS {
        wishes.push((
            Algorithm::Nvls,
            Encoding::Windows,
            "long: the switch between the GPUs reduces and multicasts",
        ));
    }
    wishes.push(windows);
    let reason = match (is_message, question.limits.channels_of_message(Encoding::Slots, 1)) {
        (true, 1) => "private: through slots, by one channel",
        (true, _) => "private: through slots, by few channels",
        (false, _) => "private: through slots",
    };
    wishes.push((middle, Encoding::Slots, reason));
    let reason = "private, many ranks: through slots, around the ring";
    wishes.push((Algorithm::Ring, Encoding::Slots, reason));
    wishes
}

/// What crosses between nodes crosses seldom, and where it is short, in few steps.
fn between_nodes(question: &Question) -> Vec<Wish> {
    let (kind, bytes, ranks) =
        (question.collective.kind, question.total_bytes, question.collective.ranks);
    let nodes = question.placement.count(ranks);
    if kind == Kind::AllReduce && !question.placement.are_alike() {
        return wish::of_uneven_nodes(bytes <= UNEVEN_DOUBLING_BYTES, nodes);
    }
    let hierarchical = |outer, encoding| {
        let reason = "nodes: what crosses between them crosses once";
        (Algorithm::Hierarchical(Inner::Direct, outer), encoding, reason)
    };
    let slots = |algorithm, reason| (algorithm, Encoding::Slots, reason);
    let by = |outer| [hierarchical(outer, Encoding::Windows), hierarchical(outer, Encoding::Slots)];
    let mut wishes = match kind {
        Kind::AllReduce => {
            let mut wishes = Vec::new();
            let [least, most] = GRID_MIN_BYTES;
            let from = (GRID_MIN_BYTES_PER_NODE * nodes).clamp(least, most);
            let [in_groups, in_groups_by_slots] = by(Outer::Grid);
            let is_short_enough = bytes <= GRID_MAX_BYTES_PER_NODE * nodes;
            if bytes > from && is_short_enough {
                wishes.push(in_groups);
            }
            if bytes <= IN_PLACE_DOUBLING_BYTES {
                let doubling = Algorithm::Hierarchical(Inner::Direct, Outer::Doubling);
                let reason = "nodes, in place inside: few steps between them";
                wishes.push((doubling, Encoding::Windows, reason));
            }
            let most = match nodes {
                2 => DOUBLING_OF_TWO_MAX_BYTES,
                _ => (DOUBLING_BYTES_PER_NODE * nodes).min(DOUBLING_MAX_BYTES),
            };
            if bytes <= most {
                wishes.push(slots(Algorithm::RecursiveDoubling, "nodes, short: few steps"));
            }
            if nodes >= MANY_NODES && bytes <= OUTER_DOUBLING_BYTES_PER_NODE * nodes {
                let doubling = Algorithm::Hierarchical(Inner::Direct, Outer::Doubling);
                wishes.push(slots(doubling, "many nodes, middle: few steps between them"));
            }
            if is_short_enough {
                wishes.push(in_groups_by_slots);
            }
            let is_long = bytes >= LONG_ALL_REDUCE_MIN_BYTES && nodes < LONG_ALL_REDUCE_NODES;
            let outer = if is_long { Outer::Direct } else { Outer::Ring };
            wishes.extend(by(outer));
            wishes.push(slots(Algorithm::Ring, "one rank a node: every byte crosses seldom"));
            wishes
        }
        Kind::AllGather | Kind::ReduceScatter => {
            let scatters = kind == Kind::ReduceScatter;
            let at_once = bytes <= AT_ONCE_MAX_BYTES[usize::from(scatters)]
                || (scatters && bytes >= LONG_MIN_BYTES);
            let outers =
                if at_once { [Outer::Direct, Outer::Ring] } else { [Outer::Ring, Outer::Direct] };
            let most = (GRID_GATHER_BYTES_PER_NODE * nodes).min(GRID_GATHER_MAX_BYTES);
            let in_groups = !scatters && nodes >= GRID_GATHER_MIN_NODES && bytes <= most;
            let grid = in_groups.then_some(hierarchical(Outer::Grid, Encoding::Windows));
            let mut wishes: Vec<Wish> =
                grid.into_iter().chain(outers.into_iter().flat_map(by)).collect();
            wishes.push(slots(Algorithm::Direct, "one rank a node: one step"));
            wishes
        }
        Kind::Reduce
            if bytes <= ROOT_MAX_BYTES && bytes.saturating_mul(ranks) <= ROOT_MAX_INPUTS_BYTES =>
        {
            vec![slots(Algorithm::Direct, "nodes, short: one step")]
        }
        Kind::Broadcast | Kind::Reduce => {
            let is_long = bytes >= LONG_BROADCAST_BYTES_PER_NODE * nodes;
            let algorithm = match kind {
                Kind::Broadcast if is_long => Algorithm::Hierarchical(Inner::Direct, Outer::Ring),
                Kind::Broadcast => Algorithm::Hierarchical(Inner::Direct, Outer::Doubling),
                _ => Algorithm::Hierarchical(Inner::Ring, Outer::Ring),
            };
            let is_wide = kind == Kind::Broadcast && nodes >= RAILS_MANY_NODES;
            let least = if is_wide { RAILS_OF_MANY_MIN_BYTES } else { RAILS_MIN_BYTES };
            let over_rails = (bytes >= least)
                .then_some(slots(algorithm, "nodes, long: over all adapters at once"));
            let few = slots(Algorithm::Binomial, "nodes: few steps between them");
            over_rails.into_iter().chain([few]).collect()
        }
        Kind::AllToAll if bytes / ranks <= BRUCK_MAX_BYTES => {
            let together = Algorithm::Hierarchical(Inner::Direct, Outer::Direct);
            let together = slots(together, "many nodes, short: a message from node to node");
            let few = slots(Algorithm::Bruck, "nodes, short: few messages");
            let is_much = bytes / ranks * nodes >= TOGETHER_MIN_BYTES;
            match nodes >= TOGETHER_MIN_NODES || is_much {
                true => vec![together, few],
                false => vec![few, together],
            }
        }
        Kind::AllToAll if PAIRWISE_BYTES.contains(&(bytes / ranks)) => {
            vec![slots(Algorithm::Pairwise, "nodes, long: one rank after the other")]
        }
        Kind::Gather | Kind::Scatter if nodes < ranks => {
            let part = bytes / ranks;
            let (outer, reason) = match part <= PASSED_ON_MAX_BYTES {
                true => (Outer::Doubling, "nodes, short: few messages, over all adapters"),
                false => (Outer::Direct, "nodes, long: over all adapters at once"),
            };
            let mut encodings = [Encoding::Windows, Encoding::Slots];
            if kind == Kind::Scatter && part <= SCATTER_BY_MESSAGE_MAX_BYTES {
                encodings.reverse();
            }
            let algorithm = Algorithm::Hierarchical(Inner::Direct, outer);
            encodings.map(|encoding| (algorithm, encoding, reason)).to_vec()
        }
        Kind::Gather | Kind::Scatter => {
            let is_short = bytes / ranks <= PASSED_ON_ALONE_MAX_BYTES;
            let tree = Algorithm::Hierarchical(Inner::Direct, Outer::Doubling);
            let tree = slots(tree, "many nodes, short: few messages");
            let is_wanted = is_short && nodes >= PASSED_ON_ALONE_MIN_NODES;
            let direct = slots(Algorithm::Direct, "one rank a node: one step");
            return is_wanted.then_some(tree).into_iter().chain([direct]).collect();
        }
        Kind::Barrier => vec![slots(Algorithm::Dissemination, "few steps")],
        Kind::SendRecv if question.limits.channels_of_message(Encoding::Slots, nodes) == 1 => {
            vec![slots(Algorithm::Direct, "one step, by one channel")]
        }
        Kind::SendRecv => vec![slots(Algorithm::Direct, "one step, by few channels")],
        _ => vec![slots(Algorithm::Direct, "one step")],
    };
    if nodes == ranks {
        wishes.retain(|(algorithm, ..)| !matches!(algorithm, Algorithm::Hierarchical(..)));
    }
    wishes
}

/// How many thread blocks share the work, unless that is pinned.
pub(super) fn channels(question: &Question, encoding: Encoding) -> usize {
    let each = match question.collective.kind {
        _ if encoding.has_flags() => LL_BYTES_PER_CHANNEL,
        Kind::SendRecv => MESSAGE_BYTES_PER_CHANNEL,
        _ => BYTES_PER_CHANNEL,
    };
    question.total_bytes.div_ceil(each).clamp(1, question.limits.max_channels)
}
