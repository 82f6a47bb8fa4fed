//! The pipelined chain: rank 0 sends to rank 1, which adds its own and sends on; the result comes
//! back the same way. The left fold by rank, at the full bandwidth of every link in both
//! directions, once enough chunks are on their way (for broadcasts: Patarasuk, Faraj and Yuan,
//! "Pipelined broadcast on Ethernet switched clusters", 2006).

use super::{Algorithm, Entries, IN_SLOTS, Orders, Request, entries};
use crate::collective::Kind::AllReduce;
use crate::schedule::{Chunking, Operand, RankBuilder, Read, Schedule, Write};

pub(super) const ENTRIES: &[Entries] =
    &[entries(AllReduce, Algorithm::Chain, IN_SLOTS, true, Orders::Rank, chain)];

/// Chunks that are on their way at once.
const PIPELINE: usize = 8;

/// Chunk c passes rank r at time c + r, and comes back at time c + 2 (n - 1) - r.
fn chain(request: &Request) -> Schedule {
    let (n, parts) = (request.ranks(), request.pipelined(PIPELINE));
    request.schedule(Chunking::Parts(parts), Chunking::Parts(parts), |b| {
        let between = 2 * (n - 1 - b.rank());
        for time in 0..parts + between {
            if time < parts {
                up(b, request, time);
            }
            if between > 0 && time >= between {
                down(b, request, time - between);
            }
        }
    })
}

fn up(b: &mut RankBuilder, request: &Request, chunk: usize) {
    let (rank, n) = (b.rank(), request.ranks());
    let mut reads = vec![Read::Raw(Operand::Input(chunk))];
    match rank {
        0 => {}
        1 => reads.insert(0, Read::RecvRaw(request.link(0))),
        _ => reads.insert(0, Read::Recv(request.link(rank - 1))),
    }
    if rank + 1 == n {
        return b.transfer(&reads, &results(request, rank, chunk), true);
    }
    let next = request.link(rank + 1);
    match rank {
        0 => b.send(Operand::Input(chunk), next),
        _ => b.transfer(&reads, &[Write::Send(next)], false),
    }
}

fn down(b: &mut RankBuilder, request: &Request, chunk: usize) {
    let rank = b.rank();
    let next = request.link(rank + 1);
    b.transfer(&[Read::Recv(next)], &results(request, rank, chunk), false);
}

fn results(request: &Request, rank: usize, chunk: usize) -> Vec<Write> {
    let output = Write::To(Operand::Output(chunk));
    let back = (rank > 0).then(|| Write::Send(request.link(rank - 1)));
    [output].into_iter().chain(back).collect()
}
