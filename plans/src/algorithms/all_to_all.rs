//! All-to-all: chunk r of rank s's input is chunk s of rank r's output. Directly, or by the
//! pairwise exchange (Thakur, Rabenseifner and Gropp, "Optimization of collective communication
//! operations in MPICH", 2005).

use super::{Algorithm, Entries, IN_SLOTS, IN_WINDOWS, Orders, Request, entries, input_of};
use crate::collective::Kind::AllToAll;
use crate::schedule::{Chunking, Operand, Schedule};

pub(super) const ENTRIES: &[Entries] = &[
    entries(AllToAll, Algorithm::Direct, IN_SLOTS, true, Orders::All, direct),
    entries(AllToAll, Algorithm::Pairwise, IN_SLOTS, true, Orders::All, pairwise),
    entries(AllToAll, Algorithm::Pairwise, IN_WINDOWS, false, Orders::All, pairwise_windows),
];

/// Every rank sends to all others, then takes what they sent: nobody waits for one peer before the
/// next has its part.
fn direct(request: &Request) -> Schedule {
    request.rotational(Chunking::PerRank(1), Chunking::PerRank(1), |b| {
        let rank = b.rank();
        let peers = request.peers(rank);
        b.send_each(peers.iter().map(|&peer| (Operand::Input(peer), request.link(peer))));
        b.copy(Operand::Input(rank), &[Operand::Output(rank)]);
        b.recv_each(peers.iter().map(|&peer| (request.link(peer), Operand::Output(peer))));
    })
}

/// In step s a rank exchanges with those that are s further and s back. What is sent to a peer
/// leaves before what it sends arrives, so one buffer is enough.
fn pairwise(request: &Request) -> Schedule {
    request.rotational(Chunking::PerRank(1), Chunking::PerRank(1), |b| {
        let (rank, n) = (b.rank(), request.ranks());
        b.copy(Operand::Input(rank), &[Operand::Output(rank)]);
        for step in 1..=n / 2 {
            let peers = both_sides(n, rank, step);
            for &peer in &peers {
                b.send(Operand::Input(peer), request.link(peer));
            }
            // What comes from behind has been sent first.
            for &peer in peers.iter().rev() {
                b.recv_copy(request.link(peer), Operand::Output(peer));
            }
        }
    })
}

/// Who is so far ahead, and who so far behind, in a ring of n; one, if it is the same.
pub(super) fn both_sides(n: usize, place: usize, step: usize) -> Vec<usize> {
    let mut sides = vec![(place + step) % n, (place + n - step) % n];
    sides.dedup();
    sides
}

/// In step s rank r fetches its chunk from rank r + s.
fn pairwise_windows(request: &Request) -> Schedule {
    request.rotational(Chunking::PerRank(1), Chunking::PerRank(1), |b| {
        let rank = b.rank();
        let peers = request.peers(rank);
        b.enter(&peers);
        b.copy(Operand::Input(rank), &[Operand::Output(rank)]);
        for &peer in &peers {
            b.copy(input_of(peer, rank), &[Operand::Output(peer)]);
        }
        b.barrier(&peers);
    })
}
