//! Recursive halving and doubling: reduce-scatter in which a rank exchanges half of its chunks with
//! one rank, then a quarter with another; all-gather the other way round; all-reduce as both
//! (Rabenseifner, "Optimization of collective reduction operations", 2004; Thakur, Rabenseifner and
//! Gropp 2005). log2 n messages each way, of all chunks that go the same way. For powers of two.
//!
//! Neighbours exchange first, so that partial results are those of the aligned tree. The all-reduce
//! keeps it: its output holds partial results, on the side where they belong. The reduce-scatter
//! cannot: its output is one chunk, and a peer's slot cannot be read, so partial results have no
//! place but the slots in which they come, and one instruction has to add up all that has come when
//! it is sent on. Rank 2 of 4 would need s1 + (own + s0), with what has come from the lower half
//! first; an instruction folds its list from the left, or as the aligned tree over it, and neither
//! is that. So it takes its own first, in no promised order.
//!
//! In windows the ranks of a pair read each other's chunks in place, after they have told each
//! other that these are there; nobody hears of more than log2 n others, while the two-shot's
//! barriers are between all. (The reduce-scatter's partial results would have no place.)

use super::packing::{Inbox, Outbox, by_bits};
use super::team::Held;
use super::{
    Algorithm, Entries, IN_SLOTS, IN_WINDOWS, Need, Orders, Request, entries, input_of, output_of,
};
use crate::collective::Kind::{AllGather, AllReduce, ReduceScatter};
use crate::schedule::{Chunking, Operand, RankBuilder, Read, Schedule, Tree, Write};

const ALGORITHM: Algorithm = Algorithm::HalvingDoubling;
const ALL_REDUCE: &[Need] = &[Need::PowerOfTwo];
const IN_PLACE: &[Need] = &[Need::PowerOfTwo, Need::AtLeast(2)];
const REDUCE_SCATTER: &[Need] = &[Need::PowerOfTwo, Need::Held];

pub(super) const ENTRIES: &[Entries] = &[
    entries(AllReduce, ALGORITHM, IN_SLOTS, true, Orders::Tree, all_reduce).needs(ALL_REDUCE),
    entries(ReduceScatter, ALGORITHM, IN_SLOTS, true, Orders::None, reduce_scatter)
        .needs(REDUCE_SCATTER),
    entries(AllReduce, ALGORITHM, IN_WINDOWS, true, Orders::Tree, all_reduce_windows)
        .needs(IN_PLACE),
    entries(AllGather, ALGORITHM, IN_WINDOWS, true, Orders::All, all_gather_windows)
        .needs(IN_PLACE),
    entries(AllGather, ALGORITHM, IN_SLOTS, true, Orders::All, all_gather).needs(ALL_REDUCE),
];

/// After step k a rank has the chunks whose lowest k + 1 bits are its own, reduced over the 2^(k +
/// 1) ranks of its block.
fn all_reduce(request: &Request) -> Schedule {
    let n = request.ranks();
    request.schedule(Chunking::PerRank(1), Chunking::PerRank(1), |b| {
        let (rank, steps) = (b.rank(), n.ilog2());
        if n == 1 {
            let output = Write::To(Operand::Output(0));
            return b.transfer(&[Read::Raw(Operand::Input(0))], &[output], true);
        }
        for step in 0..steps {
            let held = if step == 0 { Held::Raw } else { Held::Partial };
            reduce_step(b, request, step, held, step + 1 == steps);
        }
        for step in (0..steps).rev() {
            let peer = rank ^ (1 << step);
            hand_over(b, request, peer, low(n, rank, step), low(n, peer, step).collect());
        }
    })
}

/// One exchange of the all-reduce's first half.
fn reduce_step(b: &mut RankBuilder, request: &Request, step: u32, held: Held, finish: bool) {
    let rank = b.rank();
    let peer = rank ^ (1 << step);
    let n = request.ranks();
    let sent: Vec<Read> = low(n, peer, step).map(|c| Read::Plain(held.operand(c))).collect();
    let kept: Vec<usize> = low(n, rank, step).collect();
    b.exchange(request.link(peer), &sent, request.link(peer), kept.len(), |b, index, segment| {
        let theirs = if held == Held::Raw { Read::Raw(segment) } else { Read::Plain(segment) };
        let mut reads = [held.read(kept[index]), theirs];
        if peer < rank {
            reads.reverse();
        }
        b.transfer(&reads, &[Write::To(Operand::Output(kept[index]))], finish);
    });
}

/// Output chunks for output chunks.
fn hand_over(
    b: &mut RankBuilder,
    request: &Request,
    peer: usize,
    given: impl Iterator<Item = usize>,
    taken: Vec<usize>,
) {
    let sent: Vec<Read> = given.map(|chunk| Read::Plain(Operand::Output(chunk))).collect();
    let link = request.link(peer);
    b.exchange(link, &sent, link, taken.len(), |b, index, segment| {
        b.copy(segment, &[Operand::Output(taken[index])]);
    });
}

/// After step k a rank has the inputs of its aligned block of 2^(k + 1) ranks.
fn all_gather(request: &Request) -> Schedule {
    request.schedule(Chunking::Whole, Chunking::PerRank(1), |b| {
        let rank = b.rank();
        b.copy(Operand::Input(0), &[Operand::Output(rank)]);
        for step in 0..request.ranks().ilog2() {
            let peer = rank ^ (1 << step);
            hand_over(b, request, peer, block(rank, step), block(peer, step).collect());
        }
    })
}

