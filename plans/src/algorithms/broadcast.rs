//! Broadcast: the root's input is every rank's output. From the root to each, or from rank to rank
//! (Patarasuk, Faraj and Yuan, "Pipelined broadcast on Ethernet switched clusters", 2006; NCCL's
//! ring).

use super::{
    Algorithm, Entries, IN_SLOTS, IN_WINDOWS, Need, Orders, Request, entries, input_of, output_of,
};
use crate::collective::Kind::Broadcast;
use crate::schedule::{Chunking, Operand, Read, Schedule, Write};

pub(super) const ENTRIES: &[Entries] = &[
    entries(Broadcast, Algorithm::Direct, IN_SLOTS, true, Orders::All, direct),
    entries(Broadcast, Algorithm::Direct, IN_WINDOWS, true, Orders::All, direct_windows)
        .needs(&[Need::AtMost(259)])
        .writing_peers(),
    entries(Broadcast, Algorithm::DirectPull, IN_WINDOWS, true, Orders::All, direct_pull),
    entries(Broadcast, Algorithm::Chain, IN_SLOTS, true, Orders::All, chain),
];

/// The root sends to all.
fn direct(request: &Request) -> Schedule {
    let root = request.collective.root;
    request.schedule(Chunking::Whole, Chunking::Whole, |b| {
        if b.rank() != root {
            return b.recv_copy(request.link(root), Operand::Output(0));
        }
        b.send_all(Operand::Input(0), &request.links(&request.peers(root)));
        b.copy(Operand::Input(0), &[Operand::Output(0)]);
    })
}

/// All fetch from the root.
fn direct_pull(request: &Request) -> Schedule {
    let root = request.collective.root;
    request.schedule(Chunking::Whole, Chunking::Whole, |b| {
        let peers = if b.rank() == root { request.peers(root) } else { vec![root] };
        b.enter(&peers);
        let input = if b.rank() == root { Operand::Input(0) } else { input_of(root, 0) };
        b.copy(input, &[Operand::Output(0)]);
        b.barrier(&peers);
    })
}

/// All fetch from the root, but for the root's own chunk, which it writes to all, so that it works
/// as much as they do.
fn direct_windows(request: &Request) -> Schedule {
    let root = request.collective.root;
    request.schedule(Chunking::PerRank(1), Chunking::PerRank(1), |b| {
        let others = (0..request.ranks()).filter(|&chunk| chunk != root);
        if b.rank() != root {
            b.enter(&[root]);
            for chunk in others {
                b.copy(input_of(root, chunk), &[Operand::Output(chunk)]);
            }
            return b.barrier(&[root]);
        }
        let peers = request.peers(root);
        b.enter(&peers);
        let mut outputs = vec![Operand::Output(root)];
        outputs.extend(peers.iter().map(|&peer| output_of(peer, root)));
        b.copy(Operand::Input(root), &outputs);
        for chunk in others {
            b.copy(Operand::Input(chunk), &[Operand::Output(chunk)]);
        }
        b.barrier(&peers);
    })
}

/// The root sends to the rank behind it, which sends on to the next.
fn chain(request: &Request) -> Schedule {
    let (root, n) = (request.collective.root, request.ranks());
    request.schedule(Chunking::Whole, Chunking::Whole, |b| {
        let rank = b.rank();
        let next = (rank + 1) % n;
        let read = match rank == root {
            true => Read::Plain(Operand::Input(0)),
            false => Read::Recv(request.link((rank + n - 1) % n)),
        };
        let mut writes = vec![Write::To(Operand::Output(0))];
        writes.extend((next != root).then(|| Write::Send(request.link(next))));
        b.transfer(&[read], &writes, false);
    })
}
