//! Where chunks lie in the callers' buffers.

use super::{Buffer, Chunking};
use crate::collective::{Collective, Kind};

/// A range of elements of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First element.
    pub offset: usize,
    /// Number of elements.
    pub count: usize,
}

/// One rank's chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankLayout {
    /// Of the input.
    pub input: Vec<Extent>,
    /// Of the output.
    pub output: Vec<Extent>,
}

/// All ranks' chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// One entry a rank, or a single one that holds for all.
    ranks: Vec<RankLayout>,
}

impl Layout {
    /// Equal parts. `count` is, in elements: the whole buffer for all-reduce, broadcast, reduce and send/recv; one rank's part for
    /// the others. Where an algorithm divides a whole buffer, parts start at multiples of `align` elements.
    pub fn even(
        collective: &Collective,
        input: Chunking,
        output: Chunking,
        count: usize,
        align: usize,
    ) -> Layout {
        Layout::equal(collective, input, output, count, &|parts| divide(count, parts, align))
    }

    /// As [`Layout::even`] over a virtual buffer, in which every part starts at a multiple of `align` however short it is.
    pub fn of_virtual(
        collective: &Collective,
        input: Chunking,
        output: Chunking,
        count: usize,
        align: usize,
    ) -> Layout {
        let divided =
            |parts: usize| divide_by(count, parts, count.div_ceil(parts).next_multiple_of(align));
        Layout::equal(collective, input, output, count, &divided)
    }

    fn equal(
        collective: &Collective,
        input: Chunking,
        output: Chunking,
        count: usize,
        divide: &dyn Fn(usize) -> Vec<Extent>,
    ) -> Layout {
        let n = collective.ranks;
        let parts = |chunking| match chunking {
            Chunking::Whole => vec![Extent { offset: 0, count }],
            Chunking::PerRank => (0..n).map(|r| Extent { offset: r * count, count }).collect(),
            Chunking::Parts(parts) => divide(parts),
        };
        let divided = |chunking| match chunking {
            Chunking::Whole => vec![Extent { offset: 0, count }],
            Chunking::PerRank => divide(n),
            Chunking::Parts(parts) => divide(parts),
        };
        let whole = matches!(
            collective.kind,
            Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::SendRecv | Kind::Barrier
        );
        let rank = if whole {
            RankLayout { input: divided(input), output: divided(output) }
        } else {
            RankLayout { input: parts(input), output: parts(output) }
        };
        Layout { ranks: vec![rank] }
    }

    /// Whatever one rank has: it holds for all, since none asks for another's.
    pub(crate) fn of_rank(rank: RankLayout) -> Layout {
        Layout { ranks: vec![rank] }
    }

    /// All-gather of `counts[r]` elements from rank r, gathered without gaps.
    pub fn all_gather_v(counts: &[usize]) -> Layout {
        let ranks = counts
            .iter()
            .map(|&count| RankLayout {
                input: vec![Extent { offset: 0, count }],
                output: packed(counts),
            })
            .collect();
        Layout { ranks }
    }

    /// Reduce-scatter where rank r keeps `counts[r]` elements of an input without gaps.
    pub fn reduce_scatter_v(counts: &[usize]) -> Layout {
        let ranks = counts
            .iter()
            .map(|&count| RankLayout {
                input: packed(counts),
                output: vec![Extent { offset: 0, count }],
            })
            .collect();
        Layout { ranks }
    }

    /// All-to-all where `counts[s][r]` elements go from rank s to rank r, all buffers without gaps.
    pub fn all_to_all_v(counts: &[Vec<usize>]) -> Layout {
        let ranks = (0..counts.len())
            .map(|rank| {
                let received: Vec<usize> = counts.iter().map(|row| row[rank]).collect();
                RankLayout { input: packed(&counts[rank]), output: packed(&received) }
            })
            .collect();
        Layout { ranks }
    }

    /// The extent of a rank's chunk.
    pub fn extent(&self, rank: usize, buffer: Buffer, chunk: usize) -> Extent {
        let layout = if self.ranks.len() == 1 { &self.ranks[0] } else { &self.ranks[rank] };
        match buffer {
            Buffer::Input => layout.input[chunk],
            Buffer::Output => layout.output[chunk],
        }
    }

    /// The largest chunk of this buffer of any rank, in elements.
    pub(crate) fn largest_of(&self, buffer: Buffer) -> usize {
        let of = |rank: &RankLayout| match buffer {
            Buffer::Input => rank.input.iter().map(|extent| extent.count).max(),
            Buffer::Output => rank.output.iter().map(|extent| extent.count).max(),
        };
        self.ranks.iter().filter_map(of).max().unwrap_or(0)
    }

    /// The largest chunk of any rank, in elements.
    pub fn largest(&self) -> usize {
        let extents = self.ranks.iter().flat_map(|rank| rank.input.iter().chain(&rank.output));
        extents.map(|extent| extent.count).max().unwrap_or(0)
    }
}

/// Ranges of these lengths, one behind the other.
fn packed(counts: &[usize]) -> Vec<Extent> {
    let starts = counts.iter().scan(0, |next, &count| {
        let offset = *next;
        *next += count;
        Some(Extent { offset, count })
    });
    starts.collect()
}

/// `count` elements in `parts` nearly equal ranges that start at multiples of `align`; the last ones may be short or empty.
fn divide(count: usize, parts: usize, align: usize) -> Vec<Extent> {
    let even = count.div_ceil(parts);
    divide_by(count, parts, if even >= align { even.next_multiple_of(align) } else { even })
}

fn divide_by(count: usize, parts: usize, size: usize) -> Vec<Extent> {
    (0..parts)
        .map(|part| {
            let offset = (part * size).min(count);
            Extent { offset, count: size.min(count - offset) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_buffer_once() {
        for (count, parts, align) in
            [(0, 3, 16), (5, 4, 16), (1000, 7, 16), (1024, 8, 16), (17, 2, 4)]
        {
            let extents = divide(count, parts, align);
            let mut next = 0;
            for extent in &extents {
                assert_eq!(extent.offset, next, "{count} in {parts}");
                next += extent.count;
            }
            assert_eq!(next, count);
        }
    }

    #[test]
    fn all_to_all_v_transposes() {
        let layout = Layout::all_to_all_v(&[vec![1, 2], vec![3, 4]]);
        assert_eq!(layout.extent(0, Buffer::Output, 1), Extent { offset: 1, count: 3 });
        assert_eq!(layout.extent(1, Buffer::Input, 1), Extent { offset: 3, count: 4 });
    }
}
