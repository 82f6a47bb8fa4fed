//! Choices for GPUs, by thresholds.
//!
//! Small messages are LL: data and flags travel together, and nobody waits twice. From where
//! bandwidth begins to count they are LL128, if links allow it: as fast, and nearly all of it data.
//! Larger ones use peers' buffers in place, which moves the least. What peers cannot reach goes
//! through slots. Channels are thread blocks: few for what is over in a few microseconds, all of
//! them for what memory's bandwidth limits.
//!
//! Not measured on hardware yet: the thresholds follow other people's measurements (two 16 KiB
//! messages of a pair over NVLink are about as fast as the flags that a window needs).

use super::wish::{self, Wish};
use super::{Offered, Question, links};
use crate::algorithms::{Algorithm, Encoding, Entry};
use std::ops::RangeInclusive;

/// Up to so many bytes LL is best, if there is no LL128.
const LL_MAX_BYTES: usize = 32 << 10;
/// From so many bytes LL128 is better than LL, and up to so many better than windows.
const LL128_BYTES: RangeInclusive<usize> = 16 << 10..=128 << 10;
/// From so many bytes a rank's LL message is better reduced once and then spread than sent to
/// everybody.
const TWO_SHOT_MIN_BYTES: usize = 16 << 10;
/// From so many ranks on a switch that reduces is faster than windows, at all sizes that are for
/// these: the simulator's figures for H100s (`docs/simulator.md`).
const SWITCH_MIN_RANKS: usize = 4;
/// What keeps a thread block busy for long enough.
const BYTES_PER_CHANNEL: usize = 64 << 10;

/// The entry, out of those that fit, and why.
pub(super) fn choose(question: &Question, offered: &Offered) -> Option<(&'static Entry, String)> {
    let wishes = if question.several_nodes { links::wishes(question) } else { wishes(question) };
    wish::first(wishes, offered)
}

fn wishes(question: &Question) -> Vec<Wish> {
    let (kind, bytes, ranks) =
        (question.collective.kind, question.total_bytes, question.collective.ranks);
    let [small, middle, in_place] = wish::of_one_node(kind);
    let mut wishes = Vec::new();
    if LL128_BYTES.contains(&bytes) {
        wishes.push((middle, Encoding::Ll128, "middle: lines of 120 bytes and a flag"));
    }
    if bytes <= LL_MAX_BYTES {
        let divided = ranks > 2 && bytes >= TWO_SHOT_MIN_BYTES;
        let first = if divided { middle } else { small };
        wishes.push((first, Encoding::Ll, "small: data and flags in one message"));
    }
    if ranks >= SWITCH_MIN_RANKS {
        wishes.push((
            Algorithm::Nvls,
            Encoding::Windows,
            "long: the switch between the GPUs reduces and multicasts",
        ));
    }
    wishes.push((
        in_place,
        Encoding::Windows,
        "reachable by all: buffers are used in place, in one step",
    ));
    if ranks > 2 {
        wishes.push((Algorithm::Ring, Encoding::Slots, "private: through slots, around the ring"));
    }
    wishes.push((middle, Encoding::Slots, "private: through slots"));
    wishes
}

/// How many thread blocks share the work, unless that is pinned.
pub(super) fn channels(question: &Question, entry: &Entry) -> usize {
    let each = match entry.encoding {
        Encoding::Ll | Encoding::Ll128 => question.ll_slot_bytes,
        _ => BYTES_PER_CHANNEL,
    };
    question.total_bytes.div_ceil(each).clamp(1, question.max_channels)
}
