//! Hierarchical reduce-scatter: each node reduces all chunks, those of a rail at the rail's rank.
//! Directly, that rank sends each to its node, where what has come from all nodes is reduced; the
//! own node's part waits in the output, or in the inputs where ranks of a node use each other's
//! buffers in place. Around the ring of nodes, a chunk starts behind its node, and each adds its
//! part to what comes. In both a chunk crosses while the next is reduced inside.

use super::super::spread::spread;
use super::{Inner, Outer, Place, Request};
use crate::schedule::{Chunking, Incoming, Operand, RankBuilder, Read, Schedule, Write};

pub(super) fn direct_direct(request: &Request) -> Schedule {
    hierarchical(request, Inner::Direct, Outer::Direct)
}

pub(super) fn direct_ring(request: &Request) -> Schedule {
    hierarchical(request, Inner::Direct, Outer::Ring)
}

pub(super) fn ring_direct(request: &Request) -> Schedule {
    hierarchical(request, Inner::Ring, Outer::Direct)
}

pub(super) fn ring_ring(request: &Request) -> Schedule {
    hierarchical(request, Inner::Ring, Outer::Ring)
}

fn hierarchical(request: &Request, inner: Inner, outer: Outer) -> Schedule {
    let part = |b: &mut RankBuilder| {
        let place = Place::of(request, b.rank());
        place.enter(b);
        cross(b, &place, inner, outer);
        finish(b, &place, inner, outer, (Operand::Output(0), true), &[]);
        place.leave(b);
    };
    let (input, output) = (Chunking::PerRank(1), Chunking::Whole);
    match outer {
        Outer::Ring => request.rotational_by_node(input, output, part),
        // What comes from all nodes is reduced in the nodes' order, which does not turn with them.
        _ => request.schedule(input, output, part),
    }
}

/// The first half: what is to be reduced at other nodes leaves for them.
pub(super) fn cross(b: &mut RankBuilder, place: &Place, inner: Inner, outer: Outer) {
    let rail = &place.rail;
    if outer != Outer::Ring {
        for to in rail.others() {
            let send = [Write::Send(rail.link(to))];
            place.reduce_inside(b, inner, |member| place.chunk(to, member), &[], &send, false);
        }
        return;
    }
    for step in 0..place.nodes() - 1 {
        let to = (rail.me + place.nodes() - 1 - step) % place.nodes();
        let also = (step > 0).then(|| Read::Recv(rail.previous()));
        let next = [Write::Send(rail.next())];
        place.reduce_inside(
            b,
            inner,
            |member| place.chunk(to, member),
            also.as_slice(),
            &next,
            false,
        );
    }
}

/// The second: every rank's chunk, reduced, becomes that rank's: this one's goes to an output, and
/// to peers; it is final, or others have more to add.
pub(super) fn finish(
    b: &mut RankBuilder,
    place: &Place,
    inner: Inner,
    outer: Outer,
    (output, is_final): (Operand, bool),
    sends: &[Write],
) {
    let rail = &place.rail;
    let chunk = |member| place.chunk(rail.me, member);
    if outer == Outer::Ring {
        let also = (place.nodes() > 1).then(|| Read::Recv(rail.previous()));
        return spread(b, place.local() + 1, output, sends, |b, writes| {
            place.reduce_inside(b, inner, chunk, also.as_slice(), writes, is_final);
        });
    }
    if !place.reads_inputs(inner) {
        place.reduce_inside(b, inner, chunk, &[], &[Write::To(output)], false);
    }
    // Awaited and given back in the same order by all, relative to their own rank.
    let mut messages: Vec<Incoming> =
        rail.others().map(|from| b.open_incoming(rail.link(from))).collect();
    let segments = messages.iter_mut().map(Incoming::segment);
    let mut partials: Vec<Read> = segments.map(Read::Plain).collect();
    if place.reads_inputs(inner) {
        // Nobody waits for this node's part, which need not be stored before it is added.
        partials.splice(..0, place.inputs(place.own_chunk()));
    } else {
        // In the nodes' order.
        partials.insert(0, Read::Plain(output));
        partials.rotate_right(rail.me);
    }
    spread(b, partials.len(), output, sends, |b, writes| {
        b.transfer(&partials, writes, is_final);
        messages.into_iter().for_each(|message| b.close_incoming(message));
    });
}
