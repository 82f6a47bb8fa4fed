//! Which outputs are no longer in the cache when a call writes them again.
//!
//! A line that is not in a cache is read from memory before an ordinary store changes it, and is
//! written back later: a streaming store spares the read. A line that is in the cache takes longer
//! by a streaming store. So long calls tell how much memory calls have used since they last wrote
//! to the same output. What a program uses in between is not seen, and would only add to it. A
//! program that reads an output at once finds it in the cache only where it was not streamed: what
//! a long call gains, its reader loses, at most.

use crate::engine::prepared::Footprint;
use oxccl_kernels::format as f;

/// An output that lies where so many share a place is forgotten for the next one there.
const PLACES: usize = 256;

/// The outputs of a rank's last long calls.
#[derive(Debug)]
pub(super) struct Outputs {
    /// By place, where one was written and what `used_bytes` was behind it.
    places: Box<[(usize, u64)]>,
    /// What this rank's long calls have used.
    used_bytes: u64,
    /// Who has used more since has lost its lines.
    kept_bytes: u64,
}

impl Outputs {
    /// None yet, of one of so many ranks that share a cache. Others use it too, and it is not
    /// emptied in order: half of it counts.
    pub(super) fn new(cache_bytes: usize, ranks: usize) -> Outputs {
        Outputs {
            places: vec![(0, 0); PLACES].into(),
            used_bytes: 0,
            kept_bytes: (cache_bytes / 2 / ranks.max(1)) as u64,
        }
    }

    /// Has a launch that is about to begin stream its output, or not.
    #[inline(never)]
    pub(super) fn decide(&mut self, footprint: &Footprint, launch: &mut f::Launch) {
        let streams = self.streams(footprint, launch.input as usize, launch.output as usize);
        launch.flags &= !f::LAUNCH_STREAM;
        launch.flags |= if streams { f::LAUNCH_STREAM } else { 0 };
    }

    /// Whether a call streams its output, which it is about to write.
    fn streams(&mut self, footprint: &Footprint, input: usize, output: usize) -> bool {
        let in_place = footprint.is_in_place(input, output);
        let place = &mut self.places[place_of(output)];
        let since = (place.0 == output).then(|| self.used_bytes - place.1);
        let longer = footprint.input_bytes.max(footprint.output_bytes);
        self.used_bytes +=
            if in_place { longer } else { footprint.input_bytes + footprint.output_bytes } as u64;
        *place = (output, self.used_bytes);
        let written_apart = !in_place || footprint.writes_apart;
        let is_cold = || since.is_some_and(|since| since >= self.kept_bytes);
        written_apart && (footprint.fills_cache || is_cold())
    }
}

/// Outputs often lie at equal distances.
fn place_of(output: usize) -> usize {
    ((output as u64 >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn footprint(writes_apart: bool) -> Footprint {
        Footprint { input_bytes: MIB, output_bytes: MIB, writes_apart, fills_cache: false }
    }

    /// Whether the last of the calls over so many buffers by turns is cold.
    fn by_turns(buffers: usize, in_place: bool, writes_apart: bool) -> bool {
        let mut outputs = Outputs::new(32 * MIB, 2);
        let call = |outputs: &mut Outputs, at: usize| {
            let output = (1 + 2 * (at % buffers)) * MIB;
            let input = if in_place { output } else { output + MIB };
            outputs.streams(&footprint(writes_apart), input, output)
        };
        assert!((0..buffers).all(|at| !call(&mut outputs, at)), "nothing is known of them");
        call(&mut outputs, 0)
    }

    #[test]
    fn what_has_been_used_since_decides() {
        assert!(!by_turns(1, false, false));
        assert!(!by_turns(4, false, false));
        assert!(by_turns(5, false, false));
        assert!(by_turns(16, false, true));
    }

    #[test]
    fn lines_that_have_just_been_read_are_not_streamed() {
        assert!(!by_turns(16, true, false));
        assert!(by_turns(16, true, true));
        assert!(!by_turns(7, true, true), "one buffer is used where two are otherwise");
        let mut outputs = Outputs::new(32 * MIB, 2);
        let fills = Footprint { fills_cache: true, ..footprint(false) };
        assert!(outputs.streams(&fills, MIB, 3 * MIB));
        assert!(!outputs.streams(&fills, MIB, MIB));
    }
}
