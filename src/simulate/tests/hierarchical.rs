//! An all-reduce over two nodes in which no adapter waits for the switch for long: what the ceiling is compared with.

use crate::collective::{Collective, Kind};
use crate::schedule::{
    Chunking, Lane, Link, Operand, RankBuilder, Read, SLOTS, Schedule, Tree, Write,
};

/// Ranks of a node.
const LOCAL: usize = 8;

/// Reduce-scatter inside, all-reduce across on every rail, all-gather inside. A rank's two chunks are half a call apart: one crosses while
/// the other is reduced, or handed around.
pub(super) fn two_nodes() -> Schedule {
    let ranks = (0..2 * LOCAL)
        .map(|rank| {
            let mut b = RankBuilder::new(rank, SLOTS, Tree::Left);
            list(&mut b, rank / LOCAL, rank % LOCAL);
            b.finish()
        })
        .collect();
    Schedule {
        collective: Collective::new(Kind::AllReduce, 2 * LOCAL),
        input: Chunking::PerRank,
        output: Chunking::PerRank,
        slots: SLOTS,
        ranks,
    }
}

fn list(b: &mut RankBuilder, node: usize, local: usize) {
    let link = |node: usize, local: usize| Link { peer: node * LOCAL + local, lane: Lane::Slots };
    let across = link(1 - node, local);
    let (next, previous) =
        (link(node, (local + 1) % LOCAL), link(node, (local + LOCAL - 1) % LOCAL));
    let chunk = |half: usize, local: usize| half * LOCAL + local % LOCAL;
    let (theirs, ours) = (1 - node, node);
    // The half that the other node finishes comes first, so that it crosses while ours is reduced.
    reduce_scatter(b, next, previous, local, |at| chunk(theirs, at), &[Write::Send(across)]);
    let own = Operand::Output(chunk(ours, local));
    reduce_scatter(b, next, previous, local, |at| chunk(ours, at), &[Write::To(own)]);
    let reads = [Read::Plain(own), Read::Recv(across)];
    b.transfer(&reads, &[Write::To(own), Write::Send(across), Write::Send(next)], true);
    all_gather(b, next, previous, local, |at| chunk(ours, at));
    let other = Operand::Output(chunk(theirs, local));
    b.transfer(&[Read::Recv(across)], &[Write::To(other), Write::Send(next)], false);
    all_gather(b, next, previous, local, |at| chunk(theirs, at));
}

fn reduce_scatter(
    b: &mut RankBuilder,
    next: Link,
    previous: Link,
    local: usize,
    chunk: impl Fn(usize) -> usize,
    last: &[Write],
) {
    b.transfer(&[Read::Raw(Operand::Input(chunk(local + LOCAL - 1)))], &[Write::Send(next)], false);
    for step in 1..LOCAL {
        let own = Read::Raw(Operand::Input(chunk(local + 2 * LOCAL - 1 - step)));
        let writes = if step + 1 < LOCAL { &[Write::Send(next)][..] } else { last };
        b.transfer(&[Read::Recv(previous), own], writes, false);
    }
}

/// The own chunk has been sent.
fn all_gather(
    b: &mut RankBuilder,
    next: Link,
    previous: Link,
    local: usize,
    chunk: impl Fn(usize) -> usize,
) {
    for step in 1..LOCAL {
        let output = Operand::Output(chunk(local + LOCAL - step));
        if step + 1 < LOCAL {
            b.recv_copy_send(previous, output, next);
        } else {
            b.recv_copy(previous, output);
        }
    }
}
