//! Recursive doubling over aligned halves: all-reduce in ceil(log2 n) exchanges of the whole buffer (Thakur, Rabenseifner and Gropp,
//! "Optimization of collective communication operations in MPICH", 2005), for any number of ranks.

use super::team::{Held, Team, blocks};
use super::{Algorithm, Encoding, Entry, Orders, Request, entry};
use crate::collective::Kind::AllReduce;
use crate::schedule::{Chunking, Operand, RankBuilder, Read, Schedule, Write};

const ALGORITHM: Algorithm = Algorithm::RecursiveDoubling;

pub(super) const ENTRIES: &[Entry] = &[
    entry(AllReduce, ALGORITHM, Encoding::Ll, true, Orders::Tree, doubling),
    entry(AllReduce, ALGORITHM, Encoding::Slots, true, Orders::Tree, doubling),
];

/// Destinations of one instruction.
const FAN_OUT: usize = 128;

fn doubling(request: &Request) -> Schedule {
    request.schedule(Chunking::Whole, Chunking::Whole, |b| {
        all_reduce(b, &request.world(b.rank()), 0, Held::Raw);
    })
}

/// The two halves of a block tell each other what they have reduced. Where the right half is smaller, each of its ranks tells several.
pub(super) fn all_reduce(b: &mut RankBuilder, team: &Team, chunk: usize, held: Held) {
    let output = [Write::To(Operand::Output(chunk))];
    let blocks = blocks(team.len(), team.me);
    if blocks.is_empty() {
        return b.transfer(&[held.read(chunk)], &output, true);
    }
    let mut held_now = held;
    for (index, &(low, middle, high)) in blocks.iter().enumerate() {
        let is_left = team.me < middle;
        let (mine, others) = if is_left { (low, middle) } else { (middle, low) };
        let (own_len, other_len) =
            if is_left { (middle - low, high - middle) } else { (high - middle, middle - low) };
        let place = team.me - mine;
        let sends: Vec<Write> = (place..other_len)
            .step_by(own_len)
            .map(|place| Write::Send(team.link(others + place)))
            .collect();
        for writes in sends.chunks(FAN_OUT) {
            b.transfer(&[Read::Plain(held_now.operand(chunk))], writes, false);
        }
        let from = team.link(others + place % other_len);
        // A single rank's half is that rank's own.
        let theirs = if other_len == 1 { held.recv(from) } else { Read::Recv(from) };
        let mut reads = [held_now.read(chunk), theirs];
        if !is_left {
            reads.reverse();
        }
        b.transfer(&reads, &output, index + 1 == blocks.len());
        held_now = Held::Partial;
    }
}
