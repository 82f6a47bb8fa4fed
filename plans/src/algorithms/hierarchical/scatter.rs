//! Hierarchical scatter: the root hands each rank of its node the parts of that one's rail, which
//! cross along it, so over all of the node's adapters; or a rank of its node takes them from the
//! root's input where it reaches that. (Two levels as in MagPIe, Kielmann et al. 1999, and in Open
//! MPI's HAN, with the rails of BlueConnect, Cho et al. 2019, instead of one leader a node.)
//!
//! Directly, each part is a message to its node. Along the binomial tree of nodes a message has the
//! parts of all nodes behind the one that it goes to: few messages, and few steps, for short parts.

use super::super::packing::{Inbox, Outbox};
use super::super::request::input_of;
use super::rooted::Rooted;
use super::{Outer, Request};
use crate::schedule::{Chunking, Operand, Schedule};

pub(super) fn direct(request: &Request) -> Schedule {
    hierarchical(request, Outer::Direct)
}

pub(super) fn doubling(request: &Request) -> Schedule {
    hierarchical(request, Outer::Doubling)
}

fn hierarchical(request: &Request, outer: Outer) -> Schedule {
    let root = request.collective.root;
    request.schedule(Chunking::PerRank(1), Chunking::Whole, |b| {
        let rooted = Rooted::of(request, b.rank(), outer);
        let (node, most) = (&rooted.place.node, rooted.most());
        rooted.enter(b);
        // As its connections have them; its own last.
        let parts: Vec<usize> = rooted.behind().into_iter().rev().collect();
        let outbox = |(link, parts)| Outbox::new(link, parts).at_most(most);
        let on = rooted.passing_on().into_iter();
        let mut inside: Vec<(usize, Outbox)> =
            on.map(|place| (place, outbox((node.link(place), parts.len())))).collect();
        let mut across: Vec<Outbox> = rooted.down().into_iter().map(outbox).collect();
        let mut inbox = Inbox::new(rooted.up(), parts.len()).at_most(most);
        for parts in parts.chunks(most) {
            // What has further to go goes first. It is announced together, so that the copies
            // follow one another.
            for (_, outbox) in &mut inside {
                outbox.open(b);
            }
            for (place, outbox) in &mut inside {
                for &away in parts {
                    let segment = outbox.segment(b);
                    b.copy(Operand::Input(rooted.at(away, *place)), &[segment]);
                }
            }
            inside.iter_mut().for_each(|(_, outbox)| outbox.settle(b));
            for &away in parts {
                let part = rooted.at(away, node.me);
                let source = match () {
                    () if rooted.is_root() => Operand::Input(part),
                    () if rooted.is_in_place() => input_of(root, part),
                    () => inbox.segment(b),
                };
                let is_own = part == b.rank();
                let mut outbox = across.iter_mut().find(|outbox| !is_own && !outbox.is_done());
                let destination =
                    outbox.as_mut().map_or(Operand::Output(0), |outbox| outbox.segment(b));
                b.copy(source, &[destination]);
                outbox.into_iter().for_each(|outbox| outbox.settle(b));
                inbox.settle(b);
            }
        }
        rooted.leave(b);
    })
}
