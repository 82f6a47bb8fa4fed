//! Send/recv: one rank's input is one other rank's output. The other ranks have no part in it.

use super::{Algorithm, Encoding, Entry, Orders, Request, entry, input_of};
use crate::collective::Kind::SendRecv;
use crate::schedule::{Chunking, Operand, Schedule};

pub(super) const ENTRIES: &[Entry] = &[
    entry(SendRecv, Algorithm::Direct, Encoding::Ll, false, Orders::All, direct),
    entry(SendRecv, Algorithm::Direct, Encoding::Ll128, false, Orders::All, direct),
    entry(SendRecv, Algorithm::Direct, Encoding::Slots, false, Orders::All, direct),
    entry(SendRecv, Algorithm::Direct, Encoding::Windows, false, Orders::All, direct_windows),
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
