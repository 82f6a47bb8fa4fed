//! Choices for host memory without a tuning table, out of measured thresholds.
//!
//! A message that fits a cache line with its header wants to be that line (LL). Middle ones want
//! one copy into a slot that stays in cache, and no second synchronisation. From a size on, buffers
//! that peers reach are best used in place, in one step, though that takes two synchronisations.
//! Where that is depends on the kind, and on what a synchronisation costs: with more than two ranks
//! it is counted in context switches as soon as ranks outnumber cores.
//!
//! Measured with 2 and 4 ranks on 2 cores (AMD EPYC, family 26), float sum.

use super::wish::{self, Wish};
use super::{Offered, Question, links};
use crate::algorithms::{Algorithm, Encoding, Entry};
use crate::collective::{Collective, Kind};

/// From so many bytes a private all-reduce sends every byte twice instead of to everybody.
const TWO_SHOT_MIN_BYTES: usize = 16 << 10;
/// From so many bytes a ring moves less through private memory's slots than everybody talking to
/// everybody.
const RING_MIN_BYTES: usize = 256 << 10;

/// Up to so many bytes a message and its header are one cache line.
const LL_MAX_BYTES: usize = 16;
/// Up to so many bytes calls that go one way are best in LL where ranks share cores: senders run
/// ahead by as many messages as there are slots, of which LL has more, and fewer processes change
/// places (a broadcast of 128 B over 4 ranks: 0.6 us, through slots 1.2).
const ONE_WAY_LL_MAX_BYTES: usize = 512;

fn ll_max(kind: Kind, ranks: usize) -> usize {
    if kind.is_rooted() && ranks > 2 { ONE_WAY_LL_MAX_BYTES } else { LL_MAX_BYTES }
}

/// From how many bytes windows are best: with two ranks, and with more.
fn windows_min(kind: Kind, ranks: usize) -> usize {
    let (two, many) = match kind {
        Kind::AllReduce | Kind::ReduceScatter => (2 << 10, 16 << 10),
        Kind::AllGather | Kind::AllToAll => (4 << 10, 32 << 10),
        Kind::Broadcast => (8 << 10, 16 << 10),
        _ => (16 << 10, 16 << 10),
    };
    if ranks > 2 { many } else { two }
}

/// From how many bytes it may pay to have the system read peers' private memory, instead of sending
/// it through slots: each piece takes a call of the system and two synchronisations, and no core
/// writes into lines that another holds.
fn cma_min(kind: Kind, ranks: usize) -> usize {
    match kind {
        Kind::AllGather | Kind::ReduceScatter if ranks == 2 => 32 << 10,
        _ => 64 << 10,
    }
}

/// Whether it does where this was measured, by the length of a message.
fn cma_pays(question: &Question) -> bool {
    let Collective { kind, ranks, .. } = question.collective;
    let parts = if matches!(kind, Kind::Broadcast | Kind::Reduce) { 1 } else { ranks };
    let pays_from = question.cma.and_then(|reads| reads.pays_from);
    pays_from.is_some_and(|bytes| question.total_bytes / parts >= bytes)
}

/// The entry, out of those that fit, and why.
pub(super) fn choose(question: &Question, offered: &Offered) -> Option<(&'static Entry, String)> {
    let wishes = if question.several_nodes() { links::wishes(question) } else { wishes(question) };
    wish::first(wishes, offered)
}

/// What would be best, in order of preference.
fn wishes(question: &Question) -> Vec<Wish> {
    let (kind, bytes, ranks) =
        (question.collective.kind, question.total_bytes, question.collective.ranks);
    let [small, private, in_place] = wish::of_one_node(kind);
    let mut wishes = Vec::new();
    if bytes <= ll_max(kind, ranks) {
        wishes.push((small, Encoding::Ll, "small: data and flags travel together, one exchange"));
    }
    if question.windows && bytes >= windows_min(kind, ranks) {
        wishes.push((
            in_place,
            Encoding::Windows,
            "reachable by all: buffers are used in place, in one step",
        ));
    }
    if cma_pays(question) && bytes >= cma_min(kind, ranks) {
        wishes.push((
            wish::reading(kind),
            Encoding::Windows,
            "private: the system reads peers' buffers (cross-memory attach)",
        ));
    }
    if ranks > 2 && bytes >= RING_MIN_BYTES {
        wishes.push((
            Algorithm::Ring,
            Encoding::Slots,
            "large and private: through slots, around the ring",
        ));
    }
    if kind == Kind::AllReduce && bytes >= TWO_SHOT_MIN_BYTES {
        wishes.push((
            private,
            Encoding::Slots,
            "private: through slots, each rank reduces its part",
        ));
    }
    wishes.push((small, Encoding::Slots, "middle: one copy into a slot, one exchange"));
    wishes
}

/// Whether outputs are written with streaming stores: those of all ranks together fill it; of an
/// all-to-all, inputs and outputs, which are as long and never the same memory where peers read
/// them (an all-reduce is often in place, and finds in the cache what it wrote there). Inputs of an
/// all-gather are together as long as one output and leave more of the cache to the outputs: both
/// have to fill it twice.
pub(super) fn stream(question: &Question) -> bool {
    let Question { collective: Collective { kind, ranks, .. }, .. } = *question;
    // In halves of a buffer.
    let buffers = match kind {
        Kind::AllToAll if question.windows => 4 * ranks,
        Kind::AllGather => ranks + 1,
        _ => 2 * ranks,
    };
    question.total_bytes.saturating_mul(buffers) / 2 >= question.cache_bytes
}
