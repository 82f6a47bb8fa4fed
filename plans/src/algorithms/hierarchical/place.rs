//! A rank's two teams, and what it does with the ranks of its node.

use super::super::request::{input_of, output_of};
use super::super::team::Team;
use super::{Encoding, Inner, Outer, Request};
use crate::schedule::{Buffer, Members, Operand, RankBuilder, Read, Write};

/// A rank's two teams, and the chunks that they handle.
#[derive(Clone)]
pub(super) struct Place {
    /// The ranks of its node.
    pub(super) node: Team,
    /// The ranks with its place in their nodes, by node. Of nodes that differ only the first ones,
    /// the owners, have these.
    pub(super) rail: Team,
    /// So many of each node own what is reduced: all, or as many as the smallest node has.
    owners: usize,
    windows: bool,
    /// The first of as many chunks as there are ranks.
    first_chunk: usize,
}

impl Place {
    pub(super) fn of(request: &Request, rank: usize) -> Place {
        if let Some(sizes) = request.placement.uneven(request.ranks()) {
            return Place::of_uneven(request, sizes, rank);
        }
        let local = request.placement.ranks_per_node();
        let nodes = request.ranks() / local;
        let (node, place) = (rank / local, rank % local);
        let encoding = request.encoding;
        Place {
            node: Team::new(local, place, encoding, move |place| node * local + place),
            rail: Team::new(nodes, node, encoding, move |node| node * local + place),
            owners: local,
            windows: request.encoding == Encoding::Windows,
            first_chunk: 0,
        }
    }

    /// On nodes of so many ranks, by node.
    fn of_uneven(request: &Request, sizes: &'static [usize], rank: usize) -> Place {
        let start = move |node: usize| sizes[..node].iter().sum::<usize>();
        let node = (0..sizes.len()).rfind(|node| start(*node) <= rank).unwrap_or(0);
        let (first, encoding) = (start(node), request.encoding);
        let place = rank - first;
        Place {
            node: Team::new(sizes[node], place, encoding, move |place| first + place),
            rail: Team::new(sizes.len(), node, encoding, move |node| start(node) + place),
            owners: Place::owners(request),
            windows: encoding == Encoding::Windows,
            first_chunk: 0,
        }
    }

    /// How many ranks of each node own what is reduced.
    pub(super) fn owners(request: &Request) -> usize {
        let sizes = request.placement.uneven(request.ranks());
        let least = sizes.and_then(|sizes| sizes.iter().copied().min());
        least.unwrap_or(request.placement.ranks_per_node())
    }

    /// Whether this rank is one of them.
    pub(super) fn owns(&self) -> bool {
        self.node.me < self.owners
    }

    /// The same for one slice of the buffer, which has as many chunks as there are ranks.
    pub(super) fn slice(&self, slice: usize) -> Place {
        let ranks = self.nodes() * self.local();
        Place { first_chunk: slice * ranks, ..self.clone() }
    }

    /// The same inside of a group of so many nodes, with a chunk for each rank of the group; and
    /// the ranks with its place in their groups, by group.
    pub(super) fn grid(&self, group: usize) -> (Place, Team) {
        let (number, place) = (self.rail.me / group, self.rail.me % group);
        let rail = self.rail.some(group, place, move |at| number * group + at);
        let groups = self.rail.some(self.nodes() / group, number, move |at| at * group + place);
        (Place { rail, ..self.clone() }, groups)
    }

    /// Whether ranks read the inputs of all ranks of the node in place, one by one.
    pub(super) fn reads_inputs(&self, inner: Inner) -> bool {
        self.windows && inner != Inner::Nvls
    }

    /// Comes before all else.
    pub(super) fn enter(&self, b: &mut RankBuilder) {
        if self.windows {
            b.enter(&self.beside());
        }
    }

    /// Comes behind all else.
    pub(super) fn leave(&self, b: &mut RankBuilder) {
        if self.windows {
            b.barrier(&self.beside());
        }
    }

    /// The other ranks of the node.
    fn beside(&self) -> Vec<usize> {
        self.node.others().map(|place| self.node.member(place)).collect()
    }

    pub(super) fn nodes(&self) -> usize {
        self.rail.len()
    }

    /// Ranks of a node.
    pub(super) fn local(&self) -> usize {
        self.node.len()
    }

