//! Scatter: chunk r of the root's input is the output of rank r. The root sends to all (Chan,
//! Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice, and
//! experience", 2007, discuss when that is best).

use super::{Algorithm, Entries, IN_SLOTS, IN_WINDOWS, Orders, Request, entries, input_of};
use crate::collective::Kind::Scatter;
use crate::schedule::{Chunking, Operand, Schedule};

pub(super) const ENTRIES: &[Entries] = &[
    entries(Scatter, Algorithm::Direct, IN_SLOTS, true, Orders::All, direct),
    entries(Scatter, Algorithm::Direct, IN_WINDOWS, true, Orders::All, direct_windows),
];

/// The root sends to all.
fn direct(request: &Request) -> Schedule {
    let root = request.collective.root;
    request.schedule(Chunking::PerRank(1), Chunking::Whole, |b| {
        if b.rank() != root {
            return b.recv_copy(request.link(root), Operand::Output(0));
        }
        let peers = request.peers(root).into_iter();
        b.send_each(peers.map(|peer| (Operand::Input(peer), request.link(peer))));
        b.copy(Operand::Input(root), &[Operand::Output(0)]);
    })
}

/// All fetch from the root's input.
fn direct_windows(request: &Request) -> Schedule {
    let root = request.collective.root;
    request.schedule(Chunking::PerRank(1), Chunking::Whole, |b| {
        let rank = b.rank();
        let peers = if rank == root { request.peers(root) } else { vec![root] };
        let input = if rank == root { Operand::Input(root) } else { input_of(root, rank) };
        b.enter(&peers);
        b.copy(input, &[Operand::Output(0)]);
        b.barrier(&peers);
    })
}
