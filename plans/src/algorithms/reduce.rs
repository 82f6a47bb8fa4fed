//! Reduce: the reduction of all inputs is the root's output. By the root, by all for it in place
//! (Rabenseifner, "Optimization of collective reduction operations", 2004, without its halving), or
//! from rank to rank (NCCL's ring).

use super::{Algorithm, Entries, IN_SLOTS, IN_WINDOWS, Need, Orders, Request, entries, output_of};
use crate::collective::Kind::Reduce;
use crate::schedule::{Chunking, Operand, Read, Schedule, Write};

pub(super) const ENTRIES: &[Entries] = &[
    entries(Reduce, Algorithm::Direct, IN_SLOTS, true, Orders::All, direct)
        .needs(&[Need::AtMost(256)]),
    entries(Reduce, Algorithm::Direct, IN_WINDOWS, true, Orders::All, direct_windows)
        .needs(&[Need::AtMost(256)])
        .writing_peers(),
    entries(Reduce, Algorithm::DirectPull, IN_WINDOWS, true, Orders::All, direct_pull)
        .needs(&[Need::AtMost(256)]),
    entries(Reduce, Algorithm::Chain, IN_SLOTS, true, Orders::None, chain),
];

/// All send to the root.
fn direct(request: &Request) -> Schedule {
    let root = request.collective.root;
    request.schedule(Chunking::Whole, Chunking::Whole, |b| {
        if b.rank() != root {
            return b.send(Operand::Input(0), request.link(root));
        }
        b.transfer(&request.contributions(root, 0), &[Write::To(Operand::Output(0))], true);
    })
}

/// Rank r reduces chunk r out of all inputs and writes it to the root's output.
fn direct_windows(request: &Request) -> Schedule {
    let root = request.collective.root;
    request.schedule(Chunking::PerRank(1), Chunking::PerRank(1), |b| {
        let rank = b.rank();
        let peers = request.peers(rank);
        b.enter(&peers);
        let output = if rank == root { Operand::Output(rank) } else { output_of(root, rank) };
        b.transfer(&request.windows(rank, rank), &[Write::To(output)], true);
        b.barrier(&peers);
    })
}

/// The root reads all inputs.
fn direct_pull(request: &Request) -> Schedule {
    let root = request.collective.root;
    request.schedule(Chunking::Whole, Chunking::Whole, |b| {
        let peers = if b.rank() == root { request.peers(root) } else { vec![root] };
        b.enter(&peers);
        if b.rank() == root {
            b.transfer(&request.windows(root, 0), &[Write::To(Operand::Output(0))], true);
        }
        b.barrier(&peers);
    })
}

/// The rank behind the root sends to the next, which adds its own and sends on, until the root.
fn chain(request: &Request) -> Schedule {
    let (root, n) = (request.collective.root, request.ranks());
    request.schedule(Chunking::Whole, Chunking::Whole, |b| {
        let rank = b.rank();
        let own = Read::Raw(Operand::Input(0));
        if n == 1 {
            return b.transfer(&[own], &[Write::To(Operand::Output(0))], true);
        }
        let (next, previous) = (request.link((rank + 1) % n), request.link((rank + n - 1) % n));
        let position = (rank + n - root - 1) % n;
        if position == 0 {
            return b.send(Operand::Input(0), next);
        }
        let partial = if position == 1 { Read::RecvRaw(previous) } else { Read::Recv(previous) };
        let write = if rank == root { Write::To(Operand::Output(0)) } else { Write::Send(next) };
        b.transfer(&[partial, own], &[write], rank == root);
    })
}
