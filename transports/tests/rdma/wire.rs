//! The wire: proxies of two ranks in one process, over the devices of two nodes.

use std::sync::Arc;

use oxccl_transports::proxy::{Conditions, Fabric};
use oxccl_transports::rdma::{Patience, RdmaFabric, Settings};

use super::links::{exchange, pair};
use super::pair::port;

/// Over so many queue pairs.
fn fabric(queue_pairs: usize) -> impl Fn(usize) -> Arc<dyn Fabric> {
    move |rank| {
        let settings = Settings { queue_pairs, patience: Patience::default() };
        Arc::new(RdmaFabric::new(vec![port(rank)], settings).unwrap())
    }
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn messages_and_counters_cross_over_one_queue_pair_and_over_several() {
    for queue_pairs in [1, 3] {
        exchange(&pair(fabric(queue_pairs), Conditions::default()), 40);
    }
}
