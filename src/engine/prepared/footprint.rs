//! What memory a call uses, for whoever asks what of it is in the cache.

use crate::call::CheckedCall;
use oxccl_plans::collective::Kind;

/// From so many bytes of a call's longest buffer on its output is looked for. Of shorter ones a
/// program that reads them at once would lose more than the call gains.
const LONG_BYTES: usize = 2 << 20;

/// How much memory of one rank a call uses.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Footprint {
    pub(in crate::engine) input_bytes: usize,
    pub(in crate::engine) output_bytes: usize,
    /// Whether no line is written that the call has read, even where its output is its input.
    pub(in crate::engine) writes_apart: bool,
}

impl Footprint {
    /// Of a call that may gain by streaming its output, in windows or not. A reduction of what lies
    /// in slots gains nothing by it.
    pub(super) fn of(call: &CheckedCall, windows: bool) -> Option<Footprint> {
        let (input_bytes, output_bytes) = call.buffer_bytes();
        let kind = call.collective.kind;
        let is_long = call.total_bytes() >= LONG_BYTES && output_bytes > 0;
        let gains = kind != Kind::SendRecv && (windows || !kind.reduces());
        (is_long && gains).then_some(Footprint {
            input_bytes,
            output_bytes,
            writes_apart: matches!(kind, Kind::AllGather | Kind::Gather | Kind::Broadcast),
        })
    }

    /// Whether the output, or a part of it, is the input.
    pub(in crate::engine) fn is_in_place(&self, input: usize, output: usize) -> bool {
        input < output + self.output_bytes && output < input + self.input_bytes
    }
}
