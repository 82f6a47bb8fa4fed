//! The algorithms: pure functions from a [`Request`] to a [`Schedule`](crate::schedule::Schedule),
//! a page each, and the catalogue of them.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod barrier;
mod binomial;
mod broadcast;
mod bruck;
mod chain;
pub(crate) mod channels;
mod doubling;
mod entry;
mod exchange;
mod gather;
mod halving_doubling;
mod hierarchical;
mod multi_ring;
mod name;
mod packing;
mod reduce;
mod reduce_scatter;
mod request;
mod scatter;
mod send_recv;
mod spread;
mod team;
mod tree;

pub use exchange::{Pattern, exchange, receipts};

pub use entry::{Entry, Orders, Reason, Unavailable};
pub use name::{Algorithm, Encoding, Inner, Outer};
pub use request::{Pipeline, Request};

use crate::collective::Kind;
use entry::{Entries, IN_SLOTS, IN_WINDOWS, Need, entries};
use request::{input_of, output_of};
use std::sync::LazyLock;

const PAGES: [&[Entries]; 18] = [
    all_reduce::ENTRIES,
    reduce_scatter::ENTRIES,
    all_gather::ENTRIES,
    all_to_all::ENTRIES,
    broadcast::ENTRIES,
    reduce::ENTRIES,
    gather::ENTRIES,
    scatter::ENTRIES,
    send_recv::ENTRIES,
    barrier::ENTRIES,
    tree::ENTRIES,
    binomial::ENTRIES,
    chain::ENTRIES,
    doubling::ENTRIES,
    halving_doubling::ENTRIES,
    bruck::ENTRIES,
    multi_ring::ENTRIES,
    hierarchical::ENTRIES,
];

/// All there are.
pub fn catalogue() -> impl Iterator<Item = &'static Entry> {
    static ALL: LazyLock<Vec<Entry>> =
        LazyLock::new(|| PAGES.into_iter().flatten().flat_map(Entries::each).collect());
    ALL.iter()
}

/// The entry of this name, if the kind has it.
pub fn find(kind: Kind, algorithm: Algorithm, encoding: Encoding) -> Option<&'static Entry> {
    catalogue().find(|e| e.kind == kind && e.algorithm == algorithm && e.encoding == encoding)
}