    /// The chunk of the rank at a place of a node.
    pub(super) fn chunk(&self, node: usize, place: usize) -> usize {
        self.first_chunk + self.rank(node, place)
    }

    /// This rank's chunk.
    pub(super) fn own_chunk(&self) -> usize {
        self.chunk(self.rail.me, self.node.me)
    }

    /// The rank at a place of a node.
    pub(super) fn rank(&self, node: usize, place: usize) -> usize {
        node * self.local() + place
    }

    /// Reduces every owner's chunk `part(place)` to that rank; this rank's goes to `writes`, with
    /// what `also` brings. A rank that owns nothing has others take its input.
    pub(super) fn reduce_inside(
        &self,
        b: &mut RankBuilder,
        inner: Inner,
        part: impl Fn(usize) -> usize,
        also: &[Read],
        writes: &[Write],
        finish: bool,
    ) {
        match inner {
            Inner::Nvls => {
                let chunk = part(self.node.me);
                let (output, last) = (Operand::Output(chunk), also.is_empty());
                let inputs = Read::Raw(self.everywhere(Buffer::Input, chunk));
                b.transfer(&[inputs], &[Write::To(output)], finish && last);
                // Nothing is beside what a switch reduces.
                if !last || *writes != [Write::To(output)] {
                    let reads = [&[Read::Plain(output)], also].concat();
                    b.transfer(&reads, writes, finish && !last);
                }
            }
            // They read it in place.
            _ if self.windows && !self.owns() => {}
            _ if self.windows => {
                let reads = [&*self.inputs(part(self.node.me)), also].concat();
                b.transfer(&reads, writes, finish);
            }
            Inner::Direct => {
                self.node.reduce_direct(b, (self.owners, part), also, writes, finish);
            }
            // A chain begins behind its last rank, as the ring's chunks do.
            Inner::Ring | Inner::Chain => {
                self.node.reduce_scatter_ring(b, part, also, writes, finish);
            }
        }
    }

    /// A chunk of the buffers of all ranks of the node, as their switch reaches it.
    fn everywhere(&self, buffer: Buffer, chunk: usize) -> Operand {
        Operand::Multicast { of: Members::Node(self.local()), buffer, chunk }
    }

    /// A chunk of the inputs of all ranks of the node, in place.
    pub(super) fn inputs(&self, chunk: usize) -> Vec<Read> {
        let input = |place| match place == self.node.me {
            true => Operand::Input(chunk),
            false => input_of(self.node.member(place), chunk),
        };
        (0..self.local()).map(|place| Read::Raw(input(place))).collect()
    }

    /// To whom a rank tells its chunk of its output so that [`Place::gather_inside`] can follow.
    pub(super) fn tell_inside(&self, inner: Inner, chunk: usize) -> Vec<Write> {
        let node = &self.node;
        match inner {
            Inner::Nvls => vec![Write::To(self.everywhere(Buffer::Output, chunk))],
            _ if self.windows => {
                self.beside().into_iter().map(|rank| Write::To(output_of(rank, chunk))).collect()
            }
            Inner::Direct => node.others().map(|to| Write::Send(node.link(to))).collect(),
            Inner::Ring | Inner::Chain if node.len() == 1 => Vec::new(),
            Inner::Ring => vec![Write::Send(node.next())],
            Inner::Chain => vec![Write::Send(node.previous())],
        }
    }

    /// Every owner's chunk `part(place)` of its output becomes that of all ranks of the node; this
    /// rank's has been told.
    pub(super) fn gather_inside(
        &self,
        b: &mut RankBuilder,
        inner: Inner,
        part: impl Fn(usize) -> usize,
    ) {
        match inner {
            // They have been told in place.
            Inner::Nvls => {}
            _ if self.windows => {}
            Inner::Direct => {
                for member in self.node.others().filter(|member| *member < self.owners) {
                    b.recv_copy(self.node.link(member), Operand::Output(part(member)));
                }
            }
            Inner::Ring => {
                for step in 1..self.node.len() {
                    self.node.all_gather_step(b, step, &part);
                }
            }
            Inner::Chain => {
                let last = self.node.len() - 1;
                let back = self.node.some(last + 1, last - self.node.me, move |at| last - at);
                for step in 1..=last {
                    back.all_gather_step(b, step, |at| part(last - at));
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
