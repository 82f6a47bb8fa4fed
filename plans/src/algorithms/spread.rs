//! Results that go to memory and to peers in one instruction, or in several where there are more
//! peers than one takes. What a switch multicasts has an instruction of its own.

use crate::schedule::{Operand, RankBuilder, Read, Write};
use oxccl_format::MAX_OPERANDS;

/// Has `make` write a result to `output` and to as many of the peers as go together with its
/// sources; the others get it from `output`.
pub(super) fn spread(
    b: &mut RankBuilder,
    sources: usize,
    output: Operand,
    sends: &[Write],
    make: impl FnOnce(&mut RankBuilder, &[Write]),
) {
    let is_multicast = |one: &Write| matches!(one, Write::To(Operand::Multicast { .. }));
    let (by_switch, sends): (Vec<Write>, Vec<Write>) =
        sends.iter().copied().partition(is_multicast);
    let (at_once, later) =
        sends.split_at(sends.len().min(MAX_OPERANDS.saturating_sub(sources + 1)));
    make(b, &[&[Write::To(output)], at_once].concat());
    tell(b, output, later);
    tell(b, output, &by_switch);
}

/// Sends memory to many.
pub(super) fn tell(b: &mut RankBuilder, memory: Operand, sends: &[Write]) {
    for sends in sends.chunks(MAX_OPERANDS - 1) {
        b.transfer(&[Read::Plain(memory)], sends, false);
    }
}
