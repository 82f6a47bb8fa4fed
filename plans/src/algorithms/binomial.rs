//! Binomial trees: broadcast and reduce in ceil(log2 n) steps, and all-reduce as the one after the
//! other (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
//! MPICH", 2005; Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory,
//! practice, and experience", 2007).

use super::team::blocks;
use super::{Algorithm, Entries, IN_SLOTS, Orders, Request, entries};
use crate::collective::Kind::{AllReduce, Broadcast, Reduce};
use crate::schedule::{Chunking, Link, Operand, RankBuilder, Read, Schedule, Tree, Write};

pub(super) const ENTRIES: &[Entries] = &[
    entries(Broadcast, Algorithm::Binomial, IN_SLOTS, true, Orders::All, broadcast),
    entries(Reduce, Algorithm::Binomial, IN_SLOTS, true, Orders::Tree, reduce),
    entries(AllReduce, Algorithm::ReduceBroadcast, IN_SLOTS, true, Orders::Tree, reduce_broadcast),
];

/// The root sends to the rank half of all ranks behind it, then to that a quarter behind it, and so
/// on; and so does each who has received.
fn broadcast(request: &Request) -> Schedule {
    let root = request.collective.root;
    request.schedule(Chunking::Whole, Chunking::Whole, |b| {
        let node = Node::of(request, b.rank(), root);
        let read = match node.parent {
            Some(parent) => Read::Recv(parent),
            None => Read::Plain(Operand::Input(0)),
        };
        b.transfer(&[read], &node.writes(), false);
    })
}

/// Neighbours reduce, then neighbouring pairs, and so on: the aligned binary tree. What contains
/// the root is reduced there, anything else at its lowest rank.
fn reduce(request: &Request) -> Schedule {
    let root = request.collective.root;
    request.schedule(Chunking::Whole, Chunking::Whole, |b| {
        reduce_steps(b, request, root, &[Write::To(Operand::Output(0))]);
    })
}

/// Reduced at rank 0 and broadcast from there.
fn reduce_broadcast(request: &Request) -> Schedule {
    request.schedule(Chunking::Whole, Chunking::Whole, |b| {
        let node = Node::of(request, b.rank(), 0);
        reduce_steps(b, request, 0, &node.writes());
        if let Some(parent) = node.parent {
            b.transfer(&[Read::Recv(parent)], &node.writes(), false);
        }
    })
}

/// A rank in the broadcast's tree.
struct Node {
    parent: Option<Link>,
    /// Those with the most ranks behind them first.
    children: Vec<Link>,
}

impl Node {
    fn of(request: &Request, rank: usize, root: usize) -> Node {
        let n = request.ranks();
        let place = (rank + n - root) % n;
        let link = |place: usize| request.link((place + root) % n);
        let lowest = if place == 0 { n.next_power_of_two() } else { 1 << place.trailing_zeros() };
        let distances = (0..lowest.ilog2()).rev().map(|bit| 1 << bit);
        Node {
            parent: (place > 0).then(|| link(place - lowest)),
            children: distances.map(|d: usize| place + d).filter(|p| *p < n).map(link).collect(),
        }
    }

    fn writes(&self) -> Vec<Write> {
        let sends = self.children.iter().map(|child| Write::Send(*child));
        [Write::To(Operand::Output(0))].into_iter().chain(sends).collect()
    }
}

/// Reduces to the root, where the result goes to `results`. The root's output serves it for partial
/// results.
fn reduce_steps(b: &mut RankBuilder, request: &Request, root: usize, results: &[Write]) {
    let rank = b.rank();
    let home = |low: usize, high: usize| if (low..high).contains(&root) { root } else { low };
    let mut terms = vec![Read::Raw(Operand::Input(0))];
    for (low, middle, high) in blocks(request.ranks(), rank) {
        let (mine, other) = match rank < middle {
            true => ((low, middle), (middle, high)),
            false => ((middle, high), (low, middle)),
        };
        let peer = request.link(home(other.0, other.1));
        if home(mine.0, mine.1) != rank {
            return;
        }
        if home(low, high) != rank {
            return match terms[..] {
                [_] => b.send(Operand::Input(0), peer),
                _ => b.transfer_as(Tree::Left, &terms, &[Write::Send(peer)], false),
            };
        }
        let is_raw = other.1 - other.0 == 1;
        let read = if is_raw { Read::RecvRaw(peer) } else { Read::Recv(peer) };
        if other.0 < mine.0 {
            // It comes before what has been reduced here so far, which must be one value then.
            if terms.len() > 1 {
                b.transfer_as(Tree::Left, &terms, &[Write::To(Operand::Output(0))], false);
                terms = vec![Read::Plain(Operand::Output(0))];
            }
            terms.insert(0, read);
        } else {
            terms.push(read);
        }
    }
    if rank == root {
        b.transfer_as(Tree::Left, &terms, results, true);
    }
}
