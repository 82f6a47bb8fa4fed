//! Hierarchical all-gather: a rank sends its input along its rail; what comes along a rail is handed on inside of the node as it comes.

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
    request.schedule(Chunking::Whole, Chunking::PerRank, |b| {
        let place = Place::of(request, b.rank());
        let nodes = place.nodes();
        // Nodes in the order in which the ring brings their inputs.
        for step in 0..nodes {
            let from = (place.rail.me + nodes - step) % nodes;
            across(b, &place, from, step, inner, outer);
            inside(b, &place, from, inner);
        }
    })
}

/// One node's input on this rank's rail: from memory or from the rail, to the output, to the ranks of the node, and along the rail.
fn across(
    b: &mut RankBuilder,
    place: &Place,
    from: usize,
    step: usize,
    inner: Inner,
    outer: Outer,
) {
    let (node, rail) = (&place.node, &place.rail);
    let read = match (step, outer) {
        (0, _) => Read::Plain(Operand::Input(0)),
        (_, Outer::Ring) => Read::Recv(rail.previous()),
        _ => Read::Recv(rail.link(from)),
    };
    let mut writes = vec![Write::To(Operand::Output(place.rank(from, node.me)))];
    match outer {
        Outer::Ring if step + 1 < place.nodes() => writes.push(Write::Send(rail.next())),
        Outer::Ring => {}
        _ if step == 0 => writes.extend(rail.others().map(|to| Write::Send(rail.link(to)))),
        _ => {}
    }
    match inner {
        Inner::Direct => writes.extend(node.others().map(|to| Write::Send(node.link(to)))),
        Inner::Ring => writes.extend((node.len() > 1).then(|| Write::Send(node.next()))),
    }
    for (index, writes) in writes.chunks(FAN_OUT).enumerate() {
        let again = Read::Plain(Operand::Output(place.rank(from, node.me)));
        b.transfer(&[if index == 0 { read } else { again }], writes, false);
    }
}

/// Destinations of one instruction.
const FAN_OUT: usize = 128;

/// One node's inputs on the other rails, from the ranks of this node.
fn inside(b: &mut RankBuilder, place: &Place, from: usize, inner: Inner) {
    let node = &place.node;
    match inner {
        Inner::Direct => {
            for member in node.others() {
                b.recv_copy(node.link(member), Operand::Output(place.rank(from, member)));
            }
        }
        Inner::Ring => {
            for step in 1..node.len() {
                node.all_gather_step(b, step, |member| place.rank(from, member));
            }
        }
    }
}
