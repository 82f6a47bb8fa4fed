//! Hierarchical all-reduce, in two ways. What crosses between nodes is never waited for at once:
//! something else is reduced or handed around inside meanwhile.
//!
//! Directly or around the ring of nodes it is the reduce-scatter and the all-gather of this folder,
//! joined: one instruction finishes a chunk and sends it on, along the rail and inside. Each node
//! finishes a part of the buffer, and the others' parts cross while it is reduced. In windows the
//! buffer has two slices, of which one crosses while the other is reduced.
//!
//! By doubling or along trees of nodes a rank's chunk is reduced at all nodes of its rail:
//! reduce-scatter inside, all-reduce on the rail, all-gather inside. The buffer has two slices, of
//! which one crosses while the other is handled inside.
//!
//! Of nodes that differ the smallest says how many chunks there are. As many ranks of each node own
//! one, and the others only give their input and take the result.
//!
//! Where the fabric's switches reduce, a rank gives them its chunk, and gets that of its rail: each
//! byte crosses its adapter once in each direction. (InfiniBand's SHARP, Graham et al. 2016; NCCL's
//! CollNet.) With chains inside, each chunk has one that ends at its rank, and what the switches
//! have made of it comes back along that: both directions of a link are used (CollNetChain).
//!
//! Where a switch joins the ranks of a node, it reduces a chunk out of all their inputs, and writes
//! the result into all their outputs: with trees between nodes that is NVLSTree of NCCL 2.18. A
//! chunk that is still to cross waits in this rank's output, which nobody else uses until then.

use super::super::doubling::Doubling;
use super::super::spread::{spread, tell};
use super::super::team::Held;
use super::super::tree;
use super::{Encoding, Inner, Outer, Place, Request, all_gather, reduce_scatter};
use crate::schedule::{Chunking, Operand, Rail, RankBuilder, Read, Schedule, Write};

/// Slices that are on their way at once.
const SLICES: usize = 2;

pub(super) fn direct_direct(request: &Request) -> Schedule {
    joined(request, Inner::Direct, Outer::Direct)
}

pub(super) fn direct_ring(request: &Request) -> Schedule {
    joined(request, Inner::Direct, Outer::Ring)
}

pub(super) fn direct_doubling(request: &Request) -> Schedule {
    doubling(request, Inner::Direct)
}

pub(super) fn direct_tree(request: &Request) -> Schedule {
    trees(request, Inner::Direct)
}

pub(super) fn nvls_direct(request: &Request) -> Schedule {
    joined(request, Inner::Nvls, Outer::Direct)
}

pub(super) fn nvls_ring(request: &Request) -> Schedule {
    joined(request, Inner::Nvls, Outer::Ring)
}

pub(super) fn nvls_doubling(request: &Request) -> Schedule {
    doubling(request, Inner::Nvls)
}

pub(super) fn nvls_tree(request: &Request) -> Schedule {
    trees(request, Inner::Nvls)
}

pub(super) fn direct_collnet(request: &Request) -> Schedule {
    collnet(request, Inner::Direct)
}

pub(super) fn ring_collnet(request: &Request) -> Schedule {
    collnet(request, Inner::Ring)
}

pub(super) fn chain_collnet(request: &Request) -> Schedule {
    collnet(request, Inner::Chain)
}

pub(super) fn nvls_collnet(request: &Request) -> Schedule {
    collnet(request, Inner::Nvls)
}

pub(super) fn ring_direct(request: &Request) -> Schedule {
    joined(request, Inner::Ring, Outer::Direct)
}

pub(super) fn ring_ring(request: &Request) -> Schedule {
    joined(request, Inner::Ring, Outer::Ring)
}

pub(super) fn ring_doubling(request: &Request) -> Schedule {
    doubling(request, Inner::Ring)
}

pub(super) fn ring_tree(request: &Request) -> Schedule {
    trees(request, Inner::Ring)
}

fn joined(request: &Request, inner: Inner, outer: Outer) -> Schedule {
    let slices = if outer == Outer::Direct { slices_in_place(request) } else { 1 };
    let chunking = match slices {
        1 => Chunking::PerRank(1),
        _ => Chunking::Parts(slices * request.ranks()),
    };
    let part = |b: &mut RankBuilder| {
        let place = Place::of(request, b.rank());
        let slices: Vec<Place> = (0..slices).map(|slice| place.slice(slice)).collect();
        place.enter(b);
        for slice in &slices {
            reduce_scatter::cross(b, slice, inner, outer);
        }
        for slice in &slices {
            let sends = all_gather::tell(slice, inner, outer);
            let output = Operand::Output(slice.own_chunk());
            reduce_scatter::finish(b, slice, inner, outer, (output, true), &sends);
        }
        for slice in &slices {
            all_gather::gather(b, slice, inner, outer);
        }
        place.leave(b);
    };
    match outer {
        Outer::Ring => request.rotational_by_node(chunking, chunking, part),
        // What comes from all nodes is reduced in the nodes' order, which does not turn with them.
        _ => request.schedule(chunking, chunking, part),
    }
}

/// In windows the ranks of a node wait for each other in every round: two slices make a round
/// longer, and keep the links busy.
pub(super) fn slices_in_place(request: &Request) -> usize {
    // A slice has two messages a round on each link, and its second is sent before the peer has
    // given back any of this round.
    let room = request.slots.slots as usize / 2;
    match request.encoding {
        Encoding::Windows => request.pipelined(SLICES).min(room).max(1),
        _ => 1,
    }
}

