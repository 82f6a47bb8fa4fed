//! All-gather: every rank's input, by rank, is every rank's output. Directly, or around the ring
//! (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
//! 2009; NCCL's ring).

use super::spread::spread;
use super::{
    Algorithm, Entries, IN_SLOTS, IN_WINDOWS, Orders, Request, entries, input_of, output_of,
};
use crate::collective::Kind::AllGather;
use crate::schedule::{Chunking, Operand, Read, Schedule, Write};

pub(super) const ENTRIES: &[Entries] = &[
    entries(AllGather, Algorithm::Direct, IN_SLOTS, true, Orders::All, direct),
    entries(AllGather, Algorithm::Direct, IN_WINDOWS, true, Orders::All, direct_windows),
    entries(AllGather, Algorithm::DirectPush, IN_WINDOWS, true, Orders::All, direct_push)
        .writing_peers(),
    entries(AllGather, Algorithm::Ring, IN_SLOTS, true, Orders::All, ring),
];

/// Every rank sends its input to every other.
fn direct(request: &Request) -> Schedule {
    request.rotational(Chunking::Whole, Chunking::PerRank(1), |b| {
        let peers = request.peers(b.rank());
        b.send_all(Operand::Input(0), &request.links(&peers));
        b.copy(Operand::Input(0), &[Operand::Output(b.rank())]);
        b.recv_each(peers.iter().map(|&peer| (request.link(peer), Operand::Output(peer))));
    })
}

/// Every rank fetches every other's input.
fn direct_windows(request: &Request) -> Schedule {
    request.rotational(Chunking::Whole, Chunking::PerRank(1), |b| {
        let peers = request.peers(b.rank());
        b.enter(&peers);
        b.copy(Operand::Input(0), &[Operand::Output(b.rank())]);
        for &peer in &peers {
            b.copy(input_of(peer, 0), &[Operand::Output(peer)]);
        }
        b.barrier(&peers);
    })
}

/// Every rank writes its input into all outputs: memory is read once, and not n times.
fn direct_push(request: &Request) -> Schedule {
    request.rotational(Chunking::Whole, Chunking::PerRank(1), |b| {
        let rank = b.rank();
        let peers = request.peers(rank);
        let outputs: Vec<Write> =
            peers.iter().map(|&peer| Write::To(output_of(peer, rank))).collect();
        b.enter(&peers);
        spread(b, 1, Operand::Output(rank), &outputs, |b, writes| {
            b.transfer(&[Read::Plain(Operand::Input(0))], writes, false);
        });
        b.barrier(&peers);
    })
}

/// Every rank hands on what it has got, n - 1 times.
fn ring(request: &Request) -> Schedule {
    request.rotational(Chunking::Whole, Chunking::PerRank(1), |b| {
        let (rank, n) = (b.rank(), request.ranks());
        let (next, previous) = (request.link((rank + 1) % n), request.link((rank + n - 1) % n));
        let mut writes = vec![Write::To(Operand::Output(rank))];
        writes.extend((n > 1).then_some(Write::Send(next)));
        b.transfer(&[Read::Plain(Operand::Input(0))], &writes, false);
        for step in 1..n {
            let chunk = Operand::Output((rank + n - step) % n);
            if step + 1 < n {
                b.recv_copy_send(previous, chunk, next);
            } else {
                b.recv_copy(previous, chunk);
            }
        }
    })
}
