//! Channels as the lowering deals chunks to them, put into bundles that act alike.

use crate::lower::{PART_BYTES, SlotTooSmall, part_bytes, tile_bytes};
use crate::schedule::{MostSegments, one_round};

/// Length of what a reduce-copy moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Length {
    /// A chunk of so many bytes, dealt to channels and tiles.
    Chunk(usize),
    /// So many bytes on every channel, in the first round.
    Fixed(usize),
}

/// Channels that have equal parts of every chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bundle {
    /// The first of its channels.
    pub(super) channel: usize,
    /// How many there are.
    pub(super) channels: usize,
    /// One channel's part of each length, in bytes.
    pub(super) parts: Vec<usize>,
}

/// How a call is cut into rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rounds {
    pub(super) count: u64,
    pub(super) tile_bytes: usize,
}

impl Rounds {
    /// As the lowering cuts a channel's part of the longest chunk: see [`crate::lower::lower`].
    pub(super) fn new(
        part: usize,
        windows: bool,
        most_segments: MostSegments,
        tile: usize,
    ) -> Result<Rounds, SlotTooSmall> {
        let tile_bytes = match one_round(windows, &most_segments) {
            true => part.max(PART_BYTES),
            false => tile_bytes(most_segments, tile)?,
        };
        Ok(Rounds { count: part.div_ceil(tile_bytes).max(1) as u64, tile_bytes })
    }

    /// What is moved in a round of a part.
    pub(super) fn len_bytes(&self, part: usize, round: u64) -> usize {
        let start = round as usize * self.tile_bytes;
        part.saturating_sub(start).min(self.tile_bytes)
    }
}

/// One channel's part of a length.
pub(super) fn part_of(length: Length, channel: usize, channels: usize) -> usize {
    match length {
        Length::Fixed(bytes) => bytes,
        Length::Chunk(bytes) => {
            let part = part_bytes(bytes, channels);
            let start = (channel * part).min(bytes);
            part.min(bytes - start)
        }
    }
}

/// All channels in bundles. Channels whose parts are all empty end before any other, and are left
/// out unless all are.
pub(super) fn bundles(lengths: &[Length], channels: usize, most: usize) -> Vec<Bundle> {
    let parts_of = |channel: usize| -> Vec<usize> {
        lengths.iter().map(|length| part_of(*length, channel, channels)).collect()
    };
    let is_empty = |bundle: &Bundle| {
        let chunks = lengths.iter().zip(&bundle.parts);
        chunks.filter(|(length, _)| matches!(length, Length::Chunk(_))).all(|(_, part)| *part == 0)
    };
    let mut alike: Vec<Bundle> = Vec::new();
    for channel in 0..channels {
        let parts = parts_of(channel);
        match alike.last_mut() {
            Some(last) if last.parts == parts => last.channels += 1,
            _ => alike.push(Bundle { channel, channels: 1, parts }),
        }
    }
    if !is_empty(&alike[0]) {
        alike.retain(|bundle| !is_empty(bundle));
    } else {
        alike.truncate(1);
        alike[0].channels = 1;
    }
    alike.iter().flat_map(|bundle| split(bundle, most.max(1))).collect()
}

/// The same channels in up to `most` bundles of nearly equal size.
fn split(bundle: &Bundle, most: usize) -> Vec<Bundle> {
    let count = most.min(bundle.channels);
    let first = |at: usize| at * bundle.channels / count;
    (0..count)
        .map(|at| Bundle {
            channel: bundle.channel + first(at),
            channels: first(at + 1) - first(at),
            parts: bundle.parts.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Lane;

    #[test]
    fn bundles_hold_every_byte_of_a_chunk_once() {
        for bytes in [0, 1, 64, 1000, 4096, 100_001] {
            for channels in [1, 2, 3, 7, 24] {
                for most in [1, 4, 64] {
                    let all = bundles(&[Length::Chunk(bytes)], channels, most);
                    let sum: usize = all.iter().map(|b| b.channels * b.parts[0]).sum();
                    assert_eq!(sum, bytes, "{channels} channels, {most} bundles");
                }
            }
        }
    }

    #[test]
    fn rounds_cover_a_part() {
        let cut = |windows, on_slots| {
            let most_segments = [(Lane::Ll, 1), (Lane::Slots, on_slots), (Lane::Ll128, 0)];
            Rounds::new(part_bytes(2000, 2), windows, most_segments, 256).unwrap()
        };
        let rounds = cut(false, 1);
        assert_eq!((rounds.count, rounds.tile_bytes), (4, 256));
        let sum: usize = (0..4).map(|round| rounds.len_bytes(1000, round)).sum();
        assert_eq!(sum, 1000);
        assert_eq!(cut(true, 1), rounds);
        assert_eq!(cut(true, 0), Rounds { count: 1, tile_bytes: 1024 });
    }
}
