//! Hierarchical all-reduce over three levels: ranks of a node, nodes of a group, and groups. A
//! rank's chunks are reduced along its rail inside of its group, each at one node; there the groups
//! all-reduce it by doubling; and it is handed around inside of the group. So a rank sends to few
//! others, and what it sends in excess is small: only the last level's chunk goes more than once.
//! (The two-dimensional torus all-reduce of Mikami et al., "Massively distributed SGD:
//! ImageNet/ResNet-50 training in a flash", 2018, with doubling in its second dimension.)
//!
//! A group is as many consecutive nodes as [`nodes_of_group`] says.

use super::super::doubling::Doubling;
use super::super::team::Held;
use super::{Inner, Outer, Place, Request, all_gather, all_reduce, reduce_scatter};
use crate::schedule::{Chunking, Operand, Schedule};

/// The nodes of a group, where so many nodes are several groups of several nodes: the largest
/// divisor that is not above the square root. Larger groups leave less to be sent in excess, and
/// have more messages, so there is a limit.
pub(in super::super) fn nodes_of_group(nodes: usize) -> Option<usize> {
    const MOST: usize = 8;
    (2..=MOST).rev().find(|of| nodes.is_multiple_of(*of) && of * of <= nodes)
}

pub(super) fn direct_grid(request: &Request) -> Schedule {
    const INNER: Inner = Inner::Direct;
    const OUTER: Outer = Outer::Direct;
    let local = request.placement.ranks_per_node();
    let nodes = request.ranks() / local;
    let group = nodes_of_group(nodes).unwrap_or(nodes);
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
