//! What thresholds ask for: entries in order of preference, of which the first that fits is taken.

use super::Offered;
use crate::algorithms::{Algorithm, Encoding, Entry, Inner, Outer};
use crate::collective::Kind;

/// An entry that would be good, and why.
pub(super) type Wish = (Algorithm, Encoding, &'static str);

/// The first wish that fits, and why.
pub(super) fn first(wishes: Vec<Wish>, offered: &Offered) -> Option<(&'static Entry, String)> {
    let granted = wishes.into_iter().find_map(|(algorithm, encoding, reason)| {
        let entry = offered.iter().find(|e| e.algorithm == algorithm && e.encoding == encoding)?;
        Some((*entry, reason.to_string()))
    });
    granted.or_else(|| Some((*offered.first()?, "the one that fits what is pinned".to_string())))
}

/// Up to so many nodes, a power of two, doubling is faster than trees even if it is long.
const DOUBLING_NODES: usize = 16;
/// The same of other numbers, whose halves differ.
const ODD_DOUBLING_NODES: usize = 3;

/// An all-reduce of nodes that have different numbers of ranks, for which two algorithms are made.
pub(super) fn of_uneven_nodes(is_short: bool, nodes: usize) -> Vec<Wish> {
    let by = |outer, reason| {
        [Encoding::Windows, Encoding::Slots]
            .map(|encoding| (Algorithm::Hierarchical(Inner::Direct, outer), encoding, reason))
    };
    let doubling = by(Outer::Doubling, "nodes that differ: few steps between them");
    let most = if nodes.is_power_of_two() { DOUBLING_NODES } else { ODD_DOUBLING_NODES };
    match is_short || nodes <= most {
        true => doubling.to_vec(),
        false => [by(Outer::Tree, "nodes that differ, long: along two trees"), doubling].concat(),
    }
}

/// Inside of a node, where peers' memory is only read: by the system.
pub(super) fn reading(kind: Kind) -> Algorithm {
    match kind {
        Kind::AllReduce => Algorithm::TwoShot,
        Kind::AllToAll => Algorithm::Pairwise,
        Kind::Broadcast | Kind::Reduce | Kind::Gather => Algorithm::DirectPull,
        _ => Algorithm::Direct,
    }
}

/// Inside of a node: for small messages, through slots, and in place.
pub(super) fn of_one_node(kind: Kind) -> [Algorithm; 3] {
    match kind {
        Kind::AllReduce => [Algorithm::OneShot, Algorithm::TwoShot, Algorithm::TwoShotPush],
        Kind::AllGather => [Algorithm::Direct, Algorithm::Direct, Algorithm::DirectPush],
        Kind::AllToAll => [Algorithm::Direct, Algorithm::Direct, Algorithm::Pairwise],
        Kind::Barrier => [Algorithm::Dissemination; 3],
        _ => [Algorithm::Direct; 3],
    }
}
