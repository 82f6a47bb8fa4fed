//! Hierarchical all-gather: a rank sends its input along its rail; what comes along a rail is
//! handed on inside of the node as it comes.

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
    request.rotational_by_node(Chunking::Whole, Chunking::PerRank(1), |b| {
        let place = Place::of(request, b.rank());
        place.enter(b);
        let input = [Read::Plain(Operand::Input(0))];
        let output = Operand::Output(b.rank());
        let sends = tell(&place, inner, outer);
        spread(b, 1, output, &sends, |b, writes| {
            b.transfer(&input, writes, false);
        });
        gather(b, &place, inner, outer);
        place.leave(b);
    })
}

/// To whom a rank tells its chunk so that [`gather`] can follow: along the rail first, since it is
/// further.
pub(super) fn tell(place: &Place, inner: Inner, outer: Outer) -> Vec<Write> {
    [place.tell_across(outer), place.tell_inside(inner, place.own_chunk())].concat()
}

/// Every rank's chunk of its output becomes everybody's; this rank's has been told.
pub(super) fn gather(b: &mut RankBuilder, place: &Place, inner: Inner, outer: Outer) {
    let (rail, nodes) = (&place.rail, place.nodes());
    place.gather_inside(b, inner, |member| place.chunk(rail.me, member));
    // Nodes in the order in which the ring brings their chunks.
    for step in 1..nodes {
        let from = (rail.me + nodes - step) % nodes;
        let chunk = place.chunk(from, place.node.me);
        let mut sends = place.tell_inside(inner, chunk);
        let read = match outer {
            Outer::Ring => Read::Recv(rail.previous()),
            _ => Read::Recv(rail.link(from)),
        };
        if outer == Outer::Ring && step + 1 < nodes {
            sends.insert(0, Write::Send(rail.next()));
        }
        let output = Operand::Output(chunk);
        spread(b, 1, output, &sends, |b, writes| b.transfer(&[read], writes, false));
        place.gather_inside(b, inner, |member| place.chunk(from, member));
    }
}
