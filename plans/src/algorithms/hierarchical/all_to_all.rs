//! Hierarchical all-to-all: a rank gives each rank of its node all blocks for that rank's rail;
//! then each rail carries one message for each remote node, with the blocks of all ranks of the
//! node. That is NCCL's PXN with its aggregation: over NVLink to the GPU on the receiver's rail,
//! which sends what all have for that receiver at once ("Doubling all2all performance with NVIDIA
//! Collective Communication Library 2.12", 2022). The hierarchical all-to-all of DeepSpeed-MoE
//! (Rajbhandari et al. 2022) does likewise.
//!
//! Blocks wait in the slots in which they have come until they are sent on, so nothing is stored in
//! between. In step s a node exchanges with those that are s further and s back, so that what comes
//! replaces what has gone.

use super::super::all_to_all::both_sides;
use super::super::packing::{Inbox, Outbox};
use super::{Place, Request};
use crate::schedule::{Chunking, Operand, RankBuilder, SEGMENTS, Schedule};

pub(super) fn direct(request: &Request) -> Schedule {
    request.rotational_by_node(Chunking::PerRank(1), Chunking::PerRank(1), |b| {
        let place = Place::of(request, b.rank());
        let (nodes, me) = (place.nodes(), place.rail.me);
        keep(b, &place);
        let steps: Vec<Vec<usize>> =
            (1..=nodes / 2).map(|step| both_sides(nodes, me, step)).collect();
        // As many nodes at a time as one message has segments.
        for steps in steps.chunks(SEGMENTS as usize / 2) {
            let mut inboxes = give(b, &place, &steps.concat());
            for partners in steps {
                exchange(b, &place, partners, &mut inboxes);
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
fn keep(b: &mut RankBuilder, place: &Place) {
    let mut inboxes = give(b, place, &[place.rail.me]);
    for (member, inbox) in inboxes.iter_mut().enumerate() {
        let rank = place.rank(place.rail.me, member);
        let block = match inbox {
            Some(inbox) => inbox.segment(b),
            None => Operand::Input(rank),
        };
        b.copy(block, &[Operand::Output(rank)]);
        inbox.iter_mut().for_each(|inbox| inbox.settle(b));
    }
}

/// The blocks of this node's ranks for a rank of another node, and back: with one partner, or with
/// two at once, a message at a time, so that nobody waits for slots that another holds.
fn exchange(b: &mut RankBuilder, place: &Place, partners: &[usize], inboxes: &mut [Option<Inbox>]) {
    let members: Vec<usize> = (0..place.local()).collect();
    for members in members.chunks(SEGMENTS as usize) {
        for &partner in partners {
            let mut outbox = Outbox::new(place.rail.link(partner), members.len());
            for &member in members {
                let block = match &mut inboxes[member] {
                    Some(inbox) => inbox.segment(b),
                    None => Operand::Input(place.rank(partner, member)),
                };
                let segment = outbox.segment(b);
                b.copy(block, &[segment]);
                outbox.settle(b);
                inboxes[member].iter_mut().for_each(|inbox| inbox.settle(b));
            }
        }
        for &partner in partners.iter().rev() {
            let mut inbox = Inbox::new(place.rail.link(partner), members.len());
            for &member in members {
                let segment = inbox.segment(b);
                b.copy(segment, &[Operand::Output(place.rank(partner, member))]);
                inbox.settle(b);
            }
        }
    }
}
