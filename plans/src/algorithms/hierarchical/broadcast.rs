//! Hierarchical broadcast: the root deals its buffer to the ranks of its node, a chunk each; each
//! sends its chunk along its rail, and whoever gets one hands it on inside of its node. So every
//! byte crosses into a node once, over all adapters at once (van de Geijn's scatter and all-gather,
//! as in Thakur, Rabenseifner and Gropp 2005, with the rails of BlueConnect, Cho et al. 2019,
//! between them). Along a rail a chunk takes the binomial tree of nodes, in few steps, or goes from
//! node to node.

use super::rooted::{children, parent};
use super::{Outer, Place, Request};
use crate::schedule::{Chunking, Operand, Read, Schedule, Write};

pub(super) fn doubling(request: &Request) -> Schedule {
    hierarchical(request, Outer::Doubling)
}

pub(super) fn ring(request: &Request) -> Schedule {
    hierarchical(request, Outer::Ring)
}

fn hierarchical(request: &Request, outer: Outer) -> Schedule {
    let local = request.placement.ranks_per_node();
    let root = request.collective.root;
    request.schedule(Chunking::Parts(local), Chunking::Parts(local), |b| {
        let place = Place::of(request, b.rank());
        let (node, rail) = (&place.node, &place.rail);
        let (root_node, root_place) = (root / local, root % local);
        if b.rank() == root {
            for member in node.others() {
                let writes = [Write::To(Operand::Output(member)), Write::Send(node.link(member))];
                b.transfer(&[Read::Plain(Operand::Input(member))], &writes, false);
            }
        }
        // This rank's chunk: from the root, or from the node before on the rail.
        let away = (rail.me + rail.len() - root_node) % rail.len();
        let parent = parent(outer, away).map(|away| (root_node + away) % rail.len());
        let read = match parent {
            Some(parent) => Read::Recv(rail.link(parent)),
            None if b.rank() == root => Read::Plain(Operand::Input(root_place)),
            None => Read::Recv(node.link(root_place)),
        };
        let mut writes = vec![Write::To(Operand::Output(node.me))];
        let children = children(outer, away, rail.len()).into_iter();
        writes.extend(children.map(|away| Write::Send(rail.link(root_node + away))));
        let has_it = |member: usize| rail.me == root_node && member == root_place;
        let others = node.others().filter(|member| !has_it(*member));
        writes.extend(others.map(|member| Write::Send(node.link(member))));
        b.transfer(&[read], &writes, false);
        // The other ranks' chunks; the root has them.
        let missing = if b.rank() == root { 0 } else { local - 1 };
        for member in node.others().take(missing) {
            b.recv_copy(node.link(member), Operand::Output(member));
        }
    })
}
