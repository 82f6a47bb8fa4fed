//! The heaps of a node's ranks, as one of them reaches them.

use oxccl_transports::Region;
use oxccl_transports::cuda::DeviceRegion;
use std::sync::Arc;

/// Memory by rank; none of ranks of other nodes.
pub(crate) type ByRank<T> = Vec<Option<Arc<T>>>;

/// By rank.
#[derive(Clone, Debug)]
pub(crate) enum Heaps {
    Host(ByRank<Region>),
    Device(ByRank<DeviceRegion>),
}

impl Heaps {
    /// Those of some of the ranks, in this order.
    pub(crate) fn of_ranks(&self, ranks: &[usize]) -> Heaps {
        match self {
            Heaps::Host(heaps) => Heaps::Host(picked(heaps, ranks)),
            Heaps::Device(heaps) => Heaps::Device(picked(heaps, ranks)),
        }
    }
}

fn picked<T: Clone>(all: &[T], ranks: &[usize]) -> Vec<T> {
    ranks.iter().map(|rank| all[*rank].clone()).collect()
}
