//! All-to-all in ceil(log2 n) steps: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms
//! for all-to-all communications in multiport message-passing systems" (1997). It sends each block
//! up to log2 n times to send few messages: for small blocks.

use super::packing::{Inbox, Outbox, by_bits};
use super::{Algorithm, Entries, IN_SLOTS, Need, Orders, Request, entries};
use crate::collective::Kind::AllToAll;
use crate::schedule::{Chunking, Operand, Schedule};

pub(super) const ENTRIES: &[Entries] =
    &[entries(AllToAll, Algorithm::Bruck, IN_SLOTS, false, Orders::All, bruck)
        .needs(&[Need::Held])];

/// A block that goes d ranks further travels 2^k ranks in step k if bit k of d is set. It waits in
/// the slot in which it has come until it is sent on, so nothing is stored or moved in between.
fn bruck(request: &Request) -> Schedule {
    let n = request.ranks();
    request.schedule(Chunking::PerRank(1), Chunking::PerRank(1), |b| {
        let rank = b.rank();
        b.copy(Operand::Input(rank), &[Operand::Output(rank)]);
        let mut inboxes: Vec<Inbox> = Vec::new();
        for step in 0..n.next_power_of_two().ilog2() {
            let distances = distances(n, step);
            let mut outbox = Outbox::new(request.link((rank + (1 << step)) % n), distances.len());
            for &distance in &distances {
                // It came in the step of its highest bit below this one.
                let travelled = distance & ((1 << step) - 1);
                let mut inbox = travelled.checked_ilog2().map(|bit| &mut inboxes[bit as usize]);
                let source = match &mut inbox {
                    Some(inbox) => inbox.segment(b),
                    None => Operand::Input((rank + distance) % n),
                };
                let segment = outbox.segment(b);
                b.copy(source, &[segment]);
                outbox.settle(b);
                if let Some(inbox) = inbox {
                    inbox.settle(b);
                }
            }
            let from = (rank + n - (1 << step)) % n;
            let mut inbox = Inbox::new(request.link(from), distances.len());
            for distance in distances.into_iter().filter(|distance| distance >> (step + 1) == 0) {
                let segment = inbox.segment(b);
                b.copy(segment, &[Operand::Output((rank + n - distance) % n)]);
                inbox.settle(b);
            }
            inboxes.push(inbox);
        }
    })
}

/// The distances of the blocks that travel in a step: those that arrive first, the others in the
/// order of their further steps.
fn distances(n: usize, step: u32) -> Vec<usize> {
    let mut distances: Vec<usize> = (0..n).filter(|distance| distance >> step & 1 == 1).collect();
    distances.sort_by_cached_key(|distance| {
        let left = distance >> (step + 1);
        (left > 0, by_bits(left, 0), *distance)
    });
    distances
}
