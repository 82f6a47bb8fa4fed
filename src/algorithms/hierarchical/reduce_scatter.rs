//! Hierarchical reduce-scatter: each node reduces all chunks, those of a rail at the rail's rank, which sends each to its node; there, what
//! has come from all nodes is reduced. The own chunk's partial result waits in the output.

use super::super::team::Held;
use super::{Inner, Place, Request};
use crate::schedule::{Chunking, Operand, Read, Schedule, Write};

pub(super) fn direct(request: &Request) -> Schedule {
    hierarchical(request, Inner::Direct)
}

pub(super) fn ring(request: &Request) -> Schedule {
    hierarchical(request, Inner::Ring)
}

fn hierarchical(request: &Request, inner: Inner) -> Schedule {
    request.schedule(Chunking::PerRank, Chunking::Whole, |b| {
        let place = Place::of(request, b.rank());
        let (node, rail) = (&place.node, &place.rail);
        // Other nodes' chunks first: they have further to go.
        for to in rail.others().chain([rail.me]) {
            let own = [Write::To(Operand::Output(0))];
            let sent = [Write::Send(rail.link(to))];
            let writes = if to == rail.me { &own } else { &sent };
            let chunk = |member| place.rank(to, member);
            match inner {
                Inner::Direct => node.reduce_scatter_direct(b, chunk, Held::Raw, writes, false),
                Inner::Ring => node.reduce_scatter_ring(b, chunk, Held::Raw, writes, false),
            }
        }
        let partials = (0..rail.len()).map(|from| match from == rail.me {
            true => Read::Plain(Operand::Output(0)),
            false => Read::Recv(rail.link(from)),
        });
        let partials: Vec<Read> = partials.collect();
        b.transfer(&partials, &[Write::To(Operand::Output(0))], true);
    })
}
