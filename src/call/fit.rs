//! What memory fits a call, worked out once for all that differ in their memory alone.

use super::{Call, CheckedCall};
use oxccl_plans::collective::Kind;

/// What the addresses of a call's buffers must be like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fit {
    /// All ones where this rank has an input; else 0.
    input_mask: usize,
    output_mask: usize,
    input_bytes: usize,
    output_bytes: usize,
    align_mask: usize,
    /// Whether the two cannot overlap: one of them has no bytes.
    is_single: bool,
    /// How far the output is behind the input where they overlap, if they may.
    apart: Option<usize>,
    /// Whether it is one buffer, where ranks must know of it.
    in_place: Option<bool>,
}

impl Fit {
    /// Of one rank's call.
    pub(crate) fn of(call: &CheckedCall, rank: usize) -> Fit {
        let collective = &call.collective;
        let (input_bytes, output_bytes) = call.buffer_bytes();
        let mask = |has: bool| if has { usize::MAX } else { 0 };
        let apart = match collective.kind {
            Kind::AllGather | Kind::Gather => Some((rank * input_bytes).wrapping_neg()),
            Kind::ReduceScatter | Kind::Scatter => Some(rank * output_bytes),
            Kind::SendRecv => None,
            _ => Some(0),
        };
        Fit {
            input_mask: mask(collective.has_input(rank)),
            output_mask: mask(collective.has_output(rank)),
            input_bytes,
            output_bytes,
            align_mask: call.data_type.len_bytes() - 1,
            is_single: input_bytes == 0 || output_bytes == 0,
            apart,
            in_place: (collective.kind == Kind::AllToAll && call.count > 0)
                .then_some(call.in_place),
        }
    }

    /// The addresses of another call's buffers, if they fit: aligned, with an end, and overlapping
    /// only where they may.
    #[inline]
    pub(crate) fn addresses(&self, call: &Call<'_>) -> Option<(*mut u8, *mut u8)> {
        let input = call.input.address.map_addr(|address| address & self.input_mask);
        let output = call.output.address.map_addr(|address| address & self.output_mask);
        self.fits(input.addr(), output.addr()).then_some((input, output))
    }

    /// Whether buffers here fit.
    #[inline]
    pub(crate) fn fits(&self, input: usize, output: usize) -> bool {
        let (input_end, output_end) =
            (input.wrapping_add(self.input_bytes), output.wrapping_add(self.output_bytes));
        let is_whole = (input | output) & self.align_mask == 0
            && input_end >= input
            && output_end >= output
            && self.in_place.is_none_or(|in_place| in_place == (input == output));
        let is_apart = input_end <= output || output_end <= input;
        let uses_one = self.is_single || input == 0 || output == 0;
        is_whole && (is_apart || uses_one || self.apart == Some(output.wrapping_sub(input)))
    }
}
