//! Reduce-scatter: input chunk r of every rank, reduced, is the output of rank r.

use super::{Algorithm, Encoding, Entry, Request, entry};
use crate::collective::Kind::ReduceScatter;
use crate::schedule::{Chunking, Operand, RankBuilder, Read, Schedule, Write};

pub(super) const ENTRIES: &[Entry] = &[
    entry(ReduceScatter, Algorithm::Direct, Encoding::Ll, true, true, direct),
    entry(ReduceScatter, Algorithm::Direct, Encoding::Slots, true, true, direct),
    entry(ReduceScatter, Algorithm::Direct, Encoding::Windows, true, true, direct_windows),
    entry(ReduceScatter, Algorithm::Ring, Encoding::Ll, true, false, ring),
    entry(ReduceScatter, Algorithm::Ring, Encoding::Slots, true, false, ring),
];

/// Every rank sends chunk p to rank p, which reduces what comes.
fn direct(request: &Request) -> Schedule {
    request.schedule(Chunking::PerRank, Chunking::Whole, |b| {
        let rank = b.rank();
        for peer in request.peers(rank) {
            b.send(Operand::Input(peer), request.link(peer));
        }
        b.transfer(&request.contributions(rank, rank), &[Write::To(Operand::Output(0))], true);
    })
}

/// Rank r reduces chunk r out of all inputs in place.
fn direct_windows(request: &Request) -> Schedule {
    request.schedule(Chunking::PerRank, Chunking::Whole, |b| {
        let rank = b.rank();
        let peers = request.peers(rank);
        b.enter(&peers);
        b.transfer(&request.windows(rank, rank), &[Write::To(Operand::Output(0))], true);
        b.barrier(&peers);
    })
}

/// Chunk c starts at rank c + 1 and goes around, every rank adding its own, until it ends at rank c.
fn ring(request: &Request) -> Schedule {
    request.rotational(Chunking::PerRank, Chunking::Whole, |b| {
        let output = Write::To(Operand::Output(0));
        if request.ranks() == 1 {
            return b.transfer(&[Read::Raw(Operand::Input(0))], &[output], true);
        }
        ring_steps(b, request, &[output]);
    })
}

/// The ring's steps on one of at least two ranks; the reduced chunk r goes to `last`.
pub(super) fn ring_steps(b: &mut RankBuilder, request: &Request, last: &[Write]) {
    let (rank, n) = (b.rank(), request.ranks());
    let (next, previous) = (request.link((rank + 1) % n), request.link((rank + n - 1) % n));
    b.send(Operand::Input((rank + n - 1) % n), next);
    for step in 1..n {
        let chunk = Operand::Input((rank + n - 1 - step + n) % n);
        // The first message is the previous rank's own contribution; later ones are partial results.
        let partial = if step == 1 { Read::RecvRaw(previous) } else { Read::Recv(previous) };
        let writes = if step + 1 < n { &[Write::Send(next)][..] } else { last };
        b.transfer(&[partial, Read::Raw(chunk)], writes, step + 1 == n);
    }
}