/// As [`all_reduce`]. What a rank reads of a peer in a step of the first half, that peer overwrites
/// in the same step of the second, with what it then reads of this rank: so each pair's barrier
/// also says that the chunks have been read.
fn all_reduce_windows(request: &Request) -> Schedule {
    let n = request.ranks();
    request.schedule(Chunking::PerRank(1), Chunking::PerRank(1), |b| {
        let rank = b.rank();
        let peers = partners(n, rank);
        b.enter(&peers);
        for (step, &peer) in (0..).zip(&peers) {
            if step > 0 {
                b.barrier(&[peer]);
            }
            for chunk in low(n, rank, step) {
                let mut reads = match step {
                    0 => [Held::Raw.read(chunk), Read::Raw(input_of(peer, chunk))],
                    _ => [Held::Partial.read(chunk), Read::Plain(output_of(peer, chunk))],
                };
                if peer < rank {
                    reads.reverse();
                }
                let last = step + 1 == n.ilog2();
                b.transfer(&reads, &[Write::To(Operand::Output(chunk))], last);
            }
        }
        for (step, &peer) in (0..n.ilog2()).zip(&peers).rev() {
            b.barrier(&[peer]);
            for chunk in low(n, peer, step) {
                b.copy(output_of(peer, chunk), &[Operand::Output(chunk)]);
            }
        }
        b.barrier(&peers);
    })
}

/// As [`all_gather`]; a peer's own part is read where it lies, in its input.
fn all_gather_windows(request: &Request) -> Schedule {
    request.schedule(Chunking::Whole, Chunking::PerRank(1), |b| {
        let rank = b.rank();
        let peers = partners(request.ranks(), rank);
        b.enter(&peers);
        b.copy(Operand::Input(0), &[Operand::Output(rank)]);
        for (step, &peer) in (0..).zip(&peers) {
            if step == 0 {
                b.copy(input_of(peer, 0), &[Operand::Output(peer)]);
                continue;
            }
            b.barrier(&[peer]);
            for chunk in block(peer, step) {
                b.copy(output_of(peer, chunk), &[Operand::Output(chunk)]);
            }
        }
        b.barrier(&peers);
    })
}

/// The chunks whose lowest step + 1 bits are the rank's, from its own on: in the same order for
/// all, relative to their own rank.
fn low(n: usize, rank: usize, step: u32) -> impl Iterator<Item = usize> {
    (0..n >> (step + 1)).map(move |high| rank ^ (high << (step + 1)))
}

/// The chunks of the aligned block of 2^step ranks, from the rank's own on.
fn block(rank: usize, step: u32) -> impl Iterator<Item = usize> {
    (0..1 << step).map(move |low| rank ^ low)
}

/// With whom a rank exchanges, step by step.
fn partners(n: usize, rank: usize) -> Vec<usize> {
    (0..n.ilog2()).map(|step| rank ^ (1 << step)).collect()
}

/// As in the all-reduce, a rank keeps the chunks that share its lowest bits. What came for them
/// waits in its slot.
fn reduce_scatter(request: &Request) -> Schedule {
    let n = request.ranks();
    request.schedule(Chunking::PerRank(1), Chunking::Whole, |b| {
        let (rank, steps) = (b.rank(), n.ilog2());
        let mut inboxes = Vec::new();
        for step in 0..steps {
            let peer = rank ^ (1 << step);
            let chunks = kept(n, peer, step);
            let mut outbox = Outbox::new(request.link(peer), chunks.len());
            for &chunk in &chunks {
                let write = Write::To(outbox.segment(b));
                add_up(b, &mut inboxes, chunk, write, false);
                outbox.settle(b);
            }
            inboxes.push(Inbox::new(request.link(peer), chunks.len()));
        }
        add_up(b, &mut inboxes, rank, Write::To(Operand::Output(0)), true);
    })
}

/// The chunks that a rank keeps in a step, in the order in which it needs them.
fn kept(n: usize, rank: usize, step: u32) -> Vec<usize> {
    let mut kept: Vec<usize> =
        (0..n).filter(|chunk| (chunk ^ rank) & ((2 << step) - 1) == 0).collect();
    kept.sort_by_cached_key(|chunk| by_bits(chunk ^ rank, n.ilog2()));
    kept
}

/// The own contribution to a chunk and what has come for it. The first message is one rank's own.
fn add_up(b: &mut RankBuilder, inboxes: &mut [Inbox], chunk: usize, write: Write, finish: bool) {
    if inboxes.is_empty() && !finish {
        return b.transfer(&[Read::Plain(Operand::Input(chunk))], &[write], false);
    }
    let mut reads = vec![Read::Raw(Operand::Input(chunk))];
    for (step, inbox) in inboxes.iter_mut().enumerate() {
        let segment = inbox.segment(b);
        reads.push(if step == 0 { Read::Raw(segment) } else { Read::Plain(segment) });
    }
    b.transfer_as(Tree::Left, &reads, &[write], finish);
    for inbox in inboxes {
        inbox.settle(b);
    }
}
