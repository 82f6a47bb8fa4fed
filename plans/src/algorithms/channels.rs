//! Schedules in which each channel has a ring or a tree of its own, as NCCL's have. They have
//! several lists, and are simulated beside the catalogue; no executor runs them.
//!
//! In the catalogue all channels of a rank do the same, so that each passes on a part of every
//! rail's chunks in turn. In NCCL a channel belongs to one rail: its messages are longer, fewer of
//! them follow one another, and no rail waits for another. What goes up a tree and what comes down
//! is moved by threads of its own, so that neither waits for the other.

use super::Encoding;
use super::hierarchical::rails;
use super::request::{Request, Whose};
use super::team::Team;
use super::tree::Node;
use crate::collective::{Collective, Kind, Order};
use crate::schedule::{
    Buffer, Chunking, Instruction, Link, Members, Operand, RankBuilder, Read, Schedule, Slots,
    Tree, Write,
};
use crate::topology::Placement;

/// Most rails. Of more adapters in a node some are left out, evenly.
pub(crate) const RAILS: usize = 8;
/// Of each rail.
pub(crate) const TREES: usize = 2;

fn request(collective: Collective, placement: Placement, slots: Slots) -> Option<Request> {
    let several = placement.nodes(collective.ranks).is_some_and(|nodes| nodes > 1);
    let (encoding, order, whose, parts) = (Encoding::Slots, Order::Any, Whose::All, None);
    several.then_some(Request { collective, placement, encoding, order, slots, parts, whose })
}

fn schedule(
    request: &Request,
    (input, output): (Chunking, Chunking),
    lists_per_rank: usize,
    part: impl Fn(&mut RankBuilder, usize),
) -> Schedule {
    let list = |number: usize| -> Vec<Instruction> {
        let rank = number / lists_per_rank;
        let mut b = RankBuilder::new(rank, request.slots, Tree::Left).one_by_one(true);
        part(&mut b, number % lists_per_rank);
        b.finish()
    };
    Schedule {
        collective: request.collective,
        input,
        output,
        scratch: 0,
        slots: request.slots,
        lists_per_rank,
        lists: (0..request.ranks() * lists_per_rank).map(list).collect(),
    }
}

/// A ring of all ranks for each rail, in a list of its own.
pub(crate) fn rings(
    collective: Collective,
    placement: Placement,
    slots: Slots,
) -> Option<Schedule> {
    let request = request(collective, placement, slots)?;
    let n = request.ranks();
    let rings = rails::rings(&request);
    let chunking = match collective.kind {
        Kind::AllReduce => (Chunking::Parts(rings * n), Chunking::Parts(rings * n)),
        Kind::ReduceScatter => (Chunking::PerRank(rings), Chunking::Parts(rings)),
        Kind::AllGather => (Chunking::Parts(rings), Chunking::PerRank(rings)),
        _ => return None,
    };
    Some(schedule(&request, chunking, rings, |b, ring| {
        let team = rails::team(&request, b.rank(), ring).in_list(ring as u16);
        match collective.kind {
            Kind::AllReduce => rails::all_reduce_around(b, &team, ring),
            Kind::ReduceScatter => rails::reduce_scatter_around(b, &team, ring, rings),
            _ => rails::all_gather_around(b, &team, ring, rings),
        }
    }))
}

/// The lists of a tree: what goes up, and what comes down.
#[derive(Clone, Copy)]
struct Lists {
    up: u16,
    down: u16,
}

impl Lists {
    fn of(tree: usize) -> Lists {
        let up = 2 * tree as u16;
        Lists { up, down: up + 1 }
    }

    fn up(self, peer: usize) -> Link {
        Link { list: self.up, ..Link::new(peer, Encoding::Slots.lane()) }
    }

    fn down(self, peer: usize) -> Link {
        Link { list: self.down, ..Link::new(peer, Encoding::Slots.lane()) }
    }
}

