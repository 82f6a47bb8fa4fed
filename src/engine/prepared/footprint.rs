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
    /// Whether the output is streamed wherever it is: calls over so much memory leave nothing of it
    /// in the cache.
    pub(in crate::engine) fills_cache: bool,
}

impl Footprint {
    fn new(call: &CheckedCall, fills_cache: bool) -> Footprint {
        let (input_bytes, output_bytes) = call.buffer_bytes();
        let kind = call.collective.kind;
        let writes_apart = matches!(kind, Kind::AllGather | Kind::Gather | Kind::Broadcast);
        Footprint { input_bytes, output_bytes, writes_apart, fills_cache }
    }

    /// Of a call that may gain by streaming its output, in windows or not. A reduction of what lies
    /// in slots gains nothing by it where it does not fill the cache by itself.
    pub(super) fn of(call: &CheckedCall, windows: bool, fills_cache: bool) -> Option<Footprint> {
        let kind = call.collective.kind;
        let is_long = call.total_bytes() >= LONG_BYTES && (windows || !kind.reduces());
        let gains = kind != Kind::SendRecv && (fills_cache || is_long);
        gains.then(|| Footprint::new(call, fills_cache))
    }

    /// Whether the output, or a part of it, is the input.
    pub(in crate::engine) fn is_in_place(&self, input: usize, output: usize) -> bool {
        input < output + self.output_bytes && output < input + self.input_bytes
    }
}

/// Whether a call writes lines that it has read before. Streaming them takes longer.
pub(super) fn writes_what_it_reads(call: &CheckedCall) -> bool {
    let footprint = Footprint::new(call, true);
    !footprint.writes_apart && footprint.is_in_place(call.input as usize, call.output as usize)
}
