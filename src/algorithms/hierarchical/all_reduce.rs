//! Hierarchical all-reduce: reduce-scatter inside of each node, all-reduce on every rail, all-gather inside. Slices of the buffer are
//! handled one behind the other, so that a slice is on its way between nodes while the next is reduced inside.

use super::super::team::{Held, Team};
use super::super::{doubling, tree};
use super::{Inner, Outer, Place, Request};
use crate::schedule::{Chunking, Operand, RankBuilder, Schedule, Write};

/// Slices that are on their way at once.
const SLICES: usize = 2;

pub(super) fn direct_direct(request: &Request) -> Schedule {
    hierarchical(request, Inner::Direct, Outer::Direct)
}

pub(super) fn direct_ring(request: &Request) -> Schedule {
    hierarchical(request, Inner::Direct, Outer::Ring)
}

pub(super) fn direct_doubling(request: &Request) -> Schedule {
    hierarchical(request, Inner::Direct, Outer::Doubling)
}

pub(super) fn direct_tree(request: &Request) -> Schedule {
    hierarchical(request, Inner::Direct, Outer::Tree)
}

pub(super) fn ring_direct(request: &Request) -> Schedule {
    hierarchical(request, Inner::Ring, Outer::Direct)
}

pub(super) fn ring_ring(request: &Request) -> Schedule {
    hierarchical(request, Inner::Ring, Outer::Ring)
}

pub(super) fn ring_doubling(request: &Request) -> Schedule {
    hierarchical(request, Inner::Ring, Outer::Doubling)
}

pub(super) fn ring_tree(request: &Request) -> Schedule {
    hierarchical(request, Inner::Ring, Outer::Tree)
}

fn hierarchical(request: &Request, inner: Inner, outer: Outer) -> Schedule {
    let local = request.placement.ranks_per_node();
    let parts = match outer {
        Outer::Direct | Outer::Ring => request.ranks() / local,
        Outer::Doubling => 1,
        Outer::Tree => 2,
    };
    let slices = request.pipelined(SLICES);
    let chunking = Chunking::Parts(slices * local * parts);
    request.schedule(chunking, chunking, |b| {
        let place = Place::of(request, b.rank());
        for time in 0..slices + 2 {
            let slice = |stage: usize| {
                let slice = time.checked_sub(stage).filter(|slice| *slice < slices)?;
                Some(Slice { first: slice * local * parts, parts })
            };
            if let Some(slice) = slice(0) {
                slice.reduce_inside(b, &place.node, inner);
            }
            if let Some(slice) = slice(1) {
                slice.all_reduce_between(b, &place, outer);
            }
            if let Some(slice) = slice(2) {
                slice.gather_inside(b, &place.node, inner);
            }
        }
    })
}

/// Chunks from `first` on: `parts` for each rank of a node.
#[derive(Clone, Copy)]
struct Slice {
    first: usize,
    parts: usize,
}

impl Slice {
    fn chunk(self, place: usize, part: usize) -> usize {
        self.first + place * self.parts + part
    }

    fn reduce_inside(self, b: &mut RankBuilder, node: &Team, inner: Inner) {
        for part in 0..self.parts {
            let chunk = |place| self.chunk(place, part);
            let writes = [Write::To(Operand::Output(chunk(node.me)))];
            match inner {
                Inner::Direct => node.reduce_scatter_direct(b, chunk, Held::Raw, &writes, false),
                Inner::Ring => node.reduce_scatter_ring(b, chunk, Held::Raw, &writes, false),
            }
        }
    }

    fn all_reduce_between(self, b: &mut RankBuilder, place: &Place, outer: Outer) {
        let chunk = |part| self.chunk(place.node.me, part);
        let rail = &place.rail;
        let writes = [Write::To(Operand::Output(chunk(rail.me % self.parts)))];
        match outer {
            Outer::Direct => {
                rail.reduce_scatter_direct(b, chunk, Held::Partial, &writes, true);
                rail.all_gather_direct(b, chunk);
            }
            Outer::Ring => {
                rail.reduce_scatter_ring(b, chunk, Held::Partial, &writes, true);
                rail.all_gather_ring(b, chunk);
            }
            Outer::Doubling => doubling::all_reduce(b, rail, chunk(0), Held::Partial),
            Outer::Tree => tree::double_tree(b, rail, [chunk(0), chunk(1)], 1, Held::Partial),
        }
    }

    fn gather_inside(self, b: &mut RankBuilder, node: &Team, inner: Inner) {
        for part in 0..self.parts {
            let chunk = |place| self.chunk(place, part);
            match inner {
                Inner::Direct => node.all_gather_direct(b, chunk),
                Inner::Ring => node.all_gather_ring(b, chunk),
            }
        }
    }
}
