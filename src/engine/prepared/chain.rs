//! A group's launch blocks, chained, and the tables that they point to, for one set of buffers.

use super::footprint::writes_what_it_reads;
use super::launch::Block;
use crate::call::CheckedCall;
use oxccl_kernels::format as f;

/// Where a table entry's memory is: so far into the call's buffers, of which it may have one or
/// both.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Source {
    pub(super) call: usize,
    pub(super) input_at: Option<usize>,
    pub(super) output_at: Option<usize>,
}

/// Where the machine finds the tables: on a host where they are, on a GPU where they are copied to.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Places {
    pub(in crate::engine) launches: *const f::Launch,
    pub(in crate::engine) segments: *const f::Segment,
    /// In memory that peers reach.
    pub(in crate::engine) tokens: *const f::SegmentTokens,
}

/// The buffers of a launch's calls.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Buffers<'a> {
    pub(in crate::engine) calls: &'a [CheckedCall],
    /// By call: how peers find them.
    pub(in crate::engine) tokens: &'a [f::Tokens],
}

/// The tables.
#[derive(Debug)]
pub(in crate::engine) struct Chain {
    pub(in crate::engine) launches: Box<[f::Launch]>,
    pub(in crate::engine) segments: Box<[f::Segment]>,
    /// An entry for each segment. What peers' kernels read is a copy of it.
    pub(in crate::engine) tokens: Box<[f::SegmentTokens]>,
    places: Places,
}

impl Chain {
    /// The blocks of a group, whose buffers are still to be set. `places` says where the machine
    /// will find the tables, which do not move from here on.
    pub(in crate::engine) fn new(
        blocks: &[Block],
        sources: &[Source],
        segments: &[f::Segment],
        places: impl FnOnce(&[f::Launch], &[f::Segment]) -> Places,
    ) -> Chain {
        let launches: Box<[f::Launch]> = blocks.iter().map(|block| block.launch).collect();
        let segments: Box<[f::Segment]> = segments.into();
        let tokens = segments.iter().map(|_| f::SegmentTokens::default()).collect();
        let places = places(&launches, &segments);
        let mut chain = Chain { launches, segments, tokens, places };
        chain.link(blocks, sources);
        chain
    }

    fn link(&mut self, blocks: &[Block], sources: &[Source]) {
        let last = self.launches.len().saturating_sub(1);
        for (number, (block, launch)) in blocks.iter().zip(&mut self.launches).enumerate() {
            let next = self.places.launches.wrapping_add(number + 1);
            launch.program = block.code.header;
            launch.next = if number < last { next } else { std::ptr::null() };
            launch.segments_count = block.count as u32;
            launch.bucket = sources.get(block.first).map_or(0, |source| source.call as u32);
            launch.flags = block.launch.flags
                | if block.awaits { f::LAUNCH_AWAITS } else { 0 }
                | if block.completes { f::LAUNCH_COMPLETES } else { 0 };
            if block.is_virtual {
                launch.segments = self.places.segments.wrapping_add(block.first);
            }
        }
    }

    /// Points the tables to these buffers, and tells `share` which tokens have changed. Peers find
    /// the buffers by `tokens`, and the table of these by its address relative to `base`; none in
    /// one process.
    pub(in crate::engine) fn set_buffers(
        &mut self,
        (blocks, sources): (&[Block], &[Source]),
        Buffers { calls, tokens }: Buffers<'_>,
        base: Option<usize>,
        mut share: impl FnMut(usize, f::SegmentTokens),
    ) {
        for block in blocks.iter().filter(|block| block.is_virtual) {
            // From the last on: whether a bucket is continued is told by the one behind it.
            let end = block.first + block.count;
            for at in (block.first..end).rev() {
                let (call, tokens) = (&calls[sources[at].call], &tokens[sources[at].call]);
                self.set_segment(at, call, sources[at], at + 1 < end);
                if let Some(shared) = self.set_tokens(at, tokens, sources[at], at + 1 < end) {
                    share(at, shared);
                }
            }
        }
        for (block, launch) in blocks.iter().zip(&mut self.launches) {
            if let (Some(digest), Some(source)) = (block.digest, sources.get(block.first)) {
                let call = &calls[source.call];
                launch.scale_bits = call.factor_bits;
                launch.flags &= !f::LAUNCH_FACTOR_AT;
                launch.flags |= if call.factor_at { f::LAUNCH_FACTOR_AT } else { 0 };
                launch.signature = digest.with_factor(launch.scale_bits).word();
            }
            if block.launch.flags & f::LAUNCH_STREAM != 0 {
                let mut buckets = sources[block.first..][..block.count].iter();
                let apart = buckets.all(|source| !writes_what_it_reads(&calls[source.call]));
                launch.flags &= !f::LAUNCH_STREAM;
                launch.flags |= if apart { f::LAUNCH_STREAM } else { 0 };
            }
            if block.is_virtual {
                let table = self.places.tokens.wrapping_add(block.first) as u64;
                launch.tokens = f::Tokens { input: table - base.unwrap_or(0) as u64, output: 0 };
            } else {
                let at = sources[block.first].call;
                (launch.input, launch.output) = (calls[at].input, calls[at].output);
                launch.tokens = tokens[at];
            }
        }
    }

    /// Points an entry to the call's buffers. The next one, if there is one, has been.
    fn set_segment(&mut self, at: usize, call: &CheckedCall, source: Source, has_next: bool) {
        let place = |base: *mut u8, at: Option<usize>| {
            at.map_or(std::ptr::null_mut(), |at| base.wrapping_add(at))
        };
        let one = f::Segment {
            input: place(call.input, source.input_at),
            output: place(call.output, source.output_at),
            ..self.segments[at]
        };
        let follows = |next: &f::Segment| {
            let places = [one.input as u64, one.output as u64];
            lies_behind(&one, places, next, [next.input as u64, next.output as u64])
        };
        let next = self.segments.get(at + 1).filter(|next| has_next && follows(next));
        let followers = next.map_or(0, |next| next.followers + 1);
        self.segments[at] = f::Segment { followers, ..one };
    }

    /// Sets how peers find an entry's buffers, behind [`set_segment`](Self::set_segment). Returns
    /// it if it has changed.
    fn set_tokens(
        &mut self,
        at: usize,
        tokens: &f::Tokens,
        source: Source,
        has_next: bool,
    ) -> Option<f::SegmentTokens> {
        let token = |base: u64, at: Option<usize>| at.map_or(0, |at| base + at as u64);
        let (input, output) =
            (token(tokens.input, source.input_at), token(tokens.output, source.output_at));
        let next = self.tokens.get(at + 1).filter(|next| {
            has_next
                && lies_behind(
                    &self.segments[at],
                    [input, output],
                    &self.segments[at + 1],
                    [next.input, next.output],
                )
        });
        let followers = next.map_or(0, |next| next.followers + 1);
        let shared = f::SegmentTokens { input, output, followers };
        let old = std::mem::replace(&mut self.tokens[at], shared);
        (old != shared).then_some(shared)
    }
}

/// Whether a bucket begins where the one before it ends, in the virtual buffer and in each of its
/// two places; both may lack one.
fn lies_behind(one: &f::Segment, places: [u64; 2], next: &f::Segment, others: [u64; 2]) -> bool {
    let follows = |(from, to): (u64, u64)| to == from.wrapping_add(one.len_bytes) || from | to == 0;
    next.start == one.start + one.len_bytes && places.into_iter().zip(others).all(follows)
}
