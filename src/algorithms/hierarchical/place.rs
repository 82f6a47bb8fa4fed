//! A rank's two teams, and what it does with the ranks of its node.

use super::super::team::Team;
use super::{Inner, Outer, Request};
use crate::schedule::{Operand, RankBuilder, Read, Write};

/// A rank's two teams.
pub(super) struct Place {
    /// The ranks of its node.
    pub(super) node: Team,
    /// The ranks with its place in their nodes, by node.
    pub(super) rail: Team,
}

impl Place {
    pub(super) fn of(request: &Request, rank: usize) -> Place {
        let local = request.placement.ranks_per_node();
        let nodes = request.ranks() / local;
        let (node, place) = (rank / local, rank % local);
        let members = (0..local).map(|place| node * local + place).collect();
        let rail = (0..nodes).map(|node| node * local + place).collect();
        Place {
            node: Team::new(members, place, request.encoding),
            rail: Team::new(rail, node, request.encoding),
        }
    }

    pub(super) fn nodes(&self) -> usize {
        self.rail.len()
    }

    /// Ranks of a node.
    pub(super) fn local(&self) -> usize {
        self.node.len()
    }

    /// The rank at a place of a node.
    pub(super) fn rank(&self, node: usize, place: usize) -> usize {
        node * self.local() + place
    }

    /// Reduces every rank's chunk `part(place)` to that rank; this rank's goes to `writes`, with what `also` brings.
    pub(super) fn reduce_inside(
        &self,
        b: &mut RankBuilder,
        inner: Inner,
        part: impl Fn(usize) -> usize,
        also: Option<Read>,
        writes: &[Write],
        finish: bool,
    ) {
        match inner {
            Inner::Direct => self.node.reduce_scatter_direct(b, part, also, writes, finish),
            Inner::Ring => self.node.reduce_scatter_ring(b, part, also, writes, finish),
        }
    }

    /// To whom a rank tells its chunk so that [`Place::gather_inside`] can follow.
    pub(super) fn tell_inside(&self, inner: Inner) -> Vec<Write> {
        let node = &self.node;
        match inner {
            Inner::Direct => node.others().map(|to| Write::Send(node.link(to))).collect(),
            Inner::Ring => (node.len() > 1).then(|| Write::Send(node.next())).into_iter().collect(),
        }
    }

    /// Every rank's chunk `part(place)` of its output becomes that of all ranks of the node; this rank's has been told.
    pub(super) fn gather_inside(
        &self,
        b: &mut RankBuilder,
        inner: Inner,
        part: impl Fn(usize) -> usize,
    ) {
        match inner {
            Inner::Direct => {
                for member in self.node.others() {
                    b.recv_copy(self.node.link(member), Operand::Output(part(member)));
                }
            }
            Inner::Ring => {
                for step in 1..self.node.len() {
                    self.node.all_gather_step(b, step, &part);
                }
            }
        }
    }

    /// To whom a rank tells what its node is to tell the others.
    pub(super) fn tell_across(&self, outer: Outer) -> Vec<Write> {
        match outer {
            Outer::Ring => vec![Write::Send(self.rail.next())],
            _ => self.rail.others().map(|to| Write::Send(self.rail.link(to))).collect(),
        }
    }
}
