//! At which sizes something is measured, and with which entries.

use oxccl::Kind;
use oxccl::plans::tune::{MemoryKind, Prediction, Question, Table, predictions};

use crate::failure::Failure;

/// The smallest size.
pub(super) const SMALLEST_BYTES: usize = 8;
/// Up to here sizes are one octave apart: messages of a few cache lines take a step with each line.
const LINES_BYTES: usize = 256;
/// Entries predicted to take more than so many times as long as the best are not measured between a
/// table's points.
const NEAR: f64 = 2.0;

/// Sizes from the smallest to the largest, so many octaves apart where they are not small, and the
/// largest itself.
pub(super) fn sizes(octaves: u32, largest: usize) -> Vec<usize> {
    let next = |size: &usize| {
        let octaves = if *size < LINES_BYTES { 1 } else { octaves };
        size.checked_mul(1 << octaves)
    };
    let mut sizes: Vec<usize> = std::iter::successors(Some(SMALLEST_BYTES), next)
        .take_while(|size| *size < largest)
        .collect();
    sizes.push(largest);
    sizes
}

/// The sizes at which a table has points, in ascending order.
pub(super) fn sizes_of(table: &Table, kind: Kind, windows: bool) -> Vec<usize> {
    let of = |kind: Kind| table.curves.iter().filter(move |curve| curve.kind == kind);
    let curves = of(kind).filter(|curve| curve.memory == MemoryKind::of(windows));
    let mut sizes: Vec<usize> =
        curves.flat_map(|curve| curve.points.iter().map(|point| point.bytes)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// The geometric mean of each size and the next, rounded to 8 bytes, where that lies between them.
pub(super) fn between(sizes: &[usize]) -> Vec<usize> {
    let mean =
        |pair: &[usize]| (pair[0] as f64 * pair[1] as f64 / 64.0).sqrt().round() as usize * 8;
    let is_new = |mean: &usize| !sizes.contains(mean);
    sizes.windows(2).map(mean).filter(is_new).collect()
}

/// The entries that may be the best for a question, by a table, the one that is predicted to be
/// first.
pub(super) fn near(table: &Table, question: &Question) -> Result<Vec<Prediction>, Failure> {
    let mut all = predictions(table, question).map_err(Failure::Usage)?;
    let best_us = all.first().map_or(0.0, |best| best.time_us);
    all.retain(|one| one.time_us <= NEAR * best_us);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_end_with_the_largest() {
        assert_eq!(sizes(2, 2000), [8, 16, 32, 64, 128, 256, 1024, 2000]);
        assert_eq!(sizes(4, 4096), [8, 16, 32, 64, 128, 256, 4096]);
        assert_eq!(sizes(2, 8), [8]);
        assert_eq!(sizes(2, 64 << 20).len(), 15);
    }

    #[test]
    fn sizes_lie_between() {
        assert_eq!(between(&[8, 16, 32, 64, 256]), [24, 48, 128]);
        assert_eq!(between(&[1 << 20, 4 << 20]), [2 << 20]);
    }
}
