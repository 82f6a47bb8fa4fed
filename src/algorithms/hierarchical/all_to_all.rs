//! Hierarchical all-to-all: a rank gives each rank of its node all blocks for that rank's rail; then each rail carries one message for each
//! remote node, with the blocks of all ranks of the node. (PXN in NCCL 2.12, 2022, and the hierarchical all-to-all of DeepSpeed-MoE,
//! Rajbhandari et al. 2022, do likewise.)
//!
//! Blocks wait in the slots in which they have come until they are sent on, so nothing is stored in between. In step s nodes whose sum is
//! s exchange, so that what comes replaces what has gone.

use super::super::packing::{Inbox, Outbox};
use super::{Place, Request};
use crate::schedule::{Chunking, Operand, RankBuilder, Read, SEGMENTS, Schedule};

pub(super) fn direct(request: &Request) -> Schedule {
    request.schedule(Chunking::PerRank, Chunking::PerRank, |b| {
        let place = Place::of(request, b.rank());
        let nodes = place.nodes();
        let partners: Vec<usize> =
            (0..nodes).map(|step| (step + nodes - place.rail.me) % nodes).collect();
        // As many nodes at a time as one message has segments.
        for partners in partners.chunks(SEGMENTS as usize) {
            let mut inboxes = give(b, &place, partners);
            for &partner in partners {
                if partner == place.rail.me {
                    keep(b, &place, &mut inboxes);
                } else {
                    exchange(b, &place, partner, &mut inboxes);
                }
            }
        }
    })
}

/// Gives each rank of the node the blocks for its rail. Where this rank's will be found, by place.
fn give(b: &mut RankBuilder, place: &Place, partners: &[usize]) -> Vec<Option<Inbox>> {
    let node = &place.node;
    for member in node.others() {
        let mut outbox = Outbox::new(node.link(member), partners.len());
        for &partner in partners {
            let segment = outbox.segment(b);
            b.copy(Operand::Input(place.rank(partner, member)), &[segment]);
            outbox.settle(b);
        }
    }
    let inbox = |member| (member != node.me).then(|| Inbox::new(node.link(member), partners.len()));
    (0..node.len()).map(inbox).collect()
}

/// The blocks of this node's ranks for this rank.
fn keep(b: &mut RankBuilder, place: &Place, inboxes: &mut [Option<Inbox>]) {
    for (member, inbox) in inboxes.iter_mut().enumerate() {
        let rank = place.rank(place.rail.me, member);
        let Some(inbox) = inbox else {
            b.copy(Operand::Input(rank), &[Operand::Output(rank)]);
            continue;
        };
        let segment = inbox.segment(b);
        b.copy(segment, &[Operand::Output(rank)]);
        inbox.settle(b);
    }
}

/// The blocks of this node's ranks for a rank of another node, and back.
fn exchange(b: &mut RankBuilder, place: &Place, partner: usize, inboxes: &mut [Option<Inbox>]) {
    let own = Operand::Input(place.rank(partner, place.node.me));
    let mut blocks = Vec::new();
    for inbox in inboxes.iter_mut() {
        blocks.push(Read::Plain(inbox.as_mut().map_or(own, |inbox| inbox.segment(b))));
    }
    let link = place.rail.link(partner);
    b.exchange(link, &blocks, link, place.local(), |b, member, segment| {
        b.copy(segment, &[Operand::Output(place.rank(partner, member))]);
    });
    for inbox in inboxes.iter_mut().flatten() {
        inbox.settle(b);
    }
}