/// Two binary trees of nodes for each rail. Inside of a node a chain leads to the rail's rank, and
/// back.
pub(crate) fn trees(
    collective: Collective,
    placement: Placement,
    slots: Slots,
) -> Option<Schedule> {
    let request = request(collective, placement, slots)?;
    let local = placement.ranks_per_node();
    let rails = local.min(RAILS);
    let parts = Chunking::Parts(TREES * rails);
    Some(schedule(&request, (parts, parts), 2 * TREES * rails, |b, list| {
        let (chunk, goes_up) = (list / 2, list.is_multiple_of(2));
        let (rail, shift) = (chunk / TREES * local / rails, chunk % TREES);
        let lists = Lists::of(chunk);
        let (node, place) = (b.rank() / local, b.rank() % local);
        let at = (place + local - rail) % local;
        let on_chain = |at: usize| node * local + (rail + at) % local;
        let in_tree = InTree::new(&request, rail, node, shift);
        let own = Read::Raw(Operand::Input(chunk));
        let output = Write::To(Operand::Output(chunk));
        let behind = (at + 1 < local).then(|| on_chain(at + 1));
        if goes_up {
            let from = behind.map(|rank| match at + 2 < local {
                true => Read::Recv(lists.up(rank)),
                false => Read::RecvRaw(lists.up(rank)),
            });
            let reads: Vec<Read> = from.into_iter().chain([own]).collect();
            match at {
                0 => {
                    let inside = behind.map(|rank| Write::Send(lists.down(rank)));
                    let writes: Vec<Write> = [output].into_iter().chain(inside).collect();
                    in_tree.up(b, lists, &reads, &writes);
                }
                _ => pass_on(b, &reads, lists.up(on_chain(at - 1))),
            }
        } else {
            let to = behind.map(|rank| Write::Send(lists.down(rank)));
            let writes: Vec<Write> = [output].into_iter().chain(to).collect();
            match at {
                0 => in_tree.down(b, lists, &writes),
                _ => {
                    let from = on_chain(at - 1);
                    let is_root = at == 1 && in_tree.is_root();
                    let link = if is_root { lists.up(from) } else { lists.down(from) };
                    b.transfer(&[Read::Recv(link)], &writes, false);
                }
            }
        }
    }))
}

/// Two binary trees of nodes for each rank of a node. Inside, a switch reduces and multicasts.
pub(crate) fn trees_of_switches(
    collective: Collective,
    placement: Placement,
    slots: Slots,
) -> Option<Schedule> {
    let request = request(collective, placement, slots)?;
    let local = placement.ranks_per_node();
    let parts = Chunking::Parts(TREES * local);
    Some(schedule(&request, (parts, parts), 2 * TREES, |b, list| {
        let (shift, goes_up) = (list / 2, list.is_multiple_of(2));
        let (node, rail) = (b.rank() / local, b.rank() % local);
        let chunk = rail * TREES + shift;
        let lists = Lists::of(shift);
        let in_tree = InTree::new(&request, rail, node, shift);
        let of = Members::Node(local);
        let all = |buffer| Operand::Multicast { of, buffer, chunk };
        let output = Write::To(all(Buffer::Output));
        match goes_up {
            true => in_tree.up(b, lists, &[Read::Raw(all(Buffer::Input))], &[output]),
            false => in_tree.down(b, lists, &[output]),
        }
    }))
}

/// Sends what these come to; a contribution alone goes as it is.
fn pass_on(b: &mut RankBuilder, reads: &[Read], link: Link) {
    match *reads {
        [Read::Raw(own @ Operand::Input(_))] => b.send(own, link),
        _ => b.transfer(reads, &[Write::Send(link)], false),
    }
}

/// A rank's place in a tree of its rail.
struct InTree {
    node: Node,
    rail: Team,
    /// Whether the parent, if there is one, is the root.
    is_below_root: bool,
}

impl InTree {
    fn new(request: &Request, rail: usize, node: usize, shift: usize) -> InTree {
        let local = request.placement.ranks_per_node();
        let nodes = request.ranks() / local;
        let team = |me| Team::new(nodes, me, request.encoding, move |at| at * local + rail);
        let rail = team(node);
        let own = Node::of(&rail, shift);
        let is_root = |place: usize| Node::of(&team(place), shift).parent.is_none();
        let is_below_root = own.parent.is_some_and(is_root);
        InTree { node: own, rail, is_below_root }
    }

