//! A group's launch blocks, chained, and the tables that they point to, for one set of buffers.

use super::prepared::Block;
use crate::call::Call;
use oxccl_kernels::format as f;

/// Where a table entry's memory is: so far into the call's buffers, of which it may have one or both.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) call: usize,
    pub(super) input_at: Option<usize>,
    pub(super) output_at: Option<usize>,
}

/// Where the machine finds the tables: on a host where they are, on a GPU where they are copied to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) launches: *const f::Launch,
    pub(super) segments: *const f::Segment,
    /// In memory that peers reach.
    pub(super) tokens: *const f::SegmentTokens,
}

/// The tables.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) launches: Box<[f::Launch]>,
    pub(super) segments: Box<[f::Segment]>,
    /// An entry for each segment. What peers' kernels read is a copy of it.
    pub(super) tokens: Box<[f::SegmentTokens]>,
    places: Places,
}

impl Chain {
    /// The blocks of a group, whose buffers are still to be set. `places` says where the machine will find the tables, which do not move
    /// from here on.
    pub(super) fn new(
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
            launch.program = block.code.header();
            launch.next = if number < last { next } else { std::ptr::null() };
            launch.segments_count = block.count as u32;
            launch.bucket = sources.get(block.first).map_or(0, |source| source.call as u32);
            launch.flags = if block.awaits { f::LAUNCH_AWAITS } else { 0 }
                | if block.completes { f::LAUNCH_COMPLETES } else { 0 };
            if block.is_virtual {
                launch.segments = self.places.segments.wrapping_add(block.first);
            }
        }
    }

    /// Points the tables to these buffers, and tells `share` which tokens have changed. `base` is what peers' addresses are relative to;
    /// none in one process.
    pub(super) fn set_buffers(
        &mut self,
        (blocks, sources): (&[Block], &[Source]),
        calls: &[Call],
        base: Option<usize>,
        mut share: impl FnMut(usize, f::SegmentTokens),
    ) {
        let token = |address: *const u8| match base {
            Some(base) if !address.is_null() => (address as usize).wrapping_sub(base) as u64,
            _ => address as u64,
        };
        for (at, source) in sources.iter().enumerate() {
            let (call, segment) = (&calls[source.call], &mut self.segments[at]);
            let place = |base: *mut u8, at: Option<usize>| {
                at.map_or(std::ptr::null_mut(), |at| base.wrapping_add(at))
            };
            let input = place(call.input, source.input_at);
            let output = place(call.output, source.output_at);
            if segment.input == input.cast_const() && segment.output == output {
                continue;
            }
            (segment.input, segment.output) = (input, output);
            self.tokens[at] = f::SegmentTokens { input: token(input), output: token(output) };
            share(at, self.tokens[at]);
        }
        for (block, launch) in blocks.iter().zip(&mut self.launches) {
            if block.is_virtual {
                let table = self.places.tokens.wrapping_add(block.first).cast::<u8>();
                launch.tokens = f::Tokens { input: token(table), output: 0 };
            } else {
                let call = &calls[sources[block.first].call];
                (launch.input, launch.output) = (call.input, call.output);
                launch.tokens = f::Tokens { input: token(call.input), output: token(call.output) };
            }
        }
    }
}
