//! Barrier: no rank leaves before every rank has entered. By dissemination (Hensgen, Finkel and
//! Manber, "Two algorithms for barrier synchronization", 1988).

use super::{Algorithm, Encoding, Entries, Orders, Request, entries};
use crate::collective::Kind::Barrier;
use crate::schedule::{Chunking, Operand, Schedule};

pub(super) const ENTRIES: &[Entries] = &[entries(
    Barrier,
    Algorithm::Dissemination,
    &[Encoding::Ll, Encoding::Slots],
    true,
    Orders::All,
    dissemination,
)];

/// In step k rank r tells rank r + 2^k and hears from rank r - 2^k: after ceil(log2 n) steps it has
/// heard, directly or not, from all.
fn dissemination(request: &Request) -> Schedule {
    let n = request.ranks();
    request.rotational(Chunking::Whole, Chunking::Whole, |b| {
        let rank = b.rank();
        let mut distance = 1;
        while distance < n {
            let from = (rank + n - distance) % n;
            b.send(Operand::Tokens, request.link((rank + distance) % n));
            b.recv_copy(request.link(from), Operand::PeerTokens(from));
            distance *= 2;
        }
    })
}
