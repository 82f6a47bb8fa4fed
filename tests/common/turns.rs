//! A group that comes again and again, each time changed in part: other buffers, other lengths,
//! other calls.

/// Lengths of the buffers that the turns deal with.
pub const LENGTHS: [usize; 8] = [300, 7, 1000, 64, 2000, 300, 1000, 301];

/// One group: its buffers in order, and which of its buckets is reduced by another operation than
/// the others.
pub struct Turn {
    pub buffers: &'static [usize],
    pub other: Option<usize>,
    /// Groups of this shape have not come before.
    pub is_new: bool,
}

const fn turn(buffers: &'static [usize], other: Option<usize>, is_new: bool) -> Turn {
    Turn { buffers, other, is_new }
}

pub const TURNS: [Turn; 11] = [
    turn(&[0, 1, 2, 3, 4], None, true),
    // Other buffers of the same lengths.
    turn(&[5, 1, 2, 3, 4], None, false),
    turn(&[5, 1, 6, 3, 4], None, false),
    // Another length.
    turn(&[7, 1, 6, 3, 4], None, true),
    turn(&[0, 1, 2, 3, 4], None, false),
    // Fewer, and more.
    turn(&[0, 1, 2, 3], None, true),
    turn(&[0, 1, 2, 3, 4, 5], None, true),
    turn(&[7, 1, 2, 3, 4], None, false),
    // Another call in the middle.
    turn(&[0, 1, 2, 3, 4], Some(2), true),
    turn(&[0, 1, 2, 3, 4], None, false),
    turn(&[0, 1, 6, 3, 4], Some(2), false),
];

/// What a rank has in a buffer before a turn: a whole number.
pub fn value(turn: usize, buffer: usize, rank: usize, at: usize) -> f32 {
    ((turn * 5 + buffer * 3 + rank * 7 + at) % 31) as f32
}

/// What it has after: the sum, or in the other bucket the largest; in a buffer that is in no bucket
/// what it had.
pub fn expected(turn: usize, buffer: usize, rank: usize, ranks: usize, at: usize) -> f32 {
    let values = (0..ranks).map(|rank| value(turn, buffer, rank, at));
    let Turn { buffers, other, .. } = &TURNS[turn];
    match buffers.iter().position(|of| *of == buffer) {
        None => value(turn, buffer, rank, at),
        Some(bucket) if *other == Some(bucket) => values.fold(0.0, f32::max),
        Some(_) => values.sum(),
    }
}