/// The slices take each step of the rail in turn.
fn doubling(request: &Request, inner: Inner) -> Schedule {
    // All slices' first messages are sent before the peer gives back any.
    let room = request.slots.on(request.encoding.lane()) as usize;
    let (local, slices) = (Place::owners(request), request.pipelined(SLICES).min(room));
    let chunking = Chunking::Parts(slices * local);
    request.schedule(chunking, chunking, |b| {
        let place = Place::of(request, b.rank());
        if !place.owns() {
            let chunks = |slice: usize, member: usize| vec![slice * local + member];
            return give_and_take(b, &place, (slices, slices), chunks);
        }
        let doubling = Doubling::of(&place.rail);
        let chunk = |slice: usize| move |member: usize| slice * local + member;
        place.enter(b);
        for slice in 0..slices {
            let chunk = chunk(slice);
            let output = Operand::Output(chunk(place.node.me));
            spread(b, local, output, &doubling.sends(0), |b, writes| {
                place.reduce_inside(b, inner, chunk, &[], writes, false);
            });
        }
        for level in 0..doubling.levels() {
            let last = level + 1 == doubling.levels();
            for slice in 0..slices {
                let chunk = chunk(slice);
                let own = chunk(place.node.me);
                let sends = match last {
                    true => place.tell_inside(inner, own),
                    false => doubling.sends(level + 1),
                };
                doubling.combine(b, level, own, Held::Partial, &sends);
                if last {
                    place.gather_inside(b, inner, chunk);
                }
            }
        }
        place.leave(b);
    })
}

/// A slice is reduced inside while the one before is on the trees, and so on. Each tree has half of
/// it.
fn trees(request: &Request, inner: Inner) -> Schedule {
    const TREES: usize = 2;
    let (local, slices) = (Place::owners(request), request.pipelined(SLICES));
    let chunking = Chunking::Parts(slices * local * TREES);
    let chunk = |slice: usize, member: usize, tree| (slice * local + member) * TREES + tree;
    request.schedule(chunking, chunking, |b| {
        let place = Place::of(request, b.rank());
        if !place.owns() {
            return give_and_take(b, &place, (slices, 2), |slice, member| {
                (0..TREES).map(|tree| chunk(slice, member, tree)).collect()
            });
        }
        let me = place.node.me;
        place.enter(b);
        for time in 0..slices + 2 {
            let slice = |stage: usize| time.checked_sub(stage).filter(|slice| *slice < slices);
            for (slice, tree) in both(slice(0)) {
                let output = [Write::To(Operand::Output(chunk(slice, me, tree)))];
                let part = |member| chunk(slice, member, tree);
                place.reduce_inside(b, inner, part, &[], &output, false);
            }
            if let Some(slice) = slice(1) {
                let chunks = [0, 1].map(|tree| chunk(slice, me, tree));
                tree::double_tree(b, &place.rail, chunks, 1, Held::Partial);
            }
            for (slice, tree) in both(slice(2)) {
                let own = chunk(slice, me, tree);
                tell(b, Operand::Output(own), &place.tell_inside(inner, own));
                place.gather_inside(b, inner, |member| chunk(slice, member, tree));
            }
        }
        place.leave(b);
    })
}

/// What a rank does that owns none of the chunks which its node's owners have of each slice: so
/// many slices behind what it gives, it takes what has become of them.
fn give_and_take(
    b: &mut RankBuilder,
    place: &Place,
    (slices, behind): (usize, usize),
    chunks: impl Fn(usize, usize) -> Vec<usize>,
) {
    place.enter(b);
    for time in 0..slices + behind {
        if time < slices {
            for at in 0..chunks(time, 0).len() {
                let part = |member| chunks(time, member)[at];
                place.reduce_inside(b, Inner::Direct, part, &[], &[], false);
            }
        }
        if let Some(slice) = time.checked_sub(behind) {
            for at in 0..chunks(slice, 0).len() {
                place.gather_inside(b, Inner::Direct, |member| chunks(slice, member)[at]);
            }
        }
    }
    place.leave(b);
}

/// One slice is in the switches while the next is reduced inside.
fn collnet(request: &Request, inner: Inner) -> Schedule {
    let (local, slices) = (request.placement.ranks_per_node(), SLICES);
    let rail = Rail(local);
    let chunking = Chunking::Parts(slices * local);
    let part = |b: &mut RankBuilder| {
        let place = Place::of(request, b.rank());
        let chunk = |slice: usize| move |member: usize| slice * local + member;
        place.enter(b);
        for slice in 0..slices {
            let contribution = [Write::To(b.contribution(rail))];
            place.reduce_inside(b, inner, chunk(slice), &[], &contribution, false);
        }
        for slice in 0..slices {
            let own = chunk(slice)(place.node.me);
            let reduced = [Read::Plain(b.reduced(rail))];
            let sends = place.tell_inside(inner, own);
            spread(b, 1, Operand::Output(own), &sends, |b, writes| {
                b.transfer(&reduced, writes, true);
            });
            place.gather_inside(b, inner, chunk(slice));
        }
        place.leave(b);
    };
    // Nodes are alike, but for chunks that might be taken for one of each rank.
    match slices.is_multiple_of(request.ranks() / local) {
        true => request.schedule(chunking, chunking, part),
        false => request.rotational_by_node(chunking, chunking, part),
    }
}

/// A slice's halves.
fn both(slice: Option<usize>) -> impl Iterator<Item = (usize, usize)> {
    slice.into_iter().flat_map(|slice| [(slice, 0), (slice, 1)])
}
