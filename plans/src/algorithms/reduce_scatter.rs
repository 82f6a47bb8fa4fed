//! Reduce-scatter: input chunk r of every rank, reduced, is the output of rank r. Directly (Thakur,
//! Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005,
//! exchange so for long messages), or around the ring (Patarasuk and Yuan, "Bandwidth optimal
//! all-reduce algorithms for clusters of workstations", 2009).

use super::{Algorithm, Entries, IN_SLOTS, IN_WINDOWS, Need, Orders, Request, entries};
use crate::collective::Kind::ReduceScatter;
use crate::schedule::{Chunking, Operand, Schedule, Write};

pub(super) const ENTRIES: &[Entries] = &[
    entries(ReduceScatter, Algorithm::Direct, IN_SLOTS, true, Orders::All, direct)
        .needs(&[Need::AtMost(256)]),
    entries(ReduceScatter, Algorithm::Direct, IN_WINDOWS, true, Orders::All, direct_windows)
        .needs(&[Need::AtMost(256)]),
    entries(ReduceScatter, Algorithm::Ring, IN_SLOTS, true, Orders::None, ring),
];

/// Every rank sends chunk p to rank p, which reduces what comes.
fn direct(request: &Request) -> Schedule {
    request.schedule(Chunking::PerRank(1), Chunking::Whole, |b| {
        let rank = b.rank();
        let peers = request.peers(rank).into_iter();
        b.send_each(peers.map(|peer| (Operand::Input(peer), request.link(peer))));
        b.transfer(&request.contributions(rank, rank), &[Write::To(Operand::Output(0))], true);
    })
}

/// Rank r reduces chunk r out of all inputs in place.
fn direct_windows(request: &Request) -> Schedule {
    request.schedule(Chunking::PerRank(1), Chunking::Whole, |b| {
        let rank = b.rank();
        let peers = request.peers(rank);
        b.enter(&peers);
        b.transfer(&request.windows(rank, rank), &[Write::To(Operand::Output(0))], true);
        b.barrier(&peers);
    })
}

/// Chunk c starts at rank c + 1 and goes around, every rank adding its own, until it ends at rank
/// c.
fn ring(request: &Request) -> Schedule {
    request.rotational(Chunking::PerRank(1), Chunking::Whole, |b| {
        let output = [Write::To(Operand::Output(0))];
        request.world(b.rank()).reduce_scatter_ring(b, |place| place, &[], &output, true);
    })
}
