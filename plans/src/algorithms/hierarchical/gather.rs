//! Hierarchical gather: every part crosses along its own rail into the root's node, so over all of
//! that node's adapters, and is handed to the root there, or written to its output where that can
//! be reached. (Two levels as in MagPIe, Kielmann et al. 1999, and in Open MPI's HAN, with the
//! rails of BlueConnect, Cho et al. 2019, instead of one leader a node.)
//!
//! Directly, each part is a message to the root's node. Along the binomial tree of nodes a rank
//! adds its part to those of the nodes behind it, and messages have several parts: few messages,
//! and few steps, for short parts.

use super::super::packing::{Inbox, Outbox};
use super::super::request::output_of;
use super::rooted::Rooted;
use super::{Outer, Request};
use crate::schedule::{Chunking, Operand, Schedule};

pub(super) fn direct(request: &Request) -> Schedule {
    hierarchical(request, Outer::Direct)
}

pub(super) fn doubling(request: &Request) -> Schedule {
    hierarchical(request, Outer::Doubling)
}

/// What scatter does, in reverse.
fn hierarchical(request: &Request, outer: Outer) -> Schedule {
    let root = request.collective.root;
    request.schedule(Chunking::Whole, Chunking::PerRank(1), |b| {
        let rooted = Rooted::of(request, b.rank(), outer);
        let (node, most) = (&rooted.place.node, rooted.most());
        rooted.enter(b);
        // Its own first, which is there; then those of the nodes that have the fewest to wait for.
        let parts = rooted.behind();
        let inbox = |(link, parts)| Inbox::new(link, parts).at_most(most);
        let mut across: Vec<Inbox> = rooted.down().into_iter().rev().map(inbox).collect();
        let on = rooted.passing_on().into_iter();
        let mut inside: Vec<(usize, Inbox)> =
            on.map(|place| (place, inbox((node.link(place), parts.len())))).collect();
        let mut outbox = Outbox::new(rooted.up(), parts.len()).at_most(most);
        for parts in parts.chunks(most) {
            for &away in parts {
                let part = rooted.at(away, node.me);
                let is_own = part == b.rank();
                let mut inbox = across.iter_mut().find(|inbox| !is_own && !inbox.is_done());
                let source = inbox.as_mut().map_or(Operand::Input(0), |inbox| inbox.segment(b));
                let destination = match () {
                    () if rooted.is_root() => Operand::Output(part),
                    () if rooted.is_in_place() => output_of(root, part),
                    () => outbox.segment(b),
                };
                b.copy(source, &[destination]);
                outbox.settle(b);
                inbox.into_iter().for_each(|inbox| inbox.settle(b));
            }
            // Awaited together, so that their copies follow one another.
            for (_, inbox) in &mut inside {
                inbox.open(b);
            }
            for (place, inbox) in &mut inside {
                for &away in parts {
                    let segment = inbox.segment(b);
                    b.copy(segment, &[Operand::Output(rooted.at(away, *place))]);
                }
            }
            inside.iter_mut().for_each(|(_, inbox)| inbox.settle(b));
        }
        rooted.leave(b);
    })
}
