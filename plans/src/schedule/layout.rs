//! Where chunks lie in the callers' buffers.

use super::{Buffer, Chunking};
use crate::collective::{Collective, Kind};
use crate::length::{Length, TooLong};

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
    /// Equal parts. `count` is, in elements: the whole buffer for all-reduce, broadcast, reduce and
    /// send/recv; one rank's part for the others. Where an algorithm divides a whole buffer, parts
    /// start at multiples of `align` elements.
    ///
    /// # Errors
    /// [`TooLong`]: all parts together are more than memory has.
    pub fn even(
        collective: &Collective,
        input: Chunking,
        output: Chunking,
        count: usize,
        align: usize,
    ) -> Result<Layout, TooLong> {
        Layout::equal(collective, input, output, count, &|parts| divide(count, parts, align))
    }

    /// As [`Layout::even`] over a virtual buffer, in which every part starts at a multiple of
    /// `align` however short it is.
    ///
    /// # Errors
    /// As [`Layout::even`].
    pub fn of_virtual(
        collective: &Collective,
        input: Chunking,
        output: Chunking,
        count: usize,
        align: usize,
    ) -> Result<Layout, TooLong> {
        let divided = |parts: usize| {
            let size = elements(count.div_ceil(parts))?.padded(align)?;
            divide_by(count, parts, size)
        };
        Layout::equal(collective, input, output, count, &divided)
    }

    fn equal(
        collective: &Collective,
        input: Chunking,
        output: Chunking,
        count: usize,
        divide: &dyn Fn(usize) -> Result<Vec<Extent>, TooLong>,
    ) -> Result<Layout, TooLong> {
        let n = collective.ranks;
        elements(count)?;
        let parts = |chunking: Chunking| match chunking {
            Chunking::Whole => Ok(vec![Extent { offset: 0, count }]),
            Chunking::PerRank(chunks) => each(&vec![count; n], |_| divide(chunks)),
            Chunking::Parts(parts) => divide(parts),
        };
        let divided = |chunking: Chunking| match chunking {
            Chunking::Whole => Ok(vec![Extent { offset: 0, count }]),
            Chunking::PerRank(_) | Chunking::Parts(_) => divide(chunking.chunks(n)),
        };
        let whole = matches!(
            collective.kind,
            Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::SendRecv | Kind::Barrier
        );
        let rank = if whole {
            RankLayout { input: divided(input)?, output: divided(output)? }
        } else {
            RankLayout { input: parts(input)?, output: parts(output)? }
        };
        Ok(Layout { ranks: vec![rank] })
    }

    /// Whatever one rank has: it holds for all, since none asks for another's.
    pub fn of_rank(rank: RankLayout) -> Layout {
        Layout { ranks: vec![rank] }
    }

    /// All-gather of `counts[r]` elements from rank r, gathered without gaps.
    ///
    /// # Errors
    /// As [`Layout::even`].
    pub fn all_gather_v(counts: &[usize], parts: Parts) -> Result<Layout, TooLong> {
        let all = parts.of_ranks(counts)?;
        let rank = |&count| Ok(RankLayout { input: parts.of_rank(count)?, output: all.clone() });
        Ok(Layout { ranks: counts.iter().map(rank).collect::<Result<_, _>>()? })
    }

    /// Reduce-scatter where rank r keeps `counts[r]` elements of an input without gaps.
    ///
    /// # Errors
    /// As [`Layout::even`].
    pub fn reduce_scatter_v(counts: &[usize], parts: Parts) -> Result<Layout, TooLong> {
        let all = parts.of_ranks(counts)?;
        let rank = |&count| Ok(RankLayout { input: all.clone(), output: parts.of_rank(count)? });
        Ok(Layout { ranks: counts.iter().map(rank).collect::<Result<_, _>>()? })
    }

    /// All-to-all where `counts[s][r]` elements go from rank s to rank r, all buffers without gaps.
    ///
    /// # Errors
    /// As [`Layout::even`].
    pub fn all_to_all_v(counts: &[Vec<usize>], parts: Parts) -> Result<Layout, TooLong> {
        let rank = |rank: usize| {
            let from: Vec<usize> = counts.iter().map(|row| row[rank]).collect();
            Ok(RankLayout { input: parts.of_ranks(&counts[rank])?, output: parts.of_ranks(&from)? })
        };
        Ok(Layout { ranks: (0..counts.len()).map(rank).collect::<Result<_, _>>()? })
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
    pub fn largest_of(&self, buffer: Buffer) -> usize {
        let of = |rank: &RankLayout| match buffer {
            Buffer::Input => rank.input.iter().map(|extent| extent.count).max(),
            Buffer::Output => rank.output.iter().map(|extent| extent.count).max(),
        };
        self.ranks.iter().filter_map(of).max().unwrap_or(0)
    }

    /// Where the longest buffer of any rank ends, in elements.
    pub fn end(&self) -> usize {
        let extents = self.ranks.iter().flat_map(|rank| rank.input.iter().chain(&rank.output));
        extents.map(|extent| extent.offset + extent.count).max().unwrap_or(0)
    }

    /// The largest chunk of any rank, in elements.
    pub fn largest(&self) -> usize {
        let extents = self.ranks.iter().flat_map(|rank| rank.input.iter().chain(&rank.output));
        extents.map(|extent| extent.count).max().unwrap_or(0)
    }
}

