//! Hierarchical reduce: each node reduces a chunk at each of its ranks; along each rail a chunk
//! goes from node to node, each of which adds its part, until the root's node hands all chunks to
//! the root. So every byte crosses out of a node once, over all adapters at once (BlueConnect, Cho
//! et al. 2019, with the chain of NCCL's reduce between nodes).

use super::{Inner, Place, Request};
use crate::schedule::{Chunking, Operand, Read, Schedule, Write};

pub(super) fn direct_ring(request: &Request) -> Schedule {
    hierarchical(request, Inner::Direct)
}

pub(super) fn ring_ring(request: &Request) -> Schedule {
    hierarchical(request, Inner::Ring)
}

fn hierarchical(request: &Request, inner: Inner) -> Schedule {
    let local = request.placement.ranks_per_node();
    let root = request.collective.root;
    request.schedule(Chunking::Parts(local), Chunking::Parts(local), |b| {
        let place = Place::of(request, b.rank());
        let (node, rail) = (&place.node, &place.rail);
        let (root_node, root_place) = (root / local, root % local);
        // The node behind the root's begins.
        let is_last = rail.me == root_node;
        let is_first = (root_node + 1) % rail.len() == rail.me;
        let also = (!is_first).then(|| Read::Recv(rail.previous()));
        let write = match is_last {
            false => Write::Send(rail.next()),
            true if b.rank() == root => Write::To(Operand::Output(node.me)),
            true => Write::Send(node.link(root_place)),
        };
        place.reduce_inside(b, inner, |member| member, also.as_slice(), &[write], is_last);
        if b.rank() == root {
            for member in node.others() {
                b.recv_copy(node.link(member), Operand::Output(member));
            }
        }
    })
}
