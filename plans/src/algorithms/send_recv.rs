//! Send/recv: one rank's input is one other rank's output. The other ranks have no part in it.

use super::{Algorithm, Entries, IN_SLOTS, IN_WINDOWS, Orders, Request, entries, input_of};
use crate::collective::Kind::SendRecv;
use crate::schedule::{Chunking, Operand, Schedule};

pub(super) const ENTRIES: &[Entries] = &[
    entries(SendRecv, Algorithm::Direct, IN_SLOTS, false, Orders::All, direct),
    entries(SendRecv, Algorithm::Direct, IN_WINDOWS, false, Orders::All, direct_windows),
];

/// The sender sends, and need not wait for the receiver while slots are free.
fn direct(request: &Request) -> Schedule {
    let (sender, receiver) = (request.collective.root, request.collective.receiver);
    request.schedule(Chunking::Whole, Chunking::Whole, |b| {
        if b.rank() == sender {
            b.send(Operand::Input(0), request.link(receiver));
        } else if b.rank() == receiver {
            b.recv_copy(request.link(sender), Operand::Output(0));
        }
    })
}

/// The receiver fetches.
fn direct_windows(request: &Request) -> Schedule {
    let (sender, receiver) = (request.collective.root, request.collective.receiver);
    request.schedule(Chunking::Whole, Chunking::Whole, |b| {
        if b.rank() == sender {
            b.enter(&[receiver]);
            b.barrier(&[receiver]);
        } else if b.rank() == receiver {
            b.enter(&[sender]);
            b.copy(input_of(sender, 0), &[Operand::Output(0)]);
            b.barrier(&[sender]);
        }
    })
}