/// So many elements, of whatever size: no less than a byte.
fn elements(count: usize) -> Result<Length, TooLong> {
    Length::new(count, 1)
}

/// How the part of each rank is divided, where parts differ in length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Into so many chunks.
    pub chunks: usize,
    /// Chunks start at multiples of so many elements of their part.
    pub align: usize,
}

impl Parts {
    /// Each part is one chunk.
    pub const WHOLE: Parts = Parts { chunks: 1, align: 1 };

    fn of_rank(self, count: usize) -> Result<Vec<Extent>, TooLong> {
        divide(count, self.chunks, self.align)
    }

    fn of_ranks(self, counts: &[usize]) -> Result<Vec<Extent>, TooLong> {
        each(counts, |count| self.of_rank(count))
    }
}

/// Parts of these lengths, one behind the other, each of them divided.
fn each(
    counts: &[usize],
    divide: impl Fn(usize) -> Result<Vec<Extent>, TooLong>,
) -> Result<Vec<Extent>, TooLong> {
    let mut next = elements(0)?;
    let mut all = Vec::new();
    for &count in counts {
        let start = next.count();
        next = next.plus(count)?;
        let chunks = divide(count)?.into_iter();
        all.extend(chunks.map(|Extent { offset, count }| Extent { offset: start + offset, count }));
    }
    Ok(all)
}

/// `count` elements in `parts` nearly equal ranges that start at multiples of `align`; the last
/// ones may be short or empty.
fn divide(count: usize, parts: usize, align: usize) -> Result<Vec<Extent>, TooLong> {
    let even = elements(count.div_ceil(parts))?;
    divide_by(count, parts, if even.count() >= align { even.padded(align)? } else { even })
}

fn divide_by(count: usize, parts: usize, size: Length) -> Result<Vec<Extent>, TooLong> {
    let mut offset = elements(0)?;
    (0..parts)
        .map(|_| {
            let start = offset.count();
            let end = offset.plus(size.count())?.count().min(count);
            offset = elements(end)?;
            Ok(Extent { offset: start, count: end - start })
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
            let extents = divide(count, parts, align).unwrap();
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
        let layout = Layout::all_to_all_v(&[vec![1, 2], vec![3, 4]], Parts::WHOLE).unwrap();
        assert_eq!(layout.extent(0, Buffer::Output, 1), Extent { offset: 1, count: 3 });
        assert_eq!(layout.extent(1, Buffer::Input, 1), Extent { offset: 3, count: 4 });
    }

    #[test]
    fn chunks_of_a_part_are_the_same_wherever_it_lies() {
        let counts = [5, 0, 64, 7];
        for (chunks, align) in [(1, 1), (3, 1), (4, 16)] {
            let layout = Layout::all_gather_v(&counts, Parts { chunks, align }).unwrap();
            let mut next = 0;
            for (rank, chunk) in (0..4).flat_map(|rank| (0..chunks).map(move |at| (rank, at))) {
                let own = layout.extent(rank, Buffer::Input, chunk);
                let all = layout.extent(0, Buffer::Output, rank * chunks + chunk);
                assert_eq!((own.count, next), (all.count, all.offset));
                next += own.count;
            }
            assert_eq!(next, 76);
        }
        let (own, all) = (Chunking::Parts(3), Chunking::PerRank(3));
        let collective = Collective::new(Kind::AllGather, 2);
        let layout = Layout::even(&collective, own, all, 100, 16).unwrap();
        assert_eq!(layout.extent(1, Buffer::Input, 2), Extent { offset: 96, count: 4 });
        assert_eq!(layout.extent(1, Buffer::Output, 5), Extent { offset: 196, count: 4 });
        let layout = Layout::of_virtual(&collective, own, all, 96, 64).unwrap();
        assert_eq!(layout.extent(1, Buffer::Output, 4), Extent { offset: 160, count: 32 });
    }

    #[test]
    fn what_no_memory_has_is_refused() {
        let whole = Parts::WHOLE;
        assert_eq!(Layout::all_gather_v(&[8, usize::MAX - 3], whole), Err(TooLong));
        assert_eq!(Layout::reduce_scatter_v(&[usize::MAX / 2, 1, 1], whole), Err(TooLong));
        assert_eq!(Layout::all_to_all_v(&[vec![0, usize::MAX], vec![1, 0]], whole), Err(TooLong));
        let even = |kind, chunking, count| {
            Layout::even(&Collective::new(kind, 3), chunking, chunking, count, 16)
        };
        let most = isize::MAX as usize;
        assert_eq!(even(Kind::AllGather, Chunking::PerRank(1), most / 3 + 1), Err(TooLong));
        assert_eq!(even(Kind::AllReduce, Chunking::Parts(7), usize::MAX), Err(TooLong));
        assert!(even(Kind::AllGather, Chunking::PerRank(1), most / 3).is_ok());
    }
}
