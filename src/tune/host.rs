//! Choices for host memory, out of measured thresholds.
//!
//! On one machine every byte crosses through the caches: small messages want one cache-line exchange (LL), middle ones one copy into
//! a slot that stays in cache and no second synchronisation, large ones no staging at all. Reading what another core has just
//! written is several times faster than writing into lines that it holds, so middle sizes pull.

use super::Question;
use crate::algorithms::{Algorithm, Encoding, Entry};
use crate::collective::Kind;

/// Up to so many bytes a message goes in LL encoding.
const LL_MAX_BYTES: usize = 2 << 10;
/// From so many bytes buffers that peers reach are used in place.
const WINDOWS_MIN_BYTES: usize = 32 << 10;
/// From so many bytes of all ranks together outputs are written around the cache.
const STREAM_MIN_BYTES: usize = 16 << 20;
/// From so many bytes a ring moves less through caches than everybody talking to everybody.
const RING_MIN_BYTES: usize = 1 << 20;

/// The entry, out of those that fit, and why.
pub(super) fn choose<'a>(question: &Question, offered: &[&'a Entry]) -> Option<(&'a Entry, String)> {
    let wishes = wishes(question);
    for (algorithm, encoding, reason) in &wishes {
        let found = offered.iter().find(|e| e.algorithm == *algorithm && e.encoding == *encoding);
        if let Some(entry) = found {
            return Some((entry, (*reason).to_string()));
        }
    }
    offered.first().map(|entry| (*entry, "the one that fits what is pinned".to_string()))
}

/// What would be best, in order of preference.
fn wishes(question: &Question) -> Vec<(Algorithm, Encoding, &'static str)> {
    let direct = match question.collective.kind {
        Kind::AllReduce => Algorithm::TwoShot,
        Kind::AllToAll => Algorithm::Pairwise,
        Kind::Barrier => Algorithm::Dissemination,
        _ => Algorithm::Direct,
    };
    let bytes = question.total_bytes;
    let small = if question.collective.kind == Kind::AllReduce { Algorithm::OneShot } else { direct };
    let mut wishes = Vec::new();
    if bytes <= LL_MAX_BYTES {
        wishes.push((small, Encoding::Ll, "small: data and flag in one word, one exchange"));
    }
    if bytes >= WINDOWS_MIN_BYTES {
        if streams(question) {
            wishes.push((Algorithm::TwoShotPush, Encoding::Windows, "large and reachable: each byte crosses memory once"));
        }
        wishes.push((direct, Encoding::Windows, "reachable: peers' buffers are read in place"));
    }
    if question.collective.ranks > 2 && bytes >= RING_MIN_BYTES {
        wishes.push((Algorithm::Ring, Encoding::Slots, "large and private: slots around the ring"));
    }
    if bytes < WINDOWS_MIN_BYTES {
        wishes.push((small, Encoding::Slots, "middle: one copy into a slot, one exchange"));
    }
    wishes.push((direct, Encoding::Slots, "private memory: through slots"));
    wishes
}

/// Bytes per chunk and round.
pub(super) fn tile_bytes(question: &Question, entry: &Entry) -> usize {
    if entry.encoding == Encoding::Ll { question.ll_slot_bytes } else { question.slot_bytes }
}

/// Whether outputs are written around the cache.
pub(super) fn stream(question: &Question, _entry: &Entry) -> bool {
    streams(question)
}

fn streams(question: &Question) -> bool {
    question.total_bytes.saturating_mul(question.collective.ranks) >= STREAM_MIN_BYTES
}
