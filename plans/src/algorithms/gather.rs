//! Gather: every rank's input, by rank, is the root's output. All send to the root, as MPI
//! libraries do where messages are long (Chan, Heimlich, Purkayastha and van de Geijn, "Collective
//! communication: theory, practice, and experience", 2007, discuss when).

use super::{
    Algorithm, Entries, IN_SLOTS, IN_WINDOWS, Orders, Request, entries, input_of, output_of,
};
use crate::collective::Kind::Gather;
use crate::schedule::{Chunking, Operand, Schedule};

pub(super) const ENTRIES: &[Entries] = &[
    entries(Gather, Algorithm::Direct, IN_SLOTS, true, Orders::All, direct),
    entries(Gather, Algorithm::Direct, IN_WINDOWS, true, Orders::All, direct_windows)
        .writing_peers(),
    entries(Gather, Algorithm::DirectPull, IN_WINDOWS, true, Orders::All, direct_pull),
];

/// All send to the root.
fn direct(request: &Request) -> Schedule {
    let root = request.collective.root;
    request.schedule(Chunking::Whole, Chunking::PerRank(1), |b| {
        if b.rank() != root {
            return b.send(Operand::Input(0), request.link(root));
        }
        b.copy(Operand::Input(0), &[Operand::Output(root)]);
        let peers = request.peers(root).into_iter();
        b.recv_each(peers.map(|peer| (request.link(peer), Operand::Output(peer))));
    })
}

/// The root fetches all inputs.
fn direct_pull(request: &Request) -> Schedule {
    let root = request.collective.root;
    request.schedule(Chunking::Whole, Chunking::PerRank(1), |b| {
        let peers = if b.rank() == root { request.peers(root) } else { vec![root] };
        b.enter(&peers);
        if b.rank() == root {
            b.copy(Operand::Input(0), &[Operand::Output(root)]);
            for peer in request.peers(root) {
                b.copy(input_of(peer, 0), &[Operand::Output(peer)]);
            }
        }
        b.barrier(&peers);
    })
}

/// All write to the root's output.
fn direct_windows(request: &Request) -> Schedule {
    let root = request.collective.root;
    request.schedule(Chunking::Whole, Chunking::PerRank(1), |b| {
        let rank = b.rank();
        let peers = if rank == root { request.peers(root) } else { vec![root] };
        let output = if rank == root { Operand::Output(root) } else { output_of(root, rank) };
        b.enter(&peers);
        b.copy(Operand::Input(0), &[output]);
        b.barrier(&peers);
    })
}
