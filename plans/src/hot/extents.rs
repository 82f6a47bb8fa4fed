//! How buffers are divided, in four numbers.

use crate::lower::part_bytes;
use crate::schedule::{Buffer, Extent, Layout, Schedule};
use oxccl_format::Extents;

/// Where all chunks of a rank's buffers are, and the channels' parts of them, if so few numbers say
/// it: chunks are of one length, but for the last ones, and both buffers are divided alike.
pub fn extents(
    layout: &Layout,
    schedule: &Schedule,
    rank: usize,
    (size, channels): (usize, usize),
) -> Option<Extents> {
    let buffers = [Buffer::Input, Buffer::Output];
    let of = |buffer| {
        (0..super::chunks(schedule, buffer)).map(move |at| layout.extent(rank, buffer, at))
    };
    let chunk = layout.largest();
    let total = buffers.into_iter().flat_map(of).map(|one| one.offset + one.count).max()?;
    let at = |chunk_at: usize| {
        let offset = (chunk_at * chunk).min(total);
        Extent { offset, count: chunk.min(total - offset) }
    };
    let is_so = buffers
        .into_iter()
        .all(|buffer| of(buffer).enumerate().all(|(number, one)| is_alike(one, at(number))));
    let shorter = total.checked_rem(chunk).unwrap_or(0);
    let part = |count: usize| part_bytes(count * size, channels) as u64;
    is_so.then(|| Extents {
        total_bytes: (total * size) as u64,
        chunk_bytes: (chunk * size) as u64,
        part_bytes: part(chunk),
        shorter_part_bytes: part(shorter),
    })
}

/// Nothing is nowhere.
fn is_alike(one: Extent, other: Extent) -> bool {
    one == other || one.count == 0 && other.count == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{self, Algorithm, Encoding};
    use crate::collective::{Collective, Kind, Order};
    use crate::schedule::{Parts, SLOTS};
    use crate::topology::Placement;

    fn schedule(kind: Kind, algorithm: Algorithm, ranks: usize) -> Schedule {
        let entry = algorithms::find(kind, algorithm, Encoding::Ll).unwrap();
        let collective = Collective::new(kind, ranks);
        entry.schedule(collective, Placement::one_node(ranks), Order::Any, SLOTS).unwrap()
    }

    #[test]
    fn even_buffers_are_four_numbers() {
        for (kind, algorithm) in [
            (Kind::AllReduce, Algorithm::OneShot),
            (Kind::AllReduce, Algorithm::TwoShot),
            (Kind::AllGather, Algorithm::Direct),
            (Kind::ReduceScatter, Algorithm::Direct),
            (Kind::AllToAll, Algorithm::Direct),
        ] {
            for (ranks, count, channels) in [(2, 0, 1), (3, 5, 1), (4, 1000, 2), (8, 8192, 8)] {
                let schedule = schedule(kind, algorithm, ranks);
                let (input, output) = (schedule.input, schedule.output);
                let layout = Layout::even(&schedule.collective, input, output, count, 16).unwrap();
                let found = extents(&layout, &schedule, 1, (4, channels));
                let found = found.unwrap_or_else(|| panic!("{kind:?} {ranks} {count}"));
                assert_eq!(found.chunk_bytes, 4 * layout.largest() as u64);
            }
        }
    }

    #[test]
    fn parts_that_differ_are_not() {
        let schedule = schedule(Kind::AllGather, Algorithm::Direct, 3);
        let layout = Layout::all_gather_v(&[4, 2, 4], Parts::WHOLE).unwrap();
        assert_eq!(extents(&layout, &schedule, 0, (4, 1)), None);
        // Those that are only shorter at the end are, on the ranks that have a whole one.
        let layout = Layout::all_gather_v(&[4, 4, 2], Parts::WHOLE).unwrap();
        assert!(extents(&layout, &schedule, 0, (4, 1)).is_some());
        assert_eq!(extents(&layout, &schedule, 2, (4, 1)), None);
    }
}
