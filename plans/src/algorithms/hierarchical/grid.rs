//! Hierarchical algorithms over three levels: ranks of a node, nodes of a group, and groups. A
//! group is as many consecutive nodes as [`nodes_of_group`] says. Its nodes are a row of a grid;
//! nodes with the same place in their groups are a column.
//!
//! - **Reduce-scatter**: a node gives each of its row what is for that one's column, which is added
//!   up there and then along the column.
//! - **All-gather**: the same back. What comes along the column is handed on along the row.
//! - **All-reduce**: a rank's chunks are reduced along its row, each at one node; there the columns
//!   all-reduce it by doubling; and it is handed around in the row. What is sent in excess is small:
//!   only the column's chunk goes more than once.
//!
//! So a rank sends to few others, and what goes along a row is few messages of many segments. (The
//! two-dimensional torus of Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training
//! in a flash", 2018, with doubling in the all-reduce's second dimension.)

use super::super::doubling::Doubling;
use super::super::packing::{Inbox, Outbox};
use super::super::spread::spread;
use super::super::team::Held;
use super::{Inner, Outer, Place, Request, all_gather, all_reduce, reduce_scatter};
use crate::schedule::{Chunking, Operand, Read, SEGMENTS, Schedule, Write};

const INNER: Inner = Inner::Direct;

/// The nodes of a group, where so many nodes are several groups of several nodes: the largest
/// divisor that is not above the square root. Larger groups leave less to be sent in excess, and
/// have more messages, so there is a limit.
pub(in super::super) fn nodes_of_group(nodes: usize) -> Option<usize> {
    const MOST: usize = 8;
    (2..=MOST).rev().find(|of| nodes.is_multiple_of(*of) && of * of <= nodes)
}

pub(super) fn all_reduce(request: &Request) -> Schedule {
    const OUTER: Outer = Outer::Direct;
    let local = request.placement.ranks_per_node();
    let group = group(request);
    let slices = all_reduce::slices_in_place(request);
    let chunking = Chunking::Parts(slices * group * local);
    request.schedule(chunking, chunking, |b| {
        let place = Place::of(request, b.rank());
        let (of_group, groups) = place.grid(group);
        let doubling = Doubling::of(&groups);
        let slices: Vec<Place> = (0..slices).map(|slice| of_group.slice(slice)).collect();
        place.enter(b);
        for slice in &slices {
            reduce_scatter::cross(b, slice, INNER, OUTER);
        }
        for slice in &slices {
            let output = Operand::Output(slice.own_chunk());
            let sends = doubling.sends(0);
            reduce_scatter::finish(b, slice, INNER, OUTER, (output, false), &sends);
        }
        for level in 0..doubling.levels() {
            for slice in &slices {
                let sends = match level + 1 == doubling.levels() {
                    true => all_gather::tell(slice, INNER, OUTER),
                    false => doubling.sends(level + 1),
                };
                doubling.combine(b, level, slice.own_chunk(), Held::Partial, &sends);
            }
        }
        for slice in &slices {
            all_gather::gather(b, slice, INNER, OUTER);
        }
        place.leave(b);
    })
}

pub(super) fn reduce_scatter(request: &Request) -> Schedule {
    let group = group(request);
    let period = group * request.placement.ranks_per_node();
    request.rotational_by(period, Chunking::PerRank(1), Chunking::Whole, |b| {
        let place = Place::of(request, b.rank());
        let (row, column) = place.grid(group);
        // The own group's is last: what others have reduced for it comes meanwhile.
        let groups: Vec<usize> = column.others().chain([column.me]).collect();
        place.enter(b);
        for groups in groups.chunks(SEGMENTS as usize) {
            for to in row.rail.others() {
                let mut outbox = Outbox::new(row.rail.link(to), groups.len());
                for slice in groups.iter().map(|group| row.slice(*group)) {
                    let segment = [Write::To(outbox.segment(b))];
                    slice.reduce_inside(b, INNER, |at| slice.chunk(to, at), &[], &segment, false);
                    outbox.settle(b);
                }
            }
            let inbox = |from| Inbox::new(row.rail.link(from), groups.len());
            let mut inboxes: Vec<Inbox> = row.rail.others().map(inbox).collect();
            for &group in groups {
                let (slice, is_own) = (row.slice(group), group == column.me);
                let segments = inboxes.iter_mut().map(|inbox| Read::Plain(inbox.segment(b)));
                let mut also: Vec<Read> = segments.collect();
                let write = if is_own {
                    also.extend(column.others().map(|from| Read::Recv(column.link(from))));
                    Write::To(Operand::Output(0))
                } else {
                    Write::Send(column.link(group))
                };
                let chunk = |at| slice.chunk(slice.rail.me, at);
                slice.reduce_inside(b, INNER, chunk, &also, &[write], is_own);
                inboxes.iter_mut().for_each(|inbox| inbox.settle(b));
            }
        }
        place.leave(b);
    })
}

pub(super) fn all_gather(request: &Request) -> Schedule {
    let group = group(request);
    let period = group * request.placement.ranks_per_node();
    request.rotational_by(period, Chunking::Whole, Chunking::PerRank(1), |b| {
        let place = Place::of(request, b.rank());
        let (row, column) = place.grid(group);
        let groups: Vec<usize> = [column.me].into_iter().chain(column.others()).collect();
        place.enter(b);
        for groups in groups.chunks(SEGMENTS as usize) {
            let outbox = |to| Outbox::new(row.rail.link(to), groups.len());
            let mut outboxes: Vec<Outbox> = row.rail.others().map(outbox).collect();
            for &group in groups {
                let slice = row.slice(group);
                let mut sends = Vec::new();
                let read = if group == column.me {
                    sends.extend(column.others().map(|to| Write::Send(column.link(to))));
                    Read::Plain(Operand::Input(0))
                } else {
                    Read::Recv(column.link(group))
                };
                sends.extend(outboxes.iter_mut().map(|outbox| Write::To(outbox.segment(b))));
                sends.extend(slice.tell_inside(INNER, slice.own_chunk()));
                let output = Operand::Output(slice.own_chunk());
                spread(b, 1, output, &sends, |b, writes| b.transfer(&[read], writes, false));
                outboxes.iter_mut().for_each(|outbox| outbox.settle(b));
                slice.gather_inside(b, INNER, |at| slice.chunk(slice.rail.me, at));
            }
            for from in row.rail.others() {
                let mut inbox = Inbox::new(row.rail.link(from), groups.len());
                for slice in groups.iter().map(|group| row.slice(*group)) {
                    let chunk = slice.chunk(from, slice.node.me);
                    let (read, sends) = (inbox.segment(b), slice.tell_inside(INNER, chunk));
                    spread(b, 1, Operand::Output(chunk), &sends, |b, writes| {
                        b.transfer(&[Read::Plain(read)], writes, false);
                    });
                    inbox.settle(b);
                    slice.gather_inside(b, INNER, |at| slice.chunk(from, at));
                }
            }
        }
        place.leave(b);
    })
}

/// The nodes of a row.
fn group(request: &Request) -> usize {
    let nodes = request.ranks() / request.placement.ranks_per_node();
    nodes_of_group(nodes).unwrap_or(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_as_many_nodes_as_there_are_groups_or_fewer() {
        let of = nodes_of_group;
        assert_eq!([4, 6, 8, 9, 12, 16].map(of), [2, 2, 2, 3, 3, 4].map(Some));
        assert_eq!([32, 64, 128, 1000].map(of), [4, 8, 8, 8].map(Some));
        assert_eq!([0, 1, 2, 3, 5, 7, 31].map(of), [None; 7]);
    }
}
