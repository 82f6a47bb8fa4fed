//! All-reduce: in one exchange and in two, directly (MSCCL++: Shah et al., arXiv 2504.09014, 2025;
//! the second is Rabenseifner's, "Optimization of collective reduction operations", 2004, without
//! its halving), around the ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
//! clusters of workstations", 2009), and as reduce-scatter and all-gather. By a switch that reduces
//! and multicasts: Klenk, Jiang, Thorson and Dennison, "An in-network architecture for accelerating
//! shared-memory multiprocessor collectives", ISCA 2020.

use super::{Algorithm, Entries, IN_SLOTS, IN_WINDOWS, Need, Orders, Request, entries, output_of};
use crate::collective::Kind::AllReduce;
use crate::schedule::{Buffer, Chunking, Members, Operand, Read, Schedule, Write};

pub(super) const ENTRIES: &[Entries] = &[
    entries(AllReduce, Algorithm::OneShot, IN_SLOTS, true, Orders::All, one_shot)
        .needs(&[Need::AtMost(256)]),
    entries(AllReduce, Algorithm::TwoShot, IN_SLOTS, true, Orders::All, two_shot)
        .needs(&[Need::AtMost(130)]),
    entries(AllReduce, Algorithm::TwoShot, IN_WINDOWS, true, Orders::All, two_shot_pull)
        .needs(&[Need::AtMost(256)]),
    entries(AllReduce, Algorithm::TwoShotPush, IN_WINDOWS, true, Orders::All, two_shot_push)
        .needs(&[Need::AtMost(130)])
        .writing_peers(),
    entries(AllReduce, Algorithm::Ring, IN_SLOTS, true, Orders::None, ring),
    entries(AllReduce, ALGORITHM, IN_SLOTS, true, Orders::All, direct_ring)
        .needs(&[Need::AtMost(256)]),
    entries(AllReduce, Algorithm::Nvls, IN_WINDOWS, true, Orders::None, nvls)
        .needs(&[Need::AtLeast(2), Need::AtMost(130)])
        .writing_peers(),
];

const ALGORITHM: Algorithm = Algorithm::ReduceScatterAllGather;

/// Every rank sends its whole input to every other and reduces all of them: one exchange, n - 1
/// times the bytes.
fn one_shot(request: &Request) -> Schedule {
    request.schedule(Chunking::Whole, Chunking::Whole, |b| {
        b.send_all(Operand::Input(0), &request.links(&request.peers(b.rank())));
        let inputs = request.contributions(b.rank(), 0);
        b.transfer(&inputs, &[Write::To(Operand::Output(0))], true);
    })
}

/// Rank r gets all contributions to chunk r, reduces them and sends the result to all: two
/// exchanges, 2 (n - 1) / n of the bytes.
fn two_shot(request: &Request) -> Schedule {
    request.schedule(Chunking::PerRank(1), Chunking::PerRank(1), |b| {
        let rank = b.rank();
        let peers = request.peers(rank);
        b.send_each(peers.iter().map(|&peer| (Operand::Input(peer), request.link(peer))));
        let mut writes = vec![Write::To(Operand::Output(rank))];
        writes.extend(peers.iter().map(|&peer| Write::Send(request.link(peer))));
        b.transfer(&request.contributions(rank, rank), &writes, true);
        b.recv_each(peers.iter().map(|&peer| (request.link(peer), Operand::Output(peer))));
    })
}

/// Rank r reduces chunk r out of all inputs in place; then every rank fetches the other chunks.
/// Reads cross, writes stay at home.
fn two_shot_pull(request: &Request) -> Schedule {
    request.schedule(Chunking::PerRank(1), Chunking::PerRank(1), |b| {
        let rank = b.rank();
        let peers = request.peers(rank);
        b.enter(&peers);
        b.transfer(&request.windows(rank, rank), &[Write::To(Operand::Output(rank))], true);
        b.barrier(&peers);
        for &peer in &peers {
            b.copy(output_of(peer, peer), &[Operand::Output(peer)]);
        }
        b.barrier(&peers);
    })
}

/// Rank r reduces chunk r out of all inputs and writes it to all outputs: each byte crosses memory
/// once, in one step.
fn two_shot_push(request: &Request) -> Schedule {
    request.schedule(Chunking::PerRank(1), Chunking::PerRank(1), |b| {
        let rank = b.rank();
        let peers = request.peers(rank);
        b.enter(&peers);
        let mut writes = vec![Write::To(Operand::Output(rank))];
        writes.extend(peers.iter().map(|&peer| Write::To(output_of(peer, rank))));
        b.transfer(&request.windows(rank, rank), &writes, true);
        b.barrier(&peers);
    })
}

/// As the push, but the switch between the ranks reads all inputs and writes all outputs: each byte
/// crosses a rank's links once each way.
fn nvls(request: &Request) -> Schedule {
    request.schedule(Chunking::PerRank(1), Chunking::PerRank(1), |b| {
        let (chunk, peers) = (b.rank(), request.peers(b.rank()));
        b.enter(&peers);
        let all = |buffer| Operand::Multicast { of: Members::All, buffer, chunk };
        b.transfer(&[Read::Raw(all(Buffer::Input))], &[Write::To(all(Buffer::Output))], true);
        b.barrier(&peers);
    })
}

/// The reduce-scatter ring, then the same ring once more to hand the results around.
fn ring(request: &Request) -> Schedule {
    request.rotational(Chunking::PerRank(1), Chunking::PerRank(1), |b| {
        let (team, part) = (request.world(b.rank()), |place| place);
        let output = Write::To(Operand::Output(b.rank()));
        if team.len() == 1 {
            return b.transfer(&[Read::Raw(Operand::Input(0))], &[output], true);
        }
        let writes = [output, Write::Send(team.next())];
        team.reduce_scatter_ring(b, part, &[], &writes, true);
        for step in 1..team.len() {
            team.all_gather_step(b, step, part);
        }
    })
}

/// The direct reduce-scatter, then the ring's all-gather.
fn direct_ring(request: &Request) -> Schedule {
    request.schedule(Chunking::PerRank(1), Chunking::PerRank(1), |b| {
        let (team, part) = (request.world(b.rank()), |place| place);
        let output = [Write::To(Operand::Output(b.rank()))];
        team.reduce_scatter_direct(b, part, &[], &output, true);
        team.all_gather_ring(b, part);
    })
}
