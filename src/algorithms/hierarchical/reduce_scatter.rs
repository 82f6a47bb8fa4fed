//! Hierarchical reduce-scatter: each node reduces all chunks, those of a rail at the rail's rank. Directly, that rank sends each to its
//! node, where what has come from all nodes is reduced; the own node's part waits in the output. Around the ring of nodes, a chunk starts
//! behind its node, and each adds its part to what comes. In both a chunk crosses while the next is reduced inside.

use super::super::spread::spread;
use super::{Inner, Outer, Place, Request};
use crate::schedule::{Chunking, Operand, RankBuilder, Read, Schedule, Write};

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
    request.schedule(Chunking::PerRank, Chunking::Whole, |b| {
        let place = Place::of(request, b.rank());
        scatter(b, &place, inner, outer, Operand::Output(0), &[]);
    })
}

/// Every rank's chunk, reduced, becomes that rank's: this one's goes to `output`, and to peers.
pub(super) fn scatter(
    b: &mut RankBuilder,
    place: &Place,
    inner: Inner,
    outer: Outer,
    output: Operand,
    sends: &[Write],
) {
    match outer {
        Outer::Ring => around(b, place, inner, output, sends),
        _ => directly(b, place, inner, output, sends),
    }
}

fn around(b: &mut RankBuilder, place: &Place, inner: Inner, output: Operand, sends: &[Write]) {
    let (rail, nodes) = (&place.rail, place.nodes());
    for step in 0..nodes {
        let to = (rail.me + nodes - 1 - step) % nodes;
        let also = (step > 0).then(|| Read::Recv(rail.previous()));
        let chunk = |member| place.rank(to, member);
        if step + 1 < nodes {
            let next = [Write::Send(rail.next())];
            place.reduce_inside(b, inner, chunk, also, &next, false);
        } else {
            spread(b, place.local() + 1, output, sends, |b, writes| {
                place.reduce_inside(b, inner, chunk, also, writes, true);
            });
        }
    }
}

fn directly(b: &mut RankBuilder, place: &Place, inner: Inner, output: Operand, sends: &[Write]) {
    let rail = &place.rail;
    // Other nodes' chunks first: they have further to go.
    for to in rail.others().chain([rail.me]) {
        let write = if to == rail.me { Write::To(output) } else { Write::Send(rail.link(to)) };
        let chunk = |member| place.rank(to, member);
        place.reduce_inside(b, inner, chunk, None, &[write], false);
    }
    let partials = (0..rail.len()).map(|from| match from == rail.me {
        true => Read::Plain(output),
        false => Read::Recv(rail.link(from)),
    });
    let partials: Vec<Read> = partials.collect();
    spread(b, partials.len(), output, sends, |b, writes| b.transfer(&partials, writes, true));
}
