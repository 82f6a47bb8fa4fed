//! Which way links between nodes are carried.

use crate::config::{Config, FabricKind};
use crate::error::Error;
use oxccl_transports::Nodes;
use oxccl_transports::proxy::Fabric;
use oxccl_transports::rdma::{Patience, RdmaError, RdmaFabric, Settings, share, usable_ports};
use oxccl_transports::tcp::Tcp;
use std::sync::Arc;

/// What this rank could use, before all have said so.
pub(super) struct Candidates {
    wanted: Option<FabricKind>,
    tcp: Tcp,
    /// The reason why not is told to the other ranks.
    rdma: Result<RdmaFabric, String>,
}

impl Candidates {
    /// Looks for adapters, unless TCP is wanted.
    pub(super) fn find(config: &Config, nodes: &Nodes, rank: usize) -> Candidates {
        let tcp = Tcp::new(config.link_sockets);
        let tcp = match config.link.write_limit_bytes {
            Some(limit) => tcp.with_short_writes(limit),
            None => tcp,
        };
        let rdma = match config.fabric {
            Some(FabricKind::Tcp) => Err("TCP is wanted".to_owned()),
            _ => rdma(config, nodes, rank).map_err(|error| error.to_string()),
        };
        Candidates { wanted: config.fabric, tcp, rdma }
    }

    /// What the other ranks are told: nothing where RDMA can be used, otherwise why not.
    pub(super) fn objection(&self) -> &str {
        self.rdma.as_ref().err().map_or("", String::as_str)
    }

    /// The choice, the same on every rank, by what each objects to.
    ///
    /// # Errors
    /// [`Error::Config`] names the first rank that cannot use what is wanted.
    pub(super) fn choose(self, objections: &[&str]) -> Result<Arc<dyn Fabric>, Error> {
        let first = objections.iter().enumerate().find(|(_, objection)| !objection.is_empty());
        match (self.rdma, first, self.wanted) {
            (Ok(rdma), None, _) => Ok(Arc::new(rdma)),
            (_, Some((rank, why)), Some(FabricKind::Rdma)) => Err(Error::Config {
                variable: "fabric",
                detail: format!("is rdma, which rank {rank} cannot use: {why}"),
            }),
            (_, first, _) => {
                if let (None, Some((rank, why))) = (self.wanted, first) {
                    tracing::info!(rank, why, "links between nodes go over TCP");
                }
                Ok(Arc::new(self.tcp))
            }
        }
    }
}

/// Over this rank's share of the adapters. Where parts of a machine stand for nodes, all of its ranks share them.
fn rdma(config: &Config, nodes: &Nodes, rank: usize) -> Result<RdmaFabric, RdmaError> {
    let beside = nodes.beside(rank);
    let (place, ranks) = match config.nodes {
        Some(_) => (rank, nodes.world()),
        None => (beside.clone().filter(|other| *other < rank).count(), beside.count()),
    };
    let ports = usable_ports(config.rdma_devices.as_deref())?;
    let settings = Settings { queue_pairs: config.rdma_queue_pairs, patience: Patience::default() };
    RdmaFabric::new(share(ports, place, ranks), settings)
}