    fn is_root(&self) -> bool {
        self.node.parent.is_none()
    }

    /// The ranks below.
    fn children(&self) -> impl Iterator<Item = usize> {
        let children = [self.node.left, self.node.right].into_iter().flatten();
        children.map(|child| self.rail.member(child.place))
    }

    /// Sends what has been reduced to the parent; the root gives the result to `writes` and sends
    /// it down.
    fn up(&self, b: &mut RankBuilder, lists: Lists, own: &[Read], writes: &[Write]) {
        // Of a node with one rank a leaf sends its own contribution as it is.
        let is_alone = matches!(own, [Read::Raw(Operand::Input(_))]);
        let children = [self.node.left, self.node.right].into_iter().flatten();
        let below = children.map(|child| {
            let link = lists.up(self.rail.member(child.place));
            if is_alone && child.is_leaf { Read::RecvRaw(link) } else { Read::Recv(link) }
        });
        let reads: Vec<Read> = own.iter().copied().chain(below).collect();
        match self.node.parent {
            Some(parent) => {
                pass_on(b, &reads, lists.up(self.rail.member(parent)));
            }
            None => {
                let sends = self.children().map(|rank| Write::Send(lists.down(rank)));
                let writes: Vec<Write> = writes.iter().copied().chain(sends).collect();
                b.transfer(&reads, &writes, true);
            }
        }
    }

    /// Hands on what the parent sends.
    fn down(&self, b: &mut RankBuilder, lists: Lists, writes: &[Write]) {
        let Some(parent) = self.node.parent else { return };
        let parent = self.rail.member(parent);
        let link = if self.is_below_root { lists.up(parent) } else { lists.down(parent) };
        let sends = self.children().map(|rank| Write::Send(lists.down(rank)));
        let writes: Vec<Write> = writes.iter().copied().chain(sends).collect();
        b.transfer(&[Read::Recv(link)], &writes, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::SLOTS;
    use crate::verify::verify;

    /// They are schedules as others are: each channel's own part makes the whole.
    #[test]
    fn rings_and_trees_of_each_channel_are_proven() {
        for (nodes, local) in [(2, 2), (2, 4), (3, 2), (4, 2), (5, 4)] {
            let placement = Placement::uniform(local);
            let proven = |kind, of: fn(Collective, Placement, Slots) -> Option<Schedule>| {
                let schedule = of(Collective::new(kind, nodes * local), placement, SLOTS).unwrap();
                assert!(schedule.lists_per_rank > 1);
                verify(schedule, Order::Any, false)
                    .unwrap_or_else(|found| panic!("{kind} {nodes} x {local}: {found}"));
            };
            [Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter]
                .into_iter()
                .for_each(|kind| proven(kind, rings));
            proven(Kind::AllReduce, trees);
        }
        for nodes in 2..6 {
            let collective = Collective::new(Kind::AllReduce, nodes);
            let schedule = trees(collective, Placement::uniform(1), SLOTS).unwrap();
            verify(schedule, Order::Any, false).unwrap();
        }
    }

    /// Through switches, too, every list but those that have nothing to hand down has one step.
    #[test]
    fn trees_of_switches_go_up_and_down_once() {
        let collective = Collective::new(Kind::AllReduce, 32);
        let schedule = trees_of_switches(collective, Placement::uniform(8), SLOTS).unwrap();
        let moves = |list: &Vec<Instruction>| {
            list.iter().filter(|one| matches!(one, Instruction::ReduceCopy { .. })).count()
        };
        let up = schedule.lists.iter().step_by(2).map(moves);
        assert!(up.into_iter().all(|moves| moves == 1));
        let down: usize = schedule.lists.iter().skip(1).step_by(2).map(moves).sum();
        // All but the root of each tree receive.
        assert_eq!(down, TREES * 8 * 3);
    }

    #[test]
    fn one_node_has_none() {
        let collective = Collective::new(Kind::AllReduce, 8);
        assert!(trees(collective, Placement::uniform(8), SLOTS).is_none());
    }
}
